"""`MapModule`: any map as an `nn.Module`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from softmaxima.base.modules import OptionsModule, held_value
from softmaxima.base.numbers import TEMPERATURE, check_axes
from softmaxima.base.public import public
from softmaxima.engine.contract import AnyMap, find_map


@public
class MapModule(OptionsModule):
    """A map as a module, over scores of any shape.

    `map` is a registered name, the function of a map (`sm.sparsemax`) or a `Map`. Temperature and parameters may be numbers,
    tensors (buffers), `nn.Parameter` (learnt) or modules that say them, such as `Positive`, which learns within its
    limits. Raises TypeError or ValueError at once for what the map would refuse.

    >>> import torch, softmaxima as sm
    >>> sm.MapModule("entmax", dim=0, alpha=sm.Positive(1.5, minimum=1.0))
    MapModule(
      map=entmax, dim=0, temperature=1.0
      (alpha): Positive(1.5, minimum=1, maximum=8.507e+37, parametrization='exp')
    )
    """

    def __init__(
        self, map: AnyMap, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0, **params: Any
    ) -> None:
        name = type(self).__name__
        found = find_map(map, name)
        values = found.complete(params, name)
        dim = check_axes(name, dim)
        temperature = held_value(name, "temperature", temperature, *TEMPERATURE)
        values = {p.name: p.held(name, values[p.name]) for p in found.params}
        super().__init__(dim=dim, temperature=temperature, **values)
        self.map = found

    def forward(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        return self.map(x, where=where, **self.options)

    def extra_repr(self) -> str:
        own = f"map={self.map.name}, " if type(self) is MapModule else ""
        return own + super().extra_repr()
