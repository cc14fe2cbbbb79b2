"""Temperatures that are learnt: of all rows, of the layers of a network, and of the state that is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.modules import WithOptions, held_value
from softmaxima.base.numbers import TEMPERATURE, check_count, check_int, check_number
from softmaxima.base.public import public
from softmaxima.base.tracing import sizes
from softmaxima.temperature.positive import Positive, Range


@public
class Temperature(Positive):
    """A temperature τ > 0 that is learnt, which every map, loss, head and attention takes as `temperature=`.

    Arguments, errors and gradients as for `Positive`. "exp" learns log τ, so that a step changes τ by a factor; in "softplus" steps
    are factors below 1 and differences above it; "sigmoid" keeps τ away from both limits.

    Cost and source as for `Positive`.

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


@public
class LayerwiseTemperature(WithOptions, nn.Module):
    """A temperature for each layer of a network, τ_ℓ = τ₀ αˡ for ℓ = 0, …, layers − 1: cooler with depth where α < 1.

    Args:
        init: τ₀, a positive number or a tensor; or a module that says it, such as `Temperature`, to learn it.
        ratio: α, likewise.
        layers: how many.

    `module[ℓ]` is the temperature of a layer, a module to give to that layer, which has the parameters of this one. Numbers are
    held as they are, in float64.

    Raises:
        TypeError, ValueError or IndexError for anything else, also for numbers with which the deepest layer's is no temperature.

    Cost: a power and a product a layer.

    >>> import softmaxima as sm
    >>> temperatures = sm.LayerwiseTemperature(sm.Temperature(2.0), 0.5, layers=3)
    >>> [round(float(temperature().detach()), 3) for temperature in temperatures]
    [2.0, 1.0, 0.5]
    """

    def __init__(self, init: float | Tensor | nn.Module, ratio: float | Tensor | nn.Module, layers: int) -> None:
        super().__init__()
        name = type(self).__name__
        self.layers = check_count(name, "layers", layers)
        init, ratio = (held_value(name, what, value, *TEMPERATURE) for what, value in (("init", init), ("ratio", ratio)))
        self.hold(init=init, ratio=ratio)
        if isinstance(init, float) and isinstance(ratio, float):
            check_number(name, f"init · ratio^{self.layers - 1}, of the deepest layer,", self[-1]().item(), *TEMPERATURE)

    def __len__(self) -> int:
        return self.layers

    def __getitem__(self, layer: int) -> nn.Module:
        layer = check_int(type(self).__name__, "layer", layer)
        if not -self.layers <= layer < self.layers:
            raise IndexError(f"{type(self).__name__}: layer must be below {self.layers}, got {layer}")
        return _OfLayer(self, layer % self.layers)

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[layer] for layer in range(self.layers))

    def of(self, layer: int) -> Tensor:
        """τ_ℓ."""
        name = type(self).__name__
        layer = check_int(f"{name}.of", "layer", layer, lambda each: 0 <= each < self.layers, f"an int from 0 to {self.layers - 1}")
        wide = {"dtype": torch.float64, "device": "cpu"}
        init, ratio = (torch.tensor(v, **wide) if isinstance(v, float) else v for v in self.options.values())
        return init * ratio**layer

    def forward(self) -> Tensor:
        """All of them, [layers, …]."""
        return torch.stack([self.of(layer) for layer in range(self.layers)])

    def extra_repr(self) -> str:
        return ", ".join(part for part in (super().extra_repr(), f"layers={self.layers}") if part)


class _OfLayer(nn.Module):
    def __init__(self, temperatures: LayerwiseTemperature, layer: int) -> None:
        super().__init__()
        self.temperatures, self.layer = temperatures, layer

    def forward(self) -> Tensor:
        return self.temperatures.of(self.layer)

    def extra_repr(self) -> str:
        return f"layer={self.layer}"


@public
class StateTemperature(nn.Module):
    """A temperature for each state that is seen, τ(s) = v(f(s)) of a network f, within limits: `temperature=module(state)`.

    Args:
        module: f, from states [..., features] to one number each, [..., 1], of a floating-point dtype.
        minimum, maximum, parametrization: as for `Positive`, of which f(s) is the ρ. An f(s) beyond the ends of ρ has the gradient
            that leads back.

    Raises TypeError or ValueError for anything else, and where f gives anything else. Cost: f and a few operations on f(s). Source:
    Wang et al. (2020), arXiv:2012.13575, who learn τ of the words before.

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
        name, wanted = type(self).__name__, "give torch.nn.Linear(features, 1) for instance"
        rho = self.module(state, *more)
        if not isinstance(rho, Tensor) or rho.dtype not in COMPUTE_DTYPE:
            got = rho.dtype if isinstance(rho, Tensor) else type(rho).__name__
            raise TypeError(f"{name}: module must give a tensor of float64, float32, bfloat16 or float16, got {got}; {wanted}")
        if rho.ndim == 0 or sizes(rho)[-1] != 1:
            raise ValueError(f"{name}: module must give one number for each state, [..., 1], got shape {sizes(rho)}; {wanted}")
        return self.range.value(rho)

    def extra_repr(self) -> str:
        return self.range.words(torch.get_default_dtype())
