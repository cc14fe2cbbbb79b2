"""`MapModule`: any map as an `nn.Module`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from softmaxima._map import Map, find_map
from softmaxima._module import OptionsModule


class MapModule(OptionsModule):
    """A map as a module, over scores of any shape.

    Temperature and parameters may be numbers, tensors (buffers) or `nn.Parameter` (learnt). `map` is a registered name or a `Map`.

    >>> import torch, softmaxima as sm
    >>> sm.MapModule("entmax", dim=0, alpha=torch.nn.Parameter(torch.tensor(1.5)))
    MapModule(map=entmax, dim=0, temperature=1.0, alpha=Parameter())
    """

    def __init__(self, map: str | Map, dim: int = -1, *, temperature: float | Tensor = 1.0, **params: Any) -> None:
        found = find_map(map)
        super().__init__(dim=dim, temperature=temperature, **found.complete(params))
        self.map = found

    def forward(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        return self.map(x, where=where, **self.options)

    def extra_repr(self) -> str:
        own = f"map={self.map.name}, " if type(self) is MapModule else ""
        return own + super().extra_repr()
