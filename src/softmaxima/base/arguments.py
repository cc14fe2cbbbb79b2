"""The public edge: arguments are checked here and in `numbers.py`, before any work; arrays become tensors and tensors arrays."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.base.dtensors import is_dtensor
from softmaxima.base.numbers import TEMPERATURE, as_number, check_axis, check_number, described, shown
from softmaxima.base.tracing import is_concrete, is_symbol, of_symbol, sizes

Array = TypeVar("Array", Tensor, np.ndarray)
DType = torch.dtype | npt.DTypeLike | None  # None for that of the scores


# The dtype that a map computes in, for each dtype of scores that it takes.
COMPUTE_DTYPE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


def as_tensor(name: str, what: str, x: Any) -> Tensor:
    """A tensor over the same memory. NumPy arrays are shared, not copied, wherever torch can read them."""
    if isinstance(x, Tensor):
        return _dense(name, what, x)
    if not isinstance(x, (np.ndarray, np.generic)):
        repair = "call torch.tensor() or numpy.array()"
        kinds = type(x).__mro__  # for there are objects that answer whatever they are asked
        if any(str(kind.__module__).startswith("dask") for kind in kinds):
            by_chunks = name in dir(importlib.import_module("softmaxima.dask"))
            repair = f"take sm.dask.{name}, which reads it chunk by chunk, or " if by_chunks else ""
            repair += "call .compute() where it fits in memory"
        elif any("to_numpy" in vars(kind) for kind in kinds):
            repair = "call .to_numpy()"
        raise TypeError(f"{name}: {what} must be a torch.Tensor or a numpy.ndarray, got {type(x).__name__}; {repair}")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: {what} must not be a masked array; {_unmasked(name, what, x)}")
    array = np.asarray(x)
    if array.dtype.byteorder not in "=|" or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = np.asarray(_Writeable(array))
    try:
        return torch.from_numpy(array)
    except TypeError:
        repair = "call .astype(numpy.float64)"
        if array.dtype.kind in "US" or (array.dtype.kind == "O" and any(isinstance(each, str) for each in array.flat)):
            repair = "call .astype(float), which reads numbers that are written out"
            if what in ("target", "labels", "index"):
                repair = "number what they name: numpy.unique(…, return_inverse=True)[1] does so in the order of the alphabet"
            elif what == "where" or what.endswith("mask"):
                true = b"True" if array.dtype.kind == "S" else "True"
                repair = f"compare them with what stands for True, as in {what} == {true!r}"  # astype(bool) asks for their length
        elif array.dtype.names:
            repair = f"take one of its fields, such as [{array.dtype.names[0]!r}]"
        elif what == "where":
            repair = "call .astype(bool)"
        raise TypeError(f"{name}: torch has no dtype for {what} of NumPy dtype {array.dtype}; {repair}") from None


def _unmasked(name: str, what: str, x: np.ma.MaskedArray) -> str:
    """What to give in the place of a masked array, of what the function takes."""
    function = getattr(importlib.import_module("softmaxima"), name, None)
    taken = inspect.signature(function).parameters if callable(function) else {}
    if what == "scores" and "where" in taken:
        return "pass its .data, and where=~numpy.ma.getmaskarray(…) of it"
    if what == "scores" and x.dtype.kind == "f" and "class_vectors" not in taken:  # of cosines none is −∞
        return "call .filled(-numpy.inf), which leaves those scores out"
    if what == "target" and "ignore_index" in taken and x.dtype.kind in "iu":
        return "call .filled(-100), which ignore_index leaves out"
    return "call .filled(False), which leaves those scores out" if what == "where" else "call .filled(…) with a value that counts"


def _dense(name: str, what: str, x: Tensor) -> Tensor:
    """The tensor as it lies in memory: one number an entry, its sign and imaginary part as they are."""
    if is_dtensor(x):
        raise TypeError(
            f"{name}: {what} must be a plain tensor here, got a DTensor; call .full_tensor(), or .to_local() for what this rank has"
        )
    if x.is_nested:
        repair = "pad it, and leave the padding out by where="
        if what == "scores":
            repair = f"sm.segment_map, sm.segment_softmax and sm.segment_logsumexp take it, row by row; or {repair}"
        raise TypeError(f"{name}: {what} must be a dense tensor, got a nested one; {repair}")
    if x.layout is not torch.strided:
        raise TypeError(f"{name}: {what} must be a dense tensor, got one of layout {x.layout}; call .to_dense()")
    if x.is_quantized:
        raise TypeError(
            f"{name}: {what} must not be a quantised tensor, got {x.dtype}; call .dequantize(), or take quantized_logsumexp or "
            "quantized_softmax of .int_repr()"
        )
    if is_compiling():  # which cannot ask; the kernels resolve what comes to them
        return x
    if x._is_zerotensor():  # which has no memory
        x = x.clone()
    if x.is_conj():
        x = x.resolve_conj()
    return x.resolve_neg() if x.is_neg() else x


def as_scores(name: str, x: Any, what: str = "scores") -> Tensor:
    """Scores of a dtype that maps take, in float32 under autocast as torch.softmax is."""
    return check_scores(name, as_tensor(name, what, x), what, cast_to("float", x))


def as_map_scores(name: str, x: Any, dtype: DType = None, what: str = "scores") -> Tensor:
    """Real scores of maps and sums, where integers count as in `as_floating`; in a dtype that is given, whatever autocast says."""
    if dtype is None:
        return check_scores(name, as_floating(name, x, what=what), what)
    return as_tensor(name, what, as_dtype(name, x, dtype))


def as_dtype(name: str, x: Any, dtype: DType) -> Any:
    """A tensor or an array in one of the dtypes that maps compute in; anything else as it came."""
    is_array = isinstance(x, (np.ndarray, np.generic))
    if not isinstance(dtype, torch.dtype):
        try:
            dtype = torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype
        except (TypeError, ValueError, OverflowError):
            raise TypeError(
                f"{name}: dtype must be float64, float32, bfloat16 or float16, got {shown(dtype)}; pass torch.float32"
            ) from None
    if dtype not in COMPUTE_DTYPE or (is_array and dtype == torch.bfloat16):
        choices = "float64, float32 or float16 for arrays" if is_array else "float64, float32, bfloat16 or float16"
        raise TypeError(f"{name}: dtype must be {choices}, got {dtype}; pass torch.float32")
    if (isinstance(x, Tensor) and x.is_complex()) or (is_array and x.dtype.kind == "c"):
        raise TypeError(f"{name}: scores must be real, got {x.dtype}; take x.real or abs(x)")
    return x.astype(str(dtype).removeprefix("torch.")) if is_array else x.to(dtype) if isinstance(x, Tensor) else x


def as_floating(name: str, x: Any, integers: torch.dtype | None = None, what: str = "scores") -> Tensor:
    """Scores as a floating-point or complex tensor.

    Integers and booleans become `integers`; None: what torch makes of them in exp, its default dtype, and float64 for NumPy.
    """
    scores = as_tensor(name, what, x)
    if str(scores.dtype).startswith("torch.float8"):
        raise TypeError(f"{name}: {what} must not be of {scores.dtype}, in which torch does not compute; call .float()")
    if scores.is_floating_point() or scores.is_complex():
        return scores
    return scores.to(integers or (torch.get_default_dtype() if isinstance(x, Tensor) else torch.float64))


class _Writeable:
    """Presents a read-only array as writeable, as torch demands; nothing here writes to it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def like_input(p: Tensor, x: Any) -> Any:
    """Give `p` back as the kind of array that `x` is; NumPy gets scalars for 0-d results, as from NumPy itself."""
    return p if isinstance(x, Tensor) else p.detach().numpy()[()]


def check_scores(name: str, x: Tensor, what: str = "scores", cast: str = "float()") -> Tensor:
    """The same of a tensor; `cast` is the method that makes floating point of integers."""
    if x.dtype not in COMPUTE_DTYPE:
        called = what if what.isidentifier() and what != "scores" else "x"
        repair = f"take {called}.real or abs({called})" if x.is_complex() else f"call {called}.{cast} first"
        raise TypeError(f"{name}: {what} must be float64, float32, bfloat16 or float16, got {x.dtype}; {repair}")
    # Of meta torch knows no autocast.
    if x.dtype in (torch.bfloat16, torch.float16) and not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return x.float()
    return x


def check_tensor(name: str, what: str, x: Any) -> Tensor:
    """The tensor, where arrays have no place."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {what} must be a torch.Tensor, got {type(x).__name__}; call torch.as_tensor({what})")
    if x.layout not in (torch.strided, torch.jagged):
        raise TypeError(f"{name}: {what} must be a dense tensor, got one of layout {x.layout}; call .to_dense()")
    return x


def check_place(name: str, device: Any, dtype: Any) -> dict[str, Any]:
    """What parameters are made with: a device that torch has here and a dtype that heads take, torch's default ones of None."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or dtype not in COMPUTE_DTYPE:
        got = f"{dtype}; pass torch.float32" if isinstance(dtype, torch.dtype) else described(dtype, "torch.float32")
        raise TypeError(f"{name}: dtype must be float64, float32, bfloat16 or float16, got {got}")
    try:
        return {"device": torch.empty(0, device=device).device, "dtype": dtype}
    except (TypeError, ValueError, RuntimeError, AssertionError):  # the last of a device that torch was not built for
        is_name = isinstance(device, (str, int, torch.device)) and not isinstance(device, bool)
        got = f"{str(device)!r}; give 'cpu'" if is_name else described(device, "'cpu'")
        raise (ValueError if is_name else TypeError)(f"{name}: device must be one that torch has here, got {got}") from None


def check_dim(name: str, dim: Any, ndim: int, what: str = "dim") -> int:
    """`dim` as a non-negative axis."""
    dim = check_axis(name, dim, what)
    ndim = max(ndim, 1)
    if not -ndim <= dim < ndim:
        raise IndexError(f"{name}: {what} must be in [{-ndim}, {ndim - 1}] for scores of {ndim} dimensions, got {dim}")
    return dim % ndim


def check_dims(name: str, dim: int | Sequence[int], ndim: int, what: str = "dim") -> tuple[int, ...]:
    """`dim` as non-negative axes, which count as one."""
    if type(dim) is int:
        return (check_dim(name, dim, ndim, what),)
    if dim is None or isinstance(dim, (str, bytes)):
        raise TypeError(f"{name}: {what} must be an int or a tuple of ints, got {dim!r}; tuple(range(x.ndim)) takes all")
    dims = tuple(check_dim(name, d, ndim, what) for d in (dim if isinstance(dim, Sequence) else (dim,)))
    if not dims or len(set(dims)) < len(dims):
        raise ValueError(f"{name}: {what} must name each axis once, and at least one; got {dim}")
    return dims


def check_value(name: str, what: str, value: Any, valid: Callable[[Any], Any], domain: str) -> float | Tensor:
    """A number that is `valid`, or a tensor of such numbers, of any shape; of a module, such as `Temperature`, what it says now."""
    learns = isinstance(value, torch.nn.Module)
    if learns:
        value = said(name, what, value)
    if type(value) is float or (not isinstance(value, Tensor) and as_number(value) is not None):
        number = check_number(name, what, value, valid, domain)
        return of_symbol(number) if is_symbol(number) else number
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(f"{name}: {what} must be {domain}, got {described(value, 'a number or a tensor')}")
    tensor = as_tensor(name, what, value)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: {what} must be real, got {tensor.dtype}")
    if is_concrete(tensor) and not bool((right := valid(values := tensor.detach().double())).all()):
        wrong = float(values[~right][0])
        held = (
            f"; {held_by(valid, sizes(tensor))}" if (learns or tensor.requires_grad) and wrong == wrong and not valid(-1.0) else ""
        )
        raise ValueError(f"{name}: {what} must be {domain}, got a tensor with {wrong}{held}")
    return tensor


def held_by(valid: Callable[[Any], Any], shape: tuple[int, ...]) -> str:
    """What keeps a positive number that learns where it is `valid`: the limits that it has there, but for those of a dtype."""
    init = next(v for v in (1.0, 1.5, 0.5, 0.01, 100.0) if valid(0.99 * v) and valid(1.01 * v))
    least, most = (_farthest(valid, init, end) for end in (0.0, 1e308))
    named = {
        "minimum": f"{least:.6g}" * (least > 1e-30),
        "maximum": f"{most:.6g}" * (most < 1e30),
        "shape": f"{shape}" * bool(shape),
    }
    return f"hold it there with sm.Positive({', '.join([f'{init:g}', *(f'{key}={v}' for key, v in named.items() if v)])})"


def _farthest(valid: Callable[[Any], Any], inside: float, outside: float) -> float:
    """The last number that is `valid` on the way out."""
    if valid(outside):
        return outside
    while (middle := inside / 2 + outside / 2) not in (inside, outside):
        inside, outside = (middle, outside) if valid(middle) else (inside, middle)
    return inside


def said(name: str, what: str, module: torch.nn.Module) -> Any:
    """What a module that stands for a number is called for, without arguments."""
    if type(module).forward is torch.nn.Module.forward:
        raise TypeError(f"{name}: {what} must be a number, a tensor or a module that says it, got {type(module).__name__}")
    arguments = () if is_compiling() else inspect.signature(module.forward).parameters.values()
    wanted = [a.name for a in arguments if a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    if wanted:
        raise TypeError(
            f"{name}: {what} must be a number, a tensor or a module that says it, got {type(module).__name__}, which must be given "
            f"{wanted[0]}; pass {what}=module({wanted[0]})"
        )
    return module()


def scale_domain(dtype: torch.dtype) -> tuple[Callable[[Any], Any], str]:
    """(valid, domain) of a scale of scores of a dtype: a positive number whose reciprocal is one too, in what computes them."""
    least = torch.finfo(COMPUTE_DTYPE[dtype]).tiny
    return lambda c: (c >= least) & (c <= 1 / least), f"positive, from {least:.2g} to {1 / least:.2g} for scores in {dtype}"


def check_per_row(
    name: str, what: str, value: Any, x: Tensor, dim: int | tuple[int, ...], valid: Callable[[Any], Any], domain: str
) -> float | Tensor:
    """A number, or a tensor of x's rank with size 1 along `dim`, that is `valid`."""
    tensor = check_value(name, what, value, valid, domain)
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = check_device(name, what, tensor, x)
    shape = sizes(x)
    dims = dim if isinstance(dim, tuple) else (dim,)
    rows_shape = tuple(1 if axis in dims else size for axis, size in enumerate(shape))
    if not broadcasts(tensor, rows_shape):
        raise ValueError(
            f"{name}: {what} must broadcast against scores of shape {shape} with size 1 along dim {', '.join(map(str, dims))}, "
            f"got shape {sizes(tensor)}; {_reshaping(what, sizes(tensor), rows_shape)}"
        )
    return _of_rank(tensor, x.ndim)


def _reshaping(what: str, own: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """What makes an argument of a shape that broadcasts to the rows' of it."""
    if math.prod(own) == math.prod(shape):
        return f"one value a row needs {what}.reshape{shape}"
    axis = next((a for a, size in enumerate(shape) if own == (size,)), None)
    if axis is None:
        return f"give it a shape that broadcasts to {shape}"
    return f"one value for each index of axis {axis} needs {what}.reshape{own + (1,) * (len(shape) - axis - 1)}"


def check_device(name: str, what: str, tensor: Tensor, x: Tensor) -> Tensor:
    """What goes with the scores x, which lies where they do; a CPU tensor of no axes is a number everywhere, and is moved."""
    if tensor.device == x.device:
        return tensor
    if tensor.ndim or not tensor.is_cpu:
        wanted, got = str(x.device), str(tensor.device)
        raise ValueError(f"{name}: {what} must be on the device of the scores, {wanted}, got {got}; call {what}.to({wanted!r})")
    return tensor.to(x.device)


def check_values(name: str, what: str, x: Tensor) -> Tensor:
    """What is read before the shapes of a result are known."""
    if x.is_meta:
        raise ValueError(f"{name}: {what} must hold values, got a meta tensor, which has a shape alone; give one with memory")
    return x


def broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether it broadcasts to the shape, and no further."""
    own = sizes(tensor)
    return len(own) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(own), reversed(shape), strict=False))


def _of_rank(tensor: Tensor, rank: int) -> Tensor:
    return tensor[(None,) * (rank - tensor.ndim)] if tensor.ndim < rank else tensor


def check_temperature(name: str, temperature: Any, x: Tensor, dim: int | tuple[int, ...]) -> float | Tensor:
    """A positive number, or a tensor of positive numbers that broadcasts against the rows."""
    return check_per_row(name, "temperature", temperature, x, dim, *TEMPERATURE)


def rows_last(name: str, x: Tensor, dim: Any, temperature: Any, where: Any) -> tuple[int, Tensor, float | Tensor, Tensor | None]:
    """(dim ≥ 0, x, τ, mask) validated, with `dim` moved last; a number is a row of one."""
    dim = check_dim(name, dim, x.ndim)
    x = x if x.ndim else x.reshape(1)
    tau, mask = check_temperature(name, temperature, x, dim), check_where(name, where, x)
    return dim, *(moved_last(v, dim) for v in (x, tau, mask))  # type: ignore[return-value]


def moved_last(value: Any, dim: int) -> Any:
    """A tensor with the axis `dim` last; anything else, and a tensor of which it is, as it came."""
    return value.movedim(dim, value.ndim - 1) if isinstance(value, Tensor) and dim != value.ndim - 1 else value


def moved_back(value: Tensor, dim: int) -> Tensor:
    """A tensor with its last axis where `dim` ≥ 0 was; an exporter to ONNX keeps a negative axis as it is."""
    return value.movedim(value.ndim - 1, dim) if dim != value.ndim - 1 else value


def merged_last(value: Any, dims: tuple[int, ...]) -> Any:
    """A tensor with the axes `dims` as one, last; anything else as it came."""
    if len(dims) == 1 or not isinstance(value, Tensor):
        return moved_last(value, dims[0])
    return value.movedim(dims, tuple(range(value.ndim - len(dims), value.ndim))).flatten(value.ndim - len(dims))


def cast_to(kind: str, x: Any) -> str:
    """The method that makes a tensor, or else an array, one of bool or float, as messages write it."""
    return f"{kind}()" if isinstance(x, Tensor) else f"astype({kind})"


def check_where(name: str, where: Any, x: Tensor, what: str = "where") -> Tensor | None:
    """A boolean mask of x's rank that broadcasts to x."""
    if where is None:
        return None
    mask = as_tensor(name, what, where)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name}: {what} must be boolean (True keeps a score), got {mask.dtype}; call {what}.{cast_to('bool', where)}"
        )
    if not broadcasts(mask, sizes(x)):
        raise ValueError(f"{name}: {what} must broadcast to the scores' shape {sizes(x)}, got {sizes(mask)}")
    return _of_rank(check_device(name, what, mask, x), x.ndim)
