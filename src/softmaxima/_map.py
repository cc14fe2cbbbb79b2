"""The contract: what a map is, and the one autograd function that evaluates every map.

A map sends scores x to probabilities p along one axis. Its Jacobian has the form

    J = ∂p/∂z = diag(s) − q rᵀ,        z = x/τ, −∞ where masked        (r = s for maps onto probabilities)
    vjp(g) = s ⊙ g − r ⟨q, g⟩          jvp(t) = s ⊙ t − q ⟨r, t⟩

so a map states `forward` and `sensitivity = (s, q)` or `(s, q, r)`, and this file derives the reverse, forward and double
derivatives, vmap, torch.func and torch.compile support, masks, temperature, axes and array kinds.
"""

from __future__ import annotations

import importlib
import math
import operator
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch.compiler import is_compiling

from softmaxima import _devices, _kernels, _operations
from softmaxima._kernels import Kernel

Array = TypeVar("Array", Tensor, np.ndarray)

# The dtype that a map computes in, for each dtype of scores that it takes.
COMPUTE_DTYPE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a map.

    `valid` works on a number and, elementwise, on a tensor. A parameter that has a `gradient(p, z, **params) = ∂p/∂θ` may be a
    tensor that broadcasts against the rows, and learns. `regulariser_gradient(p, **params) = ∂Ω/∂θ` at fixed p completes
    the derivative of the map's Fenchel–Young loss. Tests and benchmarks iterate `examples`.

    >>> import softmaxima as sm
    >>> [(parameter.name, parameter.default, parameter.domain) for parameter in sm.find_map("entmax").params]
    [('alpha', 1.5, 'at least 1 and finite')]
    """

    name: str
    default: Any
    examples: tuple[Any, ...]
    valid: Callable[[Any], Any]
    domain: str
    gradient: Callable[..., Tensor] | None = None
    regulariser_gradient: Callable[..., Tensor] | None = None


@dataclass(frozen=True)
class Properties:
    """What a map claims. The tests hold it to every claim.

    >>> import softmaxima as sm
    >>> [name for name, map in sm.maps.REGISTRY.items() if map.properties.sparse and map.properties.continuous]
    ['entmax', 'entmax15', 'sparsemax']
    """

    mass: str = "one"  # what Σp is on a row with an allowed score: "one" | "at most one" | "zero or one"
    shift_invariant: bool = True  # map(x + c) = map(x)
    order_preserving: bool = True  # x_i > x_j ⇒ p_i ≥ p_j
    sparse: bool = False  # finite scores can get exactly zero
    continuous: bool = True  # p moves continuously with x
    logarithmic: bool = False  # returns log p, so that the claims hold for its exponential


@dataclass(frozen=True)
class Cost:
    """Passes over a row that an ideal kernel needs when the row does not fit in cache.

    >>> import softmaxima as sm
    >>> sm.find_map("softmax").cost
    Cost(reads=2, writes=1)
    """

    reads: int
    writes: int = 1


@dataclass(frozen=True, eq=False)
class Map:
    """One map from scores to probabilities; see `docs/architecture.md` for the contract and CONTRIBUTING.md for an example.

    Every callable works along the last axis, on scores that are already divided by the temperature and −∞ where masked.

    reference(x, **params): the literal definition, in float64; tests compare with it.
    forward(z, **params): the same, stable and fast.
    sensitivity(p, z, **params): (s, q) or (s, q, r). `z` is None unless `uses_scores`.
    regulariser(p, **params): Ω(p), where the map is the gradient of Ω*; None where there is none.
    kernel: its functions in the native library, which then do what `forward` and the derivative do; None where there are none.

    >>> import numpy as np, softmaxima as sm
    >>> sm.find_map("entmax")(np.array([2.0, 0.0]), alpha=2.0)
    array([1., 0.])
    """

    name: str
    reference: Callable[..., Tensor]
    forward: Callable[..., Tensor]
    sensitivity: Callable[..., tuple[Tensor, ...]]
    source: str
    regulariser: Callable[..., Tensor] | None = None
    params: tuple[Parameter, ...] = ()
    properties: Properties = field(default_factory=Properties)
    cost: Cost = Cost(reads=2)
    uses_scores: bool = False
    kernel: Kernel | None = None

    def __call__(
        self,
        x: Array,
        dim: int = -1,
        *,
        temperature: float | Array = 1.0,
        where: Array | None = None,
        **params: Any,
    ) -> Array:
        """Evaluate the map of `x / temperature` along `dim`, over the scores that `where` allows."""
        if is_plain(x, dim, temperature, where):
            p = _directly(self, x, temperature, params)  # type: ignore[arg-type]
            if p is not None:
                return p
        return _evaluate(self, x, dim, temperature, where, self.complete(params))

    def complete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters in the map's order, defaults filled in."""
        unknown = params.keys() - {parameter.name for parameter in self.params}
        if unknown:
            known = ", ".join(parameter.name for parameter in self.params) or "none"
            raise TypeError(f"{self.name}: unknown parameter {', '.join(sorted(unknown))}; this map takes: {known}")
        return {parameter.name: params.get(parameter.name, parameter.default) for parameter in self.params}

    def __reduce__(self) -> Any:
        if REGISTRY.get(self.name) is not self:
            raise pickle.PicklingError(f"{self.name}: only a registered map can be pickled; call register(map) where it is defined")
        return _restore, (self.reference.__module__, self.name)

    def __deepcopy__(self, memo: Any) -> Map:
        return self


def _restore(module: str, name: str) -> Map:
    """The map that importing the module registers: a pickled map is its name and place."""
    importlib.import_module(module)
    return REGISTRY[name]


REGISTRY: dict[str, Map] = {}


def register(map: Map) -> Map:
    """Add a map to `REGISTRY`, which tests, benchmarks, docs and the command line iterate.

    Raises ValueError if the name is taken.

    >>> import softmaxima as sm
    >>> sm.register(sm.find_map("softmax"))
    Traceback (most recent call last):
    ValueError: register: a map named 'softmax' exists already; choose another name
    """
    if map.name in REGISTRY:
        raise ValueError(f"register: a map named {map.name!r} exists already; choose another name")
    REGISTRY[map.name] = map
    return map


def find_map(map: str | Map) -> Map:
    """The map of that name, or the map itself. Raises ValueError for an unknown name.

    >>> import softmaxima as sm
    >>> sm.find_map("sparsemax").source
    'Martins & Astudillo (2016), arXiv:1602.02068'
    """
    if isinstance(map, Map):
        return map
    if map not in REGISTRY:
        raise ValueError(f"unknown map {map!r}; registered are: {', '.join(REGISTRY)}")
    return REGISTRY[map]


# The public edge: validation and array kinds ---------------------------------------------------------------------------------


def as_tensor(name: str, what: str, x: Any) -> Tensor:
    """A tensor over the same memory. NumPy arrays are shared, not copied, wherever torch can read them."""
    if isinstance(x, Tensor):
        return x
    if not isinstance(x, (np.ndarray, np.generic)):
        kind = type(x).__name__
        raise TypeError(
            f"{name}: {what} must be a torch.Tensor or a numpy.ndarray, got {kind}; call torch.tensor() or numpy.array()"
        )
    array = np.asarray(x)
    if array.dtype.byteorder not in "=|" or any(stride < 0 for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = np.asarray(_Writeable(array))
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(
            f"{name}: torch has no dtype for {what} of NumPy dtype {array.dtype}; call .astype(numpy.float64)"
        ) from None


def as_floating(name: str, x: Any, integers: torch.dtype | None = None) -> Tensor:
    """Scores as a floating-point or complex tensor. Integers become `integers`; None: torch's default dtype, float64 for NumPy."""
    scores = as_tensor(name, "scores", x)
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


def check_scores(name: str, x: Tensor) -> Tensor:
    """Scores of a dtype that maps take, in float32 under autocast as torch.softmax is."""
    if x.dtype not in COMPUTE_DTYPE:
        raise TypeError(f"{name}: scores must be float64, float32, bfloat16 or float16, got {x.dtype}; call x.float() first")
    if x.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled(x.device.type):
        return x.float()
    return x


def check_dim(name: str, dim: int, ndim: int) -> int:
    """`dim` as a non-negative axis."""
    try:
        dim = operator.index(dim)
    except TypeError:
        raise TypeError(f"{name}: dim must be an int, got {type(dim).__name__}") from None
    ndim = max(ndim, 1)
    if not -ndim <= dim < ndim:
        raise IndexError(f"{name}: dim must be in [{-ndim}, {ndim - 1}] for scores of {ndim} dimensions, got {dim}")
    return dim % ndim


def is_traced(x: Tensor) -> bool:
    """Whether a compiler or a transform stands between us and the values."""
    return is_compiling() or is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x)


def is_eager(x: Tensor) -> bool:
    """Whether the tensor has memory now."""
    return type(x) in (Tensor, torch.nn.Parameter) and not is_traced(x)


def is_concrete(x: Tensor) -> bool:
    """Whether the values can be read now, without waiting for a device."""
    return x.is_cpu and is_eager(x)


def check_per_row(
    name: str, what: str, value: Any, x: Tensor, dim: int, valid: Callable[[Any], Any], domain: str
) -> float | Tensor:
    """A number, or a tensor of x's rank with size 1 along `dim`, that is `valid`."""
    if type(value) is float or (isinstance(value, (Real, np.number)) and not isinstance(value, bool)):
        number = float(value)  # type: ignore[arg-type]
        if not valid(number):
            raise ValueError(f"{name}: {what} must be {domain}, got {number}")
        return number
    tensor = as_tensor(name, what, value)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: {what} must be real, got {tensor.dtype}")
    if is_concrete(tensor) and not bool(valid(tensor).all()):
        raise ValueError(f"{name}: {what} must be {domain}, got a tensor with {float(tensor.detach()[~valid(tensor)][0])}")
    if tensor.ndim > x.ndim:
        rows_shape = ()
    else:
        tensor = tensor.reshape((1,) * (x.ndim - tensor.ndim) + tuple(tensor.shape))
        rows_shape = tuple(1 if axis == dim else size for axis, size in enumerate(x.shape))
    if len(rows_shape) != x.ndim or any(size not in (1, rows) for size, rows in zip(tensor.shape, rows_shape, strict=True)):
        raise ValueError(
            f"{name}: {what} must broadcast against scores of shape {tuple(x.shape)} with size 1 along dim {dim}, "
            f"got shape {tuple(tensor.shape)}; one value a row needs {what}.unsqueeze({dim})"
        )
    return tensor


def check_positive(name: str, what: str, value: Any) -> float:
    """A positive finite number."""
    if not isinstance(value, (int, float, np.number)) or not 0 < value < math.inf:
        raise ValueError(f"{name}: {what} must be a positive finite number, got {value!r}")
    return float(value)


def check_temperature(name: str, temperature: Any, x: Tensor, dim: int) -> float | Tensor:
    """A positive number, or a tensor of positive numbers that broadcasts against the rows."""
    return check_per_row(name, "temperature", temperature, x, dim, lambda tau: (tau > 0) & (tau < math.inf), "positive and finite")


def check_where(name: str, where: Any, x: Tensor) -> Tensor | None:
    """A boolean mask of x's rank that broadcasts to x."""
    if where is None:
        return None
    mask = as_tensor(name, "where", where)
    if mask.dtype != torch.bool:
        raise TypeError(f"{name}: where must be boolean (True keeps a score), got {mask.dtype}; call where.bool()")
    ndim = x.ndim
    if mask.ndim > ndim or any(m not in (1, n) for m, n in zip(reversed(mask.shape), reversed(x.shape), strict=False)):
        raise ValueError(f"{name}: where must broadcast to the scores' shape {tuple(x.shape)}, got {tuple(mask.shape)}")
    return mask.reshape((1,) * (ndim - mask.ndim) + tuple(mask.shape))


def check_params(map: Map, params: Mapping[str, Any], x: Tensor, dim: int) -> list[Any]:
    """The values of the map's parameters, in its order."""
    values = []
    for parameter in map.params:
        value = params[parameter.name]
        if parameter.gradient is not None:
            value = check_per_row(map.name, parameter.name, value, x, dim, parameter.valid, parameter.domain)
        elif not parameter.valid(value):
            raise ValueError(f"{map.name}: {parameter.name} must be {parameter.domain}, got {value!r}")
        values.append(value)
    return values


def _rows_last(
    map: Map, x: Tensor, dim: int, temperature: Any, where: Any, params: Mapping[str, Any]
) -> tuple[int, tuple[Any, ...]]:
    """(dim ≥ 0, (x, τ, mask, parameters…) validated, with `dim` moved last)."""
    dim = check_dim(map.name, dim, x.ndim)
    x = x if x.ndim else x.reshape(1)
    tau = check_temperature(map.name, temperature, x, dim)
    arguments = (x, tau, check_where(map.name, where, x), *check_params(map, params, x, dim))
    if dim != x.ndim - 1:
        arguments = tuple(v.movedim(dim, -1) if isinstance(v, Tensor) else v for v in arguments)
    return dim, arguments


def _evaluate(map: Map, x: Any, dim: int, temperature: Any, where: Any, params: Mapping[str, Any]) -> Any:
    scores = check_scores(map.name, as_tensor(map.name, "scores", x))
    dim, arguments = _rows_last(map, scores, dim, temperature, where, params)
    p = _apply(map, *arguments)
    if dim != p.ndim - 1:
        p = p.movedim(-1, dim)
    return like_input(p if scores.ndim else p.reshape(()), x)


def is_plain(x: Any, dim: Any, temperature: Any, where: Any) -> bool:
    """Whether a kernel takes the scores as they are, with nothing to prepare or to refuse; on a few scores that costs more than
    the kernel.
    """
    if where is not None or type(x) is not Tensor or type(temperature) is not float or not 0.0 < temperature < math.inf:
        return False
    return (
        (dim == -1 or dim == x.ndim - 1)
        and x.dtype in _kernels.DTYPES
        and x.is_cpu
        and x.is_contiguous()
        and x.numel() > 0
        and x.ndim > 0
        and _kernels.AVAILABLE
        and not (is_compiling() or transforming())
        and not (x.itemsize == 2 and torch.is_autocast_enabled("cpu"))
    )


def _directly(map: Map, x: Tensor, temperature: float, params: Mapping[str, Any]) -> Any:
    """The map of plain scores with numbers for parameters, by its kernel; None for anything else."""
    kernel = map.kernel
    if kernel is None:
        return None
    theta, values = 0.0, ()
    if map.params or params:
        if params.keys() != {parameter.name for parameter in map.params}:
            return None
        (value,) = values = tuple(params.values())
        if type(value) not in (float, int, str) or not map.params[0].valid(value):
            return None
        theta = kernel.theta(value)
    if x.requires_grad and torch.is_grad_enabled():
        return _apply_plain(map, x, temperature, None, *values)
    return _kernels.forward_plain(kernel.forward, x, temperature, theta)


def _apply(map: Map, *arguments: Any) -> Tensor:
    if transforming() and not is_compiling():
        return _EagerMapFunction.apply(map, *arguments)  # type: ignore[return-value]
    if may_differentiate(arguments):
        apply = _MapFunction.apply if is_compiling() else _apply_reverse
        return apply(map, *arguments)  # type: ignore[return-value]
    return _MapFunction.forward(map, *arguments)


def transforming() -> bool:
    """Whether torch.func or forward mode is at work."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def may_differentiate(arguments: Iterable[Any]) -> bool:
    """Whether reverse mode can ask for a derivative; if not, an autograd function would only cost its overhead."""
    return torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in arguments)


def has_kernel(map: Map, *tensors: Tensor) -> bool:
    """Whether kernels evaluate the map on these tensors."""
    return map.kernel is not None and all(takes_kernel(x) for x in tensors)


def takes_kernel(x: Tensor) -> bool:
    """Whether its device has kernels for the tensor: in memory now, or where a compiler will have it."""
    there = not transforming() if is_compiling() else is_eager(x)
    return there and x.dtype in _kernels.DTYPES and _devices.has_library(x.device.type)


def is_native(x: Tensor) -> bool:
    """Whether the native library, which has more functions than the GPU's kernels, takes the tensor."""
    return x.is_cpu and _kernels.AVAILABLE and takes_kernel(x)


def kernels(x: Tensor) -> Any:
    """The kernels of the tensor's device, as registered operations where a compiler looks on."""
    return _operations if is_compiling() else _devices.library(x.device.type)


def linearise(
    map: Map, x: Tensor, dim: int, temperature: Any, where: Any, params: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor, float | Tensor]:
    """(s, q, r, τ) at x, rows last and in the compute dtype, τ with two trailing axes."""
    _, (rows, tau, mask, *values) = _rows_last(map, check_scores(map.name, x), dim, temperature, where, map.complete(params))
    z = tempered(rows, tau, mask)
    named = _named(map, [v.to(z.dtype) if isinstance(v, Tensor) else v for v in values])
    s, q, r = _sensitivity(map, map.forward(z, **named), z, named)
    return s, q, r, tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau


def forward_mode() -> Any:
    """Lets the operations inside a `jvp` carry the tangents of outer levels, so that forward mode nests."""
    return torch.autograd.forward_ad._set_fwd_grad_enabled(True)


def primal(x: Tensor) -> Tensor:
    """x without the tangent of the innermost level, whose part of the derivative `jvp` itself states."""
    return torch.autograd.forward_ad.unpack_dual(x).primal


# The one autograd function ---------------------------------------------------------------------------------------------------


def tempered(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """z = x/τ in the compute dtype, −∞ where masked."""
    z = x.to(COMPUTE_DTYPE[x.dtype])
    if isinstance(tau, Tensor):
        z = (without_mask(z) / tau.to(z.dtype)).masked_fill(z == -math.inf, -math.inf)  # ∂z/∂τ is 0, not −∞·0, at a mask
    elif tau != 1.0:
        z = z / tau
    return z if where is None else z.masked_fill(~where, -math.inf)


def without_mask(z: Tensor) -> Tensor:
    """z with 0 for −∞, so that a product with an exact zero is zero."""
    return z.masked_fill(z == -math.inf, 0.0)


def batch_first(in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors with vmap's axis in front, size 1 where a tensor is not batched. All have the rank of the rows."""
    return tuple(
        (arg.movedim(d, 0) if d is not None else arg.unsqueeze(0)) if isinstance(arg, Tensor) else arg
        for arg, d in zip(args, in_dims, strict=True)
    )


class _MapFunction(torch.autograd.Function):
    """p = map(x/τ) along the last axis, with every derivative from the sensitivity."""

    @staticmethod
    def forward(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, *params: Any) -> Tensor:
        if x.numel() == 0:
            return x.clone()
        if has_kernel(map, x):
            kernel: Kernel = map.kernel  # type: ignore[assignment]
            return kernels(x).forward(kernel.forward, x, tau, where, kernel.theta(*params) if params else 0.0)
        z = tempered(x, tau, where)
        values = [v.to(z.dtype) if isinstance(v, Tensor) else v for v in params]
        p = map.forward(z, **_named(map, values)).to(x.dtype)
        if is_compiling():
            return p
        return p.clone() if p._is_view() or p is x else p  # eager autograd takes no views from a function

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        map, x, tau, where, *params = inputs
        learns = isinstance(tau, Tensor) or any(isinstance(v, Tensor) for v in params)
        keep = (output, x, where) if map.uses_scores or learns else (output, None, None)
        tensors = (*keep, *(v if isinstance(v, Tensor) else None for v in (tau, *params)))
        ctx.map = map
        ctx.numbers = tuple(None if isinstance(v, Tensor) else v for v in (tau, *params))
        ctx.dtype = x.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        if g is None:
            return (None,) * (3 + len(ctx.numbers))
        _, _, tau_needs, _, *params_need = ctx.needs_input_grad
        if not (tau_needs or any(params_need)) and (is_compiling() or not torch.is_grad_enabled()):
            p, x, where, *tensors = ctx.saved_tensors
            if has_kernel(ctx.map, p, g):
                tau, *values = (n if t is None else t for t, n in zip(tensors, ctx.numbers, strict=True))
                kernel: Kernel = ctx.map.kernel
                theta = kernel.theta(*values) if values else 0.0
                x_grad = kernels(p).backward(kernel.backward, p, g, x if ctx.map.uses_scores else None, tau, where, theta)
                return (None, x_grad, *(None,) * (1 + len(ctx.numbers)))
        map, p, z, tau, params = _recall(ctx)
        g = g.to(p.dtype)
        s, q, r = _sensitivity(map, p, z, params)
        v = s * g - r * (q * g).sum(-1, keepdim=True)
        grads: list[Tensor | None] = [v.to(ctx.dtype) if _is_one(tau) else (v / tau).to(ctx.dtype)]
        grads.append(_to_shape(-without_mask(z) * v / tau, tau) if tau_needs else None)
        for parameter, needs in zip(map.params, params_need, strict=True):
            if needs and parameter.gradient is not None:
                value = params[parameter.name]
                grads.append(_to_shape(g * parameter.gradient(p, z, **params), value))
            else:
                grads.append(None)
        x_grad, tau_grad, *param_grads = grads
        return (None, x_grad, tau_grad, None, *param_grads)


class _ReverseMapFunction(_MapFunction):
    """The same for plain reverse mode, with the context in `forward`: an eager call of `setup_context` costs 0.1 ms."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        output = _MapFunction.forward(*inputs)
        _MapFunction.setup_context(ctx, inputs, output)
        return output

    setup_context = torch.autograd.Function.setup_context


class _PlainMapFunction(_ReverseMapFunction):
    """The same for plain scores and numbers, with nothing to find out."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        map, x, tau, _, *params = inputs
        output = _kernels.forward_plain(map.kernel.forward, x, tau, map.kernel.theta(*params) if params else 0.0)
        ctx.map, ctx.numbers, ctx.dtype = map, (tau, *params), x.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output, x if map.uses_scores else None, *[None] * (2 + len(params)))
        return output


# The C++ half of `apply`: the other half is for torch.func, and takes as long again.
_apply_reverse: Callable[..., Tensor] = super(torch.autograd.Function, _ReverseMapFunction).apply  # type: ignore[misc]
_apply_plain: Callable[..., Tensor] = super(torch.autograd.Function, _PlainMapFunction).apply  # type: ignore[misc]


class _EagerMapFunction(_MapFunction):
    """Adds forward mode and vmap, which torch.compile does not take in an autograd function."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _MapFunction.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, dx, dtau, _, *dparams = tangents
        with forward_mode():
            map, p, z, tau, params = _recall(ctx, primal)
            dz = torch.zeros_like(p) if dx is None else dx.to(p.dtype) / tau
            if dtau is not None:
                dz = dz - without_mask(z) * dtau / tau
            s, q, r = _sensitivity(map, p, z, params)
            dp = s * dz - q * (r * dz).sum(-1, keepdim=True)
            for parameter, tangent in zip(map.params, dparams, strict=True):
                if tangent is not None and parameter.gradient is not None:
                    dp = dp + parameter.gradient(p, z, **params) * tangent
            return dp.to(ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        map, x, *rest = batch_first(in_dims, args)
        x = x.expand(info.batch_size, *x.shape[1:])
        return _EagerMapFunction.apply(map, x, *rest), 0  # type: ignore[return-value]


def _named(map: Map, values: list[Any]) -> dict[str, Any]:
    return {parameter.name: value for parameter, value in zip(map.params, values, strict=True)}


def _recall(ctx: Any, read: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Any:
    """(map, p, z, τ, parameters) in the compute dtype, differentiable where the saved tensors are."""
    saved: list[Any] = [None if t is None else read(t) for t in ctx.saved_tensors]
    p, x, where, *tensors = saved
    dtype = COMPUTE_DTYPE[ctx.dtype]
    tau, *values = (n if t is None else t.to(dtype) for t, n in zip(tensors, ctx.numbers, strict=True))
    z = None if x is None else tempered(x, tau, where)
    return ctx.map, p.to(dtype), z, tau, _named(ctx.map, values)


def _sensitivity(map: Map, p: Tensor, z: Tensor | None, params: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    if p.shape[-1] == 0:
        return p, p, p
    s, q, *r = map.sensitivity(p, z, **params)
    return s, q, (r[0] if r else s)


def _is_one(tau: float | Tensor) -> bool:
    return not isinstance(tau, Tensor) and tau == 1.0


def _to_shape(gradient: Tensor, value: Tensor) -> Tensor:
    return gradient.sum_to_size(value.shape).to(value.dtype)
