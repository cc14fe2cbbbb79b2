"""What ONNX has no operator for: composed of those it has, to some 1e-7, or refused with a word."""

from __future__ import annotations

import torch
from torch import Tensor

from softmaxima.core.tracing import is_exporting_to_onnx


def expm1(x: Tensor) -> Tensor:
    """eˣ − 1 = 2t/(1 − t) with t = tanh(x/2), which keeps the digits of a small x."""
    if not is_exporting_to_onnx():
        return torch.expm1(x)
    t = (x / 2).tanh()
    return torch.where(x.abs() < 1, 2 * t / (1 - t), x.exp() - 1)


def refuse_export(name: str, lacking: str) -> None:
    """Raise where an exporter to ONNX looks on."""
    if is_exporting_to_onnx():
        raise NotImplementedError(f"{name}: cannot be exported to ONNX, which has no {lacking}")
