"""The public edge of maps: arguments validated, the axis moved last and back, arrays as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from softmaxima.base.arguments import (
    DType,
    as_dtype,
    as_map_scores,
    check_dims,
    check_per_row,
    check_temperature,
    check_where,
    like_input,
    merged_last,
    moved_back,
)
from softmaxima.base.dtensors import form_of_dtensors, is_dtensor
from softmaxima.base.jacobian import Jacobian
from softmaxima.base.numbers import MOST, as_number
from softmaxima.base.tracing import is_recorded
from softmaxima.engine.autograd import apply, apply_plain
from softmaxima.engine.recorded import record
from softmaxima.engine.rowwise import arguments_of, jacobian, named
from softmaxima.kernels import native

if TYPE_CHECKING:
    from softmaxima.engine.contract import Map


def evaluate(
    map: Map, x: Any, dim: int | Sequence[int], temperature: Any, where: Any, params: Mapping[str, Any], dtype: DType = None
) -> Any:
    """The map of x/τ along `dim`, several axes of which count as one, in `dtype` if that is given."""
    given, x = x, x if dtype is None else as_dtype(map.name, x, dtype)
    calls = native.CALLS
    if calls is not None and not is_dynamo_compiling() and map.kernel is not None and (forward := map.kernel.addresses.forward):
        numbers = plain_numbers(map, params) if map.params else () if not params else None
        theta = None if numbers is None else map.kernel.theta(*numbers) if numbers else ()
        if numbers is not None and theta is not None:
            p = calls.forward(forward, x, dim, temperature, where, theta)
            if p is NotImplemented:
                p = apply_plain(map, x, dim, temperature, where, numbers, theta)
            if p is not None:
                return p
    if is_dtensor(x):
        return form_of_dtensors("map")(map, x, dim, temperature, where, params)
    scores = as_map_scores(map.name, x, dtype)
    dims, arguments = _rows_last(map, scores, dim, temperature, where, map.complete(params))
    p = apply(map, *arguments)
    if len(dims) == 1:
        p = moved_back(p, dims[0])
    else:
        p = p.reshape(*p.shape[:-1], *(scores.shape[d] for d in dims))
        p = p.movedim(tuple(range(p.ndim - len(dims), p.ndim)), dims)  # an exporter to ONNX keeps a negative axis as it is
    return like_input(p if scores.ndim else p.reshape(()), given)


def plain_numbers(map: Map, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The values of the map's parameters where all are given and plain, None for anything else."""
    if len(params) != len(map.params):
        return None
    values: tuple[Any, ...] = ()
    for parameter in map.params:
        value = params.get(parameter.name)  # None for one of another name
        if type(value) is int:
            value = as_number(value) if parameter.kind is float else min(value, MOST)
        if type(value) is not parameter.kind is not object or not parameter.valid(value):
            return None
        values += (value,)
    return values


def check_params(map: Map, params: Mapping[str, Any], x: Tensor, dim: int | tuple[int, ...], name: str | None = None) -> list[Any]:
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
    map: Map, x: Tensor, dim: int | Sequence[int], temperature: Any, where: Any, params: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """(`dim` as axes in order, (x, τ, mask, parameters…) validated, with those axes as one, last)."""
    dims = check_dims(map.name, dim, x.ndim)
    x = x if x.ndim else x.reshape(1)
    tau, mask = check_temperature(map.name, temperature, x, dims), check_where(map.name, where, x)
    if mask is not None and len(dims) > 1:
        mask = mask.expand_as(x)
    values = check_params(map, params, x, dims)
    return dims, tuple(merged_last(value, dims) for value in (x, tau, mask, *values))


def linearise(
    map: Map, x: Tensor, dim: int | Sequence[int], temperature: Any, where: Any, params: Mapping[str, Any]
) -> tuple[Jacobian, float | Tensor]:
    """(∂p/∂z, τ) at x, rows last and in the compute dtype, τ with two trailing axes."""
    _, (rows, tau, mask, *values) = _rows_last(map, x, dim, temperature, where, map.complete(params))
    z = arguments_of(map, rows, tau, mask)
    params = named(map, [v.to(z.dtype) if isinstance(v, Tensor) else v for v in values])
    p = record(map, rows.to(z.dtype), tau, mask, values) if is_recorded(rows) else map.forward(z, **params)
    found = jacobian(map, p, z, params)
    return found, tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
