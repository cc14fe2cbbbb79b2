"""A map over rows whose scores are shared among ranks: states that merge, sent in one message a pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softmaxima.base import monoid
from softmaxima.base.jacobian import narrowed
from softmaxima.base.rows import FEW
from softmaxima.distributed.agreement import Agreement
from softmaxima.distributed.mesh_ranks import AnyRanks, reads_values
from softmaxima.distributed.ranks import RanksError
from softmaxima.engine.blocks import State
from softmaxima.engine.own_part import OwnPart
from softmaxima.engine.parts import InParts, merged, spread

CANDIDATES = 64  # scores of a row that may be in the support of a rank's part, of which one message has room, of few rows for more


@dataclass(frozen=True, eq=False)
class Shared:
    """Rows, the axis last, of which this rank has a part."""

    name: str
    ranks: AnyRanks
    agreement: Agreement
    rows: InParts
    x: Tensor  # [..., n], of any dtype
    mask: Tensor | None = None

    @functools.cached_property
    def own(self) -> OwnPart:
        """This rank's part."""
        return OwnPart(self.rows, self.x, self.mask, self.agreement.first(self.ranks.rank))

    def state(self, beside: Tensor | None = None) -> tuple[State, list[Tensor]]:
        """(that of whole rows, the same on every rank; what each has `beside` [..., m], which the first message takes along)."""
        told: list[Tensor] = []

        def one(known: State | None) -> State:
            state, others = self.exchanged(self.own.begun(known), known, beside if known is None else None)
            told.extend(others)
            return state

        return self.rows.in_passes(one), told

    def exchanged(self, own: State, known: State | None, beside: Tensor | None = None) -> tuple[State, list[Tensor]]:
        """(the state of whole rows in a pass of which `own` is this rank's, what each has beside)."""
        identity = own if isinstance(own, monoid.LogSum) else self.rows.identity(self.own.read, known)
        every, others = self._gathered(own, identity, beside)
        self._check(every)
        return self.rows.together(every), others

    def pull(self, g: Tensor, state: State, where: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """(∂⟨g, p⟩/∂x in the dtype of own scores, what these add to that by temperature and parameters, in float64).

        `where` is which of them may have a probability: those alone are read, and the others have the gradient 0.
        """
        whole = self.own.narrow
        part = self.own.part if where is None else replace(whole, x=whole.x.gather(-1, where).double())
        g = (g if where is None else g.gather(-1, where)).double()
        pulling = self.rows.pulling(part, g, state)
        v, learned = pulling.finish(self.exchanged_sums(pulling.sums())[0])
        return spread(narrowed(v, self.x.dtype), where, whole), learned

    def total(self, own: Sequence[Tensor]) -> list[Tensor]:
        """The sum over all ranks of each of some tensors, the same to the last bit on each, by one collective."""
        return [torch.stack(each).sum(0) for each in zip(*self.told(own), strict=True)]

    def exchanged_sums(self, own: State, beside: Tensor | None = None) -> tuple[State, list[Tensor]]:
        """(the same of what each rank has of them, what each has beside)."""
        every, others = self.told([*own, *([] if beside is None else [beside])]), []
        if beside is not None:
            others = [each[-1] for each in every]
            every = [each[:-1] for each in every]
        return merged((tuple(each) for each in every), self.rows.merge_pull, self.name), others

    def told(self, own: Sequence[Tensor]) -> list[list[Tensor]]:
        """Tensors [..., m] of each rank, of the same shapes on all, in float64, by one collective."""
        return told(self.name, self.ranks, [values.double() for values in own])

    def _gathered(self, own: State, identity: State, beside: Tensor | None) -> tuple[list[State], list[Tensor]]:
        """(the state of each rank, what it has beside)."""
        return gathered(self.name, self.ranks, self.rows, max(self.agreement.widths), own, identity, beside)

    def _check(self, states: Sequence[State]) -> None:
        """Raise for scores that are no numbers, of which all ranks learn; on a GPU they make NaN of their rows, without waiting."""
        if reads_values(self.ranks, self.x) and _has_nan(value for state in states for value in state):
            wrong = [rank for rank, state in zip(self.ranks.names, states, strict=True) if _has_nan(state)]
            of = ", ".join(f"rank {rank}" for rank in wrong)
            raise RanksError(f"{self.name}: there are NaN, or +∞ that have no probability, in the scores of {of}")


def told(name: str, ranks: AnyRanks, own: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors [..., m] of each rank, of the same shapes on all and of one dtype, by one collective."""
    widths = [values.shape[-1] for values in own]
    every = ranks.gather(name, torch.cat(list(own), -1))
    return [list(each.split(widths, -1)) for each in every]


def gathered(
    name: str, ranks: AnyRanks, rows: InParts, most: int, own: State, identity: State, beside: Tensor | None = None
) -> tuple[list[State], list[Tensor]]:
    """(the state of each rank, what it has beside), by one collective; by two where a state is wider than there is room for.

    `most` is how many scores of a row a rank has at most.
    """
    if ranks.size == 1:  # whose state is that of all, and has the width that its rows need
        return [own], [] if beside is None else [beside]
    varies = [values.shape[-1] == 0 for values in identity]
    needed = max((values.shape[-1] for values, varying in zip(own, varies, strict=True) if varying), default=0)
    room = min(most, max(CANDIDATES, FEW // max(1, ranks.size * math.prod(own[0].shape[:-1]))))
    cut = tuple(values[..., :room] if varying else values for values, varying in zip(own, varies, strict=True))
    columns = [own[0].new_full((*own[0].shape[:-1], 1), float(needed))] if any(varies) else []
    columns += [] if beside is None else [beside]
    ahead = sum(column.shape[-1] for column in columns)
    every = ranks.gather(name, torch.cat((*columns, rows.pack(cut, identity, room)), -1))
    others = [] if beside is None else [each[..., ahead - beside.shape[-1] : ahead] for each in every]
    states = [each[..., ahead:] for each in every]
    widest = max((int(each[..., 0].max()) for each in every if each.numel()), default=0) if any(varies) else 0
    if widest > room:
        states = ranks.gather(name, rows.pack(own, identity, widest))
    return [rows.unpack(each, identity) for each in states], others


def _has_nan(values: Iterable[Tensor]) -> bool:
    return bool(torch.cat([each for each in values if each.is_floating_point()], -1).isnan().any())
