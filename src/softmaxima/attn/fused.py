"""Attention by a kernel, in tiles of queries: as one operation, which compilers see, with its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.attn import naive
from softmaxima.attn.arguments import Request, Visible
from softmaxima.core.arguments import COMPUTE_DTYPE
from softmaxima.core.recorded import decode, encode, find_keyed
from softmaxima.core.tracing import is_recorded, may_differentiate, operation, transforming
from softmaxima.kernels.attention import Options
from softmaxima.kernels.devices import attention, takes_attention
from softmaxima.lse.logaddexp import logaddexp


def fits(request: Request) -> bool:
    """Whether a kernel has all that is asked for."""
    kernel = request.map.kernel
    if kernel is None or request.dropout or transforming():
        return False
    query, value = request.query, request.value
    theta = kernel.theta(*request.params.values())
    if theta is None or 0 in (*query.shape, *request.key.shape, *value.shape):
        return False
    known = tuple(None if isinstance(number, Tensor) else number for number in theta)
    if not takes_attention(query.device.type, kernel.key, known, query.dtype, query.shape[-1], value.shape[-1]):
        return False
    if encode(request.map, request.temperature, list(request.params.values())) is None:
        return False
    if not torch.is_grad_enabled():
        return True
    learns = (request.bias, request.sink, *(value for value in request.params.values() if value is not request.level))
    beside = request.temperature if request.bias is not None or request.sink is not None else None
    return not any(isinstance(value, Tensor) and value.requires_grad for value in (*learns, beside))


def attend(request: Request, wants_lse: bool) -> tuple[Tensor, Tensor]:
    """(Σ p v, the logarithm of the divisor where it is wanted, else nothing), of what `fits`."""
    tensors, numbers = encode(request.map, request.temperature, list(request.params.values()))  # type: ignore[misc]
    level, sink = request.level, request.sink
    learns = isinstance(level, Tensor) and level.requires_grad
    if not (is_recorded(request.query) or may_differentiate((request.query, request.key, request.value, *tensors))):
        return _evaluate(request, wants_lse, keeps=False)[:2]
    output, mass, _, _ = _attention(
        request.map.key,
        request.query,
        request.key,
        request.value,
        request.mask,
        request.bias,
        request.visible.lengths,
        sink if isinstance(sink, Tensor) else None,
        None if isinstance(sink, Tensor) else sink,
        tensors,
        numbers,
        request.scale,
        request.groups,
        request.visible.left,
        request.visible.right,
        wants_lse or learns,
    )
    return output, mass


@operation("attention")
def _attention(
    key: str,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    sinks: Tensor | None,
    sink: float | None,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    scale: float,
    groups: int,
    left: int | None,
    right: int | None,
    wants_lse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    request = _request(key, query, keys, values, mask, bias, lengths, sinks, sink, tensors, numbers, scale, groups, left, right)
    return _evaluate(request, wants_lse, keeps=True)


@_attention.register_fake
def _(key: str, query: Tensor, keys: Tensor, values: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype, wants_lse = COMPUTE_DTYPE[query.dtype], others[-1]
    state, marks = attention(query.device.type).kept_shapes(query, keys, values, find_keyed(key).kernel)
    return (
        query.new_empty((*query.shape[:-1], values.shape[-1])),
        query.new_empty(query.shape[:-1] if wants_lse else 0, dtype=dtype),
        query.new_empty(state, dtype=torch.float32),
        query.new_empty(marks, dtype=torch.int8),
    )


@operation("attention_backward")
def _attention_backward(
    key: str,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    sinks: Tensor | None,
    sink: float | None,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    scale: float,
    groups: int,
    left: int | None,
    right: int | None,
    output: Tensor,
    state: Tensor,
    marks: Tensor,
    g: Tensor,
    g_mass: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    request = _request(key, query, keys, values, mask, bias, lengths, sinks, sink, tensors, numbers, scale, groups, left, right)
    given = {"out": output, "kept": (state, marks), "uses_scores": request.map.uses_scores}
    return attention(query.device.type).backward(query, keys, values, g, g_mass, _options(request), **given)


@_attention_backward.register_fake
def _(key: str, query: Tensor, keys: Tensor, values: Tensor, *_: Any) -> tuple[Tensor, ...]:
    dtype = COMPUTE_DTYPE[query.dtype]
    return tuple(x.new_empty(x.shape, dtype=dtype) for x in (query, keys, values))


def _request(
    key: str,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    sinks: Tensor | None,
    sink: float | None,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    scale: float,
    groups: int,
    left: int | None,
    right: int | None,
) -> Request:
    """The arguments of the operation as they were."""
    map = find_keyed(key)
    tau, *params = decode(map, tensors, numbers)
    return Request(
        map=map,
        query=query,
        key=keys,
        value=values,
        groups=groups,
        scale=scale,
        mask=mask,
        bias=bias,
        visible=Visible(query.shape[-2], keys.shape[-2], left, right, lengths),
        temperature=tau,
        sink=sink if sinks is None else sinks,
        params={parameter.name: value for parameter, value in zip(map.params, params, strict=True)},
        dropout=0.0,
    )


def _evaluate(request: Request, wants_lse: bool, keeps: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    forward = attention(request.query.device.type).forward
    output, mass, kept = forward(request.query, request.key, request.value, _options(request), lse=wants_lse, keeps=keeps)
    if wants_lse and request.level is not None:
        mass = logaddexp(mass, _row_numbers(request.level, mass))
    return output, mass, *kept


def _options(request: Request) -> Options:
    visible = request.visible
    return Options(
        kernel=request.map.kernel,  # type: ignore[arg-type]
        tau=request.temperature,
        theta=request.map.kernel.theta(*request.params.values()),  # type: ignore[union-attr, arg-type]
        sparse=request.map.properties.sparse,
        scale=request.scale,
        groups=request.groups,
        mask=request.mask,
        bias=request.bias,
        lengths=visible.lengths,
        left=visible.left,
        right=visible.right,
        sinks=request.sink,
    )


def _row_numbers(value: float | Tensor, like: Tensor) -> Tensor:
    """A number, or numbers [..., L, 1], for each query [..., L]."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(*like.shape, 1).squeeze(-1).contiguous()


# The derivative ----------------------------------------------------------------------------------------------------------------


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    key, *arguments, _ = inputs
    ctx.key = key
    ctx.places = [i for i, value in enumerate(arguments) if isinstance(value, Tensor)]
    ctx.arguments = [None if isinstance(value, (Tensor, list, tuple)) else value for value in arguments]
    ctx.numbers = arguments[9]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *(arguments[i] for i in ctx.places), *arguments[8])


def _backward(ctx: Any, g: Tensor | None, g_mass: Tensor | None, *_: None) -> Any:
    output, mass, state, marks, *saved = ctx.saved_tensors
    arguments = list(ctx.arguments)
    for i, value in zip(ctx.places, saved, strict=False):
        arguments[i] = value
    arguments[8], arguments[9] = saved[len(ctx.places) :], ctx.numbers
    needs = ctx.needs_input_grad
    tensors_need = list(needs[9]) if isinstance(needs[9], (list, tuple)) else [needs[9]] * len(arguments[8])
    if g is None and g_mass is None:
        return (*[None] * 9, [None] * len(arguments[8]), *[None] * 6)
    if torch.is_grad_enabled():
        grads, by_tensor = _differentiable(ctx.key, arguments, g, g_mass, needs[1:4], tensors_need)
    else:
        g = torch.zeros_like(output) if g is None else g
        grads = _attention_backward(ctx.key, *arguments, output, state, marks, g, g_mass)
        by_tensor = _of_rows(ctx.key, arguments, output, mass, grads[0], g, g_mass, tensors_need)
        grads = [grad.to(x.dtype) for grad, x in zip(grads, arguments[:3], strict=True)]
    return None, *grads, *[None] * 5, by_tensor, *[None] * 6


def _of_rows(
    key: str,
    arguments: Sequence[Any],
    output: Tensor,
    mass: Tensor,
    dq: Tensor,
    g: Tensor,
    g_mass: Tensor | None,
    need: Sequence[bool],
) -> list[Tensor | None]:
    """∂ by τ and β, where those are tensors.

    Σ_j x_j ∂/∂x_j = ⟨q, ∂/∂q⟩ and Σ_j p_j ⟨g, v_j⟩ = ⟨g, o⟩, and the sink has the share exp(β − mass) of the mass.
    """
    request = _request(key, *arguments)
    found: list[Tensor | None] = []
    rest = list(need)
    for name, value in (("temperature", request.temperature), *request.params.items()):
        if not isinstance(value, Tensor):
            continue
        if not rest.pop(0):
            found.append(None)
        elif name == "temperature":
            found.append(_summed(-(request.query.double() * dq).sum(-1, keepdim=True) / value, value))
        else:  # the sink of softmax: nothing else that learns `fits`
            slope = -(g.double() * output).sum(-1, keepdim=True)
            if g_mass is not None:
                slope = slope + g_mass.unsqueeze(-1)
            share = torch.exp(value.double() - mass.unsqueeze(-1))
            found.append(_summed(torch.where(mass.unsqueeze(-1) == -math.inf, 0.0, share * slope), value))
    return found


def _summed(gradient: Tensor, value: Tensor) -> Tensor:
    return gradient.sum_to_size(value.shape).to(value.dtype)


def _differentiable(
    key: str, arguments: Sequence[Any], g: Tensor | None, g_mass: Tensor | None, need: Sequence[bool], tensors_need: Sequence[bool]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The gradients by the definition, whose own derivatives torch knows."""
    request = _request(key, *arguments)
    output, mass = naive.attend(request)[0], None if g_mass is None else naive.log_mass(request)
    wanted = [*(x for x, needed in zip(arguments[:3], need, strict=True) if needed)]
    wanted += [x for x, needed in zip(arguments[8], tensors_need, strict=True) if needed]
    pairs = [(y, slope) for y, slope in ((output, g), (mass, g_mass)) if slope is not None]
    outputs, slopes = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, slopes, create_graph=True, allow_unused=True))
    grads = [next(found) if needed else None for needed in need]
    return grads, [next(found) if needed else None for needed in tensors_need]


_attention.register_autograd(_backward, setup_context=_set_up)
