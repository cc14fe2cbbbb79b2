r"""Sampled softmax of a layer whose classes are shared among ranks: each draws negatives among its own.

    L = log(e^{s_t} + Σ_r Ẑ_r) − s_t,     Ẑ_r = (1/m′_r) Σ_{i: c_i≠t} e^{s_{c_i}}/Q′_r(c_i)

over the m′_r negatives of rank r that are not t, with Q′_r = Q_r, and Q_r/(1 − Q_r(t)) on the rank that has t. E Ẑ_r is the sum
over the classes of rank r but t, so that Σ_r Ẑ_r is an unbiased estimate of that over all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import check_per_row, scale_domain
from softmaxima.base.cosines import unrounded
from softmaxima.base.numbers import check_count, check_flag
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.tracing import sizes
from softmaxima.distributed.agreement import Agreement, alike
from softmaxima.distributed.copied import copied
from softmaxima.distributed.labels import check_range, here, spoken
from softmaxima.distributed.losses import bind_to, loss_of_scores
from softmaxima.distributed.ranks import Group, Ranks, outside_the_graph, ranks_of
from softmaxima.heads.candidates import Candidates, Drawing, as_drawing
from softmaxima.heads.corrections import target_correction
from softmaxima.heads.fixed_samplers import LogUniformSampler
from softmaxima.heads.labelled import Labelled, Rows, as_labelled
from softmaxima.heads.sampled import check_options
from softmaxima.heads.sampler import AnySampler
from softmaxima.losses.batch import prepare
from softmaxima.losses.contract import REGISTRY

ELSEWHERE = -2  # a label of another rank, and
IGNORED = -1  # of a row that is left out, among the candidates


@public
@outside_the_graph
def sampled_softmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    samples: int,
    sampler: str | Tensor | AnySampler,
    group: Group = None,
    bias: Tensor | None = None,
    correction: str = "positive",
    shared: bool = True,
    remove_hits: bool | None = None,
    temperature: float | Tensor = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    sparse: bool = False,
    reduce_hidden: bool = True,
    generator: Randomness = None,
) -> Tensor:
    r"""`sm.sampled_softmax_loss` of a layer of whose classes every rank of a group has some: each draws among its own, in nats.

    - "positive": L = log(e^{s_t} + Σ_r Ẑ_r) − s_t, Ẑ_r an estimate of Σ e^{s_c} over the classes c ≠ t of rank r, unbiased where a
      negative is left there. So the sum is an unbiased estimate of that over all classes but t, of no larger variance than so many
      draws from one Q that gives each rank as much would have.
    - "log_q": s_c − log m Q_r(c) in the place of s_c, of negatives and target: the expected number of draws of c.
    - "none": the scores as they are, as of partial FC.

    Args:
        hidden: h (…, features), the same rows on every rank.
        weight: W (own classes, features), of this rank's classes: any number of them, and none. `bias`: of the same.
        target: labels (…), which count the classes of all ranks, the same on every rank.
        samples: m, how many negatives each rank draws.
        sampler: Q_r, of own classes: "uniform", "log_uniform" (for classes of all ranks by falling frequency), a tensor of one
            weight for each own class, a `Sampler` of own classes or what is like one.
        group: a process group, a mesh of one axis, or None for all ranks.
        reduce_hidden: as of `linear_loss` here.
        generator: of this rank's draws: a torch.Generator, a NumPy one or a seed. Ranks that have the same draw the same numbers,
            which leaves the estimate unbiased.
        The others: as of `sm.sampled_softmax_loss`, the same on every rank.

    Returns:
        The loss, as that of `linear_loss` here. The gradients by weight and bias are of own classes, sparse by `sparse`; those by
        hidden and the temperature as there.

    Raises:
        TypeError, ValueError or IndexError for what `sm.sampled_softmax_loss` refuses, and RanksError on the other ranks then;
        RanksError on every rank, as of `shared_loss`. There is no second derivative.

    Cost: one all-gather of 4 numbers a row in float64, and one all-reduce of hidden's size in the backward pass; on each rank as
    of `sm.sampled_softmax_loss`. Sources: as of that; for drawing on each rank An et al. (2022), arXiv:2203.15565.
    """
    name = "distributed.sampled_softmax_loss"
    ranks = ranks_of(name, group)
    with ranks.telling(name):
        asked = as_sampled(
            name, hidden, weight, target, bias=bias, temperature=temperature, ignore_index=ignore_index, reduction=reduction,
            correction=correction, remove_hits=remove_hits, reduce_hidden=reduce_hidden, samples=samples, sampler=sampler,
            shared=shared, sparse=sparse, generator=generator,
        )  # fmt: skip
    return asked.evaluate(ranks)


@dataclass(frozen=True, eq=False)
class SameRows:
    """Rows that all ranks have, and temperatures, before the one is divided by the other."""

    rows: Rows  # at τ = 1
    tau: float | Tensor
    reduces: bool  # whether the gradient by hidden is that of all ranks

    def alike(self, **options: Any) -> dict[str, str]:
        """What must be the same on all ranks, with these options."""
        rows = self.rows
        own = {
            "rows": rows.shape, "features": sizes(rows.hidden)[1], "dtype": rows.dtype, "temperature": self.tau,
            "reduce_hidden": self.reduces,
        }  # fmt: skip
        learning = {"hidden": rows.hidden, "temperature": self.tau}
        return alike({**own, **options}, beside={"bias": rows.bias}, learning=learning)

    def divided(self, ranks: Ranks, name: str) -> Rows:
        """The rows at τ. The gradient by τ is that of all ranks, as the one by hidden where that reduces."""
        rows, hidden, tau = self.rows, self.rows.hidden, self.tau
        tau = tau.to(hidden.dtype) if isinstance(tau, Tensor) else tau
        hidden, tau = copied(ranks, name, hidden, tau) if self.reduces else (hidden, *copied(ranks, name, tau))
        if isinstance(tau, Tensor):
            tau = tau.expand(*rows.shape, 1).reshape(-1, 1)
        elif tau == 1:
            return replace(rows, hidden=hidden)
        return replace(rows, hidden=hidden / tau, tau=tau)


def as_same_rows(name: str, rows: Rows, temperature: Any, reduce_hidden: Any) -> SameRows:
    """Checked; the rows are at τ = 1."""
    states = rows.hidden.reshape(*rows.shape, sizes(rows.hidden)[1])
    tau = check_per_row(name, "temperature", temperature, states, states.ndim - 1, *scale_domain(rows.dtype))
    return SameRows(rows, tau, check_flag(name, "reduce_hidden", reduce_hidden))


@dataclass(frozen=True, eq=False)
class Sampled:
    """Rows with labels of all ranks' classes, a layer of own classes, and how negatives are drawn among these."""

    name: str
    labelled: Labelled  # labels and what is ignored as they came; of rows at τ = 1
    same: SameRows
    drawing: Drawing | None  # None of no classes
    by_rank: bool  # whether the sampler is that of classes by falling frequency, over all ranks
    samples: int
    correction: str
    removes: bool  # whether hits are left out

    def evaluate(self, ranks: Ranks) -> Tensor:
        labelled = self.labelled
        same = self.same.alike(
            samples=self.samples, correction=self.correction, remove_hits=self.removes, reduction=labelled.reduction,
            target=spoken(labelled.labels, labelled.ignored),
        )  # fmt: skip
        agreement = ranks.agree(self.name, labelled.rows.classes, same)
        with ranks.working(self.name):
            return self._loss(ranks, agreement)

    def _loss(self, ranks: Ranks, agreement: Agreement) -> Tensor:
        labels, ignored = self.labelled.labels, self.labelled.ignored
        check_range(self.name, labels, ignored, agreement)
        rows = self.same.divided(ranks, self.name)
        own, place = here(labels, ignored, agreement, ranks.rank)
        scores = rows.scores(slice(0, 0))
        if self.drawing is not None:
            drawing = replace(self.drawing, labelled=replace(self.labelled, rows=rows, labels=place, ignored=~own))
            if self.by_rank:
                drawing = replace(drawing, sampler=LogUniformSampler(rows.classes, agreement.first(ranks.rank)))
            with unrounded(rows.hidden):
                scores = self._scores(drawing.candidates(), own)
        taken = Agreement(tuple(min(width, 1) * (1 + self.samples) for width in agreement.widths))
        first = place.new_full(place.shape, taken.first(ranks.rank)).where(own, ELSEWHERE)
        first = first if ignored is None else first.masked_fill(ignored, IGNORED)
        loss, reduction = REGISTRY["cross_entropy"], self.labelled.reduction
        batch = prepare(self.name, scores, first, None, IGNORED, reduction, 0.0, shared=True)
        bound = bind_to(batch, loss, loss.complete({}), IGNORED)
        return self.labelled.result(loss_of_scores(self.name, ranks, taken, bound, batch, IGNORED))

    def _scores(self, found: Candidates, own: Tensor) -> Tensor:
        """[rows, 1 + m] of the label, −∞ where it is elsewhere, and of the negatives, with their corrections."""
        target, negatives = found.target, found.negatives
        hits = found.hits & own.unsqueeze(-1)
        if self.correction != "none":
            negatives = negatives - found.log_q.to(negatives.dtype)
        if self.removes:
            negatives = negatives.masked_fill(hits, -math.inf)
        correction = target_correction(self.correction, found.log_q_target, (~hits).sum(-1))
        if self.correction == "positive":  # of each rank's negatives, in the place of the target
            correction = correction.where(own, math.log(self.samples))
            negatives = negatives - correction.unsqueeze(-1).to(negatives.dtype)
        else:
            target = target + correction.to(target.dtype)
        return torch.cat((target.masked_fill(~own, -math.inf).unsqueeze(-1), negatives), -1)


def as_sampled(
    name: str, hidden: Any, weight: Any, target: Any, *, bias: Any, temperature: Any, ignore_index: Any, reduction: Any,
    correction: Any, remove_hits: Any, reduce_hidden: Any, samples: Any, sampler: Any, **drawn: Any,
) -> Sampled:  # fmt: skip
    """Checked."""
    removes = check_options(name, correction, remove_hits)
    labelled = as_labelled(name, hidden, weight, target, bias, 1.0, ignore_index, reduction, shared=True)
    same = as_same_rows(name, labelled.rows, temperature, reduce_hidden)
    samples, drawing = check_count(name, "samples", samples), None
    if labelled.rows.classes:
        drawing = as_drawing(name, replace(labelled, ignored=None), samples, sampler, **drawn)
    by_rank = isinstance(sampler, str) and sampler == "log_uniform"
    return Sampled(name, labelled, same, drawing, by_rank, samples, correction, removes)
