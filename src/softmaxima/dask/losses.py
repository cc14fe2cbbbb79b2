"""Every loss over Dask arrays that are chunked along any axes, that of classes too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.tokenize import normalize_object, normalize_token
from torch import Tensor

from softmaxima.base.arguments import as_tensor, check_per_row, check_values, moved_last
from softmaxima.base.arguments import check_scores as check_dtype
from softmaxima.base.numbers import TEMPERATURE
from softmaxima.base.public import public
from softmaxima.dask.chunks import Array, Chunks, Known, check_scores, check_split, compact, matching, per_row, rows_last, stand_in
from softmaxima.engine.own_part import OwnPart
from softmaxima.engine.parts import merged
from softmaxima.losses.arguments import (
    check_class_weight,
    check_empty,
    check_labels,
    check_shared,
    check_soft,
    check_sums,
    check_target,
)
from softmaxima.losses.batch import mean_over
from softmaxima.losses.contract import REGISTRY, Loss
from softmaxima.losses.finding import find_loss
from softmaxima.losses.parts import LossInParts, RowForm, Targets, bind

A_NUMBER = (lambda values: values == values, "a number")  # (valid, domain) of what the loss checks itself


@public
def chunked_loss(
    loss: str | Loss | Callable[..., Any],
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    **options: Any,
) -> Array:
    """The value of a loss of a Dask array in whatever chunks. Dask has no gradients.

    `sm.dask.cross_entropy(x, target, …)` is `chunked_loss("cross_entropy", x, target, …)`, and so for every loss that has a form in
    parts.

    Args:
        loss: a registered name, that of a map which has a loss, the function of a loss or a `Loss`.
        input: scores [N, C, …] or [C], in chunks of known sizes along any axes.
        target: labels [N, …] or probabilities of the shape of the scores, a NumPy or a Dask array in whatever chunks.
        weight: of the classes [C], a NumPy or a Dask array in whatever chunks, or a tensor.
        ignore_index, reduction, label_smoothing, empty, temperature, options: as the loss has them. Temperature and numbers a row
            may be NumPy or Dask arrays.
        split_every: how many states are merged at a time, an int of at least 2 or a dict with one for each axis as Dask has it; by
            default what Dask's setting of that name says, or 32.

    Returns:
        A Dask array of the dtype of the scores, of which nothing is computed yet.

    Raises:
        TypeError, ValueError or IndexError at once for anything else, and for a loss without a form in parts; for values that the
        loss refuses, such as a label of no class, when it is computed.

    Cost: the passes of the map, in which each chunk leaves what the map's state takes and 8 numbers a row; one more for a loss of
    probabilities, as `soft_accuracy_loss`.

    >>> import dask.array as da, numpy as np, softmaxima as sm
    >>> x = da.from_array(np.array([[0.0, 1.0, 3.0]]), chunks=(1, 2))
    >>> float(sm.dask.sparsemax_loss(x, np.array([1])).compute())
    2.0
    """
    if isinstance(loss, str) and loss in REGISTRY and REGISTRY[loss].on_cosines:
        raise ValueError(f"dask.{loss}: a loss of cosines has no form in parts; take sm.{loss} of whole rows, as of x.compute()")
    found, given = find_loss("dask.chunked_loss", loss)
    name = f"dask.{found.name}"
    scores = check_scores(name, input)
    split_every = check_split(name, split_every, scores)
    like = check_dtype(name, stand_in(name, "scores", scores), cast="astype(float)")
    ignore_index, reduction, smoothing = check_shared(name, ignore_index, reduction, label_smoothing)
    empty = check_empty(name, empty)
    if scores.ndim == 0:
        raise ValueError(f"{name}: scores need a class axis: (C), (N, C) or (N, C, d…); got an array of no axes")
    axis, every = min(scores.ndim - 1, 1), tuple(range(scores.ndim))
    classes = scores.shape[axis]
    targets = check_target(name, like, stand_in(name, "target", target, 0), axis, ignore_index)
    if weight is not None:
        check_class_weight(name, weight if isinstance(weight, Tensor) else stand_in(name, "weight", weight), classes)
        weight = check_values(name, "weight", weight).detach().double().cpu().numpy() if isinstance(weight, Tensor) else weight
    own = found.complete({**given, **options}, name)
    of = LossOfChunk(found, axis, classes, targets.is_floating_point(), smoothing, ignore_index, tuple(own))
    tau = check_per_row(name, "temperature", stand_in(name, "temperature", temperature), like, axis, *TEMPERATURE)
    early = {what: _checked_option(name, what, value, like, axis) for what, value in own.items()}
    moved = {key: moved_last(value, axis) for key, value in early.items() if not isinstance(own[key], Array)}
    rows = of.bound(moved_last(tau, axis), moved).rows
    beside = {
        "target": matching(target, scores, every if of.is_soft else every[:axis] + every[axis + 1 :], whole=True),
        "weight": matching(weight, scores, (axis,), whole=True),
        **{key: matching(value, scores, every) for key, value in {"temperature": temperature, **own}.items()},
    }
    chunks = Chunks(name, scores, (axis,), beside)
    known = chunks.summary(of.begin, rows.passes, split_every)
    if of.form.of_p is None:
        value = chunks.of_rows(of.value, known, np.float64)
    else:
        value = chunks.each(of.part_value, np.float64, known=known).sum(axis, keepdims=True, split_every=split_every)
    counted, dtype = chunks.of_rows(of.counted, known, np.float64), scores.dtype.newbyteorder("=")
    return _reduced(value, counted, reduction, empty, axis, split_every, dtype)


def _checked_option(name: str, what: str, value: Any, like: Tensor, axis: int) -> Any:
    """An option of the loss, of an array what stands for it."""
    is_array = isinstance(value, (Array, np.ndarray))
    if not is_array and not isinstance(value, Tensor):
        return value
    return check_per_row(name, what, stand_in(name, what, value) if is_array else value, like, axis, *A_NUMBER)


def _reduced(value: Array, counted: Array, reduction: str, empty: str, axis: int, split_every: Any, dtype: np.dtype) -> Array:
    if reduction == "none":
        return da.map_blocks(_rounded, value.squeeze(axis), to=dtype, dtype=dtype, meta=np.empty((0,) * (value.ndim - 1), dtype))
    sums = [each.sum(split_every=split_every) for each in ((value,) if reduction == "sum" else (value, counted))]
    return da.map_blocks(_rounded, *sums, empty=empty, to=dtype, dtype=dtype, meta=np.empty((), dtype))


def _rounded(value: Any, counted: Any = 1.0, *, empty: str = "nan", to: np.dtype) -> np.ndarray:
    """The quotient."""
    value, count = torch.as_tensor(np.asarray(value)), torch.as_tensor(np.asarray(counted, np.float64))
    return mean_over(value, count, empty).to(as_tensor("dask", "scores", np.empty((), to)).dtype).numpy()


@normalize_token.register(Loss)
def _token(loss: Loss) -> Any:
    """What tells a loss from others in the keys of results: of a registered one its name, as where it is pickled."""
    return (loss.function.__module__, loss.name) if REGISTRY.get(loss.name) is loss else normalize_object(loss)


@dataclass(frozen=True)
class KnownTargets:
    """What the targets of the rows of some chunks come to, with the loss of these rows."""

    own: LossInParts
    sums: Targets
    counts: Tensor | None  # of all rows [...] those that these are, in order; None for all

    def together(self, others: Sequence[KnownTargets]) -> KnownTargets:
        sums = merged([self.sums, *(other.sums for other in others)], self.own.merge_targets, self.own.rows.map.name)
        return replace(self, sums=Targets(*compact(sums)))


@dataclass(frozen=True)
class LossOfChunk:
    """What a loss has of a chunk, whose classes are on an axis."""

    loss: Loss
    axis: int
    classes: int
    is_soft: bool
    smoothing: float
    ignore_index: int
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"dask.{self.loss.name}"

    @property
    def form(self) -> RowForm:
        return self.loss.row_form  # type: ignore[return-value]

    def bound(self, temperature: Any, options: dict[str, Any]) -> LossInParts:
        """The loss of rows."""
        own = self.loss.complete(options, self.name)
        return bind(self.name, self.form, self.classes, self.is_soft, self.smoothing, self.ignore_index, temperature, own)

    def given(
        self, x: np.ndarray, *, first: int, target: np.ndarray, weight: np.ndarray | None, temperature: Any, **options: Any
    ) -> tuple[LossInParts, OwnPart, Tensor, Tensor | None, Tensor | None]:
        """(the loss, a chunk of its scores, its targets, the weights of its classes, which rows count), of the rows that count."""
        scores, y = rows_last(x, (self.axis,), self.name), as_tensor(self.name, "target", target)
        tau = per_row(self.name, "temperature", temperature, scores, (self.axis,), *TEMPERATURE)
        numbers = {
            what: per_row(self.name, what, value, scores, (self.axis,), *A_NUMBER) if isinstance(value, np.ndarray) else value
            for what, value in options.items()
        }
        own, counts = self.bound(tau, numbers), None
        if self.is_soft:
            y = y.movedim(self.axis, -1)
            check_soft(self.name, scores, y, self.ignore_index)
        else:
            y = y.long()
            _, ignored = check_labels(self.name, y, self.classes, self.ignore_index)
            if ignored is not None:
                counts, some = ~ignored, (~ignored).flatten().nonzero().squeeze(-1)
                own, y = own.of_rows(y.shape, some), y.flatten()[some]
                scores = scores.reshape(ignored.numel(), scores.shape[-1]).index_select(0, some)
        weights = None if weight is None else check_class_weight(self.name, weight, None, first=first)
        return own, OwnPart(own.rows, scores, None, first), y, weights, counts

    def begin(self, x: np.ndarray, *, known: Known | None, **beside: Any) -> Known:
        own, part, target, weight, counts = self.given(x, **beside)
        targets = (
            own.of_label_scores(*own.label_scores(part.x, part.first, target, weight)[:2])
            if own.is_of_labels(target)
            else own.begin(part.part, target, weight)
        )
        return Known.begun(part, known, KnownTargets(own, Targets(*compact(targets)), counts))

    def value(self, known: Known) -> Tensor:
        """The loss of each row [...], of one that is made of a value."""
        if self.is_soft and self.form.fenchel:
            check_sums(self.name, known.targets.sums.mass.squeeze(-1))
        return _spread(known.targets.own.value(known.state, known.targets.sums), known.targets.counts)

    def part_value(self, x: np.ndarray, *, known: Known, **beside: Any) -> np.ndarray:
        """What a chunk adds to the loss of each row, of one that is made of probabilities."""
        own, part, target, weight, counts = self.given(x, **beside)
        value, _ = own.of_p(part.part, target, weight, known.state)
        return _spread(value.squeeze(-1), counts).unsqueeze(self.axis).numpy()

    def counted(self, known: Known) -> Tensor:
        """What each row [...] counts in a mean."""
        if self.is_soft:
            return torch.ones_like(known.targets.sums.mass).squeeze(-1)
        return _spread(known.targets.sums.counted.squeeze(-1), known.targets.counts)


def _spread(values: Tensor, counts: Tensor | None) -> Tensor:
    """Those of all rows, 0 for the ones that do not count."""
    return values if counts is None else values.new_zeros(counts.shape).masked_scatter_(counts, values)
