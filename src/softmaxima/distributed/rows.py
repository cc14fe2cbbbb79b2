"""A map over rows whose scores are shared among ranks: states that merge, sent in one message a pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.core import monoid
from softmaxima.core.blocks import Part, State
from softmaxima.core.jacobian import narrowed
from softmaxima.core.parts import InParts, merged
from softmaxima.core.temperature import is_one
from softmaxima.distributed.ranks import Agreement, AnyRanks, RanksError, reads_values
from softmaxima.kernels.devices import library

MESSAGES = "what ranks tell each other of rows that they share"
CANDIDATES = 64  # scores of a row that may be in the support of a rank's part, of which one message has room


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
    def part(self) -> Part:
        wide = self.x.double() if self.mask is None else self.x.double().masked_fill(~self.mask, -math.inf)
        return Part(wide, self.rows.tau, self.agreement.first(self.ranks.rank))

    @functools.cached_property
    def kernels(self) -> Any:
        """Those of logsumexp where it is all that the map knows of a row, and scores are narrower than what is sent; or None."""
        if self.x.dtype == torch.float64 or self.x.shape[-1] == 0 or not is_one(self.rows.tau):
            return None
        of_exponentials = isinstance(self.rows.identity(Part(self.x[..., :0].double())), monoid.LogSum)
        has_shares = self.rows.blocks.conjugate is not None and not self.rows.map.properties.logarithmic
        return library(self.x.device.type) if of_exponentials and has_shares else None

    def begun(self, known: State | None) -> State:
        """The state of this rank's part in a pass."""
        if self.kernels is None:
            return self.rows.begin(self.part, known)
        _, (top, log_mass) = self.kernels.logsumexp(self.x, 1.0, self.mask, wide=True)
        top, log_mass = top.unsqueeze(-1), log_mass.unsqueeze(-1)
        some = top > -math.inf  # NaN is none
        rest = torch.where(top == math.inf, 0.0, log_mass.expm1())
        return monoid.LogSum(top, some.double(), torch.where(some, rest, torch.where(top == top, 0.0, top)))

    def probabilities(self, state: State) -> Tensor:
        """Those of this rank's scores, in their dtype."""
        return narrowed(self.rows.wide(self.part, state), self.x.dtype) if self.kernels is None else self.times(state, 1.0)

    def times(self, state: State, factor: float | Tensor) -> Tensor:
        """The same by the kernels, times a factor [..., 1]."""
        top, rest = self.rows.blocks.conjugate(state, 1.0, **self.rows.params)  # type: ignore[misc]
        rest = rest.masked_fill(rest == -math.inf, 0.0)  # of nothing, whose scores are all −∞
        x = self.x.float()
        g = torch.as_tensor(factor, dtype=torch.float64, device=x.device).expand(top.shape).squeeze(-1)
        spoilt = (state[0] == math.inf).squeeze(-1)
        g = torch.where(spoilt, math.nan, g).float()
        found = self.kernels.logsumexp_backward(x, torch.stack((top, rest)).squeeze(-1), g, 1.0, self.mask)
        return narrowed(found, self.x.dtype)

    def state(self, beside: Tensor | None = None) -> tuple[State, list[Tensor]]:
        """(that of whole rows, the same on every rank; what each has `beside` [..., m], which the first message takes along)."""
        known: State | None = None
        told: list[Tensor] = []
        for number in range(self.rows.passes):
            own = self.begun(known)
            identity = own if isinstance(own, monoid.LogSum) else self.rows.identity(self.part, known)
            every, others = self._gathered(own, identity, beside if number == 0 else None)
            told = told or others
            self._check(every)
            known = merged(every, self.rows.merge, self.name)
        return known, told  # type: ignore[return-value]

    def sums(self, g: Tensor, state: State, beside: Tensor | None = None) -> tuple[State, list[Tensor]]:
        """(what the gradient of ⟨g, p⟩ needs of whole rows, what each rank has beside)."""
        own = self.rows.begin_pull(self.part, g, state)
        every, others = self.told([*own, *([] if beside is None else [beside])]), []
        if beside is not None:
            others = [each[-1] for each in every]
            every = [each[:-1] for each in every]
        return merged((tuple(each) for each in every), self.rows.merge_pull, self.name), others

    def told(self, own: Sequence[Tensor]) -> list[list[Tensor]]:
        """Tensors [..., m] of each rank, of the same shapes on all, in float64, by one collective."""
        widths = [values.shape[-1] for values in own]
        every = self.ranks.gather(self.name, torch.cat([values.double() for values in own], -1))
        return [list(each.split(widths, -1)) for each in every]

    def _gathered(self, own: State, identity: State, beside: Tensor | None) -> tuple[list[State], list[Tensor]]:
        """(the state of each rank, what it has beside), by one collective; by two where a state is wider than there is room for."""
        varies = [values.shape[-1] == 0 for values in identity]
        needed = max((values.shape[-1] for values, varying in zip(own, varies, strict=True) if varying), default=0)
        room = min(CANDIDATES, max(self.agreement.widths))
        cut = tuple(values[..., :room] if varying else values for values, varying in zip(own, varies, strict=True))
        columns = [own[0].new_full((*own[0].shape[:-1], 1), float(needed))] if any(varies) else []
        columns += [] if beside is None else [beside]
        ahead = sum(column.shape[-1] for column in columns)
        every = self.ranks.gather(self.name, torch.cat((*columns, self.rows.pack(cut, identity, room)), -1))
        others = [] if beside is None else [each[..., ahead - beside.shape[-1] : ahead] for each in every]
        states = [each[..., ahead:] for each in every]
        widest = max((int(each[..., 0].max()) for each in every if each.numel()), default=0) if any(varies) else 0
        if widest > room:
            states = self.ranks.gather(self.name, self.rows.pack(own, identity, widest))
        return [self.rows.unpack(each, identity) for each in states], others

    def _check(self, states: Iterable[State]) -> None:
        """Raise for scores that are no numbers, of which all ranks learn; on a GPU they make NaN of their rows, without waiting."""
        if reads_values(self.ranks):
            wrong = [rank for rank, state in zip(self.ranks.names, states, strict=True) if any(map(_has_nan, state))]
            if wrong:
                of = ", ".join(f"rank {rank}" for rank in wrong)
                raise RanksError(f"{self.name}: there are NaN, or +∞ that have no probability, in the scores of {of}")


def _has_nan(values: Any) -> bool:
    return values.is_floating_point() and bool(values.isnan().any())
