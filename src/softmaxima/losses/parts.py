r"""Losses of rows whose classes come in parts, from sums over the parts of three kinds, all of which merge in any order:

    the state of the map, which has V with ∂V/∂x = p;   the `Targets`;   and, for losses of p, those of its derivative.

Most losses are Σ_c s_c (V − x_c), s = w ⊙ y, or V + Ω(y) − ⟨y, x⟩ a row, with the gradient p Σs − s; others are Σ_c s_c ℓ(p_c).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.monoid import gap
from softmaxima.base.tracing import sizes
from softmaxima.engine.blocks import Part, RegulariserInParts, State, places
from softmaxima.engine.contract import AnyMap, find_map
from softmaxima.engine.parts import Anew, InParts, bound_in_parts, merged

# (the loss's name and options) → (a map, its parameters, the options that are left)
FindMap = Callable[[str, dict[str, Any]], tuple[AnyMap, dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True)
class RowForm:
    """How a loss is made of sums over a row.

    `of_p(p, n, **options)` = (ℓ(p), ℓ′(p)) of each score, for a loss Σ_c w_c y_c ℓ(p_c) of n classes. Without it the loss is
    V + Ω(y) − ⟨y, x⟩, times the weight of the row, if it is a Fenchel–Young loss, and Σ_c w_c y_c (V − x_c) otherwise. It is given
    log p, and returns ∂ℓ/∂log p, of a loss of softmax that is `of_log`.
    """

    map: FindMap
    fenchel: bool = False
    of_p: Callable[..., tuple[Tensor, Tensor]] | None = None
    of_log: bool = False


Chunk = tuple[Part, Tensor, Tensor | None]  # a part, its targets, and the weights of its classes


class Targets(NamedTuple):
    """What the targets y of a part come to, [..., 1] each in float64."""

    top: Tensor  # the largest finite score
    share: Tensor  # Σ s over finite scores, s = w ⊙ y, or y for a Fenchel–Young loss
    moment: Tensor  # Σ s (x − top) over these; NaN where a score of +∞ has a share, of whose V − x nothing is known
    masked: Tensor  # Σ s over scores of −∞
    regulariser: Tensor  # what Ω(y) is made of
    weight: Tensor  # Σ w_c y_c, what the row of a Fenchel–Young loss counts
    counted: Tensor  # w_t of a label, what the mean counts
    mass: Tensor  # Σ of the target before smoothing: of a label how many scores are its own


class LabelScores(NamedTuple):
    """What a part has of the labels of its rows [..., 1]."""

    score: Tensor  # in float64; NaN where the label is in another part
    weight: Tensor  # of its class; 0 there
    place: Tensor  # in the part; any there
    hit: Tensor  # where it is in this part


@dataclass(frozen=True, eq=False)
class LossInParts:
    """A loss with its options over rows in parts; `rows` is its map over them, whose state it needs."""

    name: str
    rows: InParts
    form: RowForm
    n: int  # classes of a row
    smoothing: float
    ignore_index: int
    options: dict[str, Any] = field(default_factory=dict)
    z_loss: float = 0.0  # z of z·V² beside the loss of each row, before the weight of the row

    def each(self, of: Callable[[Tensor], Tensor]) -> LossInParts:
        """The same, with what `of` makes of the numbers [..., 1] that rows have."""
        made = lambda value: of(value) if isinstance(value, Tensor) else value
        params = {key: made(value) for key, value in self.rows.params.items()}
        options = {key: made(value) for key, value in self.options.items()}
        return replace(self, rows=InParts(self.rows.map, made(self.rows.tau), params), options=options)

    def of_rows(self, shape: Sequence[int], some: Tensor) -> LossInParts:
        """The same of some rows, counted through all axes of the shape that all have."""
        return self.each(lambda value: some_rows(value, some, shape))

    def target(self, part: Part, target: Tensor) -> tuple[Tensor, Tensor]:
        """(y of a part, smoothed; where the label is), of labels [...] or of its own probabilities [..., n]."""
        if target.is_floating_point():
            if sizes(target) != sizes(part.x):
                raise ValueError(
                    f"{self.name}: target probabilities must have the shape of their part, {sizes(part.x)}, got {sizes(target)}"
                )
            hit, y = torch.zeros_like(part.x, dtype=torch.bool), target.double()
        else:
            self.check_labels(part.x, target)
            hit = (places(part) == target.unsqueeze(-1)) & (target != self.ignore_index).unsqueeze(-1)
            y = hit.double()
        y = y if self.smoothing == 0 else y * (1 - self.smoothing) + self.smoothing / self.n
        return y.masked_fill(self.ignored(target), 0.0), hit

    def check_labels(self, x: Tensor, target: Tensor) -> None:
        if sizes(target) != sizes(x)[:-1]:
            raise ValueError(f"{self.name}: labels must be one a row, {sizes(x)[:-1]}, got {sizes(target)}")

    def ignored(self, target: Tensor) -> Tensor:
        """Which rows are [..., 1]; of probabilities none."""
        if target.is_floating_point():
            return torch.tensor(False, device=target.device)
        return (target == self.ignore_index).unsqueeze(-1)

    def part(self, part: Part, target: Tensor) -> Part:
        """The part as the map is given it: without scores in rows that are ignored, whatever they hold."""
        return Part(part.x.masked_fill(self.ignored(target), -math.inf), self.rows.tau, part.first)

    def shares(self, part: Part, target: Tensor, weight: Tensor | None) -> Tensor:
        """s of a part."""
        y, _ = self.target(part, target)
        return y if weight is None or self.form.fenchel else y * weight.double()

    def begin(self, part: Part, target: Tensor, weight: Tensor | None = None) -> Targets:
        """The targets of a part; `weight` are the weights of its classes [n]."""
        if self.is_of_labels(target):
            return self.of_label_scores(*self.label_scores(part.x, part.first, target, weight)[:2])
        y, hit = self.target(part, target)
        part = self.part(part, target)
        s, silent, infinite = self.shares(part, target, weight), part.x == -math.inf, part.x == math.inf
        top = torch.nn.functional.pad(part.x.masked_fill(infinite, -math.inf), (0, 1), value=-math.inf).amax(-1, keepdim=True)
        gaps = torch.where(silent | (s == 0), 0.0, (part.x - top).masked_fill(infinite, math.nan))
        each = torch.ones_like(part.x) if weight is None else weight.double().expand(part.x.shape)
        given = target.double() if target.is_floating_point() else hit.double()
        omega = self.regulariser(y, hit) if self.form.fenchel else torch.zeros_like(top[..., 0])
        sums = (s.masked_fill(silent | infinite, 0.0), s * gaps, s.masked_fill(~silent, 0.0), each * y, each * hit, given)
        share, moment, masked, *rest = (v.sum(-1, keepdim=True) for v in sums)
        return Targets(top, share, moment, masked, omega.unsqueeze(-1), *rest)

    def is_of_labels(self, target: Tensor) -> bool:
        """Whether no class but that of its label has a share in a row."""
        return not target.is_floating_point() and self.smoothing == 0

    def label_scores(self, x: Tensor, first: int | Tensor, target: Tensor, weight: Tensor | None = None) -> LabelScores:
        """What there is of the labels in scores of any dtype from the place `first` on, of which one a row is read."""
        self.check_labels(x, target)
        n = sizes(x)[-1]
        place = target.unsqueeze(-1) - first
        hit = (place >= 0) & (place < n) & ~self.ignored(target)
        place = torch.where(hit, place, 0)
        padded = x if n else torch.nn.functional.pad(x, (0, 1), value=-math.inf)
        score = torch.where(hit, padded.gather(-1, place).double(), math.nan)
        if weight is None or n == 0:
            return LabelScores(score, hit.double(), place, hit)
        return LabelScores(score, torch.where(hit, weight.double().expand(x.shape).gather(-1, place), 0.0), place, hit)

    def of_label_scores(self, score: Tensor, count: Tensor) -> Targets:
        """The targets of a part, of the first two of those."""
        hit, silent, infinite = ~score.isnan(), score == -math.inf, score == math.inf
        share, regular = count, torch.zeros_like(score)
        if self.form.fenchel:
            omega = lambda y: self.omega.of_part(y, **self.rows.params).unsqueeze(-1)
            nothing = omega(regular) if self.rows.map.regulariser_in_parts is not None else regular
            share, regular = hit.double(), torch.where(hit, omega(torch.ones_like(score)), nothing)
        top = torch.where(hit & ~infinite, score, -math.inf)
        moment = torch.zeros_like(score).masked_fill(infinite & (share > 0), math.nan)
        spoken, masked = torch.where(silent | infinite, 0.0, share), torch.where(silent, share, 0.0)
        return Targets(top, spoken, moment, masked, regular, count, count, hit.double())

    @property
    def omega(self) -> RegulariserInParts:
        """How Ω is made of parts; of labels by any Ω, one part having all."""
        return self.rows.map.regulariser_in_parts or RegulariserInParts(self.rows.map.regulariser)  # type: ignore[arg-type]

    def regulariser(self, y: Tensor, hit: Tensor) -> Tensor:
        """What Ω(y) of a part is made of [...]."""
        if self.rows.map.properties.additive_regulariser or self.rows.map.regulariser_in_parts is not None:
            return self.omega.of_part(y, **self.rows.params)
        return hit.any(-1) * self.omega.of_part(y.new_ones((*y.shape[:-1], 1)), **self.rows.params)

    def targets(self, chunks: Callable[[], Iterable[Chunk]]) -> Targets:
        """Those of all parts."""
        return merged((self.begin(*chunk) for chunk in chunks()), self.merge_targets, self.name)

    def merge_targets(self, a: Targets, b: Targets) -> Targets:
        """Those of the parts of both."""
        top = torch.maximum(a.top, b.top)
        moments = [part.moment + part.share * torch.where(part.share == 0, 0.0, part.top - top) for part in (a, b)]
        merged_one = self.omega.merge(a.regulariser, b.regulariser) if self.form.fenchel else a.regulariser
        both = Targets(*(v + w for v, w in zip(a, b, strict=True)))
        return both._replace(top=top, moment=moments[0] + moments[1], regulariser=merged_one)

    def evaluate(self, chunks: Callable[[], Iterable[Chunk]], targets: Targets) -> tuple[Tensor, Iterator[Tensor]]:
        """(the loss of each row [...], ∂/∂x of each part of their sum), of what each call of `chunks` gives anew."""
        rows = self.rows
        state = rows.state(Anew(lambda: (self.part(part, y) for part, y, _ in chunks())))
        if self.form.of_p is None:
            return self.value(state, targets), (self.gradient(*chunk, state, targets) for chunk in chunks())
        of_p = lambda: ((self.part(part, y), *self.of_p(part, y, weight, state)) for part, y, weight in chunks())
        value = sum(loss for _, loss, _ in of_p())
        sums = merged((rows.begin_pull(part, g, state) for part, _, g in of_p()), rows.merge_pull, self.name)
        return value.squeeze(-1), (rows.pull(part, g, state, sums)[0] for part, _, g in of_p())  # type: ignore[union-attr]

    def value(self, state: State, targets: Targets) -> Tensor:
        """The loss of each row [...], for a loss of V."""
        top, rest = self._conjugate(state)
        level = torch.where(targets.top == -math.inf, top / self.rows.tau, gap(top, targets.top, self.rows.tau)) + rest
        if self.form.fenchel:
            mass = targets.mass * (1 - self.smoothing) + self.smoothing  # Σ y
            regular = self.omega.whole(targets.regulariser.squeeze(-1), mass.squeeze(-1), **self.rows.params)
            value = _times(targets.weight, level + regular.unsqueeze(-1) - targets.moment / self.rows.tau)
        else:
            value = _times(targets.share, level) - targets.moment / self.rows.tau
        if self.z_loss:
            value = value + _times(self.counted(targets), self.z_loss * (top / self.rows.tau + rest).square())
        beyond = (targets.masked > 0) | ((targets.share > 0) & (rest == math.inf))
        counts = beyond if not self.form.fenchel else beyond & (targets.weight > 0)
        return value.masked_fill(counts & ~rest.isnan(), math.inf).squeeze(-1)

    def gradient(self, part: Part, target: Tensor, weight: Tensor | None, state: State, targets: Targets) -> Tensor:
        """∂/∂x of a part of the sum of those values."""
        part = self.part(part, target)
        p, y = self.rows.wide(part, state), self.shares(part, target, weight).masked_fill(part.x == -math.inf, 0.0)
        count = self.counted(targets)
        y = targets.weight * y if self.form.fenchel else y
        slope = _times(count, p) - y
        if self.rows.blocks.is_sum:  # p = exp(z − V), of which 1 − p has its own digits
            top, rest = self._conjugate(state)
            lack = -torch.expm1(gap(part.x.double(), top, self.rows.tau) - rest)
            slope = torch.where(p > 0.5, (count - y) - _times(count, lack), slope)
        if self.z_loss:
            slope = slope + _times(self.counted(targets) * self.excess(state), p)
        return (slope / self.rows.tau).masked_fill(self.ignored(target), 0.0)

    def counted(self, targets: Targets) -> Tensor:
        """How often a row has p in its gradient."""
        return targets.weight if self.form.fenchel else targets.share

    def excess(self, state: State) -> Tensor:
        """2zV, the p of z·V² for each p of the loss."""
        top, rest = self._conjugate(state)
        return torch.where(rest == -math.inf, 0.0, 2 * self.z_loss * (top / self.rows.tau + rest))

    def _conjugate(self, state: State) -> tuple[Tensor, Tensor]:
        return self.rows.blocks.conjugate(state, self.rows.tau, **self.rows.params)  # type: ignore[misc]

    def of_p(self, part: Part, target: Tensor, weight: Tensor | None, state: State) -> tuple[Tensor, Tensor]:
        """(the loss of a part [..., 1], its slopes by p), for a loss of p: the gradient is what `rows.pull` makes of them."""
        s, seen = self.shares(part, target, weight), self.part(part, target)
        p = self.rows.wide(seen, state)
        if self.form.of_log:  # beside a largest score of +∞ a finite one costs V − x, and itself nothing where it has no share
            endless, y = state[0] == math.inf, self.target(part, target)[0]
            p = p.masked_fill(endless & (seen.x < math.inf), -math.inf).masked_fill(endless & (seen.x == math.inf) & (y == 0), 0.0)
        value, slope = self.form.of_p(p, self.n, **self.options)  # type: ignore[misc]
        return _times(s, value).sum(-1, keepdim=True), _counted(s, slope)


def some_rows(values: Any, some: Tensor, shape: Sequence[int]) -> Any:
    """Those [..., m] of some rows, counted through all axes of the shape that all have; a number as it is."""
    if not isinstance(values, Tensor):
        return values
    return values.expand(*shape, values.shape[-1] if values.ndim else 1).reshape(math.prod(shape), -1)[some]


def all_rows(values: Tensor, some: Tensor, shape: Sequence[int]) -> Tensor:
    """Those [...] of rows of that shape, of `values` of some of them, and 0 for the others."""
    each = values.shape[1:]
    return values.new_zeros((math.prod(shape), *each)).index_copy(0, some, values).reshape(*shape, *each)


def _counted(share: Tensor, values: Tensor) -> Tensor:
    """The product, 0 where there is no share."""
    return torch.where(share == 0, 0.0, share * values)


def _times(share: Tensor, values: Tensor) -> Tensor:
    """The same, and NaN of NaN, as in whole rows."""
    return torch.where((share == 0) & ~values.isnan(), 0.0, share * values)


def one_map(name: str) -> FindMap:
    """A loss of one map, whose parameters are its options."""
    return lambda loss, options: (name, options, {})


def bind(
    name: str,
    form: RowForm | None,
    n: int,
    soft: bool,
    smoothing: float,
    ignore_index: int,
    temperature: Any,
    options: dict[str, Any],
    z_loss: float = 0.0,
) -> LossInParts:
    """The loss over rows of n classes; `soft` is whether its targets are probabilities."""
    if form is None:
        raise ValueError(f"{name}: it has no form in parts; take the loss of whole rows")
    map, params, own = form.map(name, options)
    found = find_map("log_softmax" if form.of_log else map, name)
    if found.blocks is None or (form.of_p is None and found.blocks.conjugate is None):
        raise ValueError(f"{name}: {found.name} has no form in parts; take the loss of whole rows")
    if form.fenchel and found.regulariser is None:
        raise ValueError(f"{name}: {found.name} has no regulariser, so no Fenchel–Young loss")
    adds_up = found.properties.additive_regulariser or found.regulariser_in_parts is not None
    if form.fenchel and (soft or smoothing > 0) and not adds_up:
        raise ValueError(f"{name}: the regulariser of {found.name} does not add up over parts; take labels, without smoothing")
    return LossInParts(name, bound_in_parts(name, found, temperature, params), form, n, smoothing, ignore_index, own, z_loss)
