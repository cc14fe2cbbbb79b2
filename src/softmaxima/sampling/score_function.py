r"""Score-function estimators (REINFORCE): E f(D) and its gradient, by draws D of which log p(D) is known; f need not be smooth.

    ∇E f(D) = E[(f(D) − b) ∇log p(D) + ∇f(D)]        for any b that does not depend on D

They give a value whose derivatives are the estimate's: mean_s [f_s e^{l_s − l̂_s} + b_s (1 − e^{l_s − l̂_s})], l̂ = l = log p(D) as
a constant. Each derivative of it, the second as well, is unbiased.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import broadcasts, check_tensor
from softmaxima.base.numbers import as_number, check_choice, check_count, check_number, described, is_finite
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.rows import highest
from softmaxima.base.tracing import sizes
from softmaxima.sampling.drawing import Function, as_drawing, over_rows
from softmaxima.sampling.rows import largest

BASELINES = ("leave_one_out", "none")


@public
def score_function(log_prob: Tensor, values: Tensor, *, baseline: str | float | Tensor = "leave_one_out") -> Tensor:
    r"""The mean of values f(D_s) of draws, as an estimate of E f(D) whose derivatives are estimates of its derivatives.

    Args:
        log_prob: log p(D_s), (samples, …), with its gradient: of any distribution that the draws are from, in nats.
        values: f(D_s), of the same shape, with a gradient where f has parameters.
        baseline: "leave_one_out", the mean of the other samples' values, of which there must be 2 at least; "none"; or a number or
            a tensor that broadcasts to (…), as a constant.

    Returns:
        (…), in the dtype of values.

    Raises:
        TypeError or ValueError, before any work, for anything else.

    Unbiased, and so are derivatives of it of any order. Cost: a few reads of both. Sources: Williams (1992); the leave-one-out
    baseline of Kool, van Hoof and Welling (2019), "Buy 4 REINFORCE samples, get a baseline for free!", and of Salimans and Knowles
    (2014), arXiv:1401.1022; the form of Foerster et al. (2018), arXiv:1802.05098.

    >>> import torch, softmaxima as sm
    >>> x = torch.zeros(2, requires_grad=True)
    >>> drawn = torch.tensor([0, 1, 1])
    >>> value = sm.score_function(x.log_softmax(-1)[drawn], torch.tensor([3.0, 1.0, 1.0]))
    >>> value.detach(), torch.autograd.grad(value, x)[0]
    (tensor(1.6667), tensor([ 0.6667, -0.6667]))
    """
    name = "score_function"
    for what, v in (("log_prob", log_prob), ("values", values)):
        if not isinstance(v, Tensor) or not v.is_floating_point():
            got = v.dtype if isinstance(v, Tensor) else type(v).__name__
            raise TypeError(f"{name}: {what} must be a tensor of floating point, got {got}")
        check_tensor(name, what, v)
    if log_prob.ndim == 0 or log_prob.shape[0] == 0 or log_prob.shape != values.shape:
        raise ValueError(
            f"{name}: log_prob and values must have one shape (samples, …), got {sizes(log_prob)} and {sizes(values)}; "
            "give one value a draw"
        )
    known = check_baseline(name, baseline, sizes(values)[0])
    return estimate(log_prob, values.double(), constant_of(name, known, values)).to(values.dtype)


def check_baseline(name: str, baseline: Any, samples: int) -> float | Tensor | None:
    """A constant, or None for leave-one-out."""
    if isinstance(baseline, Tensor):
        if check_tensor(name, "baseline", baseline).is_complex() or baseline.dtype == torch.bool:
            raise TypeError(f"{name}: baseline must be real, got {baseline.dtype}; take baseline.real or baseline.double()")
        return baseline.detach().double()
    if as_number(baseline) is not None:
        return check_number(name, "baseline", baseline, is_finite, f"{', '.join(BASELINES)}, a finite number or a tensor")
    if not isinstance(baseline, str):
        raise TypeError(f"{name}: baseline must be {', '.join(BASELINES)}, a number or a tensor, got {described(baseline, 'one')}")
    if check_choice(name, "baseline", baseline, BASELINES) == "none":
        return 0.0
    if samples < 2:
        raise ValueError(f"{name}: samples must be at least 2 for baseline='leave_one_out', got {samples}; give baseline='none'")
    return None


def constant_of(name: str, baseline: float | Tensor | None, values: Tensor) -> float | Tensor:
    """b of values [samples, …]: of leave-one-out the mean of the other samples' values."""
    if baseline is None:
        values = values.detach().double()
        return (values.sum(0, keepdim=True) - values) / (len(values) - 1)
    if isinstance(baseline, Tensor) and not broadcasts(baseline, sizes(values)[1:]):
        raise ValueError(f"{name}: baseline must broadcast to {sizes(values)[1:]}, one a value, got {sizes(baseline)}")
    return baseline


def estimate(log_prob: Tensor, values: Tensor, constant: float | Tensor) -> Tensor:
    """[samples, ...] → [...]."""
    ratio = (log_prob - log_prob.detach()).exp()  # 1
    return (values * ratio + constant * (1 - ratio)).mean(0)


@public
def reinforce(
    x: Tensor,
    f: Function,
    *,
    samples: int = 2,
    baseline: str | float | Tensor = "leave_one_out",
    dim: int = -1,
    where: Tensor | None = None,
    generator: Randomness = None,
) -> Tensor:
    r"""E f(D) of one-hot D from softmax(x), by `samples` draws, with the gradient of REINFORCE: `(f(D) − b) ∇log p(D)`.

    Args:
        x: scores of any shape, float64, float32, bfloat16 or float16.
        f: is given draws (samples, *x.shape), exact one-hot vectors along `dim` in x's dtype, and gives values of shape (samples,
            …), one for each row, or one for all rows of some axes together: … are x's axes without `dim`, or the first few of
            these. It need not be differentiable in the draws.
        samples: how many draws, and evaluations of f.
        baseline: b, as for `score_function`.
        dim, where, generator: as for `gumbel_max`. A row with nothing allowed is drawn as zeros.

    Returns:
        The mean value (…), in x's dtype, with unbiased derivatives of any order by x and by what f depends on.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else; ValueError too for NaN or +∞ among the scores, and
        for values of another shape.

    Cost: noise in float64 for each score of each draw. Sources: as of `score_function`.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    >>> reward = torch.tensor([0.0, 1.0, 5.0])
    >>> value = sm.reinforce(x, lambda draws: draws @ reward, samples=10_000, generator=0)
    >>> value.detach(), torch.autograd.grad(value, x)[0]
    (tensor(0.7246), tensor([-0.4770,  0.0678,  0.4092]))
    >>> torch.autograd.grad(x.softmax(-1) @ reward, x)[0]
    tensor([-0.4623,  0.0747,  0.3876])
    """
    name = "reinforce"
    count = check_count(name, "samples", samples)
    known = check_baseline(name, baseline, count)
    drawing = as_drawing(name, x, f, dim, where, count)
    one_hot = largest(drawing.rows.perturbed(generator))
    values = drawing.values(f, one_hot)
    log_prob = over_rows(drawing.log_prob(one_hot), values)
    return estimate(log_prob, values, constant_of(name, known, values)).to(drawing.rows.dtype)


@public
def sum_and_sample(
    x: Tensor,
    f: Function,
    *,
    exact: int = 1,
    samples: int = 1,
    baseline: str | float | Tensor = "none",
    dim: int = -1,
    where: Tensor | None = None,
    generator: Randomness = None,
) -> Tensor:
    r"""E f(D) of one-hot D from softmax(x): the `exact` most probable classes are summed, and draws are made of the rest.

        Σ_{i∈C} p_i f(i) + (1 − p(C)) f(D),        D from p outside C

    This is the Rao-Blackwell step of Liu et al. (2019) for score-function estimators: of as many evaluations of f it has the least
    variance where p is concentrated, and none where `exact` is the number of classes.

    Args:
        x, where, dim, generator: as for `reinforce`.
        f: as for `reinforce`, but with a value for each row.
        exact: |C|, at least 0; as many as there are classes make the sum exact.
        samples: draws of the rest, at least 1.
        baseline: "leave_one_out" of the draws, "none", or a number or a tensor, as for `score_function`.

    Returns:
        The value of each row, in x's dtype, with unbiased gradients by x and by what f depends on.

    Raises:
        TypeError, ValueError or IndexError, as `reinforce`.

    Cost: `exact + samples` evaluations of f, in one call. Source: Liu, Regier, Tripuraneni, Jordan and McAuliffe (2019),
    arXiv:1810.04777.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    >>> reward = torch.tensor([0.0, 1.0, 5.0])
    >>> value = sm.sum_and_sample(x, lambda draws: draws @ reward, exact=3)
    >>> value.detach(), torch.autograd.grad(value, x)[0]
    (tensor(0.6949), tensor([-0.4623,  0.0747,  0.3876]))
    """
    name = "sum_and_sample"
    summed, count = check_count(name, "exact", exact, 0), check_count(name, "samples", samples)
    known = check_baseline(name, baseline, count)
    drawing = as_drawing(name, x, f, dim, where, count)
    scores, log_p = drawing.rows.x.detach(), drawing.log_p
    top = highest(scores, summed)[1].movedim(scores.ndim - 1, 0)  # [exact, ...]
    listed = top.unsqueeze(-1) == torch.arange(scores.shape[-1], device=scores.device)  # [exact, ..., n]
    in_sum = listed.any(0)
    drawn = largest(drawing.rows.perturbed(generator).masked_fill(in_sum, -math.inf))
    # What is of probability 0, or beyond the last class, is the most probable one of weight 0, so that f sees draws alone.
    possible = scores > -torch.inf

    def safe(draws: Tensor) -> Tensor:
        met = (draws & possible).any(-1, keepdim=True)
        return (draws & met) | (largest(scores) & ~met)

    values = drawing.values(f, torch.cat((safe(listed), safe(drawn))))
    if values.ndim != scores.ndim and not drawing.rows.scalar:
        raise ValueError(
            f"{name}: f must give a value for each row, of shape {(summed + count, *sizes(scores)[:-1])}, got {sizes(values)}"
        )
    values = values.reshape(len(values), *scores.shape[:-1])
    found, rest = values[: top.shape[0]], values[top.shape[0] :]
    constant = torch.as_tensor(constant_of(name, known, rest), dtype=rest.dtype, device=rest.device).expand_as(rest)
    p = log_p.exp()
    share = torch.where(listed, p, 0.0).sum(-1)  # [exact, ...]
    left = p.detach().masked_fill(in_sum, 0.0).sum(-1).masked_fill(~possible.any(-1), 1.0)
    log_prob = drawing.log_prob(drawn)
    ratio = (log_prob - log_prob.detach()).exp()
    tail = left * (rest * ratio + constant * (1 - ratio)).mean(0)
    moved = share - share.detach()
    value = (found * share - constant.mean(0) * moved).sum(0) + tail
    return (value.reshape(()) if drawing.rows.scalar else value).to(drawing.rows.dtype)
