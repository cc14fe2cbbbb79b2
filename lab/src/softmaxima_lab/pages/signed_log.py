"""A logarithmic axis for numbers of both signs, linear around 0: x ↦ asinh(x/c)."""

from __future__ import annotations

import math
from typing import Any

from softmaxima_lab.pages.figures import GRID

SCALE = 0.01  # c, where the axis turns from linear to logarithmic
TICKS = (10.0, 1.0, 0.1, 0.01)


def signed_log(x: float) -> float:
    """The place of a number on the axis.

    >>> [round(signed_log(x), 2) for x in (-1.0, 0.0, 0.01, 1.0)]
    [-5.3, 0.0, 0.88, 5.3]
    """
    return math.asinh(x / SCALE)


def axis(reach: float, ticks: tuple[float, ...] = TICKS) -> dict[str, Any]:
    """The axis from −reach to reach, with a tick at 0 and at both signs of `ticks`."""
    values = [*(-tick for tick in ticks), 0.0, *reversed(ticks)]
    return {
        "range": [signed_log(-reach), signed_log(reach)],
        "tickvals": [signed_log(value) for value in values],
        "ticktext": [f"{value:g}".replace("-", "−") for value in values],
        **GRID,
    }
