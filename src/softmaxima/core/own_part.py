"""A part of rows as its scores came, of any dtype: by kernels where the sum of a row is all that a map knows of it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.core import monoid
from softmaxima.core.blocks import Part, State
from softmaxima.core.jacobian import narrowed
from softmaxima.core.parts import InParts
from softmaxima.core.temperature import is_one
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
        wide = self.x.double() if self.mask is None else self.x.double().masked_fill(~self.mask, -math.inf)
        return Part(wide, self.rows.tau, self.first)

    @functools.cached_property
    def kernels(self) -> Any:
        """Those of logsumexp where the state is one of it; or None. Of narrow scores they round each term as the shares are."""
        if self.x.shape[-1] == 0 or not (self.x.dtype == torch.float64 or self._is_of_shares):
            return None
        is_sum = isinstance(self.rows.identity(Part(self.x[..., :0].double())), monoid.LogSum)
        return library(self.x.device.type) if is_sum else None

    @property
    def has_shares(self) -> bool:
        """Whether those kernels make the probabilities too."""
        return self.kernels is not None and self._is_of_shares and is_one(self.rows.tau)

    @property
    def _is_of_shares(self) -> bool:
        return self.rows.blocks.conjugate is not None and not self.rows.map.properties.logarithmic

    def begun(self, known: State | None = None) -> State:
        """The state of this part in a pass."""
        if self.kernels is None:
            return self.rows.begin(self.part, known)
        _, (top, log_mass) = self.kernels.logsumexp(self.x, self.rows.tau, self.mask, wide=True)
        top, log_mass = top.unsqueeze(-1), log_mass.unsqueeze(-1)
        some = top > -math.inf  # NaN is none
        rest = torch.where(top == math.inf, 0.0, log_mass.expm1())
        return monoid.LogSum(top, some.double(), torch.where(some, rest, torch.where(top == top, 0.0, top)))

    def probabilities(self, state: State) -> Tensor:
        """Those of these scores, in their dtype."""
        return self.times(state, 1.0) if self.has_shares else narrowed(self.rows.wide(self.part, state), self.x.dtype)

    def times(self, state: State, factor: float | Tensor) -> Tensor:
        """The same by the kernels, times a factor [..., 1]."""
        top, rest = self.rows.blocks.conjugate(state, 1.0, **self.rows.params)  # type: ignore[misc]
        rest = rest.masked_fill(rest == -math.inf, 0.0)  # of nothing, where every score is −∞
        x = self.x if self.x.dtype == torch.float64 else self.x.float()
        g = torch.as_tensor(factor, dtype=torch.float64, device=x.device).expand(top.shape).squeeze(-1)
        spoilt = (state[0] == math.inf).squeeze(-1)
        g = torch.where(spoilt, math.nan, g).to(x.dtype)
        found = self.kernels.logsumexp_backward(x, torch.stack((top, rest)).squeeze(-1), g, 1.0, self.mask)
        return narrowed(found, self.x.dtype)
