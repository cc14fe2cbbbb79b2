"""`torch.nn` modules over maps and losses. Each mirrors a function and holds its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import check_value


class WithOptions:
    """What a module has that holds a function's keyword arguments."""

    _option_names: tuple[str, ...]

    def hold(self: Any, **options: Any) -> None:
        """Numbers as attributes, an `nn.Parameter` as a parameter, a tensor as a buffer, a module as a module."""
        self._option_names = tuple(options)
        for name, value in options.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments now, of a module what it says."""
        own = {name: getattr(self, name) for name in self._option_names}
        return {name: value() if isinstance(value, nn.Module) else value for name, value in own.items()}

    def extra_repr(self) -> str:
        own = {name: getattr(self, name) for name in self._option_names}
        return ", ".join(f"{name}={_brief(value)}" for name, value in own.items() if not isinstance(value, nn.Module))


class OptionsModule(WithOptions, nn.Module):
    """A module that holds the keyword arguments of a function."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.hold(**options)


def held_value(name: str, what: str, value: Any, valid: Callable[[Any], Any], domain: str) -> Any:
    """What a module holds of a number, a tensor or a module that says one: that module, which is asked anew at each call."""
    checked = check_value(name, what, value, valid, domain)
    return value if isinstance(value, nn.Module) else checked


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__}{tuple(value.shape)}"
    return getattr(value, "__name__", repr(value))
