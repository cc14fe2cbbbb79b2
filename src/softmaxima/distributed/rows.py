"""A map over rows whose scores are shared among ranks: states that merge, sent in one message a pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import as_scores, check_dim, check_where
from softmaxima.core.blocks import Part, State
from softmaxima.core.contract import AnyMap, Map, find_map
from softmaxima.core.parts import InParts, in_parts, merged
from softmaxima.distributed.ranks import Agreement, Group, Ranks, ranks_of

CANDIDATES = 64  # scores of a row that may be in the support of a rank's part, of which one message has room


@dataclass(frozen=True, eq=False)
class Shared:
    """Rows, the axis last, of which this rank has a part."""

    name: str
    ranks: Ranks
    agreement: Agreement
    rows: InParts
    part: Part

    def gathered(self, own: State, identity: State) -> list[State]:
        """The state of each rank, by one collective; by two where a state is wider than there is room for."""
        varies = [values.shape[-1] == 0 for values in identity]
        if not any(varies):
            return [self.rows.unpack(each, identity) for each in self.ranks.gather(self.name, self.rows.pack(own, identity))]
        needed = max(values.shape[-1] for values, varying in zip(own, varies, strict=True) if varying)
        room = min(CANDIDATES, max(self.agreement.widths, default=0))
        told = own if needed <= room else _cut(own, varies, room)
        message = self.rows.pack(told, identity, room)
        header = message.new_full((*message.shape[:-1], 1), float(needed))
        every = self.ranks.gather(self.name, torch.cat((header, message), -1))
        widest = max((int(each[..., 0].max()) for each in every if each.numel()), default=0)
        if widest > room:
            return [self.rows.unpack(each, identity) for each in self.ranks.gather(self.name, self.rows.pack(own, identity, widest))]
        return [self.rows.unpack(each[..., 1:], identity) for each in every]

    def state(self) -> State:
        """That of whole rows, the same on every rank."""
        known: State | None = None
        for _ in range(self.rows.passes):
            every = self.gathered(self.rows.begin(self.part, known), self.rows.identity(self.part, known))
            known = merged(every, self.rows.merge, self.name)
        return known  # type: ignore[return-value]

    def sums(self, g: Tensor, state: State) -> State:
        """What the gradient of ⟨g, p⟩ needs of whole rows."""
        own = self.rows.begin_pull(self.part, g, state)
        widths = [values.shape[-1] for values in own]
        every = self.ranks.gather(self.name, torch.cat([values.double() for values in own], -1))
        return merged((each.split(widths, -1) for each in every), self.rows.merge_pull, self.name)


def _cut(state: State, varies: list[bool], room: int) -> State:
    return tuple(values[..., :room] if varying else values for values, varying in zip(state, varies, strict=True))
