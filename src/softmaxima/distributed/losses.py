"""Every loss over scores that are shared among ranks along the axis of classes, with labels that count whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import as_scores, as_tensor, check_device, check_per_row, moved_last
from softmaxima.core.blocks import State
from softmaxima.core.jacobian import narrowed
from softmaxima.core.numbers import TEMPERATURE
from softmaxima.core.parts import merged
from softmaxima.core.tracing import outside_compilers
from softmaxima.distributed.ranks import Agreement, AnyRanks, Group, RanksError, ranks_of, reads_values
from softmaxima.distributed.rows import MESSAGES, Shared
from softmaxima.losses import REGISTRY
from softmaxima.losses._classification import Loss, check_class_weight, check_shared, check_soft, check_sums
from softmaxima.losses._parts import LossInParts, Targets, bind, merge_targets


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
    temperature: Any = 1.0,
    **options: Any,
) -> Tensor:
    """A loss of whole rows, of whose classes every rank of a group has the scores `shard`, in the order of ranks.

    `sm.distributed.cross_entropy(shard, target, …)` is `shared_loss("cross_entropy", shard, target, …)`, and so for every loss that
    has a form in parts.

    Args:
        loss: a registered name, the function of a loss or a `Loss`.
        shard: scores of this rank's classes [N, C, …] or [C]; each rank may have any number of classes, and none.
        target: labels [N, …], which count the classes of all ranks, the same on every rank; or probabilities of own classes.
        weight: of this rank's classes [C].
        group: a process group, a mesh of one axis, or None for all ranks.
        ignore_index, reduction, label_smoothing, temperature, options: as the loss has them, the same on every rank.

    Returns:
        The loss, the same to the last bit on every rank. Its gradient is that of this rank's scores.

    Raises:
        ValueError for a loss without a form in parts. RanksError on every rank: where rows, dtypes or options differ among them, a
        label lies on no rank, one has refused its arguments, has NaN, or does not answer within the group's timeout; each names the
        ranks. There is no second derivative, and none by temperature or options: divide the scores before.

    Cost: one all-gather, of what the map takes and 8 numbers a row; one more for a loss of probabilities, as `soft_accuracy_loss`.
    The gradient needs none.
    """
    found = _find(loss)
    name = f"distributed.{found.name}"
    ranks = ranks_of(name, group)
    with ranks.telling(name):
        given = checked(name, found, shard, target, weight, ignore_index, reduction, label_smoothing, temperature, options)
        bound = bind(name, found.row_form, 0, given.is_soft, given.smoothing, given.ignore_index, given.tau, given.options)
    agreement = ranks.agree(
        name, given.x.shape[-1], rows=tuple(given.x.shape[:-1]), dtype=given.x.dtype, reduction=reduction,
        label_smoothing=label_smoothing, target="probabilities" if given.is_soft else "labels",
        ignore_index=ignore_index, weight="given" if weight is not None else "none", temperature=given.tau, **given.options,
    )  # fmt: skip
    return loss_of_shared_rows(name, given, replace(bound, n=agreement.whole), ranks, agreement)


def loss_of_shared_rows(name: str, given: Given, own: LossInParts, ranks: AnyRanks, agreement: Agreement) -> Tensor:
    """The loss of rows of which the ranks have agreed what each has."""

    def share(x: Tensor) -> Shared:
        ignored = given.target == given.ignore_index
        if not given.is_soft and (x.device.type != "cpu" or bool(ignored.any())):
            x = x.masked_fill(ignored.unsqueeze(-1), 0.0)  # whatever they hold
        return Shared(name, ranks, agreement, own.rows, x)

    return outside_compilers(_SharedLoss.apply, MESSAGES)(share, own, given, given.x)


@dataclass(frozen=True, eq=False)
class Given:
    """What the loss is taken of, classes last, and checked."""

    x: Tensor
    target: Tensor
    weight: Tensor | None
    ignore_index: int
    reduction: str
    smoothing: float
    tau: Any
    options: dict[str, Any]
    total: Callable[[Tensor], Tensor] = lambda sums: sums  # over the ranks that have other rows

    @property
    def is_soft(self) -> bool:
        return self.target.is_floating_point()


def _find(loss: Any) -> Loss:
    named = [each for each in REGISTRY.values() if loss in (each.name, each, each.function, each.module)]
    if isinstance(loss, Loss):
        return loss
    if not named:
        raise ValueError(f"distributed: there is no loss {loss!r}; choose among {', '.join(REGISTRY)}")
    return named[0]


def checked(
    name: str, loss: Loss, shard: Any, target: Any, weight: Any, ignore_index: Any, reduction: Any, smoothing: Any, tau: Any,
    options: dict[str, Any],
) -> Given:  # fmt: skip
    """What is given, or an error that says what is wrong with it."""
    x = as_scores(name, shard)
    if x.ndim == 0:
        raise ValueError(f"{name}: scores need a class axis: (C), (N, C) or (N, C, d…); got a 0-d tensor")
    axis = 0 if x.ndim == 1 else 1
    ignore_index, reduction, smoothing = check_shared(name, ignore_index, reduction, smoothing)
    y = check_device(name, "target", as_tensor(name, "target", target), x)
    rows = x.shape[:axis] + x.shape[axis + 1 :]
    if y.is_floating_point():
        check_soft(name, x, y, ignore_index)
        y = y.movedim(axis, -1)
    elif y.dtype == torch.bool or y.is_complex() or y.shape != rows:
        raise ValueError(
            f"{name}: target must hold class indices of shape {tuple(rows)}, or probabilities of shape {tuple(x.shape)}; "
            f"got {y.dtype} of shape {tuple(y.shape)}"
        )
    else:
        y = y.long()
    if weight is not None:
        weight = check_device(name, "weight", check_class_weight(name, weight, x.shape[axis]), x)
    tau = moved_last(check_per_row(name, "temperature", tau, x, axis, *TEMPERATURE), axis)
    if isinstance(tau, Tensor) and tau.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}: temperature must not require grad here; divide the scores by it")
    tau = tau.detach() if isinstance(tau, Tensor) else tau
    return Given(x.movedim(axis, -1), y, weight, ignore_index, reduction, smoothing, tau, loss.complete(options, name))


class _SharedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Any, own: LossInParts, given: Given, x: Tensor) -> Tensor:
        shared: Shared = share(x.detach())
        of_labels = own.is_of_labels(given.target)
        mine = _of_labels(own, given, shared)[0] if of_labels else own.begin(shared.part, given.target, given.weight)
        state, every = shared.state(torch.cat(mine, -1))
        targets = merged((Targets(*each.split(1, -1)) for each in every), merge_targets, own.name)
        counted = _counted(own, given, shared, targets)
        sums: tuple[Tensor, ...] = ()
        if own.form.of_p is None:
            value = own.value(state, targets)
        else:
            part_value, slopes = own.of_p(shared.part, given.target, given.weight, state)
            sums, values = shared.sums(slopes, state, part_value)
            value = torch.stack(values).sum(0).squeeze(-1)
        scale = torch.ones((), dtype=torch.float64, device=x.device)
        if given.reduction != "none":
            counts = counted if given.is_soft or given.weight is None else targets.weight
            value, number = given.total(torch.stack((value.sum(), counts.sum().double())))
            scale = 1 / number if given.reduction == "mean" else scale
        ctx.share, ctx.own, ctx.given, ctx.width = share, own, given, len(state)
        ctx.save_for_backward(x, scale, *targets, *state, *sums)
        return narrowed(value * scale, x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (g,) = upstream
        own, given = ctx.own, ctx.given
        if torch.is_grad_enabled():
            raise RuntimeError(f"{own.name}: there is no second derivative; gather the scores, and take the loss of whole rows")
        x, scale, *saved = ctx.saved_tensors
        count = len(Targets._fields)
        targets, rest = Targets(*saved[:count]), saved[count:]
        state, sums = tuple(rest[: ctx.width]), tuple(rest[ctx.width :])
        shared = ctx.share(x)
        g = g.double().unsqueeze(-1) if given.reduction == "none" else g.double()
        if own.form.of_p is None and own.is_of_labels(given.target) and shared.kernels is not None:
            return None, None, None, _gradient_of_labels(own, given, shared, state, targets, g * scale)
        if own.form.of_p is None:
            slope = own.gradient(shared.part, given.target, given.weight, state, targets)
        else:
            _, slopes = own.of_p(shared.part, given.target, given.weight, state)
            slope = own.rows.pull(shared.part, slopes, state, sums)[0]
        return None, None, None, narrowed(torch.where(slope == 0, 0.0, slope * (g * scale)), x.dtype)


def _of_labels(own: LossInParts, given: Given, shared: Shared) -> tuple[Targets, Tensor, Tensor]:
    return own.begin_labels(shared.x, shared.agreement.first(shared.ranks.rank), given.target, given.weight)


def _gradient_of_labels(own: LossInParts, given: Given, shared: Shared, state: State, targets: Targets, g: Tensor) -> Tensor:
    """g ∂/∂x of each row's loss: p by the kernels, and p − 1 of the label, which they would round, in double."""
    share = targets.weight if own.form.fenchel else targets.share
    factor = torch.where(share == 0, 0.0, share * g)
    slope = shared.times(state, factor)
    mine, place, hit = _of_labels(own, given, shared)
    top, rest = own.rows.blocks.conjugate(state, 1.0, **own.rows.params)  # type: ignore[misc]
    log_p = torch.where(mine.top == -math.inf, -math.inf, (mine.top - top) - rest)
    at_label = torch.where(mine.top == -math.inf, 0.0, factor * log_p.expm1())  # a label that is masked has none
    at_label = at_label.masked_fill(rest == math.inf, math.nan)
    return slope.scatter(-1, place, torch.where(hit, narrowed(at_label, slope.dtype), slope.gather(-1, place)))


def _counted(own: LossInParts, given: Given, shared: Shared, targets: Targets) -> Tensor:
    """Which rows count [..., 1]. Raises on every rank, where values can be read without waiting, for a label of no class."""
    if given.is_soft:
        if own.form.fenchel and reads_values(shared.ranks):
            check_sums(own.name, targets.mass.squeeze(-1))
        return torch.ones_like(targets.weight)
    counted = (given.target != given.ignore_index).unsqueeze(-1)
    wrong = targets.labels != counted
    if reads_values(shared.ranks) and bool(wrong.any()):
        label, times = int(given.target[wrong.squeeze(-1)].flatten()[0]), int(targets.labels[wrong].flatten()[0])
        raise RanksError(
            f"{own.name}: each target must be a label on one rank, got {label} in a row, found on {times}; ranks "
            f"{', '.join(map(str, shared.ranks.names))} have {shared.agreement.whole} classes, "
            f"{' + '.join(map(str, shared.agreement.widths))}, and every rank must have the same labels"
        )
    return counted
