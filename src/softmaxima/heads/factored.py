"""What heads have whose probability of a class is a product of softmaxes: their public face, before the algorithms of each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from softmaxima.base.arguments import COMPUTE_DTYPE, check_value, check_values, like_input, scale_domain
from softmaxima.base.cosines import unrounded
from softmaxima.base.modules import WithOptions, held_value
from softmaxima.base.numbers import check_choice, check_count, check_int
from softmaxima.base.randomness import Randomness, as_seed
from softmaxima.base.tracing import sizes
from softmaxima.heads.arguments import as_rows_of, check_hidden, check_targets, check_weight
from softmaxima.losses.arguments import REDUCTIONS, check_class_weight
from softmaxima.losses.batch import Batch


def uncompiled(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which torch.compile calls and does not look into: its steps depend on the labels, or on what was found."""

    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if not is_compiling():
            return method(*arguments, **options)
        return torch.compiler.disable(method)(*arguments, **options)

    return call


class TopClasses(NamedTuple):
    """The most probable classes, the best first, and the logarithms of their probabilities.

    >>> import torch, softmaxima as sm
    >>> sm.HierarchicalSoftmax(4, 10).topk(torch.zeros(2, 4), 3).classes.shape
    torch.Size([2, 3])
    """

    log_prob: Tensor
    classes: Tensor


class FactoredHead(WithOptions, nn.Module, ABC):
    """A layer with a loss that reads a part of it. A subclass works on rows of states, divided by the temperature."""

    class_weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        class_weight: Tensor | None,
        temperature: float | Tensor | nn.Module,
        ignore_index: int,
        reduction: str,
        device: torch.device,
        dtype: torch.dtype,
        **options: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.in_features, self.classes = check_count(name, "in_features", in_features), check_count(name, "classes", classes)
        tau = held_value(name, "temperature", temperature, *scale_domain(dtype))
        if isinstance(tau, Tensor) and tau.numel() != 1:
            raise ValueError(
                f"{name}: temperature must be one number, got a tensor of shape {tuple(tau.shape)}; divide hidden by it"
            )
        if class_weight is not None:
            class_weight = check_class_weight(name, class_weight, self.classes, COMPUTE_DTYPE[dtype])
            if class_weight.device != device:
                class_weight = check_values(name, "weight", class_weight).to(device)
        self.register_buffer("class_weight", class_weight)
        self.hold(
            temperature=tau,
            ignore_index=check_int(name, "ignore_index", ignore_index),
            reduction=check_choice(name, "reduction", reduction, REDUCTIONS),
            **options,
        )

    @property
    @abstractmethod
    def _first_weight(self) -> Tensor:
        """A parameter [any, in_features], whose dtype hidden states must have."""

    @abstractmethod
    def _losses(self, states: Tensor, labels: Tensor, left_out: Tensor | None, reduction: str) -> Tensor:
        """−log p of labels [rows], of states [rows, features], or the sum; 0 where a row is left out, and no gradient."""

    @abstractmethod
    def _log_prob(self, states: Tensor) -> Tensor:
        """[rows, classes]."""

    @abstractmethod
    def _best(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(log p, classes), [rows, k], the best first."""

    @abstractmethod
    def _draw(self, states: Tensor, times: int, generator: torch.Generator | None) -> Tensor:
        """Classes [times, rows]."""

    @uncompiled
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The loss −log p of the target classes, reduced; hidden (…, in_features), target (…)."""
        name, own = type(self).__name__, self.options
        states, given = self._states(hidden)
        labels, left_out = check_targets(name, target, given, self.classes, own["ignore_index"])
        weight = None if self.class_weight is None else self.class_weight.to(states.dtype)
        batch = Batch(
            name=name,
            rows=given,
            labels=labels,
            soft=None,
            ignored=left_out,
            class_weight=weight,
            smoothing=0.0,
            reduction=own["reduction"],
            given=given,
            dtype=given.dtype,
        )
        if weight is not None:
            weightless = (weight == 0)[labels]
            left_out = weightless if left_out is None else weightless | left_out
        with unrounded(given):
            return self._reduced(batch, states, left_out)

    def _reduced(self, batch: Batch, states: Tensor, left_out: Tensor | None) -> Tensor:
        labels = batch.labels.flatten()  # type: ignore[union-attr]
        if left_out is not None:
            left_out = left_out.flatten()
        count = len(labels) if left_out is None else int((~left_out).sum())
        if batch.reduction == "none" or batch.class_weight is not None or count == 0:
            losses = self._losses(states, labels, left_out, "none")
            return batch.reduce(batch.weigh(losses.view(sizes(batch.rows)[:-1])))
        total = self._losses(states, labels, left_out, "sum")
        return (total / count if batch.reduction == "mean" else total).to(batch.dtype)

    @uncompiled
    def log_prob(self, hidden: Tensor) -> Tensor:
        """The logarithms of all probabilities, (…, classes), in nats; differentiable."""
        states, given = self._states(hidden)
        with unrounded(given):
            found = self._log_prob(states).to(given.dtype).view(*sizes(given)[:-1], self.classes)
        return like_input(found, hidden)

    def predict(self, hidden: Tensor, k: int = 1) -> Tensor:
        """The k most probable classes, (…, k), the best first."""
        return self.topk(hidden, k).classes

    @uncompiled
    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int) -> TopClasses:
        """(log_prob, classes) of the k most probable classes, (…, k) each, the best first; as of `log_prob(hidden).topk(k)`.

        Of classes that are equally probable, up to rounding, it may be any. For a gradient give the classes to `forward`.
        """
        name, (states, given) = type(self).__name__, self._states(hidden)
        k = check_count(name, "k", k)
        if k > self.classes:
            raise ValueError(f"{name}: k must be at most {self.classes}, the number of classes, got {k}")
        with unrounded(given):
            log_p, classes = self._best(states, k)
        shape = (*sizes(given)[:-1], k)
        return TopClasses(like_input(log_p.to(given.dtype).view(shape), hidden), like_input(classes.view(shape), hidden))

    @uncompiled
    @torch.no_grad()
    def sample(self, hidden: Tensor, shape: int | Sequence[int] = (), generator: Randomness = None) -> Tensor:
        """Classes (*shape, …), independent draws by their probabilities; `generator` is torch's or NumPy's, or a seed."""
        name, (states, given) = type(self).__name__, self._states(hidden)
        several = shape if isinstance(shape, Sequence) and not isinstance(shape, (str, bytes)) else (shape,)
        axes = tuple(check_count(name, "shape", size, 0) for size in several)
        if generator is not None and not isinstance(generator, torch.Generator):
            generator = torch.Generator(given.device).manual_seed(as_seed(name, generator))
        with unrounded(given):
            found = self._draw(states, math.prod(axes), generator).view((*axes, *sizes(given)[:-1]))
        return like_input(found, hidden)

    def _states(self, hidden: Any) -> tuple[Tensor, Tensor]:
        """(rows [rows, features] divided by the temperature, of the dtype that is computed in; the hidden states as they came)."""
        name = type(self).__name__
        given = check_values(name, "hidden", check_hidden(name, hidden, self.in_features))
        check_weight(name, self._first_weight, given)
        states = as_rows_of(given).to(COMPUTE_DTYPE[given.dtype])
        return self._over_temperature(states), given

    def _over_temperature(self, x: Any) -> Any:
        """What makes scores, states or a bias, divided by the temperature; of the dtype that is computed in."""
        if x is None:
            return None
        tau = check_value(type(self).__name__, "temperature", self.options["temperature"], *scale_domain(x.dtype))
        wide = COMPUTE_DTYPE[x.dtype]
        if x.dtype != wide:
            x = x + x.new_zeros(1, dtype=wide)  # x.to(wide) would not take a sparse gradient back
        return x if type(tau) is float and tau == 1 else x / (tau.reshape(()) if isinstance(tau, Tensor) else tau)


def blocks(count: int, width: int, held: int) -> list[slice]:
    """0, …, count − 1 in parts for each of which arrays [part, width] have about so many numbers."""
    step = max(1, held // max(1, width))
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def draw_each(keys: Tensor, log_p: Callable[[Tensor], Tensor], width: int, held: int, generator: torch.Generator | None) -> Tensor:
    """A place for each key, drawn by its row of log_p(keys) [keys, width]; equal keys have one row, and draws of their own."""
    distinct, which, count = keys.unique(return_inverse=True, return_counts=True)
    order, last, places = which.argsort(), count.cumsum(0), torch.empty_like(keys)
    for part in blocks(len(distinct), width, held):
        own = order[int(last[part.start] - count[part.start]) : int(last[part.stop - 1])]
        places[own] = _drawn(log_p(distinct[part]), which[own] - part.start, generator)
    return places


def _drawn(log_p: Tensor, row: Tensor, generator: torch.Generator | None) -> Tensor:
    """The first place where the cumulative sum of the row is above a uniform number."""
    sums = log_p.double().exp().cumsum(1)
    wrong = sums[:, -1][~(sums[:, -1] > 0)]
    if len(wrong):
        got = f"probabilities must sum to 1, got {float(wrong[0])}"
        raise ValueError(f"sample: {got}; hidden or the parameters have NaN or infinite numbers, give finite ones")
    ends = sums / sums[:, -1:] + torch.arange(len(sums), device=sums.device).unsqueeze(1)  # one rising row
    uniform = torch.rand(row.shape, dtype=torch.float64, device=row.device, generator=generator)
    value = torch.minimum(row + uniform, torch.nextafter(row.double() + 1, row.double()))  # below the row's end, also when rounded
    return torch.searchsorted(ends.flatten(), value, right=True) - row * sums.shape[1]
