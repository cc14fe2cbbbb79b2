"""What native libraries do with tensors on the CPU, by `interface.py`. Nothing here knows of autograd."""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.kernels import interface
from softmaxima.kernels.interface import AVAILABLE, find_function, run, threads
from softmaxima.kernels.kernel import Kernel, Theta
from softmaxima.kernels.layout import (
    DTYPES,
    Layout,
    address_of,
    described,
    fresh,
    in_memory,
    one_per_row,
    read_rows,
    readable,
)
from softmaxima.kernels.structures import (
    BACKWARD,
    ELEMENTWISE,
    FORWARD,
    GAPS,
    GIVEN_LOSS,
    KEPT,
    LOSS,
    NO_MARGIN,
    PAIRS,
    QUANTIZED,
    WEIGHTED,
    Backward,
    Elementwise,
    Forward,
    Gaps,
    GivenLoss,
    Kept,
    Loss,
    Margin,
    Pairs,
    Quantized,
    Weighted,
)


def has(kernel: Kernel, what: str) -> bool:
    """Whether there is a library with the kernel's "forward", "backward" or "loss"."""
    return getattr(kernel.functions, what) is not None


def forward(kernel: Kernel, x: Tensor, tau: float | Tensor, where: Tensor | None, theta: Theta) -> Tensor:
    """The map of the rows x [..., n]."""
    rows, layout, _kept = read_rows(x, tau, where, theta)
    out = fresh(layout.empty(x))
    run(kernel.functions.forward, FORWARD(*rows, *Forward(out=out.data_ptr())))
    return out


def backward(
    kernel: Kernel, p: Tensor, g: Tensor, x: Tensor | None, tau: float | Tensor, where: Tensor | None, theta: Theta
) -> Tensor:
    """∂⟨g, p⟩/∂x for p = map(x/τ); x where the derivative depends on it."""
    p = p.resolve_neg()
    layout, p_read, stride = readable(p)
    if stride != layout.n and layout.inner == 1:
        p_read = p.contiguous()
    g_read = layout.to_memory(g)
    x_read = None if x is None else layout.to_memory(x)
    out = fresh(layout.empty(p))
    rows, _kept = described(p, layout, address_of(x_read), layout.n, tau, where, theta)
    own = Backward(p=p_read.data_ptr(), states=0, g=g_read.data_ptr(), out=out.data_ptr())
    run(kernel.functions.backward, BACKWARD(*rows, *own))
    return out


def backward_of_labels(kernel: Kernel, p: Tensor, g: Tensor, labels: Tensor, x: Tensor | None, theta: Theta) -> Tensor:
    """∂ Σ g p_label/∂x for p = map(x), one label a row, negative for none; takes p's place. Of the package's own kernels."""
    layout, p_read, _ = readable(p)
    labels, g, x_read = in_memory(labels), in_memory(g), None if x is None else layout.to_memory(x)
    rows, _kept = described(p, layout, address_of(x_read), layout.n, 1.0, None, theta)
    own = Backward(p=p_read.data_ptr(), states=0, g=g.data_ptr(), out=p_read.data_ptr(), labels=labels.data_ptr())
    run(kernel.functions.backward, BACKWARD(*rows, *own))
    return p_read


def logsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor | None]:
    """(LSE [...] in x's dtype; if `wide` its state [2, ...] in double: the largest x, and LSE(x/τ) less that over τ)."""
    return _sum("logsumexp", x, tau, where, wide)


def log_mean_exp(x: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor | None]:
    """(LSE less the logarithm of how many scores are allowed [...] in x's dtype; if `wide` the state that `logsumexp` has)."""
    return _sum("log_mean_exp", x, tau, where, wide)


def _sum(name: str, x: Tensor, tau: float | Tensor, where: Tensor | None, wide: bool) -> tuple[Tensor, Tensor | None]:
    out = torch.empty(tuple(x.shape[:-1]), dtype=x.dtype, device="cpu")
    states = torch.empty((2, *out.shape), dtype=torch.float64, device="cpu") if wide else None
    rows, _, _kept = read_rows(x, tau, where, lines=name == "logsumexp")
    run(find_function(name), FORWARD(*rows, *Forward(out=out.data_ptr(), states=address_of(states))))
    return out, states


def logsumexp_rest(x: Tensor, tau: float | Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
    """(the largest x [...], M; Σ exp((x − M)/τ) − 1) in double, by sums and terms of the precision of logsumexp."""
    states = torch.empty((2, *x.shape[:-1]), dtype=torch.float64, device="cpu")
    rows, _, _kept = read_rows(x, tau, where, lines=True)
    run(find_function("logsumexp_rest"), FORWARD(*rows, *Forward(out=0, states=states.data_ptr())))
    return states[0], states[1]


def logsumexp_state(x: Tensor, tau: float | Tensor, where: Tensor | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `interface.logsumexp_state` says of a tensor [..., n]."""
    rows, _, _kept = read_rows(x, tau, where)
    return interface.logsumexp_state(rows, tuple(x.shape[:-1]))


def logsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """g · softmax(x/τ)/τ, from the states of `logsumexp`."""
    rows, layout, _kept = read_rows(x, tau, where)
    out = fresh(layout.empty(x))
    states, g = states.contiguous(), in_memory(g)
    own = Backward(p=0, states=states.data_ptr(), g=g.data_ptr(), out=out.data_ptr())
    run(find_function("logsumexp_backward"), BACKWARD(*rows, *own))
    return out


def logcumsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor | None]:
    """(LSE of every prefix of the rows x [..., n]; if `wide` their states, [2, ...] of the rows as they lie in memory)."""
    rows, layout, _kept = read_rows(x, tau, where)
    out = fresh(layout.empty(x))
    states = torch.empty((2, out.numel()), dtype=torch.float64, device="cpu") if wide else None
    run(find_function("logcumsumexp"), FORWARD(*rows, *Forward(out=out.data_ptr(), states=address_of(states))))
    return out, states


def logcumsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """∂⟨g, LSE of every prefix⟩/∂x, from the states of `logcumsumexp`."""
    rows, layout, _kept = read_rows(x, tau, where)
    out, g, states = fresh(layout.empty(x)), layout.to_memory(g), states.contiguous()
    own = Backward(p=0, states=states.data_ptr(), g=g.data_ptr(), out=out.data_ptr())
    run(find_function("logcumsumexp_backward"), BACKWARD(*rows, *own))
    return out


def weighted(
    x: Tensor, weights: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(log|S| [...], the sign of S [...]) of S = Σ b exp(x/τ), in double; a sign of 2 where the library does not know.

    If `wide` also the state of S, [2, ...]: the largest x that has a weight, and log|S| less that over τ. The weights are of x's
    shape [..., n].
    """
    x = in_memory(x)
    values = torch.empty(tuple(x.shape[:-1]), dtype=torch.float64, device="cpu")
    signs = torch.empty_like(values)
    states = torch.empty((2, *values.shape), dtype=torch.float64, device="cpu") if wide else None
    rows, layout, _kept = read_rows(x, tau, where)
    addresses, _held = _weights(weights, x, layout)
    own = Weighted(*addresses, values=values.data_ptr(), signs=signs.data_ptr(), states=address_of(states))
    run(find_function("weighted"), WEIGHTED(*rows, *own))
    return values, signs, states


def weighted_backward(
    x: Tensor, weights: Tensor, signs: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None
) -> Tensor:
    """g · b exp(x/τ)/(τS), from the signs and states of `weighted`."""
    x, g, signs, states = in_memory(x), in_memory(g), signs.contiguous(), states.contiguous()
    out = fresh(torch.empty_like(x))
    rows, layout, _kept = read_rows(x, tau, where)
    addresses, _held = _weights(weights, x, layout)
    own = Weighted(*addresses, 0, signs.data_ptr(), states.data_ptr(), g.data_ptr(), out.data_ptr())
    run(find_function("weighted"), WEIGHTED(*rows, *own))
    return out


def _weights(weights: Tensor, x: Tensor, layout: Layout) -> tuple[tuple[int, int, int], Tensor]:
    """((where they are in x's dtype, or in double, how far those of rows are apart), the tensor that these point into)."""
    shared = all(size == 1 or stride == 0 for size, stride in zip(weights.shape[:-1], weights.stride()[:-1], strict=True))
    b = weights[(0,) * (weights.ndim - 1)] if shared else weights
    alike = b.dtype == x.dtype
    b = in_memory(b if alike else b.to(torch.float64))
    return (b.data_ptr() if alike else 0, 0 if alike else b.data_ptr(), 0 if shared else layout.n), b


def gaps(x: Tensor, tau: float | Tensor, *, width: float, bins: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(the summary [..., 6], the k largest scores [..., k], the counts of bins [..., bins + 1]) of csrc/kernels.h, in double."""
    summary, largest, counts = (torch.empty((*x.shape[:-1], size), dtype=torch.float64, device="cpu") for size in (6, k, bins + 1))
    rows, _, _kept = read_rows(x, tau, None)
    own = Gaps(width, bins, k, summary=summary.data_ptr(), largest=largest.data_ptr(), counts=counts.data_ptr())
    run(find_function("gaps"), GAPS(*rows, *own))
    return summary, largest, counts


def kept(x: Tensor, tau: float | Tensor, reach: float) -> Tensor:
    """The summary [..., 5] of csrc/kernels.h, in double."""
    summary = torch.empty((*x.shape[:-1], 5), dtype=torch.float64, device="cpu")
    rows, _, _kept = read_rows(x, tau, None)
    run(find_function("kept"), KEPT(*rows, *Kept(reach=reach, summary=summary.data_ptr())))
    return summary


def loss(
    kernel: Kernel,
    x: Tensor,
    target: Tensor,
    *,
    theta: Theta,
    class_weight: Tensor | None,
    smoothing: float,
    scale: float,
    fenchel: bool,
    gradient: bool,
    margin: Margin = NO_MARGIN,
    square: float = 0.0,
    in_place: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(the loss of each row [...] in double, `scale` times its gradient by x).

    The target holds labels [...], below n and negative for a row to leave out, or probabilities [..., n] in x's dtype. A margin is
    one of softmax's loss, in float64 or float32, of cosines x. Every loss, before the weight of its row, has `square` times V(x)²
    more. The gradient takes the place of contiguous scores `in_place`.
    """
    rows, layout, _kept = read_rows(x, 1.0, None, theta)
    out = None if not gradient else x if in_place else fresh(layout.empty(x))
    own, values, _held = _loss(x, target, class_weight, smoothing, scale * (margin.scale or 1.0), fenchel, square, layout, out)
    run(kernel.functions.loss, LOSS(*rows, *own, *margin))
    return values, out


def _loss(
    x: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    smoothing: float,
    scale: float,
    fenchel: bool,
    square: float,
    layout: Layout,
    out: Tensor | None,
) -> tuple[Loss, Tensor, tuple[Tensor | None, ...]]:
    """(what a loss is given beside its rows, the values that it fills, the tensors that the fields point into)."""
    values = torch.zeros(tuple(x.shape[:-1]), dtype=torch.float64, device="cpu")  # which those of no classes stay
    labels = in_memory(target) if target.dtype == torch.int64 else None
    soft = None if labels is not None else layout.to_memory(target)
    weight = None if class_weight is None else in_memory(class_weight.to(torch.float64))
    fields = Loss(
        labels=address_of(labels),
        soft=address_of(soft),
        class_weight=address_of(weight),
        smoothing=smoothing,
        scale=scale,
        fenchel=int(fenchel),
        square=square,
        values=values.data_ptr(),
        out=address_of(out),
    )
    return fields, values, (labels, soft, weight)


def given_loss(
    name: str,
    p: Tensor,
    x: Tensor,
    target: Tensor,
    *,
    class_weight: Tensor | None,
    smoothing: float,
    scale: float,
    fenchel: bool,
    gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """`loss` of probabilities p that `forward` made, in float64 or float32; the gradient takes their place.

    "selected_loss" is that of softmax over the scores where p > 0, "surrogate_loss" is ⟨p − y, x⟩ of p that add up
    to 1, and "surrogate_loss_of_any_mass" of any.
    """
    rows, layout, _kept = read_rows(x, 1.0, None)
    own, values, _held = _loss(x, target, class_weight, smoothing, scale, fenchel, 0.0, layout, p if gradient else None)
    run(find_function(name), GIVEN_LOSS(*rows, *own, *NO_MARGIN, *GivenLoss(p=p.data_ptr())))
    return values, p if gradient else None


@functools.cache
def given_address(name: str) -> int | None:
    """Where the function of `given_loss` is, for `CALLS`."""
    function: Any = find_function(name)
    return ctypes.cast(function, ctypes.c_void_p).value


def quantized(
    q: Tensor, scale: float | Tensor, zero_point: float | Tensor, where: Tensor | None, dtype: torch.dtype, *, softmax: bool
) -> tuple[Tensor, Tensor | None]:
    """(LSE [...] in double, softmax [..., n] in `dtype` if asked for) of scale · (q − zero_point), q int8 or uint8 [..., n]."""
    layout, read, stride = readable(q)
    if layout.inner == 1 and stride != layout.n:
        read = q.contiguous()
    scale_number, scales = one_per_row(scale, q)
    zero_number, zeros = one_per_row(zero_point, q)
    mask = None if where is None else layout.to_memory(where.expand(q.shape)).view(torch.uint8)
    values = torch.empty(tuple(q.shape[:-1]), dtype=torch.float64, device="cpu")
    out = fresh(layout.empty(q, dtype)) if softmax else None
    own = Quantized(
        dtype=DTYPES[dtype],
        is_signed=int(q.dtype == torch.int8),
        outer=layout.outer,
        n=layout.n,
        inner=layout.inner,
        threads=threads(),
        q=read.data_ptr(),
        scale=scale_number,
        zero=zero_number,
        scales=address_of(scales),
        zeros=address_of(zeros),
        mask=address_of(mask),
        values=values.data_ptr(),
        out=address_of(out),
    )
    run(find_function("quantized"), QUANTIZED(*own))
    return values, out


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """log(e^x + e^y) of contiguous tensors of one shape and dtype."""
    out = fresh(torch.empty_like(x))
    pairs = Pairs(DTYPES[x.dtype], x.numel(), threads(), x=x.data_ptr(), y=y.data_ptr(), g=0, out=out.data_ptr())
    run(find_function("logaddexp"), PAIRS(*pairs))
    return out


def logaddexp_backward(x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """g · σ(x − y) and g · σ(y − x), of contiguous tensors of one shape and dtype."""
    of_x, of_y = fresh(torch.empty_like(x)), fresh(torch.empty_like(y))
    addresses = {"x": x.data_ptr(), "y": y.data_ptr(), "g": g.data_ptr(), "out": of_x.data_ptr(), "other": of_y.data_ptr()}
    run(find_function("logaddexp"), PAIRS(*Pairs(DTYPES[x.dtype], x.numel(), threads(), **addresses)))
    return of_x, of_y


def elementwise(name: str, x: Tensor) -> Tensor:
    """exp or log of a contiguous float64 or float32 tensor, by the library's own polynomials."""
    y = fresh(torch.empty_like(x))
    run(find_function(name), ELEMENTWISE(*Elementwise(DTYPES[x.dtype], x.numel(), x=x.data_ptr(), y=y.data_ptr())))
    return y


def _load_calls() -> Any:
    """The module of csrc/python, None where it was not built: then every call is made here."""
    try:
        return importlib.import_module("softmaxima.kernels._calls") if AVAILABLE else None
    except ImportError:
        return None


CALLS = _load_calls()
