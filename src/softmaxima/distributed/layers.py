"""Heads whose classes are shared among ranks, as modules: their parameters are DTensors, split by rows as torch's Shard(0) does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_dtensor

from softmaxima.base.arguments import as_tensor, check_place, like_input, scale_domain
from softmaxima.base.cosines import unrounded
from softmaxima.base.modules import OptionsModule, WithOptions, held_value
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.base.tracing import sizes
from softmaxima.distributed.agreement import alike
from softmaxima.distributed.heads import linear_loss, margin_softmax_loss
from softmaxima.distributed.maps import shared_map
from softmaxima.distributed.ranks import Group, Ranks, outside_the_graph, ranks_of
from softmaxima.distributed.sampled import as_same_rows, as_sampled
from softmaxima.heads.arguments import check_options
from softmaxima.heads.exact import all_scores, best_scores
from softmaxima.heads.labelled import Rows, as_rows
from softmaxima.heads.margin_softmax import KINDS, as_cosine_rows, check_margin
from softmaxima.heads.sampled import check_options as check_correction
from softmaxima.heads.sampler import AnySampler
from softmaxima.heads.samplers import as_sampler
from softmaxima.heads.sampling_head import held_options
from softmaxima.losses.arguments import check_class_weight
from softmaxima.losses.finding import find_loss

BLOCK = 1024  # classes whose first values are drawn together, whatever rank they are on


class ShardedHead(WithOptions, nn.Module):
    """What these have in common: the shared parameters, their first values, and the best of all classes."""

    def __init__(
        self, in_features: int, classes: int, *, group: Group, bias: bool, device: Any, dtype: Any, centres: int = 1
    ) -> None:
        super().__init__()
        name = self._name
        self.in_features, self.classes = check_count(name, "in_features", in_features), check_count(name, "classes", classes)
        classes, in_features = self.classes, self.in_features
        place = check_place(name, device, dtype)
        ranks = ranks_of(name, group)
        is_meta = place["device"].type == "meta"  # for ranks that have memory there later
        kind = ranks.device.type if is_meta else place["device"].type
        self.mesh = group if isinstance(group, DeviceMesh) else DeviceMesh.from_group(ranks.group, kind)
        shape = (classes, in_features) if centres == 1 else (classes, centres, in_features)
        self.weight = self._parameter(*shape, dtype=place["dtype"], is_meta=is_meta)
        self.bias = self._parameter(classes, dtype=place["dtype"], is_meta=is_meta) if bias else None

    def _agree(self, **more: Any) -> None:
        """That all ranks make the same head; `more` are arguments that it does not hold, or a part of them."""
        own = {what: value for what, value in self.options.items() if not isinstance(value, DTensor)}
        shape, kind = tuple(self.weight.shape), (self.weight.dtype, self.weight.device.type)
        same = alike({"weight": shape, "kind": kind, **own, **more}, beside={"bias": self.bias})
        self._ranks.agree(self._name, len(self.own_classes), same)

    def _parameter(self, *shape: int, dtype: torch.dtype, is_meta: bool) -> nn.Parameter:
        if is_meta:
            whole = torch.empty(shape, dtype=dtype, device="meta")
            own = whole.new_empty((len(self.own_classes), *shape[1:]))
            like = {"shape": whole.shape, "stride": whole.stride()}
            return nn.Parameter(DTensor.from_local(own, self.mesh, [Shard(0)], run_check=False, **like))
        return nn.Parameter(empty_dtensor(*shape, dtype=dtype, device_mesh=self.mesh, placements=[Shard(0)]))

    @property
    def _name(self) -> str:
        return f"distributed.{type(self).__name__}"

    @property
    def _ranks(self) -> Ranks:
        return ranks_of(self._name, self.mesh)

    @property
    def own_classes(self) -> range:
        """The classes of this rank."""
        each = -(-self.classes // self._ranks.size)
        first = min(self._ranks.rank * each, self.classes)
        return range(first, min(first + each, self.classes))

    def _own(self, value: Any) -> Any:
        """The part of this rank, differentiable."""
        return value.to_local() if isinstance(value, DTensor) else value

    def _own_vectors(self) -> Tensor:
        own = self._own(self.weight)
        return own if own.ndim == 2 else own.flatten(0, 1)

    def _own_class_weight(self, class_weight: Any) -> Any:
        """Of those of all classes, those of this rank, as a DTensor, which checkpoints know."""
        if class_weight is None:
            return None
        values = check_class_weight(self._name, class_weight, self.classes, what="class_weight")
        own = values[self.own_classes.start : self.own_classes.stop].to(self.weight.device)
        return DTensor.from_local(own.clone(), self.mesh, [Shard(0)], run_check=False, shape=values.shape, stride=(1,))

    def _own_options(self) -> dict[str, Any]:
        return {what: self._own(value) for what, value in self.options.items()}

    def _rows(self, hidden: Any) -> Rows:
        return as_rows(self._name, hidden, self._own_vectors(), self._own(self.bias), 1.0)

    @torch.no_grad()
    def _draw(self, parameter: Any, draw: Callable[..., Any]) -> None:
        """First values, the same on any number of ranks: blocks of classes have seeds that count on from the first rank's."""
        own, classes = self._own(parameter), self.own_classes
        if own.is_meta:
            return
        seed = torch.randint(2**53, (), dtype=torch.int64, device="cpu").to(own.device)
        seed = int(self._ranks.gather(self._name, seed.reshape(1))[0])
        for block in range(classes.start // BLOCK, -(-classes.stop // BLOCK) if classes else 0):
            generator = torch.Generator(own.device).manual_seed(seed + block)
            values = own.new_empty((BLOCK, *sizes(own)[1:]))
            draw(values, generator)
            begin, end = max(classes.start, block * BLOCK), min(classes.stop, (block + 1) * BLOCK)
            own[begin - classes.start : end - classes.start] = values[begin - block * BLOCK : end - block * BLOCK]

    @torch.no_grad()
    def predict(self, hidden: Any, k: int = 1) -> Any:
        """The k of all classes of the largest scores, (…, k), the best first, the same on every rank.

        Every rank must ask, of the same hidden states. Cost: one all-gather of 2k numbers a row, in float64.
        """
        name, ranks = self._name, self._ranks
        with ranks.telling(name):
            rows, k = self._rows(hidden), check_count(name, "k", k)
            if k > self.classes:
                raise ValueError(f"{name}: k must be at most {self.classes}, the number of classes, got {k}")
        agreement = ranks.agree(name, rows.classes, alike({"rows": rows.shape, "k": k}))
        with ranks.working(name):
            values, index = best_scores(rows, k)
            room = min(k, max(agreement.widths)) - sizes(values)[1]
            values = nn.functional.pad(values.double(), (0, room), value=-math.inf)
            index = nn.functional.pad(index + agreement.first(ranks.rank), (0, room))
            every = ranks.gather(name, torch.stack((values, index.double())))
        found, classes = torch.cat(every, -1)
        best = torch.sort(found, dim=-1, descending=True, stable=True).indices[:, :k]
        return like_input(classes.gather(-1, best).long().reshape(*rows.shape, k), rows.given)

    def extra_repr(self) -> str:
        own = self.own_classes
        return f"{self.in_features}, {self.classes}, own_classes={own.start}:{own.stop}, {super().extra_repr()}"


@public
class LinearLoss(ShardedHead):
    """`sm.distributed.linear_loss` as a module: `sm.LinearLoss` whose classes are shared among ranks.

    L = ℓ((W h + b)/τ, y) over the classes of all ranks, in nats.

    Args:
        in_features, classes: of the layer, all classes of all ranks.
        group: a process group, a mesh of one axis, or None for all ranks.
        loss, bias, temperature, device, dtype: as of `sm.LinearLoss`; options of the loss may not require grad.
        class_weight: of all classes [classes], the same on every rank, which keeps its own.
        The others: as of `sm.distributed.linear_loss`.

    `weight` (classes, in_features) and `bias` are DTensors, of whose rows each rank has those that torch's Shard(0) gives it,
    `own_classes`: the state dict, that of an optimiser and torch.distributed.checkpoint have whole parameters, to be loaded on any
    number of ranks. First values are uniform within ±1/√in_features, as of `nn.Linear`, and the same on any number of ranks of one
    kind of device: only the first rank's generator counts.

    Shapes: `forward(hidden, target)` takes (…, in_features) and labels (…), or probabilities (…, own classes); `predict(hidden, k)`
    gives the best of all classes, (…, k).

    Raises:
        TypeError or ValueError for what `sm.LinearLoss` refuses, and RanksError on the other ranks then; RanksError on every rank
        where they make other heads, and in calls as `sm.distributed.linear_loss` does.

    Cost: ⌈classes/R⌉ classes on each of R ranks, whose numbers are drawn there; in calls that of `sm.distributed.linear_loss`.
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        group: Group = None,
        loss: str | tuple[str, Any] = "cross_entropy",
        bias: bool = False,
        temperature: float | Tensor | nn.Module = 1.0,
        class_weight: Tensor | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        with ranks_of(self._name, group).telling(self._name):
            super().__init__(in_features, classes, group=group, bias=bias, device=device, dtype=dtype)
            check_options(self._name, linear_loss, options)
            self.loss, own = find_loss(self._name, loss)
            self.loss_options = OptionsModule(**own)
            tau = held_value(self._name, "temperature", temperature, *scale_domain(self.weight.dtype))
            self.hold(temperature=tau, class_weight=self._own_class_weight(class_weight), **options)
        own = {what: value for what, value in own.items() if not isinstance(value, nn.Module)}
        self._agree(loss=self.loss, **own, class_weight=class_weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within ±1/√in_features; every rank must call it."""
        bound = self.in_features**-0.5
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                self._draw(parameter, lambda values, generator: values.uniform_(-bound, bound, generator=generator))

    @outside_the_graph
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        with self._ranks.telling(self._name):
            hidden = as_tensor(self._name, "hidden", hidden)  # the layer learns from arrays too
            loss: Any = (self.loss, self.loss_options.options)
            own = {"bias": self._own(self.bias), "group": self.mesh, **self._own_options()}
        return linear_loss(hidden, self._own_vectors(), target, loss=loss, **own)


@public
class MarginSoftmax(ShardedHead):
    """`sm.distributed.margin_softmax_loss` as a module: `sm.MarginSoftmax` whose classes are shared among ranks.

    L = ℓ(s, t) in nats, s_c = scale · cos(h, W_c) of the classes c of all ranks, with the margin of `kind` at the label t.

    Args:
        in_features, classes, group, class_weight, device, dtype: as of `LinearLoss` here.
        kind, margin, scale, centres: as of `sm.MarginSoftmax`.
        samples: how many of its classes each rank takes in training mode, None for all: see `margin_softmax_loss` here.
        The others: as of `sm.distributed.margin_softmax_loss`.

    `weight` is a DTensor (classes, in_features), or (classes, centres, in_features) of several centres, normally distributed at
    first with the deviation 1/√in_features, the same on any number of ranks.

    Shapes: `forward(hidden, target)` takes (…, in_features) and labels (…); `predict(hidden, k)` gives the classes of the largest
    cosines, (…, k).

    Raises:
        As `LinearLoss` here, for what `sm.MarginSoftmax` refuses; in calls as `sm.distributed.margin_softmax_loss`.

    Cost: as of `LinearLoss` here; in calls that of `sm.distributed.margin_softmax_loss`.
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        group: Group = None,
        kind: str = "arcface",
        margin: float | tuple[float, float, float] = 0.5,
        scale: float | Tensor | nn.Module = 64.0,
        centres: int = 1,
        samples: int | None = None,
        class_weight: Tensor | None = None,
        generator: Randomness = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        with ranks_of(self._name, group).telling(self._name):
            centres = check_count(self._name, "centres", centres)
            super().__init__(in_features, classes, group=group, bias=False, device=device, dtype=dtype, centres=centres)
            name = self._name
            check_options(name, margin_softmax_loss, options)
            size = check_margin(name, kind, margin)
            margin = (size.factor, size.angle, size.cosine) if kind == "combined" else getattr(size, KINDS[kind])
            scale = held_value(name, "scale", scale, *scale_domain(self.weight.dtype))
            self.samples = None if samples is None else check_count(name, "samples", samples)
            self.generator = as_torch_generator(name, generator)
            self.hold(
                kind=kind, margin=margin, scale=scale, centres=centres, class_weight=self._own_class_weight(class_weight), **options
            )
        self._agree(samples=self.samples, class_weight=class_weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The vectors' first values, whose norms are about 1; every rank must call it."""
        self._draw(self.weight, lambda values, generator: values.normal_(std=self.in_features**-0.5, generator=generator))

    @outside_the_graph
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        with self._ranks.telling(self._name):
            hidden = as_tensor(self._name, "hidden", hidden)  # the vectors learn from arrays too
            own = {"samples": self.samples if self.training else None, "generator": self.generator, **self._own_options()}
        return margin_softmax_loss(hidden, self._own_vectors(), target, group=self.mesh, **own)

    def _rows(self, hidden: Any) -> Rows:
        return as_cosine_rows(self._name, hidden, self._own_vectors(), self.options["centres"])


@public
class SampledSoftmax(ShardedHead):
    """`sm.distributed.sampled_softmax_loss` as a module: `sm.SampledSoftmax` whose classes are shared among ranks.

    L = log(e^{s_t} + Σ_r Ẑ_r) − s_t in nats, s = (W h + b)/τ, with an estimate Ẑ_r of Σ e^{s_c} over the classes of rank r but t.

    Args:
        in_features, classes, group, device, dtype: as of `LinearLoss` here.
        samples: how many negatives each rank draws in training mode; in eval mode the loss is the exact one.
        sampler: "log_uniform", "uniform", "frequency" (learned from those labels that are own classes), weights of all classes
            [classes], or a sampler of own classes.
        reduce_hidden: as of `sm.distributed.linear_loss`.
        The others: as of `sm.SampledSoftmax`, but that gradients are dense, for a DTensor has no others.

    Parameters, their first values and `predict` are as of `LinearLoss` here.

    Shapes: `forward(hidden, target)` takes (…, in_features) and labels (…), and `log_prob(hidden)` gives (…, own classes), exactly.

    Raises:
        As `LinearLoss` here, for what `sm.SampledSoftmax` refuses; in calls as `sm.distributed.sampled_softmax_loss`.

    Cost: as of `LinearLoss` here; in calls that of `sm.distributed.sampled_softmax_loss`, or of `linear_loss` in eval mode.
    `log_prob` holds the scores of all rows and own classes, and sends 3 numbers a row, and as much as hidden and τ are backward.
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        samples: int,
        sampler: str | Tensor | AnySampler = "log_uniform",
        *,
        group: Group = None,
        bias: bool = True,
        correction: str = "positive",
        shared: bool = True,
        remove_hits: bool | None = None,
        temperature: float | Tensor | nn.Module = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        reduce_hidden: bool = True,
        generator: Randomness = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        with ranks_of(self._name, group).telling(self._name):
            super().__init__(in_features, classes, group=group, bias=bias, device=device, dtype=dtype)
            name, own = self._name, self.own_classes
            self.samples = check_count(name, "samples", samples)
            given = type(sampler).__name__
            if isinstance(sampler, str):
                given = sampler
            elif isinstance(sampler, Tensor) or hasattr(sampler, "__array__"):
                given = as_tensor(name, "sampler", sampler)
                sampler = given[own.start : own.stop]
            by_rank = isinstance(sampler, str) and sampler == "log_uniform"  # whose place among all ranks the loss knows
            self.sampler = sampler if by_rank or not own else as_sampler(name, sampler, len(own))
            self.generator = as_torch_generator(name, generator)
            self.hold(
                **held_options(name, self.weight.dtype, shared, temperature, ignore_index, reduction),
                correction=correction,
                remove_hits=check_correction(name, correction, remove_hits),
                reduce_hidden=reduce_hidden,
            )
        self._agree(samples=self.samples, sampler=given)
        self.reset_parameters()

    reset_parameters = LinearLoss.reset_parameters

    @outside_the_graph
    def forward(self, hidden: Any, target: Any) -> Tensor:
        name, own, bias, ranks = self._name, self._own_vectors(), self._own(self.bias), self._ranks
        with ranks.telling(name):
            hidden, options = as_tensor(name, "hidden", hidden), self.options
            drawn = {"samples": self.samples, "sampler": self.sampler, "sparse": False, "generator": self.generator}
            asked = as_sampled(name, hidden, own, target, bias=bias, **options, **drawn, learns=True) if self.training else None
        if asked is not None:
            return asked.evaluate(ranks)
        known = ("temperature", "ignore_index", "reduction", "reduce_hidden")
        return linear_loss(hidden, own, target, bias=bias, group=self.mesh, **{key: options[key] for key in known})

    def log_prob(self, hidden: Any) -> Any:
        """Log softmax over all classes, of own classes, (…, own classes), in nats.

        The gradients by hidden, where `reduce_hidden` says so, and by the temperature are those of the sum over all ranks.
        """
        name, ranks = self._name, self._ranks
        with ranks.telling(name):
            given = as_tensor(name, "hidden", hidden)
            rows = as_rows(name, given, self._own_vectors(), self._own(self.bias), 1.0)
            same = as_same_rows(name, rows, self.options["temperature"], self.options["reduce_hidden"])
        ranks.agree(name, rows.classes, same.alike())
        with ranks.working(name), unrounded(given):
            scores = all_scores(same.divided(ranks, name)).reshape(*rows.shape, rows.classes)
        return like_input(shared_map("log_softmax", scores, group=self.mesh).to(rows.dtype), hidden)

    def _rows(self, hidden: Any) -> Rows:
        return as_rows(self._name, hidden, self._own_vectors(), self._own(self.bias), self.options["temperature"])
