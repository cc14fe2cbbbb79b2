r"""Subsets: k classes without replacement, by the k largest of x + G, and their relaxation by k softmaxes, one after the other.

    P[σ] = Π_i e^{x_σi} / Σ_{j ∉ {σ_1 … σ_{i−1}}} e^{x_j}                    (Plackett and Luce)
    a¹ = x + G,  pⁱ = softmax(aⁱ/τ),  aⁱ⁺¹ = aⁱ + log(1 − pⁱ),  p = Σ_i pⁱ

log(1 − p) of the largest is log Σ_others − log Σ_all, which has a derivative where p rounds to 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, like_input
from softmaxima.base.numbers import check_count, check_int
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.rows import row_maximum
from softmaxima.base.tracing import sizes
from softmaxima.lse.cumulative import logcumsumexp
from softmaxima.lse.logsumexp import logsumexp
from softmaxima.maps.softmax import SOFTMAX
from softmaxima.sampling.gumbel import check_drawable
from softmaxima.sampling.rows import Rows, as_rows, largest, over_temperature, straight


class OrderedDraw(NamedTuple):
    """k classes in the order of their draw, and the logarithm of the probability of that order, in nats.

    >>> import torch, softmaxima as sm
    >>> sm.gumbel_top_k(torch.zeros(3), 3, generator=0).log_prob.exp()
    tensor(0.1667)
    """

    indices: Any
    log_prob: Any


@public
def gumbel_top_k(
    x: Array,
    k: int,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
) -> OrderedDraw:
    """k classes drawn from softmax(x/τ) one after the other without replacement, as the k largest of x/τ + G.

    Args:
        x, dim, temperature, where, samples, generator: as for `gumbel_max`; the temperature may require grad.
        k: from 1 to the number of classes.

    Returns:
        An `OrderedDraw`: `indices`, int64, of x's shape with k along `dim`, in the order of the draw, −1 from where nothing allowed
        is left; `log_prob`, of x's dtype and shape without `dim`, the sum of the logarithms of the draws' probabilities, with its
        gradient: what `score_function` takes.

    Raises:
        TypeError, ValueError or IndexError, before any work, as `gumbel_max`.

    The first index is that of `gumbel_max` of the same generator. Cost: noise in float64, a top-k and a logsumexp of a row.
    Sources: Plackett (1975); Kool, van Hoof and Welling (2019), arXiv:1903.06059.

    >>> import torch, softmaxima as sm
    >>> draw = sm.gumbel_top_k(torch.tensor([0.5, 0.3, 0.2]).log(), 2, generator=0)
    >>> draw.indices, draw.log_prob.exp()  # of the second draw 0.3 of 0.8
    (tensor([2, 1]), tensor(0.0750))
    """
    rows, count = _subset_rows("gumbel_top_k", x, k, dim, temperature, where, samples)
    rows = rows.tempered()
    found = rows.perturbed(generator).detach().topk(count, -1)
    drawn = found.values > -math.inf
    scores = rows.expanded(rows.x)
    own = scores.gather(-1, found.indices)
    rest = logsumexp(scores, keepdim=True, where=~_selected(rows, found.indices))
    behind = logcumsumexp(torch.cat((rest, own.flip(-1)), -1))[..., 1:].flip(-1)  # of what is left at each draw
    log_prob = (own.masked_fill(~drawn, 0.0) - behind.masked_fill(~drawn, 0.0)).sum(-1).to(rows.dtype)
    indices = rows.placed(found.indices.masked_fill(~drawn, -1))
    return OrderedDraw(like_input(indices, x), like_input(log_prob, x))


def _subset_rows(name: str, x: Any, k: Any, dim: Any, temperature: Any, where: Any, samples: Any) -> tuple[Rows, int]:
    count = check_count(name, "k", k)
    rows = as_rows(name, x, dim, temperature, where, samples)
    n = sizes(rows.x)[-1]
    check_int(name, "k", k, lambda number: number <= n, f"at most the number of classes, {n}")
    check_drawable(rows)
    return rows, count


def _selected(rows: Rows, indices: Tensor) -> Tensor:
    """Booleans [..., n] of indices [..., k]."""
    chosen = torch.ones_like(indices, dtype=torch.bool)  # an exporter to ONNX takes no number
    return rows.expanded(torch.zeros_like(rows.x, dtype=torch.bool)).scatter(-1, indices, chosen)


@public
def relaxed_top_k(
    x: Array,
    k: int,
    temperature: float | Array = 1.0,
    hard: bool = False,
    *,
    dim: int = -1,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
) -> Array:
    """A relaxed draw of k classes without replacement, `p = Σ_{i≤k} softmax(aⁱ/τ)`, `aⁱ⁺¹ = aⁱ + log(1 − pⁱ)`, `a¹ = x + G`.

    Args:
        x, temperature, dim, where, samples, generator: as for `gumbel_softmax`.
        k: from 1 to the number of classes.
        hard: exact ones at the k largest of x + G, those of `gumbel_top_k`, with the gradient of p.

    Returns:
        Numbers of at least 0 of x's shape, dtype and array kind, whose sum is k, or less where fewer are allowed; as τ → 0 ones at
        the k largest. At a finite τ an entry may exceed 1, up to nearly k: log(1 − p) takes some lead/τ from the largest, lead that
        over the second, and may leave it the largest.

    Raises:
        TypeError, ValueError or IndexError, before any work, as `gumbel_max`.

    Cost: k softmaxes in float64, one after the other. Sources: Xie and Ermon (2019), arXiv:1901.10517; the successive softmax is of
    Plötz and Roth (2018), arXiv:1810.12575.

    >>> import torch, softmaxima as sm
    >>> sm.relaxed_top_k(torch.tensor([2.0, 1.0, 0.0, -1.0]), 2, 0.1, generator=1)
    tensor([1.0000e+00, 9.9997e-01, 2.8008e-05, 2.9465e-08])
    """
    rows, count = _subset_rows("relaxed_top_k", x, k, dim, temperature, where, samples)
    y = rows.perturbed(generator)
    p, a = torch.zeros_like(y), y
    allowed = (rows.x > -math.inf).sum(-1, keepdim=True)
    for i in range(count):
        share = SOFTMAX(a, temperature=rows.tau)
        p = p + share.masked_fill(i >= allowed, 0.0)
        if i + 1 < count:
            a = _lowered(a, share, rows.tau)
    if hard:
        top = y.detach().topk(count, -1)
        chosen = _selected(rows, top.indices) & (y > -math.inf)
        p = straight(chosen, p, rows.dtype)
    return rows.back(p)


def _lowered(a: Tensor, p: Tensor, tau: float | Tensor) -> Tensor:
    """a + log(1 − p), p = softmax(a/τ)."""
    z = over_temperature(a - row_maximum(a), tau)
    first = largest(a)
    total, rest = (logsumexp(v, keepdim=True) for v in (z, z.masked_fill(first, -math.inf)))
    # A row of nothing: −∞ less −∞.
    left = torch.where(rest > -math.inf, rest - total.masked_fill(total == -math.inf, 0.0), -math.inf)
    return a + torch.where(first, left, torch.log1p(-p.masked_fill(first, 0.0)))
