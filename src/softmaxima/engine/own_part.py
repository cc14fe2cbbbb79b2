"""A part of rows as its scores came, of any dtype: by kernels where the sum of a row is all that a map knows of it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base import monoid
from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.jacobian import narrowed
from softmaxima.base.rows import number_like
from softmaxima.base.temperature import over
from softmaxima.engine.blocks import Part, State
from softmaxima.engine.parts import InParts, spread
from softmaxima.kernels.devices import library


@dataclass(frozen=True, eq=False)
class OwnPart:
    """Scores [..., n] of some places of the rows; `part` are the same in float64, which kernels do without."""

    rows: InParts
    x: Tensor
    mask: Tensor | None = None
    first: int | Tensor = 0

    @functools.cached_property
    def part(self) -> Part:
        narrow = self.narrow
        return replace(narrow, x=narrow.x.double())

    @functools.cached_property
    def narrow(self) -> Part:
        """The same as they came: of a map that has `support` few are read again, which are widened then."""
        return Part(self.x if self.mask is None else self.x.masked_fill(~self.mask, -math.inf), self.rows.tau, self.first)

    @property
    def read(self) -> Part:
        """Those that a state and probabilities are made of."""
        return self.part if self.rows.blocks.support is None else self.narrow

    @functools.cached_property
    def kernels(self) -> Any:
        """Those of logsumexp where the state is one of it; or None. Of narrow scores they round each term as the shares are."""
        if self.x.shape[-1] == 0 or not self.rows.blocks.is_sum or not (self.x.dtype == torch.float64 or self._is_of_shares):
            return None
        return library(self.x.device.type)

    @property
    def has_shares(self) -> bool:
        """Whether those kernels make the probabilities too."""
        return self.kernels is not None and self._is_of_shares

    @property
    def _is_of_shares(self) -> bool:
        return self.rows.blocks.conjugate is not None and not self.rows.map.properties.logarithmic

    def begun(self, known: State | None = None) -> State:
        """The state of this part in a pass."""
        if self.kernels is None:
            return self.rows.begin(self.read, known)
        top, rest = (value.unsqueeze(-1) for value in self.kernels.logsumexp_rest(self.x, self.rows.tau, self.mask))
        top = top.masked_fill(rest.isnan(), math.nan)  # the largest of the others is no state
        return monoid.LogSum(top, (top > -math.inf).double(), rest.masked_fill(top.isinf(), 0.0))

    def probabilities(self, state: State) -> Tensor:
        """Those of these scores, in their dtype."""
        return self.supported(state)[0]

    def supported(self, state: State) -> tuple[Tensor, Tensor | None]:
        """(the same; which of the scores may have some, None for all)."""
        if self.has_shares:
            return self.slope(state, self.rows.tau), None
        p, where = self.rows.sparse(self.read, state)
        return spread(p.to(self.x.dtype), where, self.read), where

    def slope(self, state: State, g: float | Tensor) -> Tensor:
        """g p/τ, g [..., 1], in the dtype of the scores: the gradient by them of g V where ∂V/∂(x/τ) = p."""
        if not self.has_shares:
            p, where = self.rows.sparse(self.read, state)
            g = number_like(g, p)
            slope = narrowed(torch.where(p == 0, 0.0, over(p * g, self.rows.tau)), self.x.dtype)
            spoilt = g.isnan()
            slope = spread(slope, where, self.read)
            return slope.masked_fill_(spoilt, math.nan) if bool(spoilt.any()) else slope
        own = monoid.LogSum(*state)
        rest, share = own.log_mass().masked_fill(own.top == -math.inf, 0.0), self._mass(own)
        share = share * torch.where(own.mass > 0, rest.exp() / own.mass, 1.0)  # as a double the logarithm lacks digits of its sum
        g = torch.where(share == 0, 0.0, share * number_like(g, share))
        x = self.x.to(COMPUTE_DTYPE[self.x.dtype])
        g = g.masked_fill(own.top == math.inf, math.nan).squeeze(-1).to(x.dtype)
        found = self.kernels.logsumexp_backward(x, torch.stack((own.anchor, rest)).squeeze(-1), g, self.rows.tau, self.mask)
        return narrowed(found, self.x.dtype)

    def at(self, score: Tensor, place: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """(p, p − 1) in float64 of one score a row, in float64, −∞ for none; `place` is where it is in this part."""
        if not self.has_shares:
            p = self.rows.wide(Part(score, self.rows.tau, self.first + place), state)
            return p, p - 1
        top, rest = self._conjugate(state)
        log_p = torch.where(score == -math.inf, -math.inf, (score - top) / self.rows.tau - rest)
        log_p = log_p.masked_fill(rest == math.inf, math.nan)
        return log_p.exp(), log_p.expm1()

    def _mass(self, total: monoid.LogSum) -> Tensor:
        """Σp of a row [..., 1]: 1, or what a sink leaves, which has its digits where e^{LSE − V} would lose them."""
        at_top = self.rows.blocks.finish(Part(total.anchor, self.rows.tau, self.first), total, **self.rows.params)
        has_sink = self._conjugate(total)[1] != total.log_mass()
        return torch.where(has_sink & (total.top > -math.inf), at_top * total.mass, 1.0)

    def _conjugate(self, state: State) -> tuple[Tensor, Tensor]:
        return self.rows.blocks.conjugate(state, self.rows.tau, **self.rows.params)  # type: ignore[misc]
