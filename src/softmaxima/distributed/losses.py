"""Every loss over scores that are shared among ranks along the axis of classes, with labels that count whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.arguments import broadcasts, check_per_row, moved_last
from softmaxima.base.jacobian import narrowed
from softmaxima.base.numbers import TEMPERATURE
from softmaxima.base.public import public
from softmaxima.base.temperature import over
from softmaxima.base.tracing import outside_compilers, sizes
from softmaxima.distributed.agreement import Agreement, alike, learns
from softmaxima.distributed.kept import Kept, once, save, saved
from softmaxima.distributed.labels import spoken
from softmaxima.distributed.mesh_ranks import AnyRanks, MeshRanks, reads_labels, reads_values
from softmaxima.distributed.ranks import MESSAGES, Group, RanksError, outside_the_graph, ranks_of
from softmaxima.distributed.rows import Shared
from softmaxima.engine.blocks import State, joined
from softmaxima.engine.parts import merged
from softmaxima.losses.arguments import check_sums
from softmaxima.losses.batch import Batch, mean_over, prepare
from softmaxima.losses.contract import REGISTRY, Loss
from softmaxima.losses.finding import find_loss
from softmaxima.losses.parts import LabelScores, LossInParts, Targets, all_rows, bind

# From (the sum of losses, how many rows count) of these rows that of all, where other ranks have others
Total = Callable[[Tensor], Tensor]
# (which rows, their scores), some rows after others, of a tensor's first axis or, by an ellipsis, all; anew at each call
Scores = Callable[[], Iterable[tuple[Any, Tensor]]]


@public
@outside_the_graph
def shared_loss(
    loss: str | Loss | Callable[..., Tensor],
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    **options: Any,
) -> Tensor:
    """A loss of whole rows, of whose classes every rank of a group has the scores `shard`, in the order of ranks; in nats.

    L = Σ_i ℓ((x_{i0}, …, x_{i,R−1})/τ, y_i) / Σ_i w_i,    x_{ir} the scores of the rank r of R, ℓ and w_i those of the loss.

    `sm.distributed.cross_entropy(shard, target, …)` is `shared_loss("cross_entropy", shard, target, …)`, and so for every loss that
    has a form in parts.

    Args:
        loss: a registered name, that of a map which has a loss, the function of a loss or a `Loss`.
        shard: scores of this rank's classes [N, C, …] or [C]; each rank may have any number of classes, and none.
        target: labels [N, …], which count the classes of all ranks, the same on every rank; or probabilities of own classes.
        weight: of this rank's classes [C].
        group: a process group, a mesh of one axis, or None for all ranks.
        ignore_index, reduction, label_smoothing, empty, temperature, options: as the loss has them, the same on every rank.

    Returns:
        The loss, the same to the last bit on every rank, in the dtype of the scores: of no axes, or of the shape of labels by
        reduction="none". Its gradient is that of this rank's scores.

    Raises:
        TypeError or ValueError for what the loss would refuse, or a loss without a form in parts, and RanksError on the other ranks
        then. RanksError on every rank: where rows, dtypes or options differ among them, a
        label lies on no rank, one has refused its arguments, has NaN, or does not answer within the group's timeout; each names the
        ranks. There is no second derivative, and none by temperature or options: divide the scores before.

    Cost: one all-gather, of what the map takes and the label's score a row, with weights one number more, of probabilities 8, of
    rows that are ignored nothing where labels are on the CPU; one more for a loss of probabilities, as `soft_accuracy_loss`, and up
    to ten with top-p, as of `shared_map`. The gradient needs none.
    """
    called = f"distributed.{loss if isinstance(loss, str) and loss in REGISTRY else 'shared_loss'}"
    ranks = ranks_of(called, group)
    with ranks.telling(called):
        found, own = find_loss(called, loss)
        name = f"distributed.{found.name}"
        batch = prepare(name, shard, target, weight, ignore_index, reduction, label_smoothing, empty, shared=True)
        tau = moved_last(
            check_per_row(name, "temperature", temperature, batch.given, batch.class_axis, *TEMPERATURE), batch.class_axis
        )
        options = found.complete({**own, **options}, name)
        check_constants(name, {"temperature": tau, **options})
        of_rows = (*sizes(batch.rows)[:-1], 1)
        for what, value in options.items():
            if isinstance(value, Tensor) and not broadcasts(value, of_rows):
                raise ValueError(
                    f"{name}: {what} must be a number, or a tensor that broadcasts to {of_rows}, got shape {tuple(value.shape)}"
                )
        bound = bind_to(batch, found, options, ignore_index, tau)
    agreement = ranks.agree(
        name, batch.rows.shape[-1], alike_of_batch(batch, ignore_index, {"loss": found, "temperature": tau, **options})
    )
    return loss_of_scores(name, ranks, agreement, bound, batch, ignore_index)


def check_constants(name: str, values: dict[str, Any]) -> None:
    """Numbers that do not learn."""
    for what, value in values.items():
        if learns(value):
            repair = "divide the scores by it" if what == "temperature" else "give its value, or gather the scores"
            raise ValueError(f"{name}: {what} must not require grad here; {repair}")


def bind_to(
    batch: Batch, loss: Loss, options: dict[str, Any], ignore_index: int, tau: Any = 1.0, z_loss: float = 0.0
) -> LossInParts:
    """The loss over rows of any number of classes."""
    constants = {key: value.detach() if isinstance(value, Tensor) else value for key, value in options.items()}
    tau = tau.detach() if isinstance(tau, Tensor) else tau
    is_soft = batch.soft is not None
    return bind(batch.name, loss.row_form, 0, is_soft, batch.smoothing, ignore_index, tau, constants, z_loss)


def alike_of_batch(
    batch: Batch, ignore_index: int, options: dict[str, Any], beside: dict[str, Any] | None = None, **learning: Any
) -> dict[str, str]:
    """What must be the same on all ranks, the arguments that all losses have and these."""
    options = {
        "rows": tuple(batch.rows.shape[:-1]), "dtype": batch.rows.dtype, "reduction": batch.reduction, **options,
        "label_smoothing": batch.smoothing, "ignore_index": ignore_index, "empty": batch.empty,
        "target": "probabilities" if batch.labels is None else spoken(batch.labels, batch.ignored),
    }  # fmt: skip
    return alike(options, beside={"weight": batch.class_weight, **(beside or {})}, learning=learning)


def loss_of_scores(
    name: str,
    ranks: AnyRanks,
    agreement: Agreement,
    bound: LossInParts,
    batch: Batch,
    ignore_index: int,
    total: Total | None = None,
) -> Tensor:
    """The reduced loss, of scores that there are, of which the ranks have agreed what each has."""
    loss = RowLosses.of(name, ranks, agreement, bound, batch, ignore_index)
    return outside_compilers(_of_rows, MESSAGES)(loss, batch, total)


def _of_rows(loss: RowLosses, batch: Batch, total: Total | None) -> Tensor:
    """The same, of the rows that count alone where all ranks know which these are."""
    some, x = loss.counting(), batch.rows
    if some is None:
        return _SharedLoss.apply(loss, batch.reduction, batch.empty, total, x)  # type: ignore[return-value]
    x = x.reshape(loss.target.numel(), x.shape[-1]).index_select(0, some)
    value: Any = _SharedLoss.apply(loss.of_rows(some), batch.reduction, batch.empty, total, x)
    return all_rows(value, some, sizes(loss.target)) if batch.reduction == "none" else value


class Found(NamedTuple):
    """What one pass tells each rank of all rows."""

    values: Tensor  # the losses [...] in float64
    counted: Tensor  # how often the mean counts a row [..., 1]
    targets: Targets
    state: State  # of the map
    sums: State  # of its derivative, for a loss of probabilities

    def rows(self, some: Any) -> Found:
        """That of some rows."""
        of = lambda state: tuple(values[some] for values in state)
        return Found(self.values[some], self.counted[some], Targets(*of(self.targets)), of(self.state), of(self.sums))

    def reduced(self, reduction: str, empty: str = "nan", total: Total | None = None) -> tuple[Tensor, Tensor]:
        """(the loss, what its gradient is multiplied by)."""
        one = self.values.new_ones(())
        if reduction == "none":
            return self.values, one
        sums = torch.stack((self.values.sum(), self.counted.sum(dtype=torch.float64)))
        value, number = sums if total is None else total(sums)
        scale = mean_over(one, number, empty) if reduction == "mean" else one
        return value * scale, scale


@dataclass(frozen=True, eq=False)
class RowLosses:
    """The losses of rows of whose classes each rank has some; their scores come some rows at a time."""

    name: str
    ranks: AnyRanks
    agreement: Agreement
    own: LossInParts
    target: Tensor  # labels [...], or probabilities of own classes [..., n]
    weight: Tensor | None  # of own classes

    @classmethod
    def of(cls, name: str, ranks: AnyRanks, agreement: Agreement, bound: LossInParts, batch: Batch, ignore_index: int) -> RowLosses:
        target: Any = batch.labels if batch.soft is None else batch.soft
        target = target if batch.ignored is None else target.masked_fill(batch.ignored, ignore_index)
        return cls(name, ranks, agreement, replace(bound, n=agreement.whole), target, batch.class_weight)

    def evaluate(self, scores: Scores) -> Found:
        """One message for each pass that the map needs; one more for a loss of probabilities."""
        whole = self._shared(self.target.new_zeros((*self._shape, 0), dtype=torch.float64))
        targets: list[Tensor] = []

        def one(known: State | None) -> State:
            states, beside = [], []
            for some, x in scores():
                rows = self._rows(some)
                shared = rows._shared(x)
                states.append(shared.own.begun(None if known is None else tuple(values[some] for values in known)))
                beside += [rows._beside(shared)] if known is None else []
            state, every = whole.exchanged(joined(states), known, torch.cat(beside) if beside else None)
            targets.extend(every)
            return state

        state = whole.rows.in_passes(one)
        found = self._targets(targets)
        counted, sums = self._counted(found), ()
        if self.own.form.of_p is None:
            values = self.own.value(state, found)
        else:
            values, sums = self._values_of_p(scores, whole, state)
        if counted.is_floating_point():  # NaN for a label of no class
            values = torch.where(counted.squeeze(-1).isnan(), math.nan, values)
        weighed = counted if self.is_soft or self.weight is None else found.counted
        return Found(values, weighed, found, state, sums)  # type: ignore[arg-type]

    def slope(self, some: Any, x: Tensor, found: Found, g: Tensor) -> Tensor:
        """∂/∂x of ⟨g, losses⟩ of some rows, g [..., 1] in float64, in the dtype of x."""
        rows, (_, _, targets, state, sums) = self._rows(some), found.rows(some)
        own, shared = rows.own, rows._shared(x)
        g = g.masked_fill(own.ignored(rows.target), 0.0)
        if own.form.of_p is None and own.is_of_labels(rows.target) and x.shape[-1]:
            return rows._slope_of_labels(shared, state, targets, g)
        if own.form.of_p is None:
            slope = own.gradient(shared.own.part, rows.target, rows.weight, state, targets)
        else:
            _, slopes = own.of_p(shared.own.part, rows.target, rows.weight, state)
            slope = own.rows.pull(shared.own.part, slopes, state, sums)[0]
        return narrowed(torch.where((slope == 0) & ~g.isnan(), 0.0, slope * g), x.dtype)

    def counting(self) -> Tensor | None:
        """Which rows are not ignored, counted through all axes; None for all, and where not every rank knows of them."""
        if self.is_soft or not reads_labels(self.ranks, self.target):
            return None
        counts = (self.target != self.own.ignore_index).flatten()
        if bool(counts.all()):
            return None
        if isinstance(self.ranks, MeshRanks):  # which have not said what labels they have
            self.ranks.agree(self.name, {"target": spoken(self.target, ~counts.view_as(self.target))})
        return counts.nonzero().squeeze(-1)

    def of_rows(self, some: Tensor) -> RowLosses:
        """The losses of some rows, counted through all axes, as those of one axis."""
        return replace(self, own=self.own.of_rows(self._shape, some), target=self.target.flatten()[some])

    def is_by_kernels(self, like: Tensor, dtype: torch.dtype) -> bool:
        """Whether scores of a dtype, where `like` is, are not widened."""
        of_labels = self.own.form.of_p is None and self.own.is_of_labels(self.target)
        one = torch.zeros((1, 1), dtype=dtype, device=like.device)
        return of_labels and Shared(self.name, self.ranks, self.agreement, self.own.rows, one).own.has_shares

    def kept(self) -> Kept:
        """What the gradient reads of this again."""
        rows = self.own.rows
        return Kept(self.target, self.weight, rows.tau, *rows.params.values(), *self.own.options.values())

    @property
    def is_soft(self) -> bool:
        return self.target.is_floating_point()

    @property
    def _shape(self) -> tuple[int, ...]:
        return sizes(self.target)[:-1] if self.is_soft else sizes(self.target)

    def _rows(self, some: Any) -> RowLosses:
        """The losses of some rows."""
        own = self.own.each(lambda value: value[some] if value.ndim and sizes(value)[0] > 1 else value)
        return replace(self, own=own, target=self.target[some])

    def _shared(self, x: Tensor) -> Shared:
        if not self.is_soft and x.shape[-1]:
            ignored = self.target == self.own.ignore_index
            if x.device.type != "cpu" or bool(ignored.any()):
                x = x.masked_fill(ignored.unsqueeze(-1), -math.inf)  # no scores, whatever they hold
        return Shared(self.name, self.ranks, self.agreement, self.own.rows, x)

    def _beside(self, shared: Shared) -> Tensor:
        """What this rank tells of the targets [..., m]: of a label its score, and the weight of its class if there are weights."""
        if self.own.is_of_labels(self.target):
            mine = self._labels(shared)
            return mine.score if self.weight is None else torch.cat((mine.score, mine.weight), -1)
        return torch.cat(self.own.begin(shared.own.part, self.target, self.weight), -1)

    def _targets(self, told: Sequence[Tensor]) -> Targets:
        """The targets of whole rows, of what each rank has told of its part."""
        if not self.own.is_of_labels(self.target):
            return merged((Targets(*each.split(1, -1)) for each in told), self.own.merge_targets, self.name)
        every = torch.stack([*told])
        score, hit = every[..., :1], ~every[..., :1].isnan()
        times = hit.sum(0, dtype=torch.float64)  # 1, of the rank that has the label
        score = torch.where(hit, score, 0.0).sum(0).masked_fill(times == 0, math.nan)
        found = self.own.of_label_scores(score, times if self.weight is None else every[..., 1:].sum(0))
        return found._replace(mass=times)

    def _labels(self, shared: Shared) -> LabelScores:
        return self.own.label_scores(shared.x, self.agreement.first(self.ranks.rank), self.target, self.weight)

    def _values_of_p(self, scores: Scores, whole: Shared, state: State) -> tuple[Tensor, State]:
        values, sums = [], []
        for some, x in scores():
            rows = self._rows(some)
            part, known = rows._shared(x).own.part, tuple(each[some] for each in state)
            value, slopes = rows.own.of_p(part, rows.target, rows.weight, known)
            values.append(value)
            sums.append(rows.own.rows.begin_pull(part, slopes, known))
        total, every = whole.exchanged_sums(joined(sums), torch.cat(values))
        return torch.stack(every).sum(0).squeeze(-1), total

    def _slope_of_labels(self, shared: Shared, state: State, targets: Targets, g: Tensor) -> Tensor:
        """p times a factor, and p − 1 of the label, which narrow dtypes would round, in double."""
        own, share, mine = self.own, self.own.counted(targets), self._labels(shared)
        factor = torch.where((share == 0) & ~g.isnan(), 0.0, share * g)
        excess = own.excess(state) if own.z_loss else torch.zeros_like(factor)
        slope = shared.own.slope(state, factor * (1 + excess))
        has_none = ~(mine.score > -math.inf)  # a label that is masked, or on another rank
        p, less_one = shared.own.at(mine.score.masked_fill(has_none, -math.inf), mine.place, state)
        at_label = torch.where(has_none, 0.0, over(factor * (less_one + excess * p), own.rows.tau))
        at_label = torch.where(mine.hit, narrowed(at_label, slope.dtype), slope.gather(-1, mine.place))
        return slope.scatter_(-1, mine.place, at_label)

    def _counted(self, targets: Targets) -> Tensor:
        """Which rows count [..., 1]. Raises on every rank, where values can be read without waiting, for a label of no class."""
        if self.is_soft:
            if self.own.form.fenchel and reads_values(self.ranks, targets.mass):
                check_sums(self.name, targets.mass.squeeze(-1))
            return torch.ones_like(targets.mass)
        counted = (self.target != self.own.ignore_index).unsqueeze(-1)
        wrong = targets.mass != counted
        if not reads_values(self.ranks, targets.mass):
            return torch.where(wrong, math.nan, counted.double())
        if bool(wrong.any()):
            label, times = int(self.target[wrong.squeeze(-1)].flatten()[0]), int(targets.mass[wrong].flatten()[0])
            raise RanksError(
                f"{self.name}: each target must be a label on one rank, got {label} in a row, found on {times}; ranks "
                f"{', '.join(map(str, self.ranks.names))} have {self.agreement.whole} classes, "
                f"{' + '.join(map(str, self.agreement.widths))}, and every rank must have the same labels"
            )
        return counted


class _SharedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: RowLosses, reduction: str, empty: str, total: Total | None, x: Tensor) -> Tensor:
        with loss.ranks.working(loss.name):
            found = loss.evaluate(lambda: [(..., x.detach())])
            value, scale = found.reduced(reduction, empty, total)
        ctx.loss, ctx.is_of_rows, ctx.kept = loss, reduction == "none", loss.kept()
        save(ctx, x, scale, found)
        return value.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (g,) = upstream
        once(ctx.loss.name, "gather the scores, and take the loss of whole rows")
        ctx.kept.check(ctx.loss.name)
        x, scale, found = saved(ctx)
        slope = ctx.loss.slope(..., x, found, per_row(g, scale, found, ctx.is_of_rows))
        return None, None, None, None, slope


def per_row(g: Tensor, scale: Tensor, found: Found, is_of_rows: bool) -> Tensor:
    """∂/∂ each row's loss [..., 1], of the gradient by the reduced loss."""
    g = g.double().unsqueeze(-1) if is_of_rows else g.double()
    return (g * scale).expand(found.counted.shape)
