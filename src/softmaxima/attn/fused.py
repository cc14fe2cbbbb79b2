"""Attention by a kernel, in tiles of queries: as one operation, which compilers see, with its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.attn import naive
from softmaxima.attn.arguments import Request, Visible
from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.jacobian import product
from softmaxima.base.tracing import is_keeping, is_recorded, may_differentiate, operation, transforming
from softmaxima.engine.recorded import decode, encode, find_keyed
from softmaxima.kernels.attention import Options
from softmaxima.kernels.devices import attention, largest_head
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
    largest = largest_head(query.device.type, kernel.key, known, query.dtype)
    if query.shape[-1] > largest or value.shape[-1] > largest:
        return False
    if encode(request.map, request.temperature, list(request.params.values())) is None:
        return False
    if not (torch.is_grad_enabled() or is_keeping()):
        return True
    learns = (
        request.bias,
        request.slopes,
        request.sink,
        *(value for value in request.params.values() if value is not request.level),
    )
    beside = None if request.is_bilinear and request.sink is None else request.temperature
    tensors = [value for value in (*learns, beside) if isinstance(value, Tensor)]
    # What a module says, as `Positive` does, requires no gradient while gradients are off; what is kept may run with them on.
    said = is_keeping() and any(value is not request.bias for value in tensors)
    return not (said or any(value.requires_grad for value in tensors))


def attend(request: Request, wants_lse: bool) -> tuple[Tensor, Tensor]:
    """(Σ p v, the logarithm of the divisor where it is wanted, else nothing), of what `fits`."""
    given, level = Given.of(request), request.level
    learns = isinstance(level, Tensor) and level.requires_grad
    if not (is_recorded(request.query) or may_differentiate((request.query, request.key, request.value, *given.tensors))):
        return _evaluate(request, wants_lse, keeps=False)[:2]
    output, mass, _, _ = _attention(*given, wants_lse or learns)
    return output, mass


def attend_part(request: Request) -> tuple[Tensor, Tensor]:
    """(Σ p v, LSE) of softmax over some of the keys, in what is computed in, of what `fits`; no graph is recorded."""
    forward = attention(request.query.device.type).forward
    given = request.query, request.key, request.value, _options(request)
    output, mass, _ = forward(*given, lse=True, keeps=False, wide=True)
    return output, mass


def pull_part(request: Request, output: Tensor, mass: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What some of the keys add to ∂⟨g, o⟩ by the query, and those by these keys and values, in what is computed in.

    `output` and `mass`, the LSE in double, are of softmax over all keys: p = exp(x/τ − LSE), ∂x = p (⟨g, v⟩ − ⟨g, o⟩)/τ.
    """
    device = attention(request.query.device.type)
    state = device.state_of(mass, request.query, request.temperature)
    kept = {"out": output, "kept": (state, state.new_empty(0, dtype=torch.int8)), "uses_scores": request.map.uses_scores}
    return device.backward(request.query, request.key, request.value, g, None, _options(request), **kept, of_part=True)


class Given(NamedTuple):
    """A request as the operations have it: each field is an argument of both, of a type that torch has in a schema."""

    key: str  # of the map
    query: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    bias: Tensor | None
    lengths: Tensor | None
    sinks: Tensor | None  # where these are a tensor
    sink: float | None
    tensors: Sequence[Tensor]  # of τ and the parameters
    numbers: Sequence[float]
    scale: float
    softcap: float | None
    slopes: Tensor | None
    groups: int
    left: int | None
    right: int | None
    firsts: Tensor | None  # where these are a tensor
    first: int

    @classmethod
    def of(cls, request: Request) -> Given:
        tensors, numbers = encode(request.map, request.temperature, list(request.params.values()))  # type: ignore[misc]
        sink, visible = request.sink, request.visible
        sinks, sink = (sink, None) if isinstance(sink, Tensor) else (None, sink)
        firsts, first = (visible.first, 0) if isinstance(visible.first, Tensor) else (None, visible.first)
        return cls(
            key=request.map.key,
            query=request.query,
            keys=request.key,
            values=request.value,
            mask=request.mask,
            bias=request.bias,
            lengths=visible.lengths,
            sinks=sinks,
            sink=sink,
            tensors=tensors,
            numbers=numbers,
            scale=request.scale,
            softcap=request.softcap,
            slopes=request.slopes,
            groups=request.groups,
            left=visible.left,
            right=visible.right,
            firsts=firsts,
            first=first,
        )

    def request(self) -> Request:
        """The request that it was."""
        map = find_keyed(self.key)
        tau, *params = decode(map, self.tensors, self.numbers)
        return Request(
            name="attention",
            map=map,
            query=self.query,
            key=self.keys,
            value=self.values,
            groups=self.groups,
            scale=self.scale,
            softcap=self.softcap,
            slopes=self.slopes,
            mask=self.mask,
            bias=self.bias,
            visible=Visible(
                *(self.query.shape[-2], self.keys.shape[-2], self.left, self.right, self.lengths),
                self.first if self.firsts is None else self.firsts,
            ),
            temperature=tau,
            sink=self.sink if self.sinks is None else self.sinks,
            params={parameter.name: value for parameter, value in zip(map.params, params, strict=True)},
            dropout=0.0,
        )


@operation("attention")
def _attention(given: Given, wants_lse: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _evaluate(given.request(), wants_lse, keeps=True)


@_attention.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given, wants_lse = Given(*arguments[:-1]), arguments[-1]
    query, keys, values = given.query, given.keys, given.values
    state, marks = attention(query.device.type).kept_shapes(query, keys, values, find_keyed(given.key).kernel)
    return (
        query.new_empty((*query.shape[:-1], values.shape[-1])),
        query.new_empty(query.shape[:-1] if wants_lse else 0, dtype=COMPUTE_DTYPE[query.dtype]),
        query.new_empty(state, dtype=torch.float32),
        query.new_empty(marks, dtype=torch.int8),
    )


@operation("attention_backward")
def _attention_backward(
    given: Given, output: Tensor, state: Tensor, marks: Tensor, g: Tensor, g_mass: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    request = given.request()
    kept = {"out": output, "kept": (state, marks), "uses_scores": request.map.uses_scores}
    backward = attention(request.query.device.type).backward
    return backward(request.query, request.key, request.value, g, g_mass, _options(request), **kept)


@_attention_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    given = Given(*arguments[: len(Given._fields)])
    dtype = COMPUTE_DTYPE[given.query.dtype]
    return tuple(x.new_empty(x.shape, dtype=dtype) for x in (given.query, given.keys, given.values))


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
        softcap=request.softcap,
        slopes=request.slopes,
        groups=request.groups,
        mask=request.mask,
        bias=request.bias,
        lengths=visible.lengths,
        left=visible.left,
        right=visible.right,
        first=visible.first,
        sinks=request.sink,
    )


def _row_numbers(value: float | Tensor, like: Tensor) -> Tensor:
    """A number, or numbers [..., L, 1], for each query [..., L]."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(*like.shape, 1).squeeze(-1).contiguous()


# The derivative ----------------------------------------------------------------------------------------------------------------


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    given = Given(*inputs[:-1])
    ctx.others = [None if isinstance(value, Tensor) else value for value in given._replace(tensors=())]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *(value if isinstance(value, Tensor) else None for value in given), *given.tensors)


def _backward(ctx: Any, g: Tensor | None, g_mass: Tensor | None, *_: None) -> Any:
    output, mass, state, marks, *saved = ctx.saved_tensors
    count = len(ctx.others)
    values = (other if x is None else x for x, other in zip(saved[:count], ctx.others, strict=True))
    given = Given(*values)._replace(tensors=saved[count:])
    needs = Given(*ctx.needs_input_grad[:-1])
    of = NOTHING._replace(tensors=[None] * len(given.tensors))
    if g is None and g_mass is None:
        return *of, None
    if torch.is_grad_enabled():
        (dq, dk, dv), by_tensor = _differentiable(given, g, g_mass, needs)
    else:
        g = torch.zeros_like(output) if g is None else g
        dq, dk, dv = _attention_backward(*given, output, state, marks, g, g_mass)
        by_tensor = _of_rows(given, output, mass, dq, g, g_mass, needs)
        dq, dk, dv = (grad.to(x.dtype) for grad, x in zip((dq, dk, dv), (given.query, given.keys, given.values), strict=True))
    return *of._replace(query=dq, keys=dk, values=dv, tensors=by_tensor), None


NOTHING = Given(*[None] * len(Given._fields))  # type: ignore[arg-type]


def _of_rows(
    given: Given, output: Tensor, mass: Tensor, dq: Tensor, g: Tensor, g_mass: Tensor | None, needs: Given
) -> list[Tensor | None]:
    """∂ by τ and β, where those are tensors.

    Σ_j x_j ∂/∂x_j = ⟨q, ∂/∂q⟩ and Σ_j p_j ⟨g, v_j⟩ = ⟨g, o⟩, and the sink has the share exp(β − mass) of the mass.
    """
    request = given.request()
    found: list[Tensor | None] = []
    rest = list(needs.tensors)
    for name, value in (("temperature", request.temperature), *request.params.items()):
        if not isinstance(value, Tensor):
            continue
        if not rest.pop(0):
            found.append(None)
        elif name == "temperature":
            found.append(_summed(-product(dq, request.query.double()).sum(-1, keepdim=True) / value, value))
        else:  # the sink of softmax: nothing else that learns `fits`
            slope = -product(output, g.double()).sum(-1, keepdim=True)  # 0 of a query that sees nothing
            if g_mass is not None:
                slope = slope + g_mass.unsqueeze(-1)
            share = torch.exp(value.double() - mass.unsqueeze(-1))
            found.append(_summed(torch.where(mass.unsqueeze(-1) == -math.inf, 0.0, share * slope), value))
    return found


def _summed(gradient: Tensor, value: Tensor) -> Tensor:
    return gradient.sum_to_size(value.shape).to(value.dtype)


def _differentiable(
    given: Given, g: Tensor | None, g_mass: Tensor | None, needs: Given
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The gradients by the definition, whose own derivatives torch knows."""
    request = given.request()
    output, mass = naive.attend(request)[0], None if g_mass is None else naive.log_mass(request)
    inputs = (given.query, given.keys, given.values, *given.tensors)
    needed = (needs.query, needs.keys, needs.values, *needs.tensors)
    pairs = [(y, slope) for y, slope in ((output, g), (mass, g_mass)) if slope is not None]
    outputs, slopes = zip(*pairs, strict=True)
    wanted = [x for x, is_needed in zip(inputs, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(outputs, wanted, slopes, create_graph=True, allow_unused=True))
    grads = [next(found) if is_needed else None for is_needed in needed]
    return grads[:3], grads[3:]


_attention.register_autograd(_backward, setup_context=_set_up)
