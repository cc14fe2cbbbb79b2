"""How modules hold their arguments."""
# ruff: noqa: N803
# The arguments keep the names that the package gave them.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from softmaxima.base.numbers import check_axis, check_count
from softmaxima.engine.contract import Map


def check_count_or_none(name: str, what: str, count: Any) -> None:
    if count is not None:
        check_count(name, what, count)


class HoldingModule(nn.Module):
    """Holds arguments. An `nn.Parameter` learns; a tensor moves with the module, and stays out of its state_dict as in 1.3."""

    map: Map | None = None  # whose parameter is among the arguments

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        name = type(self).__name__
        for what in ("k", "n_iter"):
            check_count_or_none(name, what, arguments.get(what))
        if "dim" in arguments:
            arguments["dim"] = check_axis(name, arguments["dim"])
        for parameter in () if self.map is None else self.map.params:
            arguments[parameter.name] = parameter.check(name, arguments[parameter.name])
        self._argument_names = tuple(arguments)
        for name, value in arguments.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    @property
    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._argument_names}


class MapModule(HoldingModule):
    """`function` of X and the arguments."""

    function: Callable[..., Tensor]

    def forward(self, X: Tensor) -> Tensor:
        return type(self).function(X, **self._arguments)
