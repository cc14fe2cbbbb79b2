"""What attention is asked for, checked before any work: shapes that broadcast, which keys a query may see, numbers a head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from softmaxima.base.arguments import COMPUTE_DTYPE, as_scores, as_tensor, broadcasts, cast_to, check_device, check_value
from softmaxima.base.numbers import TEMPERATURE, InputError, check_count, check_flag, check_int, check_number, is_finite
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.engine.contract import Map, find_map
from softmaxima.maps import MapModule


@dataclass(frozen=True)
class Visible:
    """Which keys each query may see, of what is known without a mask.

    Key j stands at the place j, and query i at the place first + i.
    """

    queries: int
    keys: int
    left: int | None = None  # how many keys before its own place a query sees; None: all
    right: int | None = None  # and after it; 0 where it is causal
    lengths: Tensor | None = None  # how many keys there are, [..., 1, 1]
    first: int | Tensor = 0  # the place of the first query, or of each matrix, [..., 1, 1]

    def mask(self, device: torch.device) -> Tensor | None:
        """Which keys are seen, broadcasting to [..., queries, keys]; None where nothing is hidden."""
        mask, place = None, torch.arange(self.keys, device=device)
        if self.left is not None or self.right is not None:
            distance = self.distance(device)
            if self.right is not None:
                mask = distance <= self.right
            if self.left is not None:
                near = distance >= -self.left
                mask = near if mask is None else mask & near
        if self.lengths is not None:
            there = place < self.lengths
            mask = there if mask is None else mask & there
        return mask

    def distance(self, device: torch.device) -> Tensor:
        """How far each key stands behind each query, [..., queries, keys]."""
        places = self.first + torch.arange(self.queries, device=device)[:, None]
        return torch.arange(self.keys, device=device) - places


@dataclass(frozen=True)
class Request:
    """The arguments of attention, complete and checked."""

    name: str  # of the function that was called, for errors
    map: Map
    query: Tensor  # [..., heads, L, E]
    key: Tensor  # [..., heads / groups, S, E]
    value: Tensor  # [..., heads / groups, S, Ev]
    groups: int  # how many heads of queries share one of keys and values
    scale: float
    softcap: float | None  # c of c tanh(scale ⟨q, k⟩/c)
    slopes: Tensor | None  # m of −m |distance|, [..., heads, 1, 1]
    mask: Tensor | None  # broadcasts to [..., L, S]
    bias: Tensor | None  # likewise
    visible: Visible
    temperature: float | Tensor  # a number, or what broadcasts to [..., L, 1]
    sink: float | Tensor | None  # likewise
    params: Mapping[str, Any]  # of the map; tensors likewise
    dropout: float

    def repeated(self, x: Tensor) -> Tensor:
        """Keys or values, one for each head of the queries."""
        return x if self.groups == 1 else x.repeat_interleave(self.groups, -3)

    @property
    def is_bilinear(self) -> bool:
        """Whether scores are ⟨q, k⟩ and nothing else, so that Σ_j x_j ∂/∂x_j = ⟨q, ∂/∂q⟩."""
        return self.bias is None and self.softcap is None and self.slopes is None

    @property
    def level(self) -> float | Tensor | None:
        """The parameter that is a sink of softmax, one score more; None where there is none."""
        return self.params.get(self.map.with_sink[1]) if self.map.with_sink else None

    def check_lse(self) -> None:
        """That the outputs of such a map can be merged by one number a query."""
        if self.map.with_sink is None:
            raise ValueError(
                f"{self.name}: return_lse=True needs softmax or elastic_softmax, got map={self.map.name!r}, whose outputs over "
                "parts of the keys do not merge by one number a query"
            )

    def allowed(self) -> Tensor | None:
        """Which scores count, of all queries and keys."""
        known = self.visible.mask(self.query.device)
        return known if self.mask is None else self.mask if known is None else known & self.mask


def check_request(
    name: str,
    query: Any,
    key: Any,
    value: Any,
    /,
    *,
    map: Any = "softmax",
    attn_mask: Any = None,
    is_causal: Any = False,
    scale: Any = None,
    softcap: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    temperature: Any = 1.0,
    sink: Any = None,
    dropout_p: Any = 0.0,
    enable_gqa: Any = False,
    window: Any = None,
    key_lengths: Any = None,
    first_query: Any = 0,
    params: Mapping[str, Any] | None = None,
) -> Request:
    """The request, or an error that names the function which was called, and says what was wrong, what arrived and what to do."""
    map, temperature, params = of_module(name, map, temperature, params or {})
    found = find_map(map, name)
    if found.properties.logarithmic:
        raise ValueError(f"{name}: map must give probabilities, got {found.name!r}, which gives their logarithms")
    params = found.named(params, name)
    found.complete(params, name)
    if isinstance(scale, (Tensor, str)) and "scale" in found.complete({}):
        raise TypeError(f"{name}: scale must be a number, the factor of ⟨q, k⟩; that of map={found.name!r} is map_scale=")
    check_kinds(name, query=query, key=key, value=value)
    query, key, value = (_check_projection(name, what, x) for what, x in (("query", query), ("key", key), ("value", value)))
    _check_alike(name, query, key, value)
    query, groups = _check_heads(name, query, key, value, check_flag(name, "enable_gqa", enable_gqa))
    shape = (*query.shape[:-1], key.shape[-2])
    if sink is not None:
        sink = _per_row(name, "sink", sink, query, shape, lambda level: level < math.inf, "a number below +∞")
    found, sink, params = _with_sink(name, found, sink, params)
    params = found.complete(params)
    is_causal = check_flag(name, "is_causal", is_causal)
    if isinstance(attn_mask, CausalBias):
        first = _check_causal(name, attn_mask, shape)
        others = is_causal or window is not None or not isinstance(first_query, int) or first_query != 0
        attn_mask = Visible(*shape[-2:], right=0, first=first).mask(query.device) if others else None
        is_causal, first_query = (is_causal, first_query) if others else (True, first)
    mask, additive = _check_mask(name, attn_mask, query, shape)
    bias = _check_bias(name, "bias", bias, query, shape)
    if additive is not None:
        bias = additive if bias is None else _together(bias, additive, COMPUTE_DTYPE[query.dtype])
    left, right = check_window(name, window)
    if is_causal:
        right = 0
    lengths = _check_lengths(name, key_lengths, query, shape)
    visible = Visible(shape[-2], shape[-1], left, right, lengths, _check_first(name, first_query, query, shape, lengths))
    per_row = _params_per_row(name, found, params, query, shape)
    return Request(
        name=name,
        map=found,
        query=query,
        key=key,
        value=value,
        groups=groups,
        scale=_check_scale(name, scale, query.shape[-1]),
        softcap=None if softcap is None else check_number(name, "softcap", softcap, *CAP),
        slopes=_check_slopes(name, alibi_slopes, query),
        mask=mask,
        bias=bias,
        visible=visible,
        temperature=_per_row(name, "temperature", temperature, query, shape, *TEMPERATURE),
        sink=sink,
        params=per_row,
        dropout=check_number(name, "dropout_p", dropout_p, lambda p: 0 <= p <= 1, "between 0 and 1"),
    )


def _params_per_row(name: str, map: Map, params: Mapping[str, Any], query: Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    """The map's parameters, those that learn one a query."""
    return {
        each.name: each.check(name, params[each.name])
        if each.gradient is None
        else _per_row(name, each.name, params[each.name], query, shape, each.valid, each.domain)
        for each in map.params
    }


def of_module(name: str, map: Any, temperature: Any, params: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """(the map, its temperature, its parameters), of a module such as `sm.Entmax` what it holds, that which learns itself."""
    if not isinstance(map, MapModule):
        return map, temperature, dict(params)
    own = {option: getattr(map, option) for option in map._option_names}
    dim, own_temperature = own.pop("dim"), own.pop("temperature")
    if dim != -1:
        raise ValueError(f"{name}: a module as map works along the keys, the last axis of scores, got {map} with dim={dim}")
    beside = [*params, *([] if isinstance(temperature, (int, float)) and temperature == 1 else ["temperature"])]
    if beside:
        raise TypeError(f"{name}: {map} has its own temperature and parameters; leave out {', '.join(beside)}")
    return map.map, own_temperature, own


OPTIONS = ("map", "temperature", "sink", "window", "softcap", "alibi_slopes")  # of a map in attention, beside its parameters


def with_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a map in attention as `check_request` has them: the map's parameters by themselves."""
    own = {name: value for name, value in options.items() if name in OPTIONS}
    return {**own, "params": {name: value for name, value in options.items() if name not in own}}


def check_kinds(name: str, **given: Any) -> None:
    """That all are tensors or all are arrays: what comes back is of one kind, and an array has no gradient."""
    kinds = [isinstance(x, Tensor) for x in given.values()]
    if any(kinds) and any(isinstance(x, (np.ndarray, np.generic)) for x in given.values()):
        arrived = ", ".join(f"{what} {'a tensor' if kind else 'an array'}" for what, kind in zip(given, kinds, strict=True))
        raise TypeError(f"{name}: all must be tensors or all NumPy arrays, got {arrived}; call torch.from_numpy() or .numpy()")


def _check_scale(name: str, scale: Any, size: int) -> float:
    if scale is None:
        return 1 / math.sqrt(max(size, 1))
    return check_number(name, "scale", scale, is_finite, "a finite number")


CAP = (lambda number: 0 < number < math.inf), "above 0 and finite"


def _check_slopes(name: str, slopes: Any, query: Tensor) -> Tensor | None:
    if slopes is None:
        return None
    slopes = check_device(name, "alibi_slopes", as_tensor(name, "alibi_slopes", slopes), query)
    if not slopes.is_floating_point():
        raise TypeError(f"{name}: alibi_slopes must be of floating point, got {slopes.dtype}; call alibi_slopes.float()")
    if not broadcasts(slopes, query.shape[:-2]):
        heads = "[heads], [batch, heads] or what broadcasts to "
        raise ValueError(f"{name}: alibi_slopes must be {heads}{tuple(query.shape[:-2])}, got {tuple(slopes.shape)}")
    if is_concrete(slopes) and not bool(slopes.isfinite().all()):
        raise ValueError(f"{name}: alibi_slopes must be finite, got some that are not")
    return slopes[..., None, None]


def _with_sink(name: str, map: Map, sink: Any, params: Mapping[str, Any]) -> tuple[Map, Any, Mapping[str, Any]]:
    """(the map, its sink, its parameters), where a map beside a sink may be another one."""
    if sink is None or map.with_sink is None:
        return map, sink, params
    with_sink, level = map.with_sink
    if level in params:
        raise ValueError(f"{name}: sink and {level} are the same number for {map.name}; give one of them")
    return find_map(with_sink), None, {**params, level: sink}


def _check_projection(name: str, what: str, x: Any) -> Tensor:
    if isinstance(x, Tensor) and x.is_nested:
        raise TypeError(f"{name}: {what} must be a dense tensor, got a nested one; pad it, and say what is there by key_lengths=")
    x = as_scores(name, x, what)
    if x.ndim < 2:
        raise ValueError(f"{name}: {what} must have a shape [..., length, size], got {tuple(x.shape)}")
    return x


def _check_alike(name: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    kinds = {(x.dtype, x.device) for x in (query, key, value)}
    if len(kinds) > 1:
        arrived = ", ".join(f"{x.dtype} on {x.device}" for x in (query, key, value))
        raise ValueError(f"{name}: query, key and value must have one dtype and device, got {arrived}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"{name}: query and key must be of one size, got {query.shape[-1]} and {key.shape[-1]}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{name}: there must be a value for each key, got {key.shape[-2]} keys and {value.shape[-2]} values")


def _check_heads(name: str, query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[Tensor, int]:
    """(queries in the batch of all three, how many of their heads share one of keys and values)."""
    groups = 1
    if grouped:
        if min(query.ndim, key.ndim, value.ndim) < 3:
            raise ValueError(f"{name}: enable_gqa needs an axis of heads, [..., heads, length, size], got {tuple(query.shape)}")
        heads, own = query.shape[-3], key.shape[-3]
        if own == 0 or heads % own or value.shape[-3] != own:
            raise ValueError(
                f"{name}: with enable_gqa keys and values must have the same number of heads, which divides that of queries, got "
                f"{own} of keys, {value.shape[-3]} of values and {heads} of queries"
            )
        groups = heads // own
    batch, before = sizes(query)[:-2], [("query", query)]
    for what, x in (("key", key), ("value", value)):
        own = (*sizes(x)[:-3], *(groups * size for size in sizes(x)[-3:-2]))
        try:
            batch = torch.broadcast_shapes(batch, own)
        except RuntimeError:
            may_share = not grouped and min(query.ndim, key.ndim, value.ndim) > 2 and key.shape[-3] == value.shape[-3] > 1
            is_shared = may_share and query.shape[-3] > key.shape[-3] and query.shape[-3] % key.shape[-3] == 0
            hint = "; enable_gqa=True shares them among heads" if is_shared else ""
            others = " and ".join(f"{other} of shape {tuple(given.shape)}" for other, given in before)
            raise ValueError(
                f"{name}: {what} of shape {tuple(x.shape)} must broadcast with {others} but for the last two axes{hint}"
            ) from None
        before.append((what, x))
    return (query if batch == sizes(query)[:-2] else query.expand(*batch, *query.shape[-2:])), groups


def _check_mask(name: str, attn_mask: Any, query: Tensor, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
    """(a mask, a bias), of which one is None."""
    if attn_mask is None:
        return None, None
    cast = cast_to("bool", attn_mask)
    attn_mask = check_device(name, "attn_mask", as_tensor(name, "attn_mask", attn_mask), query)
    if attn_mask.is_floating_point():
        return None, _check_bias(name, "attn_mask", attn_mask, query, shape)
    if attn_mask.dtype != torch.bool:
        raise TypeError(
            f"{name}: attn_mask must be boolean (True keeps a score) or floating point (added to the scores), got "
            f"{attn_mask.dtype}; call attn_mask.{cast}"
        )
    if not broadcasts(attn_mask, shape):
        raise ValueError(f"{name}: attn_mask must broadcast to the scores' shape {shape}, got {tuple(attn_mask.shape)}")
    return attn_mask, None


def _check_causal(name: str, mask: CausalBias, shape: tuple[int, ...]) -> int:
    """The place of the first query under torch's `causal_upper_left` or `causal_lower_right`."""
    given = mask.seq_len_q, mask.seq_len_kv
    if given != shape[-2:]:
        raise ValueError(f"{name}: attn_mask must be of {shape[-2]} queries and {shape[-1]} keys, got a CausalBias of {given}")
    return 0 if mask.variant == CausalVariant.UPPER_LEFT else given[1] - given[0]


def _together(bias: Tensor, mask: Tensor, wide: torch.dtype) -> Tensor:
    """The sum, −∞ where one is, whatever the other."""
    return (bias.to(wide) + mask.to(wide)).masked_fill((bias == -math.inf) | (mask == -math.inf), -math.inf)


def _check_bias(name: str, what: str, bias: Any, query: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    if bias is None:
        return None
    cast = cast_to("float", bias)
    bias = check_device(name, what, as_tensor(name, what, bias), query)
    if not bias.is_floating_point():
        raise TypeError(f"{name}: {what} must be of floating point, got {bias.dtype}; call {what}.{cast}")
    if not broadcasts(bias, shape):
        raise ValueError(f"{name}: {what} must broadcast to the scores' shape {shape}, got {tuple(bias.shape)}")
    return bias


FURTHEST = 2**62  # more than any row has, and a number that kernels can have


def check_window(name: str, window: Any) -> tuple[int | None, int | None]:
    """(how many keys before a query's place it sees, how many after)."""
    sides = window if isinstance(window, (tuple, list)) else (window, window)
    if len(sides) != 2:
        raise ValueError(f"{name}: window must be an int or (before, after), None for all, got {window!r}")
    if any(type(side) is int and side == -1 for side in sides):
        raise InputError(
            f"{name}: window must be an int of at least 0, got -1; None is a side without end, as FlashAttention's -1 is"
        )
    near = (min(side, FURTHEST) if type(side) is int else side for side in sides)
    left, right = (None if side is None else min(check_count(name, "window", side, 0), FURTHEST) for side in near)
    return left, right


def _check_lengths(name: str, lengths: Any, query: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    if lengths is None:
        return None
    return _check_integers(name, "key_lengths", lengths, query, shape, 0, shape[-1], ", the number of keys")


BOTTOM_RIGHT = "bottom_right"  # where the last query stands at the last key
FARTHEST = 2**30  # a place that kernels can have


def _check_first(name: str, first: Any, query: Tensor, shape: tuple[int, ...], lengths: Tensor | None) -> int | Tensor:
    """The place of the first query: a number, or one a batch, [..., 1, 1]."""
    if isinstance(first, str):
        if first != BOTTOM_RIGHT:
            raise ValueError(f"{name}: first_query must be an integer, integers [batch] or {BOTTOM_RIGHT!r}, got {first!r}")
        return (shape[-1] if lengths is None else lengths) - shape[-2]
    if isinstance(first, (Tensor, np.ndarray)) and first.ndim:
        return _check_integers(name, "first_query", first, query, shape, -FARTHEST, FARTHEST)
    return check_int(name, "first_query", first, lambda place: abs(place) <= FARTHEST, "an int between -2^30 and 2^30")


def _check_integers(
    name: str, what: str, given: Any, query: Tensor, shape: tuple[int, ...], lowest: int, highest: int, that: str = ""
) -> Tensor:
    """Integers, one a batch, as [..., 1, 1]."""
    given = check_device(name, what, as_tensor(name, what, given), query)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise TypeError(f"{name}: {what} must be integers, one a batch, got {given.dtype}")
    trailing = 3 if len(shape) > 3 else 2
    batch = shape[:-trailing]
    if not broadcasts(given, batch):
        raise ValueError(f"{name}: {what} must broadcast to the batch, {batch}, got {tuple(given.shape)}")
    given = given.reshape(*given.shape, *[1] * trailing)
    if given.numel() and is_concrete(given):
        least, most = int(given.min()), int(given.max())
        if not lowest <= least <= most <= highest:
            raise ValueError(f"{name}: {what} must lie in [{lowest}, {highest}]{that}, got {least} to {most}")
    return given


def _per_row(name: str, what: str, value: Any, query: Tensor, shape: tuple[int, ...], valid: Any, domain: str) -> float | Tensor:
    """A number, or a tensor that broadcasts to [..., L, 1]; one of [heads] has one for each head."""
    checked = check_value(name, what, value, valid, domain)
    if not isinstance(checked, Tensor):
        return checked
    checked = check_device(name, what, checked, query)
    rows = (*shape[:-1], 1)
    if len(shape) > 2 and checked.ndim == 1 and checked.shape[0] == shape[-3]:
        return checked[:, None, None]
    if not broadcasts(checked, rows):
        heads = f"[{shape[-3]}], one a head, or " if len(shape) > 2 else ""
        raise ValueError(f"{name}: {what} must have the shape {heads}one that broadcasts to {rows}, got {tuple(checked.shape)}")
    return checked
