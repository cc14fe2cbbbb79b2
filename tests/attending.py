"""Requests of attention that learn, how near a kernel's results must be to those of the definition, and what must not be read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.attn import naive
from softmaxima.attn.arguments import Request


def learning(request: Request, dtype: torch.dtype | None = None) -> tuple[Request, list[Tensor]]:
    """(the request of tensors that learn, those that a kernel has gradients of: q, k, v, and where they are tensors τ and β)."""
    own = {name: getattr(request, name) for name in ("query", "key", "value")}
    own = {name: x.detach().to(dtype or x.dtype).requires_grad_() for name, x in own.items()}
    tau, params = request.temperature, dict(request.params)
    if isinstance(tau, Tensor) and request.bias is None and request.sink is None:
        own["temperature"] = tau.detach().clone().requires_grad_()
    inputs = [*own.values()]
    if isinstance(params.get("beta"), Tensor):
        params["beta"] = params["beta"].detach().clone().requires_grad_()
        inputs.append(params["beta"])
    return replace(request, **own, params=params), inputs


def all_learning(request: Request) -> tuple[Request, list[Tensor]]:
    """(the request of tensors that learn, all: q, k, v, and where they are tensors bias, τ, sink and parameters)."""

    def learns(x: Any) -> Any:
        return x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x

    own = {name: learns(getattr(request, name)) for name in ("query", "key", "value", "bias", "temperature", "sink")}
    own |= {"params": {name: learns(x) for name, x in request.params.items()}}
    found = replace(request, **own)
    return found, [x for x in (*list(own.values())[:-1], *found.params.values()) if isinstance(x, Tensor)]


def agree(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Within this much of the largest value, and infinite where that is."""
    found, expected = found.detach().double(), expected.detach().double()
    finite = expected.isfinite()
    torch.testing.assert_close(found[~finite], expected[~finite], rtol=0, atol=0, msg=what)
    size = max(1.0, float(expected[finite].abs().max())) if finite.any() else 1.0
    off = float((found - expected)[finite].abs().max()) if finite.any() else 0.0
    assert off <= tolerance * size, (what, off, size)


# What is excluded ---------------------------------------------------------------------------------------------------------------

JUNK = (math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class Spoilt:
    """A request with NaN and ±∞ in it, the same with zeros in their place, and where both must have the same results."""

    request: Request
    clean: Request
    slopes: tuple[Tensor, Tensor]  # of the outputs of both
    queries: Tensor  # [..., L]: those that read nothing of it
    keys: Tensor  # [..., S], as keys lie, and
    values: Tensor  # [..., S], as values lie: those that no other query sees
    nan: Tensor  # [..., L]: the queries that a NaN makes NaN


def spoilt(request: Request, rng: torch.Generator, share: float | None = None) -> Spoilt:
    """NaN and ±∞ in keys, values and a bias that nobody sees, and in a share of those that are seen, of queries and of slopes."""

    def chosen(shape: Any, share: float) -> Tensor:
        return torch.rand(shape, generator=rng).to(request.query.device) < share

    def junk(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """x with it in some columns of these rows, and with zeros there."""
        where = rows.unsqueeze(-1) & chosen(x.shape, 0.6)
        drawn = torch.tensor(JUNK, dtype=x.dtype)[torch.randint(0, 3, x.shape, generator=rng)].to(x.device)
        return torch.where(where, drawn, x), torch.where(where, 0.0, x)

    def of_rows(rows: Tensor) -> Tensor:
        """[..., 1, S] of what is said of keys [..., S], of the head of each query."""
        return request.repeated(rows.unsqueeze(-1)).mT

    def of_some(pairs: Tensor, like: Tensor) -> Tensor:
        """Whether any query has the pair [..., L, S] with a key, as those of `like` lie."""
        some = pairs.any(-2)
        some = some if request.groups == 1 else some.unflatten(-2, (-1, request.groups)).any(-2)
        return some.int().sum_to_size(like.shape[:-1]).bool()

    key, value = request.key, request.value
    seen = chosen((*request.query.shape[:-1], request.visible.keys), 2.0)
    seen = seen if request.allowed() is None else seen & request.allowed()
    bias = clean_bias = request.bias
    if bias is not None:
        seen = seen & (bias != -math.inf)
        if bias.shape == seen.shape:
            bias, clean_bias = (x.squeeze(-1) for x in junk(bias.unsqueeze(-1), ~seen & (bias != -math.inf)))
    share = share if share is not None else 0.1 if chosen((), 0.5) else 0.0
    of_key, of_value = (chosen(x.shape[:-1], 0.7) & ~of_some(seen, x) | chosen(x.shape[:-1], share) for x in (key, value))
    of_query, of_slope = (chosen(request.query.shape[:-1], share) for _ in range(2))
    g = torch.randn((*of_query.shape, value.shape[-1]), generator=rng, dtype=torch.float64).to(value)
    (query, clean_query), (g, clean_g) = junk(request.query, of_query), junk(g, of_slope)
    (key, clean_key), (value, clean_value) = junk(key, of_key), junk(value, of_value)
    clean = replace(request, query=clean_query, key=clean_key, value=clean_value, bias=clean_bias)
    reads = seen & (naive.weights(clean) != 0)  # values
    others = of_query | (seen & of_rows(of_key)).any(-1)  # queries whose scores are spoilt
    reads |= seen & others.unsqueeze(-1)
    spoilt_scores = seen & (query.isnan().any(-1, keepdim=True) | of_rows(key.isnan().any(-1)))
    others |= of_slope | (reads & of_rows(of_value)).any(-1)
    return Spoilt(
        replace(request, query=query, key=key, value=value, bias=bias),
        clean,
        (g, clean_g),
        ~others,
        ~of_some(seen & others.unsqueeze(-1), key),
        ~of_some(seen & others.unsqueeze(-1), value),
        spoilt_scores.any(-1),
    )


Results = tuple[Tensor, ...]  # o, ∂q, ∂k, ∂v, and those by what else learns


def differentiated(
    of: Callable[[Request], tuple[Request, list[Tensor]]], attend: Callable[[Request], Tensor]
) -> Callable[[Request, Tensor], Results]:
    """What autograd has as results of a request, of `learning` or another, given ∂o."""

    def results(request: Request, g: Tensor) -> Results:
        own, inputs = of(request)
        output = attend(own)
        return output.detach(), *torch.autograd.grad(output, inputs, g)

    return results


def check_spoilt(case: Spoilt, results: Callable[[Request, Tensor], Results], tolerance: float) -> None:
    """That what reads nothing of NaN and ±∞ has the results that it has with zeros there, and that NaN is NaN where it is read."""
    found, expected = (results(*each) for each in zip((case.request, case.clean), case.slopes, strict=True))
    every = bool(case.queries.all())
    assert bool(found[0][case.nan].isnan().all()), "NaN in a score that is seen"
    kept = (case.queries, case.queries, case.keys, case.values)
    for i, (x, right) in enumerate(zip(found, expected, strict=True)):
        if i >= len(kept) and not every:
            continue
        x, right = (x[kept[i]], right[kept[i]]) if i < len(kept) else (x, right)
        agree(x, right, tolerance, ("o", "∂q", "∂k", "∂v", *["∂ of a number"] * 5)[i])
