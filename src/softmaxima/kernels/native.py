"""Native libraries on the CPU: the only place that loads them, and that knows their structures (csrc/kernels.h).

Rows are described by where they lie: scores with the rows' axis last, of any shape, are [outer, n, inner] in memory, or are copied
to be. Nothing here knows of autograd.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import math
import os
import struct
import threading
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

INTERFACE = 8  # the version that csrc/kernels.h states
Theta = Sequence[float | Tensor]  # the numbers of a kernel, each for all rows or one a row [..., 1]
DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}

# The structures of csrc/kernels.h: fields of 8 bytes, an address as an int.


class Rows(NamedTuple):
    """How scores lie, [outer, n, inner], and what they are divided by and left out by."""

    dtype: int
    outer: int
    n: int
    inner: int
    threads: int
    x: int
    stride: int
    tau: float
    taus: int
    theta: int
    distance: int
    mask: int
    blocks: int


class Forward(NamedTuple):
    out: int
    states: int = 0


class Backward(NamedTuple):
    p: int
    states: int
    g: int
    out: int
    labels: int = 0


class Loss(NamedTuple):
    labels: int
    soft: int
    class_weight: int
    smoothing: float
    scale: float
    fenchel: int
    values: int
    out: int


class Margin(NamedTuple):
    """A margin on cosines, whose scale is 0 where there is none."""

    scale: float = 0.0
    size: float = 0.0
    angular: int = 0
    limit: float = math.inf


NO_MARGIN = Margin()


class GivenLoss(NamedTuple):
    p: int


class State(NamedTuple):
    rests: int
    maxima: int
    counts: int


class Weighted(NamedTuple):
    weights: int
    wide: int
    distance: int
    values: int
    signs: int
    states: int = 0
    g: int = 0
    out: int = 0


class Gaps(NamedTuple):
    width: float
    bins: int
    k: int
    summary: int
    largest: int
    counts: int


class Kept(NamedTuple):
    reach: float
    summary: int


class Quantized(NamedTuple):
    dtype: int
    is_signed: int
    outer: int
    n: int
    inner: int
    threads: int
    q: int
    scale: float
    zero: float
    scales: int
    zeros: int
    mask: int
    values: int
    out: int


class Pairs(NamedTuple):
    dtype: int
    n: int
    threads: int
    x: int
    y: int
    g: int
    out: int
    other: int = 0


class Elementwise(NamedTuple):
    dtype: int
    n: int
    x: int
    y: int


def _packer(*structures: type[Any]) -> Callable[..., bytes]:
    """The bytes of structures, one after the other, of the values of their fields."""
    kinds = [kind for structure in structures for kind in get_type_hints(structure).values()]
    return struct.Struct("".join({int: "q", float: "d"}[kind] for kind in kinds)).pack


_FORWARD, _BACKWARD, _STATE = _packer(Rows, Forward), _packer(Rows, Backward), _packer(Rows, State)
_LOSS, _GIVEN_LOSS = _packer(Rows, Loss, Margin), _packer(Rows, Loss, Margin, GivenLoss)
_WEIGHTED, _QUANTIZED, _PAIRS, _ELEMENTWISE = _packer(Rows, Weighted), _packer(Quantized), _packer(Pairs), _packer(Elementwise)
_GAPS, _KEPT = _packer(Rows, Gaps), _packer(Rows, Kept)


Function = Callable[[bytes], int]  # of the bytes of a structure


class Functions(NamedTuple):
    """What a library has for a map: a `Function` each, or None."""

    forward: Any = None
    backward: Any = None
    loss: Any = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """What evaluates a map on each device, and what it takes.

    forward, backward, loss: functions of the library (`softmaxima_…` there); `loss`, of the map's Fenchel–Young loss, may be None.
    theta: θ, the numbers that they take, from the map's parameters in their order; of a parameter that may be a tensor a tensor.
        None for parameters that they do not know.
    library: a library of its own, built of csrc/dispatch.cpp and its kernels; without it they are in the package's.
    triton: the module with FORWARD, BACKWARD and, where there is a loss, LOSS; without it that of the package called as `forward`.
    """

    forward: str
    backward: str
    loss: str | None = None
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
        library = LIBRARY if self.library is None or LIBRARY is None else _opened(self.library)
        if library is None:
            return Functions()
        names = {"Forward": self.forward, "Backward": self.backward, "Loss": self.loss}
        return Functions(*(name and _checked(name, kind, library) for kind, name in names.items()))

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


def find_library(folders: Iterable[str]) -> Path | None:
    """The library as it was installed beside the package."""
    return next((path for folder in folders if (path := Path(folder) / "libsoftmaxima.so").exists()), None)


def load() -> ctypes.CDLL | None:
    """The library, or None where torch has to do; says once how to get it if that was not wished for."""
    backend = os.environ.get("SOFTMAXIMA_BACKEND", "native")
    if backend not in ("native", "reference", "triton"):
        raise ValueError(f"SOFTMAXIMA_BACKEND must be native, reference or triton, got {backend!r}")
    if backend != "native":
        return None
    import softmaxima

    return open_library(find_library(softmaxima.__path__))


def open_library(path: Path | None) -> ctypes.CDLL | None:
    """A library of our interface; None, with one warning, where there is none."""
    problem = "it was not built"
    if path is not None and path.exists():
        try:
            library = ctypes.CDLL(str(path))
            if (interface := library.softmaxima_interface()) == INTERFACE:
                return library
            problem = f"it has interface {interface}, and this package needs {INTERFACE}"
        except (OSError, AttributeError) as error:
            problem = str(error)
    which = "its native library" if path is None else f"the native library {path}"
    warnings.warn(
        f"softmaxima runs without {which}, much slower on the CPU: {problem}. Reinstall the package where there is a "
        "C++ compiler, or set SOFTMAXIMA_BACKEND=reference to be content with it",
        stacklevel=2,
    )
    return None


_opened = functools.cache(open_library)  # so that its warning comes once
LIBRARY = load()
AVAILABLE = LIBRARY is not None


def instruction_set() -> str:
    """Which of its variants the library runs: v4, v3 or baseline; "none" without a library."""
    if LIBRARY is None:
        return "none"
    LIBRARY.softmaxima_instruction_set.restype = ctypes.c_char_p
    return LIBRARY.softmaxima_instruction_set().decode()


@functools.cache
def _function(name: str, library: ctypes.CDLL | None = LIBRARY) -> Function:
    try:
        function = getattr(library, "softmaxima_" + name)
    except AttributeError:
        raise AttributeError(
            f"the native library has no kernel {name!r}; end its file in csrc/ by SOFTMAXIMA_KERNEL({name}, …), and build it again"
        ) from None
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function


def _checked(name: str, kind: str, library: ctypes.CDLL) -> Function:
    """The function, which must take the structure of this kind: of another it would read what is not there."""
    function, says = _function(name, library), getattr(library, f"softmaxima_{name}_takes")
    says.restype = ctypes.c_char_p
    if (takes := says().decode()) != kind:
        raise ValueError(f"Kernel: {kind.lower()}= must name a kernel that takes {kind}, got {name!r}, which takes {takes}")
    return function


def _run(function: Function, structure: bytes) -> None:
    if function(structure):
        raise MemoryError(f"{function.__name__}: no memory for the candidates of a row")


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

    def empty(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A new tensor that lies like this, with n last, of x's dtype or another."""
        if self.inner == 1:
            return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        shape = list(x.shape[:-1])
        shape.insert(self.axis, self.n)
        return torch.empty(shape, dtype=dtype or x.dtype, device="cpu").movedim(self.axis, -1)


def in_memory(x: Tensor) -> Tensor:
    """The tensor as its memory reads, without a sign, or zeros, that torch has put off."""
    return (x.clone() if x._is_zerotensor() else x).contiguous().resolve_neg()


def _layout(x: Tensor) -> tuple[Layout, Tensor, int]:
    """(layout, x as it is read, distance of its rows where inner is 1)."""
    shape = x.shape
    n = shape[-1]
    outer = x.numel() // n if n else 0
    if x.is_contiguous():
        return Layout(outer, n, 1, len(shape) - 1), x, n
    strides = x.stride()
    if strides[-1] == 1:
        stride = one_stride(x)
        if stride is not None:
            return Layout(outer, n, 1, len(shape) - 1), x, stride
    inner, axis = 1, len(shape) - 1
    while axis > 0 and inner < strides[-1]:
        axis -= 1
        inner *= shape[axis]
    if inner == strides[-1] and inner > 1 and x.movedim(-1, axis).is_contiguous():
        return Layout(outer // inner, n, inner, axis), x, 0
    return Layout(outer, n, 1, len(shape) - 1), x.contiguous(), n


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


def _numbers(theta: Theta, x: Tensor) -> tuple[array[float] | Tensor | None, int, int]:
    """(θ of all rows, or of each [rows, …], where it is in memory, from one row to the next)."""
    if not theta:
        return None, 0, 0
    if all(not isinstance(value, Tensor) or value.numel() == 1 for value in theta):
        numbers = array("d", map(float, theta))
        return numbers, numbers.buffer_info()[0], 0
    rows = x.shape[:-1]
    each = torch.cat([torch.as_tensor(value, dtype=torch.float64).detach().expand(*rows, 1) for value in theta], -1)
    return each, each.data_ptr(), len(theta)


def _per_row(value: float | Tensor, x: Tensor) -> tuple[float, Tensor | None]:
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


_own = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it the calling thread runs by itself what is called here, for work that is shared out among threads already."""
    _own.threads = 1
    try:
        yield
    finally:
        del _own.threads


def _threads() -> int:
    return getattr(_own, "threads", 0) or torch.get_num_threads()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _plain_rows(x: Tensor, tau: float, theta: int) -> tuple[Any, ...]:
    """The fields of `Rows` for contiguous rows and numbers, without looking at them or naming them, which takes as long again."""
    n = x.shape[-1]
    outer, threads = x.numel() // n, _threads()
    return DTYPES[x.dtype], outer, n, 1, threads, x.data_ptr(), n, tau, 0, theta, 0, 0, 0


def _rows(
    x: Tensor, layout: Layout, address: int, stride: int, tau: float | Tensor, where: Tensor | None, theta: Theta
) -> tuple[Rows, tuple[Any, ...]]:
    """(the rows, what they point into)."""
    tau_number, taus = _per_row(tau, x)
    numbers, theta_address, distance = _numbers(theta, x)
    mask, blocks = mask_blocks(where, x, layout)
    starts = None if blocks is None else blocks * (layout.n * layout.inner)
    fields = Rows(
        dtype=DTYPES[x.dtype],
        outer=layout.outer,
        n=layout.n,
        inner=layout.inner,
        threads=_threads(),
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
    x: Tensor, tau: float | Tensor, where: Tensor | None, theta: Theta = ()
) -> tuple[tuple[Any, ...], Layout, tuple[Any, ...]]:
    """(the fields of `Rows`, how the rows lie, what the fields point into)."""
    if where is None and type(tau) is float and not theta and x.is_contiguous() and x.numel() > 0 and not x.is_neg():
        rows = _plain_rows(x, tau, 0)
        return rows, Layout(rows[1], rows[2], 1, x.ndim - 1), ()
    x = x.resolve_neg()
    layout, read, stride = _layout(x)
    rows, kept = _rows(x, layout, read.data_ptr(), stride, tau, where, theta)
    return rows, layout, (read, *kept)


# What the library does ------------------------------------------------------------------------------------------------------


def forward(kernel: Kernel, x: Tensor, tau: float | Tensor, where: Tensor | None, theta: Theta) -> Tensor:
    """The map of the rows x [..., n]."""
    rows, layout, _kept = _read(x, tau, where, theta)
    out = layout.empty(x)
    _run(kernel.functions.forward, _FORWARD(*rows, *Forward(out=out.data_ptr())))
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
    out = layout.empty(p)
    rows, _kept = _rows(p, layout, _address(x_read), layout.n, tau, where, theta)
    own = Backward(p=p_read.data_ptr(), states=0, g=g_read.data_ptr(), out=out.data_ptr())
    _run(kernel.functions.backward, _BACKWARD(*rows, *own))
    return out


def backward_of_labels(kernel: Kernel, p: Tensor, g: Tensor, labels: Tensor, x: Tensor | None, theta: Theta) -> Tensor:
    """∂ Σ g p_label/∂x for p = map(x), one label a row, negative for none; takes p's place. Of the package's own kernels."""
    layout, p_read, _ = _layout(p)
    labels, g, x_read = in_memory(labels), in_memory(g), None if x is None else layout.to_memory(x)
    rows, _kept = _rows(p, layout, _address(x_read), layout.n, 1.0, None, theta)
    own = Backward(p=p_read.data_ptr(), states=0, g=g.data_ptr(), out=p_read.data_ptr(), labels=labels.data_ptr())
    _run(kernel.functions.backward, _BACKWARD(*rows, *own))
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
    rows, _, _kept = _read(x, tau, where)
    _run(_function(name), _FORWARD(*rows, *Forward(out=out.data_ptr(), states=_address(states))))
    return out, states


def logsumexp_state(x: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """(Σ exp((x − M)/τ) over the others [...], the largest x M [...], both in double, how many x are that [...])."""
    rest = torch.empty(tuple(x.shape[:-1]), dtype=torch.float64, device="cpu")
    maximum, count = torch.empty_like(rest), torch.empty_like(rest, dtype=torch.int64)
    rows, _, _kept = _read(x, tau, None)
    own = State(rests=rest.data_ptr(), maxima=maximum.data_ptr(), counts=count.data_ptr())
    _run(_function("logsumexp_state"), _STATE(*rows, *own))
    return rest, maximum, count


def logsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """g · softmax(x/τ)/τ, from the states of `logsumexp`."""
    rows, layout, _kept = _read(x, tau, where)
    out = layout.empty(x)
    states, g = states.contiguous(), in_memory(g)
    own = Backward(p=0, states=states.data_ptr(), g=g.data_ptr(), out=out.data_ptr())
    _run(_function("logsumexp_backward"), _BACKWARD(*rows, *own))
    return out


def logcumsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor | None]:
    """(LSE of every prefix of the rows x [..., n]; if `wide` their states, [2, ...] of the rows as they lie in memory)."""
    rows, layout, _kept = _read(x, tau, where)
    out = layout.empty(x)
    states = torch.empty((2, out.numel()), dtype=torch.float64, device="cpu") if wide else None
    _run(_function("logcumsumexp"), _FORWARD(*rows, *Forward(out=out.data_ptr(), states=_address(states))))
    return out, states


def logcumsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """∂⟨g, LSE of every prefix⟩/∂x, from the states of `logcumsumexp`."""
    rows, layout, _kept = _read(x, tau, where)
    out, g = layout.empty(x), layout.to_memory(g)
    own = Backward(p=0, states=states.data_ptr(), g=g.data_ptr(), out=out.data_ptr())
    _run(_function("logcumsumexp_backward"), _BACKWARD(*rows, *own))
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
    _run(_function("weighted"), _WEIGHTED(*rows, *own))
    return values, signs, states


def weighted_backward(
    x: Tensor, weights: Tensor, signs: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None
) -> Tensor:
    """g · b exp(x/τ)/(τS), from the signs and states of `weighted`."""
    x, g = in_memory(x), in_memory(g)
    out = torch.empty_like(x)
    rows, layout, _kept = _read(x, tau, where)
    addresses, _held = _weights(weights, x, layout)
    own = Weighted(*addresses, 0, signs.data_ptr(), states.data_ptr(), g.data_ptr(), out.data_ptr())
    _run(_function("weighted"), _WEIGHTED(*rows, *own))
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
    _run(_function("gaps"), _GAPS(*rows, *own))
    return summary, largest, counts


def kept(x: Tensor, tau: float | Tensor, reach: float) -> Tensor:
    """The summary [..., 5] of csrc/kernels.h, in double."""
    summary = torch.empty((*x.shape[:-1], 5), dtype=torch.float64, device="cpu")
    rows, _, _kept = _read(x, tau, None)
    _run(_function("kept"), _KEPT(*rows, *Kept(reach=reach, summary=summary.data_ptr())))
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
) -> tuple[Tensor, Tensor | None]:
    """(the loss of each row [...] in double, `scale` times its gradient by x).

    The target holds labels [...], below n and negative for a row to leave out, or probabilities [..., n] in x's dtype. A margin is
    one of softmax's loss, in float64 or float32, of cosines x.
    """
    rows, layout, _kept = _read(x, 1.0, None, theta)
    out = layout.empty(x) if gradient else None
    own, values, _held = _loss(x, target, class_weight, smoothing, scale * (margin.scale or 1.0), fenchel, layout, out)
    _run(kernel.functions.loss, _LOSS(*rows, *own, *margin))
    return values, out


def _loss(
    x: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    smoothing: float,
    scale: float,
    fenchel: bool,
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

    "selected_loss" is that of softmax over the scores where p > 0, "surrogate_loss" is ⟨p − y, x⟩.
    """
    rows, layout, _kept = _read(x, 1.0, None)
    own, values, _held = _loss(x, target, class_weight, smoothing, scale, fenchel, layout, p if gradient else None)
    _run(_function(name), _GIVEN_LOSS(*rows, *own, *NO_MARGIN, *GivenLoss(p=p.data_ptr())))
    return values, p if gradient else None


def quantized(
    q: Tensor, scale: float | Tensor, zero_point: float | Tensor, where: Tensor | None, dtype: torch.dtype, *, softmax: bool
) -> tuple[Tensor, Tensor | None]:
    """(LSE [...] in double, softmax [..., n] in `dtype` if asked for) of scale · (q − zero_point), q int8 or uint8 [..., n]."""
    layout, read, stride = _layout(q)
    if layout.inner == 1 and stride != layout.n:
        read = q.contiguous()
    scale_number, scales = _per_row(scale, q)
    zero_number, zeros = _per_row(zero_point, q)
    mask = None if where is None else layout.to_memory(where.expand(q.shape)).view(torch.uint8)
    values = torch.empty(tuple(q.shape[:-1]), dtype=torch.float64, device="cpu")
    out = layout.empty(q, dtype) if softmax else None
    own = Quantized(
        dtype=DTYPES[dtype],
        is_signed=int(q.dtype == torch.int8),
        outer=layout.outer,
        n=layout.n,
        inner=layout.inner,
        threads=_threads(),
        q=read.data_ptr(),
        scale=scale_number,
        zero=zero_number,
        scales=_address(scales),
        zeros=_address(zeros),
        mask=_address(mask),
        values=values.data_ptr(),
        out=_address(out),
    )
    _run(_function("quantized"), _QUANTIZED(*own))
    return values, out


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """log(e^x + e^y) of contiguous tensors of one shape and dtype."""
    out = torch.empty_like(x)
    pairs = Pairs(DTYPES[x.dtype], x.numel(), _threads(), x=x.data_ptr(), y=y.data_ptr(), g=0, out=out.data_ptr())
    _run(_function("logaddexp"), _PAIRS(*pairs))
    return out


def logaddexp_backward(x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """g · σ(x − y) and g · σ(y − x), of contiguous tensors of one shape and dtype."""
    of_x, of_y = torch.empty_like(x), torch.empty_like(y)
    addresses = {"x": x.data_ptr(), "y": y.data_ptr(), "g": g.data_ptr(), "out": of_x.data_ptr(), "other": of_y.data_ptr()}
    _run(_function("logaddexp"), _PAIRS(*Pairs(DTYPES[x.dtype], x.numel(), _threads(), **addresses)))
    return of_x, of_y


def elementwise(name: str, x: Tensor) -> Tensor:
    """exp or log of a contiguous float64 or float32 tensor, by the library's own polynomials."""
    y = torch.empty_like(x)
    _run(_function(name), _ELEMENTWISE(*Elementwise(DTYPES[x.dtype], x.numel(), x=x.data_ptr(), y=y.data_ptr())))
    return y


# Calls on plain arguments ---------------------------------------------------------------------------------------------------


def _load_calls() -> Any:
    """The module of csrc/python, None where it was not built: then every call is made here."""
    try:
        return importlib.import_module("softmaxima.kernels._calls") if AVAILABLE else None
    except ImportError:
        return None


CALLS = _load_calls()
