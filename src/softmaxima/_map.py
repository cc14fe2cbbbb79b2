"""The contract: what a map is, and the one autograd function that evaluates every map.

A map sends scores x to probabilities p along one axis. Its Jacobian has the form

    J = ∂p/∂z = diag(s) − q rᵀ,        z = x/τ, −∞ where masked        (r = s for maps onto probabilities)
    vjp(g) = s ⊙ g − r ⟨q, g⟩          jvp(t) = s ⊙ t − q ⟨r, t⟩

so a map states `forward` and `sensitivity = (s, q)`, `(s, q, r)` or log s (`_jacobian.py`), and this file derives the reverse,
forward and double derivatives, vmap, torch.func, what recorders such as torch.compile and torch.export see, masks, temperature
and axes.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_exporting

from softmaxima import _devices, _kernels, _operations
from softmaxima._arguments import (
    COMPUTE_DTYPE,
    SMALLEST_TEMPERATURE,
    Array,
    as_number,
    as_scores,
    check_dim,
    check_int,
    check_number,
    check_per_row,
    check_scores,
    check_temperature,
    check_value,
    check_where,
    like_input,
    nearest,
)
from softmaxima._jacobian import DiagonalAndProduct, Jacobian, jacobian_of, narrowed
from softmaxima._kernels import Kernel
from softmaxima._rows import row_maximum, without_mask
from softmaxima._temperature import anchored, is_one, over, tempered
from softmaxima._tracing import (
    is_eager,
    is_exporting_to_onnx,
    is_recorded,
    is_recording,
    may_differentiate,
    operation,
    outside_compilers,
    transforming,
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a map.

    `kind` is what its values are: float, int, str, or object for anything. Only such values, NumPy's numbers converted, come to
    `valid`, which works on a number and, elementwise, on a tensor. A parameter that has a `gradient(p, z, **params) = ∂p/∂θ` may be
    a tensor that broadcasts against the rows, and learns. `regulariser_gradient(p, **params) = ∂Ω/∂θ` at fixed p completes
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
    kind: type = float
    gradient: Callable[..., Tensor] | None = None
    regulariser_gradient: Callable[..., Tensor] | None = None

    def check(self, name: str, value: Any) -> Any:
        """The value, a number as Python's, if it is in the domain."""
        if self.gradient is not None:
            return check_value(name, self.name, value, self.valid, self.domain)
        if self.kind is float:
            return check_number(name, self.name, value, self.valid, self.domain)
        if self.kind is int:
            return check_int(name, self.name, value, self.valid, self.domain)
        if not isinstance(value, self.kind) or not self.valid(value):
            raise ValueError(f"{name}: {self.name} must be {self.domain}, got {value!r}")
        return value


@dataclass(frozen=True)
class Properties:
    """What a map claims. The tests hold it to every claim.

    >>> import softmaxima as sm
    >>> [name for name, map in sm.maps.REGISTRY.items() if map.properties.sparse and map.properties.continuous]
    ['entmax', 'entmax15', 'sparsemax']
    """

    mass: str = "one"  # what Σp is on a row with an allowed score: "one" | "at most one" | "zero or one"
    shift_invariant: bool = True  # map(x + c) = map(x)
    locally_shift_invariant: bool = False  # so for a small c, where it is not so for every c
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
    sensitivity(p, z, **params): (s, q) or (s, q, r), or `Balanced(log s)` where s may be huge. `z` is None unless `uses_scores`.
    regulariser(p, **params): Ω(p), where the map is the gradient of Ω*; None where there is none.
    kernel: its functions in the native library, which then do what `forward` and the derivative do; None where there are none.

    >>> import numpy as np, softmaxima as sm
    >>> sm.find_map("entmax")(np.array([2.0, 0.0]), alpha=2.0)
    array([1., 0.])
    """

    name: str
    reference: Callable[..., Tensor]
    forward: Callable[..., Tensor]
    sensitivity: Callable[..., tuple[Tensor, ...] | Jacobian]
    source: str
    regulariser: Callable[..., Tensor] | None = None
    params: tuple[Parameter, ...] = ()
    properties: Properties = field(default_factory=Properties)
    cost: Cost = Cost(reads=2)
    uses_scores: bool = False
    kernel: Kernel | None = None
    key: str = field(init=False, repr=False, default="")  # by which the registered operations know the map

    def __post_init__(self) -> None:
        key = place = f"{self.reference.__module__}:{self.name}"
        n = 1
        while key in _BY_KEY:
            key, n = f"{place} #{n + 1}", n + 1
        object.__setattr__(self, "key", key)
        _BY_KEY[key] = self

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

    @property
    def function(self) -> Callable[..., Any] | None:
        """The public function, which has the map's name, in the map's file."""
        return getattr(sys.modules.get(self.reference.__module__), self.name, None)

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
_BY_KEY: WeakValueDictionary[str, Map] = WeakValueDictionary()  # registered or not


def register(map: Map) -> Map:
    """Add a map to `REGISTRY`, which tests, benchmarks, docs and the command line iterate.

    Raises TypeError for anything else, and ValueError if the name is taken.

    >>> import softmaxima as sm
    >>> sm.register(sm.find_map("softmax"))
    Traceback (most recent call last):
    ValueError: register: a map named 'softmax' exists already; choose another name
    """
    if not isinstance(map, Map):
        raise TypeError(f"register: map must be a Map, got {type(map).__name__}; see CONTRIBUTING.md for an example")
    if map.name in REGISTRY:
        raise ValueError(f"register: a map named {map.name!r} exists already; choose another name")
    REGISTRY[map.name] = map
    return map


AnyMap = str | Map | Callable[..., Any]  # a registered name, a Map, or the function of one


def find_map(map: AnyMap, name: str = "find_map") -> Map:
    """The map of that name or of that function (`sm.sparsemax`), or the map itself.

    Raises ValueError for an unknown name or function, TypeError for anything else; `name` is the caller's, for the message.

    >>> import softmaxima as sm
    >>> sm.find_map("sparsemax").source
    'Martins & Astudillo (2016), arXiv:1602.02068'
    >>> sm.find_map(sm.sparsemax) is sm.find_map("sparsemax")
    True
    """
    if isinstance(map, Map):
        return map
    if not isinstance(map, str) and not callable(map):
        raise TypeError(f"{name}: map must be the name or the function of a map, or a Map, got {type(map).__name__}")
    called = map if isinstance(map, str) else getattr(map, "__name__", type(map).__name__)
    found = REGISTRY.get(called)
    if found is None or not (isinstance(map, str) or found.function is map):
        known = ", ".join(REGISTRY)
        what = repr(map) if isinstance(map, str) else f"function {getattr(map, '__module__', '')}.{called}"
        raise ValueError(f"{name}: unknown map {what}{nearest(called, REGISTRY)}; registered are: {known}")
    return found


def check_params(map: Map, params: Mapping[str, Any], x: Tensor, dim: int, name: str | None = None) -> list[Any]:
    """The values of the map's parameters, in its order; `name` is that of a function which is called otherwise than the map."""
    name, values = name or map.name, []
    for parameter in map.params:
        value = params[parameter.name]
        if parameter.gradient is not None:
            value = check_per_row(name, parameter.name, value, x, dim, parameter.valid, parameter.domain)
        else:
            value = parameter.check(name, value)
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
    scores = as_scores(map.name, x)
    dim, arguments = _rows_last(map, scores, dim, temperature, where, params)
    p = _apply(map, *arguments)
    if dim != p.ndim - 1:
        p = p.movedim(p.ndim - 1, dim)  # an exporter to ONNX keeps a negative axis as it is
    return like_input(p if scores.ndim else p.reshape(()), x)


def is_plain(x: Any, dim: Any, temperature: Any, where: Any) -> bool:
    """Whether a kernel takes the scores as they are, with nothing to prepare or to refuse; on a few scores that costs more than
    the kernel.
    """
    if where is not None or type(x) is not Tensor or type(temperature) is not float:
        return False
    if not SMALLEST_TEMPERATURE <= temperature < math.inf:
        return False
    if is_recording() or transforming():
        return False
    return (
        type(dim) is int
        and (dim == -1 or dim == x.ndim - 1)
        and x.dtype in _kernels.DTYPES
        and x.is_cpu
        and x.layout is torch.strided
        and x.is_contiguous()
        and x.numel() > 0
        and x.ndim > 0
        and _kernels.AVAILABLE
        and not (x.is_neg() or x.is_nested)
        and not (x.itemsize == 2 and torch.is_autocast_enabled("cpu"))
    )


def _directly(map: Map, x: Tensor, temperature: float, params: Mapping[str, Any]) -> Any:
    """The map of plain scores with numbers for parameters, by its kernel; None for anything else."""
    kernel = map.kernel
    if kernel is None:
        return None
    if len(params) != len(map.params):
        return None
    values: tuple[Any, ...] = ()
    for parameter in map.params:
        value = params.get(parameter.name)  # None for one of another name
        if type(value) is int and parameter.kind is float:
            value = as_number(value)
        if type(value) is not parameter.kind or not parameter.valid(value):
            return None
        values += (value,)
    theta = kernel.theta(*values) if values else 0.0
    if x.requires_grad and torch.is_grad_enabled():
        return _apply_plain(map, x, temperature, None, *values)
    return _kernels.forward_plain(kernel.forward, x, temperature, theta)


def _apply(map: Map, *arguments: Any) -> Tensor:
    if transforming():
        return outside_compilers(_EagerMapFunction.apply)(map, *arguments)
    if not is_recorded(arguments[0]) and may_differentiate(arguments):
        return _apply_reverse(map, *arguments)
    return _MapFunction.forward(map, *arguments)


def has_kernel(map: Map, *tensors: Tensor) -> bool:
    """Whether kernels evaluate the map on these tensors."""
    return map.kernel is not None and all(takes_kernel(x) for x in tensors)


def takes_kernel(x: Tensor) -> bool:
    """Whether its device has kernels for the tensor: in memory now, or where torch.compile will have it."""
    there = not (transforming() or is_exporting()) if is_compiling() else is_eager(x)
    return there and x.dtype in _kernels.DTYPES and _devices.has_library(x.device.type)


def is_native(x: Tensor) -> bool:
    """Whether the native library, which has more functions than the GPU's kernels, takes the tensor."""
    return x.is_cpu and _kernels.AVAILABLE and takes_kernel(x)


def kernels(x: Tensor) -> Any:
    """The kernels of the tensor's device, as registered operations where a compiler looks on."""
    return _operations if is_compiling() else _devices.library(x.device.type)


def linearise(
    map: Map, x: Tensor, dim: int, temperature: Any, where: Any, params: Mapping[str, Any]
) -> tuple[Jacobian, float | Tensor]:
    """(∂p/∂z, τ) at x, rows last and in the compute dtype, τ with two trailing axes."""
    _, (rows, tau, mask, *values) = _rows_last(map, check_scores(map.name, x), dim, temperature, where, map.complete(params))
    z = _arguments_of(map, rows, tau, mask)
    named = _named(map, [v.to(z.dtype) if isinstance(v, Tensor) else v for v in values])
    found = _jacobian(map, map.forward(z, **named), z, named)
    return found, tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau


def forward_mode() -> Any:
    """Lets the operations inside a `jvp` carry the tangents of outer levels, so that forward mode nests."""
    return torch.autograd.forward_ad._set_fwd_grad_enabled(True)


def primal(x: Tensor) -> Tensor:
    """x without the tangent of the innermost level, whose part of the derivative `jvp` itself states."""
    return torch.autograd.forward_ad.unpack_dual(x).primal


# The one autograd function ---------------------------------------------------------------------------------------------------


def _arguments_of(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """The scores that the map's functions are given: x/τ, up to a constant of the row where that changes nothing."""
    plain = is_one(tau) or not map.properties.shift_invariant
    return tempered(x, tau, where) if plain else anchored(x, tau, where)[1]


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
        if is_recorded(x):
            return _record(map, x, tau, where, params)
        return _compute(map, x, tau, where, params)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        map, x, tau, where, *params = inputs
        learns = isinstance(tau, Tensor) or any(isinstance(v, Tensor) for v in params)
        keep = (output, x, where) if map.uses_scores or learns else (output, None, None)
        ctx.map = map
        ctx.numbers = tuple(None if isinstance(v, Tensor) else v for v in (tau, *params))
        ctx.dtype = x.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*keep, *(v if isinstance(v, Tensor) else None for v in (tau, *params)))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        _, _, tau_needs, _, *params_need = ctx.needs_input_grad
        x_grad, tau_grad, *param_grads = _gradients(ctx, grad_outputs[0], tau_needs, params_need)
        return (None, x_grad, tau_grad, None, *param_grads)


class _ReverseMapFunction(_MapFunction):
    """The same for plain reverse mode, with the context in `forward`: an eager call of `setup_context` costs 0.1 ms."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        map, x, tau, where, *params = inputs
        output = _compute(map, x, tau, where, params)
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
    """Adds forward mode and vmap."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _MapFunction.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, dx, dtau, _, *dparams = tangents
        with forward_mode():
            p, z, tau, params = _recall(ctx, [None if t is None else primal(t) for t in ctx.saved_tensors])
            moved = torch.zeros_like(p) if dx is None else dx.to(p.dtype)  # τ ∂z
            if dtau is not None:
                moved = moved - _centred(ctx.map, z) * dtau
            dp = over(_jacobian(ctx.map, p, z, params).push(moved), tau)
            for parameter, tangent in zip(ctx.map.params, dparams, strict=True):
                if tangent is not None and parameter.gradient is not None:
                    dp = dp + parameter.gradient(p, z, **params) * tangent
            return narrowed(dp, ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        map, x, *rest = batch_first(in_dims, args)
        x = x.expand(info.batch_size, *x.shape[1:])
        return _EagerMapFunction.apply(map, x, *rest), 0  # type: ignore[return-value]


def _compute(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]) -> Tensor:
    """p, as a new tensor."""
    if x.numel() == 0:
        return x.clone()
    if has_kernel(map, x):
        kernel: Kernel = map.kernel  # type: ignore[assignment]
        return kernels(x).forward(kernel.forward, x, tau, where, kernel.theta(*params) if params else 0.0)
    p = _compose(map, x, tau, where, params)
    return p.clone() if p._is_view() or p is x else p  # eager autograd takes no views from a function


def _compose(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]) -> Tensor:
    """p by torch's operations."""
    z = _arguments_of(map, x, tau, where)
    values = [v.to(z.dtype) if isinstance(v, Tensor) else v for v in params]
    return map.forward(z, **_named(map, values)).to(x.dtype)


def _gradients(ctx: Any, g: Tensor | None, tau_needs: bool, params_need: Sequence[bool]) -> list[Tensor | None]:
    """∂⟨g, p⟩ by x, τ and each parameter; by torch's operations where more is asked than a kernel has."""
    map: Map = ctx.map
    if g is None:
        return [None] * (2 + len(map.params))
    saved = ctx.saved_tensors  # read once: what a checkpoint recomputes, it recomputes for one reading
    if not (tau_needs or any(params_need) or torch.is_grad_enabled()):
        p, x, where, *tensors = saved
        tau, *params = (n if t is None else t for t, n in zip(tensors, ctx.numbers, strict=True))
        coded = _encode(map, tau, params) if is_recorded(g) else None
        x = x if map.uses_scores else None
        pulled = _pull(map, p, g, x, tau, where, params) if coded is None else _recorded_pull(map.key, p, g, x, where, *coded)
        return [pulled, *[None] * (1 + len(params))]
    p, z, tau, named = _recall(ctx, saved)
    v = over(_jacobian(map, p, z, named).pull(g.to(p.dtype)), tau)
    grads: list[Tensor | None] = [narrowed(v, ctx.dtype)]
    grads.append(_to_shape(-_centred(map, z) * v, tau) if isinstance(tau, Tensor) and tau_needs else None)
    for parameter, needs in zip(map.params, params_need, strict=True):
        if needs and parameter.gradient is not None:
            largest = torch.finfo(p.dtype).max  # of a second derivative g may be beyond its dtype, and sums of infinities are NaN
            slopes = g.double().clamp(-largest, largest) * parameter.gradient(p, z, **named)
            grads.append(_to_shape(slopes, named[parameter.name]))
        else:
            grads.append(None)
    return grads


def _pull(
    map: Map, p: Tensor, g: Tensor, x: Tensor | None, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]
) -> Tensor:
    """∂⟨g, p⟩/∂x, not to be differentiated itself; x where it depends on it."""
    if p.numel() > 0 and has_kernel(map, p, g):
        kernel: Kernel = map.kernel  # type: ignore[assignment]
        theta = kernel.theta(*params) if params else 0.0
        return kernels(p).backward(kernel.backward, p, g, x, tau, where, theta)
    dtype = COMPUTE_DTYPE[p.dtype]
    values = [v.to(dtype) if isinstance(v, Tensor) else v for v in params]
    z = None if x is None else _arguments_of(map, x, tau, where)
    v = _jacobian(map, p.to(dtype), z, _named(map, values)).pull(g.to(dtype))
    return narrowed(over(v, tau), p.dtype)


def _named(map: Map, values: Sequence[Any]) -> dict[str, Any]:
    return {parameter.name: value for parameter, value in zip(map.params, values, strict=True)}


def _recall(ctx: Any, saved: Sequence[Tensor | None]) -> tuple[Tensor, Any, float | Tensor, dict[str, Any]]:
    """(p, z, τ, parameters) in the compute dtype, differentiable where the saved tensors are."""
    p, x, where, *tensors = saved
    dtype = COMPUTE_DTYPE[ctx.dtype]
    tau, *values = (n if t is None else t.double() for t, n in zip(tensors, ctx.numbers, strict=True))
    values = [v.to(dtype) if isinstance(v, Tensor) else v for v in values]
    z = None if x is None else _arguments_of(ctx.map, x, tau, where)
    return p.to(dtype), z, tau, _named(ctx.map, values)  # type: ignore[union-attr]


def _jacobian(map: Map, p: Tensor, z: Tensor | None, params: dict[str, Any]) -> Jacobian:
    if p.shape[-1] == 0:
        return DiagonalAndProduct(p, p, p)
    return jacobian_of(map.sensitivity(p, z, **params))


def _centred(map: Map, z: Tensor) -> Tensor:
    """z, less its largest where the slopes v of a row add up to 0: a constant adds nothing but its rounding to ⟨z, v⟩."""
    return without_mask(z - row_maximum(z) if map.properties.locally_shift_invariant else z)


def _to_shape(gradient: Tensor, value: Tensor) -> Tensor:
    return gradient.sum_to_size(value.shape).to(value.dtype)


# The registered operations ---------------------------------------------------------------------------------------------------
#
# τ and the parameters come as numbers, a NaN among them for the next of the tensors.


def _record(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]) -> Tensor:
    """p as an operation that a recorder keeps; by torch's own for ONNX, and where a parameter is no number and no word."""
    coded = None if is_exporting_to_onnx() else _encode(map, tau, params)
    return _compose(map, x, tau, where, params) if coded is None else _recorded(map.key, x, where, *coded)


def _encode(map: Map, tau: float | Tensor, params: Sequence[Any]) -> tuple[list[Tensor], list[float]] | None:
    """(tensors, numbers); a word is its place among the examples."""
    tensors: list[Tensor] = []
    numbers: list[float] = []
    for value, parameter in zip((tau, *params), (None, *map.params), strict=True):
        if isinstance(value, Tensor):
            tensors.append(value)
            numbers.append(math.nan)
        elif parameter is None or parameter.kind in (float, int):
            numbers.append(float(value))
        elif parameter.kind is str and value in parameter.examples:
            numbers.append(float(parameter.examples.index(value)))
        else:
            return None
    return tensors, numbers


def _decode(map: Map, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
    """[τ, parameters…]."""
    rest = iter(tensors)
    values: list[Any] = [next(rest) if number != number else number for number in numbers]
    for i, parameter in enumerate(map.params, 1):
        if parameter.kind is str:
            values[i] = parameter.examples[int(values[i])]
        elif parameter.kind is int:
            values[i] = int(values[i])
    return values


def _keyed(key: str) -> Map:
    """The map, also in a new process that has loaded a graph."""
    if key not in _BY_KEY:
        with contextlib.suppress(ImportError):
            importlib.import_module(key.partition(":")[0])
    if key not in _BY_KEY:
        raise KeyError(f"there is no map {key!r}; define it before the graph that has it runs")
    return _BY_KEY[key]


@operation("map")
def _recorded(key: str, x: Tensor, where: Tensor | None, tensors: Sequence[Tensor], numbers: Sequence[float]) -> Tensor:
    map = _keyed(key)
    tau, *params = _decode(map, tensors, numbers)
    return _compute(map, x, tau, where, params).contiguous()


@_recorded.register_fake
def _(key: str, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    key, x, where, tensors, numbers = inputs
    map = _keyed(key)
    tau, *params = _decode(map, tensors, numbers)
    _MapFunction.setup_context(ctx, (map, x, tau, where, *params), output)


def _backward(ctx: Any, g: Tensor | None) -> Any:
    tensors_need = iter(ctx.needs_input_grad[3])
    tau_needs, *params_need = (number is None and next(tensors_need) for number in ctx.numbers)
    x_grad, *others = _gradients(ctx, g, tau_needs, params_need)
    return None, x_grad, None, [grad for grad, number in zip(others, ctx.numbers, strict=True) if number is None], None


_recorded.register_autograd(_backward, setup_context=_set_up)


@_recorded.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    key, x, where, tensors, numbers = args
    x, where, *tensors = batch_first((*in_dims[1:3], *in_dims[3]), (x, where, *tensors))
    return _recorded(key, x.expand(info.batch_size, *x.shape[1:]), where, tensors, numbers), 0


@operation("map_backward")
def _recorded_pull(
    key: str, p: Tensor, g: Tensor, x: Tensor | None, where: Tensor | None, tensors: Sequence[Tensor], numbers: Sequence[float]
) -> Tensor:
    map = _keyed(key)
    tau, *params = _decode(map, tensors, numbers)
    return _pull(map, p, g, x, tau, where, params).contiguous()


@_recorded_pull.register_fake
def _(key: str, p: Tensor, *_: Any) -> Tensor:
    return p.new_empty(p.shape)


@_recorded_pull.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    key, *rows, tensors, numbers = args
    p, g, x, where, *tensors = batch_first((*in_dims[1:5], *in_dims[5]), (*rows, *tensors))
    p, g, x = (None if v is None else v.expand(info.batch_size, *v.shape[1:]) for v in (p, g, x))
    return _recorded_pull(key, p, g, x, where, tensors, numbers), 0
