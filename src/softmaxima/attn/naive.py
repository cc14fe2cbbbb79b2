"""Attention by its definition, with every derivative: the scores of all queries and keys are held at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.attn.arguments import Request
from softmaxima.attn.products import pairwise, weighted, without_hidden
from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.tracing import is_concrete
from softmaxima.lse.logaddexp import logaddexp
from softmaxima.lse.logsumexp import logsumexp


def attend(request: Request) -> tuple[Tensor, Tensor]:
    """(Σ p v, p), in the dtypes of the values and of the scores."""
    p = weights(request)
    kept = torch.nn.functional.dropout(p, request.dropout) if request.dropout else p
    return weighted(kept, request.repeated(request.value).to(p.dtype)).to(request.value.dtype), p


def scores(request: Request) -> Tensor:
    """x = scale ⟨q, k⟩, capped, − slope |distance| + bias, [..., L, S], in what maps compute in; −∞ where a key is not seen."""
    wide = COMPUTE_DTYPE[request.query.dtype]
    x = pairwise(request.query.to(wide) * request.scale, request.repeated(request.key).to(wide))
    hidden = _hidden(request)
    if request.softcap is not None:
        x = x if hidden is None else x.masked_fill(hidden, 0.0)  # of NaN there the slope would be too
        x = request.softcap * torch.tanh(x / request.softcap)
    if request.slopes is not None:
        x = x - request.slopes.to(wide) * request.visible.distance(x.device).abs()
    if request.bias is not None:
        x = x + request.bias.to(wide)
    return x if hidden is None else x.masked_fill(hidden, -math.inf)


def _hidden(request: Request) -> Tensor | None:
    """Which scores are −∞, by a mask, a place, a length or a bias."""
    allowed = request.allowed()
    hidden = None if allowed is None else ~allowed
    if request.bias is not None:
        by_bias = request.bias == -math.inf
        if not is_concrete(by_bias) or by_bias.any():
            hidden = by_bias if hidden is None else hidden | by_bias
    return hidden


def weights(request: Request) -> Tensor:
    """The map of each query's scores. A sink is one score more, whose value is 0."""
    x = own = scores(request)
    if request.sink is not None:
        x = torch.cat((x, _level(request, x).expand(*x.shape[:-1], 1)), -1)
    p = request.map(x, -1, temperature=request.temperature, **request.params)
    return without_hidden(p if request.sink is None else p[..., :-1], own)


def _level(request: Request, x: Tensor) -> Tensor:
    """The sink as a score, which is divided by τ with the others: none where it is −∞, and no larger than a score can be."""
    sink = torch.as_tensor(request.sink, dtype=torch.float64, device=x.device)
    none = sink == -math.inf
    tau = request.temperature
    level = sink.masked_fill(none, 0.0) * (tau.double() if isinstance(tau, Tensor) else tau)
    most = torch.finfo(x.dtype).max
    return level.clamp(-most, most).masked_fill(none, -math.inf).to(x.dtype)


def log_mass(request: Request) -> Tensor:
    """The logarithm of softmax's divisor, [..., L], for elastic softmax with that of the sink."""
    x = scores(request)
    whole = logsumexp(x, -1, temperature=request.temperature, keepdim=True)
    if (level := request.level) is not None:
        whole = logaddexp(whole, torch.as_tensor(level, dtype=whole.dtype, device=whole.device).expand_as(whole))
    return whole.squeeze(-1)
