"""What native libraries do with tensors on the CPU, by `interface.py`.

Rows are described by where they lie: scores with the rows' axis last, of any shape, are [outer, n, inner] in memory, or are copied
to be. Nothing here knows of autograd.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softmaxima.kernels import interface
from softmaxima.kernels.interface import (
    AVAILABLE,
    BACKWARD,
    ELEMENTWISE,
    FORWARD,
    GAPS,
    GIVEN_LOSS,
    KEPT,
    LIBRARY,
    LINEAR,
    LINEAR_BACKWARD,
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
    Linear,
    LinearBackward,
    Loss,
    Margin,
    Pairs,
    Quantized,
    Rows,
    Weighted,
    find_checked,
    find_function,
    opened,
    prefer_large_pages,
    run,
    threads,
)

Theta = Sequence[float | Tensor]  # the numbers of a kernel, each for all rows or one a row [..., 1]
LARGE = 4 << 20  # bytes, as in csrc/pages.h
DTYPES = {getattr(torch, name): number for name, number in interface.DTYPES.items()}


class Functions(NamedTuple):
    """What a library has for a map: a `Function` each, or None."""

    forward: Any = None
    backward: Any = None
    loss: Any = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """What evaluates a map on each device, and what it takes.

    forward, backward, loss: functions of the library (`softmaxima_…` there); `loss`, of the map's Fenchel–Young loss, may be None.
    labels_only: whether that takes no targets but labels.
    theta: θ, the numbers that they take, from the map's parameters in their order; of a parameter that may be a tensor a tensor.
        None for parameters that they do not know.
    library: a library of its own, built of csrc/dispatch.cpp and its kernels; without it they are in the package's.
    triton: the module with FORWARD, BACKWARD and, where there is a loss, LOSS; without it that of the package called as `forward`.
    """

    forward: str
    backward: str
    loss: str | None = None
    labels_only: bool = False
    theta: Callable[..., Theta | None] = lambda *params: params
    library: Path | None = None
    triton: str | None = None
    key: str = field(init=False, repr=False, default="")  # by which the registered operations know the kernel

    def __post_init__(self) -> None:
        triton = self.triton or f"softmaxima.kernels.triton.{self.forward}"
        object.__setattr__(self, "triton", triton)
        own = (self.library and self.library.name, triton, self.forward, self.backward, self.loss)
        object.__setattr__(self, "key", " ".join(map(str, own)))
        KERNELS[self.key] = self

    @functools.cached_property
    def functions(self) -> Functions:
        """Those of the library."""
        library = LIBRARY if self.library is None or LIBRARY is None else opened(self.library)
        if library is None:
            return Functions()
        names = {"Forward": self.forward, "Backward": self.backward, "Loss": self.loss}
        return Functions(*(name and find_checked(name, kind, library) for kind, name in names.items()))

    @functools.cached_property
    def on_gpus(self) -> bool:
        """Whether there is a Triton module for it, which is not imported."""
        try:
            return importlib.util.find_spec(self.triton or "") is not None
        except ModuleNotFoundError:  # of a package above
            return False

    @functools.cached_property
    def addresses(self) -> Functions:
        """Where those functions are, for `CALLS`."""
        return Functions(*(function and ctypes.cast(function, ctypes.c_void_p).value for function in self.functions))


KERNELS: dict[str, Kernel] = {}


def has(kernel: Kernel, what: str) -> bool:
    """Whether there is a library with the kernel's "forward", "backward" or "loss"."""
    return getattr(kernel.functions, what) is not None


# Where rows lie -------------------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Scores [..., n] as [outer, n, inner] in memory; `axis` is where n stands among the axes there."""

    outer: int
    n: int
    inner: int
    axis: int

    def to_memory(self, x: Tensor) -> Tensor:
        """A tensor [..., n] in the order of memory, copied if it must be."""
        return in_memory(x if self.inner == 1 else x.movedim(-1, self.axis))

    def laid_out(self, x: Tensor) -> Tensor:
        """A tensor [..., n] that lies like this, copied if it must be."""
        return x.contiguous() if self.inner == 1 else x.movedim(-1, self.axis).contiguous().movedim(self.axis, -1)

    def empty(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A new tensor that lies like this, with n last, of x's dtype or another."""
        if self.inner == 1:
            return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        shape = list(x.shape[:-1])
        shape.insert(self.axis, self.n)
        return x.new_empty(shape, dtype=dtype).movedim(self.axis, -1)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """What kernels hold numbers of this dtype in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fresh(x: Tensor) -> Tensor:
    """A tensor that nothing was written to, in large pages where it is large (csrc/pages.h)."""
    if (size := x.numel() * x.element_size()) >= LARGE:
        prefer_large_pages(x.data_ptr(), size)
    return x


def zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """New ones of a tensor's dtype, where it is."""
    if like.device.type != "cpu" or not AVAILABLE:
        return like.new_zeros(shape)
    return fresh(like.new_empty(shape)).zero_()


def in_memory(x: Tensor) -> Tensor:
    """The tensor as its memory reads, without a sign, or zeros, that torch has put off."""
    return (x.clone() if x._is_zerotensor() else x).contiguous().resolve_neg()


def layout_of(x: Tensor) -> Layout:
    """How rows x [..., n] are read, and what is computed of them lies: in x's own order, or copied to have the rows' axis last."""
    shape, strides = x.shape, x.stride()
    n, stride, last = shape[-1], strides[-1], len(shape) - 1
    outer = x.numel() // n if n else 0
    if stride != 1 and not x.is_contiguous():
        inner, axis = 1, last
        while axis > 0 and inner < stride and (shape[axis - 1] == 1 or strides[axis - 1] == inner):
            axis -= 1
            inner *= shape[axis]
        if 1 < inner <= stride:
            return Layout(outer // inner, n, inner, axis)
    return Layout(outer, n, 1, last)


def _layout(x: Tensor, lines: bool = False) -> tuple[Layout, Tensor, int]:
    """(layout, x as it is read, distance of its rows where inner is 1).

    With `lines` those of x [inner] may lie apart where inner is not 1, and the distance is theirs.
    """
    layout = layout_of(x)
    if layout.inner > 1:
        if x.movedim(-1, layout.axis).is_contiguous():
            return layout, x, 0
        distance = _line_stride(x, layout) if lines else 0
        return layout, x if distance else layout.laid_out(x), distance
    if x.is_contiguous():
        return layout, x, layout.n
    stride = one_stride(x)
    return (layout, x.contiguous(), layout.n) if stride is None else (layout, x, stride)


def _line_stride(x: Tensor, layout: Layout) -> int:
    """The distance of consecutive lines of x as [outer · n, inner], if they are evenly apart; else 0."""
    distance = x.stride(-1)
    expected = layout.n * distance
    for axis in reversed(range(layout.axis)):
        if x.shape[axis] != 1 and x.stride(axis) != expected:
            return 0
        expected *= x.shape[axis]
    return distance


def one_stride(x: Tensor) -> int | None:
    """The distance of consecutive rows of x [..., n], if they are evenly apart and contiguous."""
    shape, strides = x.shape[:-1], x.stride()
    if strides[-1] != 1 and x.shape[-1] > 1:
        return None
    first = expected = None
    for size, stride in zip(reversed(shape), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if first is None:
            first = stride
        elif stride != expected:
            return None
        expected = stride * size
    return first or 0


def theta_in_memory(theta: Theta, x: Tensor) -> tuple[array[float] | Tensor | None, int, int]:
    """(θ of all rows, or of each [rows, …], where it is in memory, from one row to the next)."""
    if not theta:
        return None, 0, 0
    if all(not isinstance(value, Tensor) or value.numel() == 1 for value in theta):
        numbers = array("d", map(float, theta))
        return numbers, numbers.buffer_info()[0], 0
    rows = x.shape[:-1]
    # Without a device a tensor would go to torch's default one.
    wide = (torch.as_tensor(value, dtype=torch.float64, device=x.device).detach() for value in theta)
    each = torch.cat([value.expand(*rows, 1) for value in wide], -1)
    return each, each.data_ptr(), len(theta)


def one_per_row(value: float | Tensor, x: Tensor) -> tuple[float, Tensor | None]:
    """(number, or one double a row)."""
    if not isinstance(value, Tensor):
        return value, None
    if value.numel() == 1:
        return float(value), None
    return 1.0, in_memory(value.detach().to(torch.float64).expand(*x.shape[:-1], 1))


def mask_blocks(where: Tensor | None, x: Tensor, layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    """(blocks [*, n, inner] of bytes, the number of the block of each outer index, None for one after the other)."""
    if where is None:
        return None, None
    mask = where if layout.inner == 1 else where.movedim(-1, layout.axis)
    full = x.shape if layout.inner == 1 else x.movedim(-1, layout.axis).shape
    outer_shape, block_shape = full[: layout.axis], full[layout.axis :]
    own = mask.shape[: layout.axis]
    blocks = mask.expand(*own, *block_shape).contiguous().view(torch.uint8)
    if own == outer_shape:
        return blocks, None
    return blocks, torch.arange(math.prod(own), device=where.device).view(own).expand(outer_shape).contiguous()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _plain_rows(x: Tensor, tau: float, theta: int) -> tuple[Any, ...]:
    """The fields of `Rows` for contiguous rows and numbers, without looking at them or naming them, which takes as long again."""
    n = x.shape[-1]
    return DTYPES[x.dtype], x.numel() // n, n, 1, threads(), x.data_ptr(), n, tau, 0, theta, 0, 0, 0


def _rows(
    x: Tensor, layout: Layout, address: int, stride: int, tau: float | Tensor, where: Tensor | None, theta: Theta
) -> tuple[Rows, tuple[Any, ...]]:
    """(the rows, what they point into)."""
    tau_number, taus = one_per_row(tau, x)
    numbers, theta_address, distance = theta_in_memory(theta, x)
    mask, blocks = mask_blocks(where, x, layout)
    starts = None if blocks is None else blocks * (layout.n * layout.inner)
    fields = Rows(
        dtype=DTYPES[x.dtype],
        outer=layout.outer,
        n=layout.n,
        inner=layout.inner,
        threads=threads(),
        x=address,
        stride=stride,
        tau=tau_number,
        taus=_address(taus),
        theta=theta_address,
        distance=distance,
        mask=_address(mask),
        blocks=_address(starts),
    )
    return fields, (taus, numbers, mask, starts)


def _read(
    x: Tensor, tau: float | Tensor, where: Tensor | None, theta: Theta = (), lines: bool = False
) -> tuple[tuple[Any, ...], Layout, tuple[Any, ...]]:
    """(the fields of `Rows`, how the rows lie, what the fields point into); `lines` may lie apart."""
    if where is None and type(tau) is float and not theta and x.is_contiguous() and x.numel() > 0 and not x.is_neg():
        rows = _plain_rows(x, tau, 0)
        return rows, Layout(rows[1], rows[2], 1, x.ndim - 1), ()
    x = x.resolve_neg()
    layout, read, stride = _layout(x, lines and where is None)
    rows, kept = _rows(x, layout, read.data_ptr(), stride, tau, where, theta)
    return rows, layout, (read, *kept)


# What the library does ------------------------------------------------------------------------------------------------------


def forward(kernel: Kernel, x: Tensor, tau: float | Tensor, where: Tensor | None, theta: Theta) -> Tensor:
    """The map of the rows x [..., n]."""
    rows, layout, _kept = _read(x, tau, where, theta)
    out = fresh(layout.empty(x))
    run(kernel.functions.forward, FORWARD(*rows, *Forward(out=out.data_ptr())))
    return out


def backward(
    kernel: Kernel, p: Tensor, g: Tensor, x: Tensor | None, tau: float | Tensor, where: Tensor | None, theta: Theta
) -> Tensor:
    """∂⟨g, p⟩/∂x for p = map(x/τ); x where the derivative depends on it."""
    p = p.resolve_neg()
    layout, p_read, stride = _layout(p)
    if stride != layout.n and layout.inner == 1:
        p_read = p.contiguous()
    g_read = layout.to_memory(g)
    x_read = None if x is None else layout.to_memory(x)
    out = fresh(layout.empty(p))
    rows, _kept = _rows(p, layout, _address(x_read), layout.n, tau, where, theta)
    own = Backward(p=p_read.data_ptr(), states=0, g=g_read.data_ptr(), out=out.data_ptr())
    run(kernel.functions.backward, BACKWARD(*rows, *own))
    return out


def backward_of_labels(kernel: Kernel, p: Tensor, g: Tensor, labels: Tensor, x: Tensor | None, theta: Theta) -> Tensor:
    """∂ Σ g p_label/∂x for p = map(x), one label a row, negative for none; takes p's place. Of the package's own kernels."""
    layout, p_read, _ = _layout(p)
    labels, g, x_read = in_memory(labels), in_memory(g), None if x is None else layout.to_memory(x)
    rows, _kept = _rows(p, layout, _address(x_read), layout.n, 1.0, None, theta)
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
    rows, _, _kept = _read(x, tau, where, lines=name == "logsumexp")
    run(find_function(name), FORWARD(*rows, *Forward(out=out.data_ptr(), states=_address(states))))
    return out, states


def logsumexp_rest(x: Tensor, tau: float | Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
    """(the largest x [...], M; Σ exp((x − M)/τ) − 1) in double, by sums and terms of the precision of logsumexp."""
    states = torch.empty((2, *x.shape[:-1]), dtype=torch.float64, device="cpu")
    rows, _, _kept = _read(x, tau, where, lines=True)
    run(find_function("logsumexp_rest"), FORWARD(*rows, *Forward(out=0, states=states.data_ptr())))
    return states[0], states[1]


def logsumexp_state(x: Tensor, tau: float | Tensor, where: Tensor | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `interface.logsumexp_state` says of a tensor [..., n]."""
    rows, _, _kept = _read(x, tau, where)
    return interface.logsumexp_state(rows, tuple(x.shape[:-1]))


def logsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """g · softmax(x/τ)/τ, from the states of `logsumexp`."""
    rows, layout, _kept = _read(x, tau, where)
    out = fresh(layout.empty(x))
    states, g = states.contiguous(), in_memory(g)
    own = Backward(p=0, states=states.data_ptr(), g=g.data_ptr(), out=out.data_ptr())
    run(find_function("logsumexp_backward"), BACKWARD(*rows, *own))
    return out


def logcumsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor | None]:
    """(LSE of every prefix of the rows x [..., n]; if `wide` their states, [2, ...] of the rows as they lie in memory)."""
    rows, layout, _kept = _read(x, tau, where)
    out = fresh(layout.empty(x))
    states = torch.empty((2, out.numel()), dtype=torch.float64, device="cpu") if wide else None
    run(find_function("logcumsumexp"), FORWARD(*rows, *Forward(out=out.data_ptr(), states=_address(states))))
    return out, states


def logcumsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """∂⟨g, LSE of every prefix⟩/∂x, from the states of `logcumsumexp`."""
    rows, layout, _kept = _read(x, tau, where)
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
    rows, layout, _kept = _read(x, tau, where)
    addresses, _held = _weights(weights, x, layout)
    own = Weighted(*addresses, values=values.data_ptr(), signs=signs.data_ptr(), states=_address(states))
    run(find_function("weighted"), WEIGHTED(*rows, *own))
    return values, signs, states


def weighted_backward(
    x: Tensor, weights: Tensor, signs: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None
) -> Tensor:
    """g · b exp(x/τ)/(τS), from the signs and states of `weighted`."""
    x, g, signs, states = in_memory(x), in_memory(g), signs.contiguous(), states.contiguous()
    out = fresh(torch.empty_like(x))
    rows, layout, _kept = _read(x, tau, where)
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
    rows, _, _kept = _read(x, tau, None)
    own = Gaps(width, bins, k, summary=summary.data_ptr(), largest=largest.data_ptr(), counts=counts.data_ptr())
    run(find_function("gaps"), GAPS(*rows, *own))
    return summary, largest, counts


def kept(x: Tensor, tau: float | Tensor, reach: float) -> Tensor:
    """The summary [..., 5] of csrc/kernels.h, in double."""
    summary = torch.empty((*x.shape[:-1], 5), dtype=torch.float64, device="cpu")
    rows, _, _kept = _read(x, tau, None)
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
    rows, layout, _kept = _read(x, 1.0, None, theta)
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
        labels=_address(labels),
        soft=_address(soft),
        class_weight=_address(weight),
        smoothing=smoothing,
        scale=scale,
        fenchel=int(fenchel),
        square=square,
        values=values.data_ptr(),
        out=_address(out),
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
    rows, layout, _kept = _read(x, 1.0, None)
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
    layout, read, stride = _layout(q)
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
        scales=_address(scales),
        zeros=_address(zeros),
        mask=_address(mask),
        values=values.data_ptr(),
        out=_address(out),
    )
    run(find_function("quantized"), QUANTIZED(*own))
    return values, out


class Layer(NamedTuple):
    """A linear layer: contiguous tensors of one dtype, and factors of each class in double: of its products, and of its weight."""

    weight: Tensor  # [classes, features]
    bias: Tensor | None = None  # [classes]
    scales: Tensor | None = None  # s [classes]
    powers: Tensor | None = None  # of 2 [classes, 1], by which rows of extreme norms have come near to 1

    def fields(self, hidden: Tensor, scores: Tensor, tau: float = 1.0) -> Linear:
        classes, features = self.weight.shape
        return Linear(
            dtype=DTYPES[self.weight.dtype],
            rows=hidden.shape[0],
            classes=classes,
            features=features,
            threads=threads(),
            hidden=hidden.data_ptr(),
            weight=self.weight.data_ptr(),
            scales=_address(self.scales),
            bias=_address(self.bias),
            tau=tau,
            scores=scores.data_ptr(),
        )


def linear_scores(hidden: Tensor, layer: Layer, tau: float, out: Tensor) -> None:
    """out = (s ⊙ (hidden weightᵀ) + bias)/τ [rows, classes], as the layer is computed in, and so is hidden [rows, features]."""
    run(find_function("linear_scores"), LINEAR(*layer.fields(hidden, out, tau)))


def linear_backward(
    hidden: Tensor,
    layer: Layer,
    g: Tensor,
    *,
    hidden_grad: Tensor | None,
    weight_grad: Tensor | None,
    bias_grad: Tensor | None,
    adds: bool,
) -> None:
    """The derivatives of ⟨g, s ⊙ (hidden weightᵀ) + bias⟩, all of the dtype that is computed in; zeros in g cost next to nothing.

    Those by weight and bias are added to what is there, where it `adds`.
    """
    own = LinearBackward(int(adds), *(_address(x) for x in (hidden_grad, weight_grad, bias_grad)))
    run(find_function("linear_backward"), LINEAR_BACKWARD(*layer.fields(hidden, g), *own))


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


# Calls on plain arguments ---------------------------------------------------------------------------------------------------


def _load_calls() -> Any:
    """The module of csrc/python, None where it was not built: then every call is made here."""
    try:
        return importlib.import_module("softmaxima.kernels._calls") if AVAILABLE else None
    except ImportError:
        return None


CALLS = _load_calls()
