"""Scores that no message may show: what arrived is told by its type, and of rows how many axes they have."""

from __future__ import annotations

from typing import Any

import numpy as np


def kind_of(value: Any) -> str:
    """What arrived, with nothing of what is in it."""
    if value is None:
        return "None"
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else f"{type(value).__name__} of {dtype}"


def read_scores(name: str, x: Any, whose: str = "") -> np.ndarray:
    """One row of scores, float64 [n], which may be empty; `whose` is the end of what they are called."""
    from softmaxima.base.arguments import as_scores  # which loads torch, and processes that only compute do without

    what = f"scores{whose}"
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: {what} must not be a masked array; pass .compressed(), and let which are masked be public")
    if getattr(x, "is_nested", False):
        raise TypeError(f"{name}: {what} must be a dense tensor, got a nested one; pass one of its rows at a time")
    if getattr(x, "is_meta", False):
        raise TypeError(f"{name}: {what} must have numbers, got a tensor of the meta device; pass one with data")
    row = as_scores(name, x, what).detach().double().cpu().numpy()
    if row.ndim != 1:
        raise ValueError(f"{name}: {what} must be one row [n], got {row.ndim} axes; pass one row at a time")
    return row
