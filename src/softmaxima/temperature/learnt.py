"""Temperatures that are learnt: of all rows, of the layers of a network, and of the state that is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.core.numbers import check_count, check_int
from softmaxima.temperature.positive import Positive, Range


class Temperature(Positive):
    """A temperature τ > 0 that is learnt, which every map, loss, head and attention takes as `temperature=`.

    Arguments, errors and gradients as for `Positive`. "exp" learns log τ, so that a step changes τ by a factor; in "softplus" steps
    are factors below 1 and differences above it; "sigmoid" keeps τ away from both limits.

    >>> import torch, softmaxima as sm
    >>> tau = sm.Temperature(0.07, minimum=0.01, maximum=1.0)
    >>> loss = sm.cross_entropy(torch.eye(3), torch.arange(3), temperature=tau)
    >>> loss.backward(); tau.rho.grad > 0
    tensor(True)
    >>> sm.Softmax(temperature=sm.Temperature(2.0, shape=(4, 1, 1)))  # one for each of four heads
    Softmax(
      dim=-1
      (temperature): Temperature(shape=(4, 1, 1), minimum=1.175e-38, maximum=8.507e+37, parametrization='exp')
    )
    """


class LayerwiseTemperature(nn.Module):
    """A temperature for each layer of a network, τ_ℓ = τ₀ αˡ for ℓ = 0, …, layers − 1: cooler with depth where α < 1.

    Args:
        init: τ₀, a positive number; or a module that says it, such as `Temperature`, to learn it.
        ratio: α, likewise.
        layers: how many.

    `module[ℓ]` is the temperature of a layer, a module to give to that layer, which has the parameters of this one.

    Raises TypeError, ValueError or IndexError for anything else.

    >>> import softmaxima as sm
    >>> temperatures = sm.LayerwiseTemperature(sm.Temperature(2.0), 0.5, layers=3)
    >>> [round(float(temperature().detach()), 3) for temperature in temperatures]
    [2.0, 1.0, 0.5]
    """

    def __init__(self, init: float | nn.Module, ratio: float | nn.Module, layers: int) -> None:
        super().__init__()
        name = type(self).__name__
        self.layers = check_count(name, "layers", layers)
        self.init, self.ratio = (_as_module(name, what, value) for what, value in (("init", init), ("ratio", ratio)))

    def __len__(self) -> int:
        return self.layers

    def __getitem__(self, layer: int) -> nn.Module:
        layer = check_int(type(self).__name__, "layer", layer)
        if not -self.layers <= layer < self.layers:
            raise IndexError(f"{type(self).__name__}: layer must be below {self.layers}, got {layer}")
        return _OfLayer(self.init, self.ratio, layer % self.layers)

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[layer] for layer in range(self.layers))

    def forward(self) -> Tensor:
        """All of them, [layers, …]."""
        return torch.stack([temperature() for temperature in self])

    def extra_repr(self) -> str:
        return f"layers={self.layers}"


class _OfLayer(nn.Module):
    def __init__(self, init: nn.Module, ratio: nn.Module, layer: int) -> None:
        super().__init__()
        self.init, self.ratio, self.layer = init, ratio, layer

    def forward(self) -> Tensor:
        return self.init() * self.ratio() ** self.layer

    def extra_repr(self) -> str:
        return f"layer={self.layer}"


def _as_module(name: str, what: str, value: Any) -> nn.Module:
    """One that says the number."""
    if isinstance(value, nn.Module):
        return value
    fixed = Positive(1.0)
    fixed.range.check(name, what, value)
    return fixed.set_(value).requires_grad_(False)


class StateTemperature(nn.Module):
    """A temperature for each state that is seen, τ(s) = v(f(s)) of a network f, within limits: `temperature=module(state)`.

    Args:
        module: f, from states [..., features] to one number each, [..., 1].
        minimum, maximum, parametrization: as for `Positive`, of which f(s) is the ρ.

    Raises TypeError or ValueError for anything else.

    >>> import torch, softmaxima as sm
    >>> temperature = sm.StateTemperature(torch.nn.Linear(4, 1), 0.1, 10.0, "sigmoid")
    >>> state, scores = torch.zeros(2, 4), torch.zeros(2, 3)
    >>> sm.softmax(scores, temperature=temperature(state)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        module: Callable[..., Tensor],
        minimum: float | None = None,
        maximum: float | None = None,
        parametrization: str = "exp",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if not callable(module):
            raise TypeError(f"{name}: module must be a network, got {type(module).__name__}; give torch.nn.Linear(features, 1)")
        self.module, self.range = module, Range.of(name, minimum, maximum, parametrization)

    def forward(self, state: Any, *more: Any) -> Tensor:
        return self.range.value(self.module(state, *more))

    def extra_repr(self) -> str:
        return f"minimum={self.range.minimum:.4g}, maximum={self.range.maximum:.4g}, parametrization={self.range.parametrization!r}"
