"""The functions of `native.py`, with the same arguments and results, for tensors on a GPU.

Nothing here waits for the device, so that a CUDA graph can record it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.kernels.native import in_memory
from softmaxima.kernels.triton import (
    elastic_softmax,
    entmax,
    entmax15,
    log_softmax,
    rectified_softmax,
    softmax,
    sparsemax,
    taylor_softmax,
    topk_softmax,
    topp_softmax,
)
from softmaxima.kernels.triton import logsumexp as logsumexp_rows
from softmaxima.kernels.triton import loss as losses
from softmaxima.kernels.triton.rows import RowFunctions, launch, read, scale

FORWARD: dict[str, RowFunctions] = {
    "softmax": softmax.FORWARD,
    "log_softmax": log_softmax.FORWARD,
    "elastic_softmax": elastic_softmax.FORWARD,
    "rectified_softmax": rectified_softmax.FORWARD,
    "taylor_softmax": taylor_softmax.FORWARD,
    "sparsemax": sparsemax.FORWARD,
    "entmax15": entmax15.FORWARD,
    "entmax": entmax.FORWARD,
    "topk_softmax": topk_softmax.FORWARD,
    "topp_softmax": topp_softmax.FORWARD,
}

BACKWARD: dict[str, RowFunctions] = {
    "softmax_backward": softmax.BACKWARD,
    "log_softmax_backward": log_softmax.BACKWARD,
    "rectified_backward": rectified_softmax.BACKWARD,
    "taylor_backward": taylor_softmax.BACKWARD,
    "sparsemax_backward": sparsemax.BACKWARD,
    "entmax15_backward": entmax15.BACKWARD,
    "entmax_backward": entmax.BACKWARD,
}

Number = float | Tensor

LARGEST_ORDER = 1e30  # of entmax: from here on p has stopped changing, and float32 does not overflow


def beta_of(name: str, theta: Number) -> Number:
    """β of a map with a threshold, in double before it is rounded; of others the parameter itself."""
    kind = name.split("_")[0]
    if kind == "entmax":
        return theta.double().clamp_max(LARGEST_ORDER) - 1.0 if isinstance(theta, Tensor) else min(theta, LARGEST_ORDER) - 1.0
    return {"sparsemax": 1.0, "entmax15": 0.5}.get(kind, theta)


def forward(name: str, x: Tensor, tau: Number, where: Tensor | None, theta: Number) -> Tensor:
    """The map of the rows x [..., n]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows = read(x, x, tau, where, beta_of(name, theta))
    with on_device(x):
        return launch(FORWARD[name], rows, None, None, out)


def backward(name: str, p: Tensor, g: Tensor, x: Tensor | None, tau: Number, where: Tensor | None, theta: Number) -> Tensor:
    """∂⟨g, p⟩/∂x for p = map(x/τ); x where the derivative depends on it."""
    out = torch.empty(p.shape, dtype=p.dtype, device=p.device)
    if p.numel() == 0:
        return out
    rows = read(x, p, tau, where, beta_of(name, theta))
    with on_device(p):
        return launch(BACKWARD[name], rows, p.contiguous(), in_memory(g), out)


def logsumexp(x: Tensor, tau: Number, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor]:
    """(LSE [...] in x's dtype; its state [2, ...] in double: the largest x, and LSE(x/τ) less that over τ)."""
    states = torch.full((*x.shape[:-1], 2), -math.inf, dtype=torch.float64, device=x.device)
    if x.numel() > 0:
        with on_device(x):
            launch(logsumexp_rows.FORWARD, read(x, x, tau, where, 0.0), None, None, states)
    states = states.movedim(-1, 0).contiguous()
    maximum, log_sum = states
    top = maximum / (tau.double().squeeze(-1) if isinstance(tau, Tensor) else tau)
    return (top + log_sum).to(x.dtype), states


def logsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: Number, where: Tensor | None) -> Tensor:
    """g · softmax(x/τ)/τ, from the states of `logsumexp`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    maximum, log_sum = states
    rows = read(x, x, tau, where, log_sum.unsqueeze(-1))
    with on_device(x):
        return launch(logsumexp_rows.BACKWARD, rows, maximum.contiguous(), in_memory(g), out)


def loss(
    name: str,
    x: Tensor,
    target: Tensor,
    *,
    theta: Number,
    class_weight: Tensor | None,
    smoothing: float,
    scale: float | Tensor,
    fenchel: bool,
    gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """(the loss of each row [...] in double, `scale` times its gradient by x).

    The target holds labels [...], below n and negative for a row to leave out, or probabilities [..., n] in x's dtype.
    """
    values = torch.zeros(x.shape[:-1], dtype=torch.float64, device=x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if gradient else None
    if x.numel() == 0:
        return values, out
    rows = read(x, x, 1.0, None, beta_of(name, theta))
    hard = target.dtype == torch.int64
    labels, soft = (in_memory(target), None) if hard else (None, in_memory(target))
    weights = None if class_weight is None else in_memory(class_weight.to(torch.float64))
    with on_device(x):
        losses.launch(losses.LOSSES[name], rows, labels, soft, weights, smoothing, scale, fenchel, values, out)
    return values, out


def scale_rows(x: Tensor, factors: Tensor) -> Tensor:
    """x [..., n] times one factor, or one a row [...], in the memory of x, which is contiguous."""
    with on_device(x):
        return scale(x, factors)


def on_device(x: Tensor) -> torch.cuda.device:
    """Kernels run on the current device, which need not be the tensor's; of a tensor on the CPU this does nothing."""
    return torch.cuda.device(x.device.index if x.is_cuda else -1)
