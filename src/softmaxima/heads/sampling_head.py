"""What heads have that train with negatives: the layer, its sampler, and the exact softmax for everything but training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import as_tensor, check_place, scale_domain
from softmaxima.base.modules import WithOptions, held_value
from softmaxima.base.numbers import check_choice, check_count, check_int
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.heads.candidates import as_drawing
from softmaxima.heads.exact import best_classes, exact_log_prob
from softmaxima.heads.labelled import as_labelled, as_rows
from softmaxima.heads.linear_loss import linear_loss
from softmaxima.heads.samplers import as_sampler
from softmaxima.losses.arguments import REDUCTIONS


def held_options(
    name: str, dtype: torch.dtype, shared: bool, temperature: Any, ignore_index: Any, reduction: Any
) -> dict[str, Any]:
    """What heads hold that train with negatives, checked."""
    return {
        "temperature": held_value(name, "temperature", temperature, *scale_domain(dtype)),
        "shared": shared,
        "ignore_index": check_int(name, "ignore_index", ignore_index),
        "reduction": check_choice(name, "reduction", reduction, REDUCTIONS),
    }


class SamplingHead(WithOptions, nn.Module):
    """A linear layer whose loss draws negatives in training mode. Subclasses say which loss a `Drawing` has."""

    loss: Callable[..., Any]

    def __init__(
        self,
        in_features: int,
        classes: int,
        samples: int,
        sampler: Any,
        *,
        bias: bool,
        generator: Randomness,
        device: Any,
        dtype: Any,
        shared: bool,
        sparse: bool,
        temperature: float | Tensor | nn.Module,
        ignore_index: int,
        reduction: str,
        **options: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.in_features, self.classes = check_count(name, "in_features", in_features), check_count(name, "classes", classes)
        self.samples, self.sampler = check_count(name, "samples", samples), as_sampler(name, sampler, classes)
        self.generator = as_torch_generator(name, generator)
        place = check_place(name, device, dtype)
        self.weight = nn.Parameter(torch.empty(classes, in_features, **place))
        self.bias = nn.Parameter(torch.empty(classes, **place)) if bias else None
        held = held_options(name, place["dtype"], shared, temperature, ignore_index, reduction)
        self.hold(**held, sparse=sparse, **options)
        if isinstance(self.sampler, nn.Module) and device is not None:
            self.sampler.to(device)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As of `nn.Linear`: uniform within ±1/√in_features."""
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.uniform_(-1 / math.sqrt(self.in_features), 1 / math.sqrt(self.in_features))

    def forward(self, hidden: Any, target: Any) -> Tensor:
        own, name = self.options, type(self).__name__
        rows = {key: own.pop(key) for key in ("temperature", "ignore_index", "reduction")}
        states = as_tensor(name, "hidden", hidden)  # the layer learns from arrays too
        if not self.training:
            return linear_loss(states, self.weight, target, bias=self.bias, **rows)
        labelled = as_labelled(name, states, self.weight, target, self.bias, **rows)
        drawn = {"shared": own.pop("shared"), "sparse": own.pop("sparse"), "generator": self.generator}
        return self.loss(as_drawing(name, labelled, self.samples, self.sampler, **drawn, learns=True), **own)

    def log_prob(self, hidden: Any) -> Any:
        """Log softmax over all classes, (…, classes), in nats."""
        return exact_log_prob(as_rows(type(self).__name__, hidden, self.weight, self.bias, self.options["temperature"]))

    def predict(self, hidden: Any, k: int = 1) -> Any:
        """The k classes of the largest scores, (…, k), the best first."""
        name = type(self).__name__
        return best_classes(name, as_rows(name, hidden, self.weight, self.bias, self.options["temperature"]), k)

    def extra_repr(self) -> str:
        own = f"{self.in_features}, {self.classes}, samples={self.samples}, bias={self.bias is not None}"
        sampler = "" if isinstance(self.sampler, nn.Module) else f", sampler={type(self.sampler).__name__}"
        return f"{own}{sampler}, {super().extra_repr()}"
