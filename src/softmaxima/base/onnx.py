"""What ONNX has no operator for: composed of those it has, to some 1e-7, or refused with a word."""

from __future__ import annotations

import torch
from torch import Tensor

from softmaxima.base.tracing import is_exporting_to_onnx


def expm1(x: Tensor) -> Tensor:
    """eˣ − 1 = 2t/(1 − t) with t = tanh(x/2), which keeps the digits of a small x."""
    if not is_exporting_to_onnx():
        return torch.expm1(x)
    t = (x / 2).tanh()
    return torch.where(x.abs() < 1, 2 * t / (1 - t), x.exp() - 1)


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """log(eˣ + eʸ)."""
    if not is_exporting_to_onnx():
        return torch.logaddexp(x, y)
    return torch.maximum(x, y) + (-(x - y).abs()).masked_fill(x == y, 0.0).exp().log1p()


def logsigmoid(x: Tensor) -> Tensor:
    """−log(1 + e^{−x}); an exporter has log(σ(x)), which is not finite where σ(x) rounds to 0."""
    if not is_exporting_to_onnx():
        return torch.nn.functional.logsigmoid(x)
    return x.clamp_max(0.0) - (-x.abs()).exp().log1p()


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y); ONNX Runtime has none in float64."""
    return torch.atan2(y.float(), x.float()).to(x.dtype) if is_exporting_to_onnx() else torch.atan2(y, x)


# Of log(erfcx(x)/t) by powers of t = 1/(1 + x/2): Numerical Recipes, §6.2, within 1.2e-7 of erfcx.
ERFCX = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)


def erfcx(x: Tensor) -> Tensor:
    """exp(x²) erfc(x) of x ≥ 0."""
    if not is_exporting_to_onnx():
        return torch.special.erfcx(x)
    t = 1 / (1 + x / 2)
    power = torch.zeros_like(t)
    for coefficient in reversed(ERFCX):
        power = power * t + coefficient
    return t * power.exp()


def refuse_export(name: str, lacking: str) -> None:
    """Raise where an exporter to ONNX looks on."""
    if is_exporting_to_onnx():
        raise NotImplementedError(f"{name}: cannot be exported to ONNX, which has no {lacking}")
