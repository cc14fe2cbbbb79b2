r"""Sums of exponentials that a few bad scores cannot move far: trimmed, winsorised, median of means.

With n scores in descending order x₍₁₎ ≥ … ≥ x₍ₙ₎ and k = ⌊αn⌋,

    trimmed        log Σ_{k<i≤n−k} exp(x₍ᵢ₎)                      the k largest and the k smallest left out
    winsorised     log Σ_i exp(x₍clip(i, k+1, n−k)₎)             the same moved to the largest and smallest that are left
    median of means    log n + log median_b mean_{i∈b} exp(x_i)   over B blocks of scores

None of them estimates LSE(x): each is at most its own cap, and the score that carries the sum may be what is cut. What they
promise is that the result moves little when m ≤ k scores (m < B/2 blocks) are replaced by any numbers: every order statistic then
moves by at most m places, x₍ᵢ₊ₘ₎ ≤ clean x₍ᵢ₎ ≤ x₍ᵢ₋ₘ₎, and the clean result lies in `robust_interval`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, like_input
from softmaxima.base.numbers import check_choice, check_count, check_number
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.base.rows import row_maximum
from softmaxima.base.temperature import anchored_at
from softmaxima.lse._scores import scores_last
from softmaxima.lse.bounds._gaps import ends, read_rows
from softmaxima.lse.bounds.intervals import exact_sum
from softmaxima.lse.logsumexp import logsumexp

Window = Callable[[Tensor, Tensor, Tensor, Tensor | int], Tensor]  # of (scores in order, n, k, shift)


@public
def trimmed_logsumexp(
    x: Array, proportion: float, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Array:
    """logsumexp without the k = ⌊αn⌋ largest and the k smallest scores, in nats.

    Bounds, with x₍ᵢ₎ in descending order: x₍ₙ₋ₖ₎ + log(n − 2k) ≤ value ≤ x₍ₖ₊₁₎ + log(n − 2k), and value ≤ LSE(x) and
    value ≤ `winsorized_logsumexp`. It is 1-Lipschitz in the largest change of a score. Up to k scores may be any numbers, +∞
    included, and the value stays finite; see `robust_interval`.

    Args:
        x: scores of any shape. Integers become torch's default dtype, or float64 for NumPy.
        proportion: α in [0, 0.5), the share of scores cut at each end.
        dim: the axis summed over.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.
        where: boolean, broadcasts to x; False (like a score of −∞) leaves a score out, and n does not count it.

    Returns:
        x's array kind and dtype, without `dim`. −∞ for a sum of nothing; NaN for a row that holds NaN.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient is the softmax of the scores that are left, and 0 at those that are cut. Cost: a sort of each row.
    Source: Tukey (1962) for the trimmed mean, of which this is the logarithm, without its division by n − 2k.

    >>> import numpy as np, softmaxima as sm
    >>> sm.trimmed_logsumexp(np.array([0.0, 0.0, 0.0, -5.0, 1000.0]), 0.2).round(6)  # log 3
    np.float64(1.098612)
    """
    return _of_window(_trimmed, "trimmed_logsumexp", x, proportion, dim, temperature, where)


@public
def winsorized_logsumexp(
    x: Array, proportion: float, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Array:
    """logsumexp with the k = ⌊αn⌋ largest and the k smallest scores moved to the nearest that is not among them, in nats.

    Bounds, with x₍ᵢ₎ in descending order: x₍ₙ₋ₖ₎ + log n ≤ value ≤ x₍ₖ₊₁₎ + log n, and value ≥ `trimmed_logsumexp`.
    It is 1-Lipschitz in the largest change of a score. Up to k scores may be any numbers, +∞ included, and the value stays finite;
    see `robust_interval`.

    Arguments, result and errors as for `trimmed_logsumexp`. The gradient sums to one: x₍ₖ₊₁₎ and x₍ₙ₋ₖ₎ also get the shares of the
    scores that were moved to them, which get 0. Cost: a sort of each row. Source: Dixon (1960).

    >>> import numpy as np, softmaxima as sm
    >>> sm.winsorized_logsumexp(np.array([0.0, 0.0, 0.0, -5.0, 1000.0]), 0.2).round(6)  # log 5
    np.float64(1.609438)
    """
    return _of_window(_winsorized, "winsorized_logsumexp", x, proportion, dim, temperature, where)


@public
def robust_interval(
    x: Array,
    proportion: float,
    corrupted: int,
    dim: int = -1,
    *,
    form: str = "trimmed",
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> tuple[Array, Array]:
    """(lower, upper) of what `trimmed_logsumexp` or `winsorized_logsumexp` was before m scores of a row were replaced.

    It holds for every choice of the m scores and of their values, +∞ included (not −∞, which is a mask), for m ≤ ⌊αn⌋; a row where
    m is larger gets (−∞, +∞). The same interval holds what the value becomes when m scores of x are replaced.

    Args:
        corrupted: m ≥ 0.
        form: "trimmed" or "winsorized".
        x, proportion, dim, temperature, where: as for those.

    Returns:
        Two arrays of the function's kind and shape. No gradient flows through them. Ends are rounded outward, and hold the exact
        value; what the function returns may be a rounding away. Cost: a sort of each row.

    >>> import numpy as np, softmaxima as sm
    >>> lower, upper = sm.robust_interval(np.array([0.0, 1.0, 2.0, 3.0, 90.0]), 0.2, corrupted=1)
    >>> lower.round(3), upper.round(3)  # LSE(0, 1, 2), LSE(2, 3, 90)
    (np.float64(2.408), np.float64(90.0))
    """
    name = "robust_interval"
    proportion = _check_proportion(name, proportion)
    corrupted = check_count(name, "corrupted", corrupted, 0)
    check_choice(name, "form", form, ("trimmed", "winsorized"))
    window = _trimmed if form == "trimmed" else _winsorized
    rows = read_rows(name, x, dim, temperature, where)
    ranked, count, cut = _ranked(rows.wide, proportion)
    beyond = (cut < corrupted).squeeze(-1)
    shift = torch.minimum(cut, torch.full_like(cut, corrupted))
    lowest, highest = (replace(rows, scores=window(ranked, count, cut, moved)) for moved in (shift, -shift))
    lower, upper = ends(lowest, *exact_sum(lowest))[0], ends(highest, *exact_sum(highest))[1]
    lower, upper = lower.masked_fill(beyond, -math.inf), upper.masked_fill(beyond, math.inf)
    return like_input(lower, x), like_input(upper, x)


@public
def median_of_means_logsumexp(
    x: Array,
    blocks: int,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    shuffle: bool = False,
    generator: Randomness = None,
) -> Array:
    """The logarithm of n times the median over blocks of the block's mean of exp(x/τ), in nats.

    For a sum whose terms are a random sample with heavy tails or a few bad terms. Bounds:

    - whatever m < B/2 blocks hold, the value lies between the clean block values m places below and above the median;
    - for independent terms e^x of mean μ and standard deviation σ, with B = ⌈8 log(1/δ)⌉ and n a multiple of B, the mean is off by
      more than σ √(32 log(1/δ)/n) with probability at most δ (Lugosi & Mendelson 2019, arXiv:1906.04280, theorem 2). A plain mean
      promises σ/√(δn).

    For a fixed row it is no estimate of LSE(x): where few terms carry the sum, most blocks do not see them.

    Args:
        x, dim, temperature, where: as for `trimmed_logsumexp`.
        blocks: B ≥ 1, at most n. The i-th of the scores that are not left out belongs to block i mod B. 1 gives logsumexp.
        shuffle: shuffle the scores before, all rows alike; then the order in which they came does not matter.
        generator: of the shuffle: torch's, NumPy's or a seed from 0 to 2⁶⁴ − 1; None: torch's default one.

    Returns:
        x's array kind and dtype, without `dim`. Of an even number of blocks the median is the mean of the middle two means. −∞ for
        a sum of nothing; NaN for a row that holds NaN.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient is the softmax within the block of the median (or the two), and 0 elsewhere. Cost: a stable partition of
    each row and two reads of it. Source: Nemirovsky & Yudin (1983).

    >>> import numpy as np, softmaxima as sm
    >>> sm.median_of_means_logsumexp(np.array([0.0, 0.0, 500.0, 0.0, 0.0, 0.0]), 3).round(6)  # log 6
    np.float64(1.791759)
    """
    name = "median_of_means_logsumexp"
    blocks = check_count(name, "blocks", blocks)
    rows, tau, finish = scores_last(name, x, dim, temperature, where)
    n = rows.shape[-1]
    if blocks > max(n, 1):
        raise ValueError(f"{name}: blocks must be at most the number of scores, {n}, got {blocks}")
    if generator is not None and not shuffle:
        raise ValueError(f"{name}: generator draws the order of a shuffle; pass shuffle=True, or leave it out")
    if shuffle:
        refuse_export(name, "random order; leave out shuffle=True")
        draws = as_torch_generator(name, generator)
        device = None if draws is None else draws.device
        rows = rows[..., torch.randperm(n, generator=draws, device=device).to(rows.device)]
    absent = rows == -math.inf
    rows = rows.gather(-1, absent.to(torch.uint8).sort(dim=-1, stable=True).indices)  # what is left out comes last, in no block
    count = (~absent).sum(-1, keepdim=True)
    occupied = count.clamp_max(blocks)
    middle = torch.cat([(occupied - 1) // 2, occupied // 2], -1).clamp(0, blocks - 1)
    of_block = torch.nn.functional.pad(rows, (0, -n % blocks), value=-math.inf).unflatten(-1, (-1, blocks)).mT
    largest = row_maximum(of_block).squeeze(-1).masked_fill((of_block == -math.inf).all(-1), -math.inf)
    anchor = largest.sort(-1, descending=True).values.gather(-1, middle[..., :1])  # which few bad blocks do not move
    of_rows = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
    sizes = (count + blocks - 1 - torch.arange(blocks, device=rows.device)) // blocks
    log_sizes = sizes.clamp_min(1).to(rows.dtype).log()
    with torch.no_grad():
        log_means = logsumexp(anchored_at(anchor.unsqueeze(-1), of_block, of_rows)[1]) - log_sizes
        chosen = log_means.argsort(-1, descending=True).gather(-1, middle)
    picked = of_block.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, of_block.shape[-1]))
    top, z = anchored_at(anchor.unsqueeze(-1), picked, of_rows)
    log_sum = logsumexp(logsumexp(z) - log_sizes.gather(-1, chosen))
    value = top.squeeze(-1).squeeze(-1) + log_sum + (count.squeeze(-1).to(rows.dtype) / 2).log()
    return finish(value.masked_fill(rows.isnan().any(-1), math.nan))


def _check_proportion(name: str, proportion: Any) -> float:
    return check_number(name, "proportion", proportion, lambda share: 0 <= share < 0.5, "a number in [0, 0.5)")


def _of_window(window: Window, name: str, x: Any, proportion: Any, dim: int, temperature: Any, where: Any) -> Any:
    proportion = _check_proportion(name, proportion)
    rows, tau, finish = scores_last(name, x, dim, temperature, where)
    return finish(logsumexp(window(*_ranked(rows, proportion), 0), temperature=tau))


def _ranked(z: Tensor, proportion: float) -> tuple[Tensor, Tensor, Tensor]:
    """(scores in descending order with −∞ last, n counted without them [..., 1], k [..., 1])."""
    count = (z != -math.inf).sum(-1, keepdim=True)
    return z.sort(-1, descending=True).values, count, (proportion * count).long()


def _trimmed(ranked: Tensor, count: Tensor, cut: Tensor, shift: Tensor | int) -> Tensor:
    """The window of the scores that are left, moved down by `shift` places; NaN is never cut."""
    place = torch.arange(ranked.shape[-1], device=ranked.device)
    inside = (place >= cut + shift) & (place < count - cut + shift)
    return ranked.masked_fill(~(inside | ranked.isnan()), -math.inf)


def _winsorized(ranked: Tensor, count: Tensor, cut: Tensor, shift: Tensor | int) -> Tensor:
    """Each place's score, or that of the nearest place which is not cut, `shift` places below; NaN is never cut."""
    place = torch.arange(ranked.shape[-1], device=ranked.device).expand(ranked.shape)
    source = torch.minimum(torch.maximum(place, cut), count - cut - 1) + shift
    moved = ranked.gather(-1, source.clamp_min(0))
    return torch.where(ranked.isnan(), ranked, moved.masked_fill(place >= count, -math.inf))
