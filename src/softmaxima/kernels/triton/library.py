"""The functions of `native.py`, with the same arguments and results, for tensors on a GPU.

Nothing here waits for the device, so that a CUDA graph can record it.
"""

from __future__ import annotations

import functools
import importlib
import math
from types import ModuleType

import torch
from torch import Tensor

from softmaxima.kernels.kernel import Kernel, Theta
from softmaxima.kernels.layout import in_memory
from softmaxima.kernels.triton import logsumexp as logsumexp_rows
from softmaxima.kernels.triton import loss as losses
from softmaxima.kernels.triton.launches import launch, read, scale

Number = float | Tensor


@functools.cache
def module_of(name: str) -> ModuleType | None:
    """The module with the Triton functions of a kernel, None where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # of what the module imports
        return None


def has(kernel: Kernel, what: str) -> bool:
    """Whether Triton has the kernel's "forward", "backward" or "loss"."""
    return hasattr(module_of(kernel.triton), what.upper())


def forward(kernel: Kernel, x: Tensor, tau: Number, where: Tensor | None, theta: Theta) -> Tensor:
    """The map of the rows x [..., n]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows = read(x, x, tau, where, theta)
    with on_device(x):
        return launch(module_of(kernel.triton).FORWARD, rows, None, None, out)


def backward(kernel: Kernel, p: Tensor, g: Tensor, x: Tensor | None, tau: Number, where: Tensor | None, theta: Theta) -> Tensor:
    """∂⟨g, p⟩/∂x for p = map(x/τ); x where the derivative depends on it."""
    out = torch.empty(p.shape, dtype=p.dtype, device=p.device)
    if p.numel() == 0:
        return out
    rows = read(x, p, tau, where, theta)
    with on_device(p):
        return launch(module_of(kernel.triton).BACKWARD, rows, p.contiguous(), in_memory(g), out)


def logsumexp(x: Tensor, tau: Number, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor]:
    """(LSE [...] in x's dtype; its state [2, ...] in double: the largest x, and LSE(x/τ) less that over τ)."""
    states = torch.full((*x.shape[:-1], 2), -math.inf, dtype=torch.float64, device=x.device)
    if x.numel() > 0:
        with on_device(x):
            launch(logsumexp_rows.FORWARD, read(x, x, tau, where), None, None, states)
    states = states.movedim(-1, 0).contiguous()
    maximum, log_sum = states
    top = maximum / (tau.double().squeeze(-1) if isinstance(tau, Tensor) else tau)
    return (top + log_sum).to(x.dtype), states


def logsumexp_rest(x: Tensor, tau: Number, where: Tensor | None) -> tuple[Tensor, Tensor]:
    """(the largest x [...], M; Σ exp((x − M)/τ) − 1) in double."""
    _, (maximum, log_sum) = logsumexp(x, tau, where, wide=True)
    return maximum, log_sum.expm1()


def logsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: Number, where: Tensor | None) -> Tensor:
    """g · softmax(x/τ)/τ, from the states of `logsumexp`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    maximum, log_sum = states
    rows = read(x, x, tau, where, (log_sum.unsqueeze(-1),))
    with on_device(x):
        return launch(logsumexp_rows.BACKWARD, rows, maximum.contiguous(), in_memory(g), out)


def loss(
    kernel: Kernel,
    x: Tensor,
    target: Tensor,
    *,
    theta: Theta,
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
    rows = read(x, x, 1.0, None, theta)
    with on_device(x):
        given, results = losses.target_of(target, class_weight, smoothing), losses.results_of(values, out, scale)
        losses.launch(module_of(kernel.triton).LOSS, rows, given, results, fenchel)
    return values, out


def scale_rows(x: Tensor, factors: Tensor) -> Tensor:
    """x [..., n] times one factor, or one a row [...], in the memory of x, which is contiguous."""
    with on_device(x):
        return scale(x, factors)


def on_device(x: Tensor) -> torch.cuda.device:
    """Kernels run on the current device, which need not be the tensor's; of a tensor on the CPU this does nothing."""
    return torch.cuda.device(x.device.index if x.is_cuda else -1)
