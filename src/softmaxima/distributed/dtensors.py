"""Maps, losses and logsumexp of DTensors: what each rank computes of its shards, and where the result lies.

A mesh axis that shards another axis than the one worked along gives each rank whole rows, and the result is sharded as they are. Of
one that shards that axis itself the ranks have parts of rows, which merge. Sums over rows are those of all ranks, on each of them.
The metadata of a DTensor is the same everywhere, so that ranks need not ask each other what they have.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from softmaxima.base.arguments import as_map_scores, as_tensor, check_dims, moved_last, rows_last, said
from softmaxima.base.dtensors import FORMS
from softmaxima.distributed.agreement import Agreement, learns
from softmaxima.distributed.losses import Total, loss_of_scores
from softmaxima.distributed.maps import of_shared_rows
from softmaxima.distributed.mesh_ranks import MeshRanks, ranks_along
from softmaxima.distributed.sums import sum_of_shared_rows
from softmaxima.engine.contract import Map
from softmaxima.engine.evaluation import check_params, evaluate
from softmaxima.losses import REGISTRY
from softmaxima.losses.arguments import check_empty, check_labels, check_shared
from softmaxima.losses.batch import mean_over, prepare
from softmaxima.losses.evaluation import Evaluation, evaluate_batch
from softmaxima.losses.parts import LossInParts, bind
from softmaxima.lse.logsumexp import logsumexp
from softmaxima.lse.logsumexp import prepare as prepare_sum

Axes = Sequence[int | None]  # along which axis of the scores an argument's axes run


@dataclass(frozen=True, eq=False)
class Layout:
    """Where scores are, sharded or the same on all ranks of each mesh axis, and the axes `dims` that a function works along."""

    name: str
    scores: DTensor
    dims: tuple[int, ...]

    @property
    def mesh(self) -> DeviceMesh:
        return self.scores.device_mesh

    @property
    def axes(self) -> list[int | None]:
        """The axis of the scores that each mesh axis shards; compared, for compilers take a placement's own for one that varies."""
        every = range(self.scores.ndim)
        return [next((axis for axis in every if placement.is_shard(axis)), None) for placement in self.scores.placements]

    @property
    def along(self) -> list[int]:
        """Mesh axes whose ranks share rows."""
        return [number for number, axis in enumerate(self.axes) if axis in self.dims]

    @property
    def across(self) -> list[int]:
        """Mesh axes whose ranks have other rows."""
        return [number for number, axis in enumerate(self.axes) if axis is not None and axis not in self.dims]

    def working(self, reduction: str) -> contextlib.AbstractContextManager[None]:
        """What is raised within on one rank is left for those who wait for a message of it; compilers do not look for that.

        Of one value a row nothing is sent to ranks that have other rows, and what nobody waits for stays with its rank.
        """
        number = [*self.along, *(self.across if reduction != "none" else [])]
        return contextlib.nullcontext() if is_compiling() else ranks_along(self.name, self.mesh, number).working(self.name)

    def whole(self) -> Layout:
        """The same with whole rows on every rank."""
        placements = [Replicate() if number in self.along else p for number, p in enumerate(self.scores.placements)]
        return replace(self, scores=self.scores.redistribute(placements=placements)) if self.along else self

    def own(self) -> Tensor:
        """This rank's scores."""
        return self.scores.to_local(grad_placements=self.scores.placements)

    def agreement(self) -> Agreement:
        """How many scores of a row each rank has, in the order of the ranks along rows."""
        widths = []
        for coordinates in itertools.product(*(range(self.mesh.size(number)) for number in self.along)):
            sizes = list(self.scores.shape)
            for number, coordinate in zip(self.along, coordinates, strict=True):
                axis: Any = self.axes[number]
                step = -(-sizes[axis] // self.mesh.size(number))  # as torch.chunk has it
                sizes[axis] = max(0, min(step, sizes[axis] - coordinate * step))
            widths.append(math.prod([sizes[axis] for axis in self.dims]))
        return Agreement(tuple(widths))

    def of_rows(self, value: Tensor) -> Axes:
        """What broadcasts against the scores with size 1 along `dims`."""
        return [None if axis in self.dims else axis for axis in self.of_scores(value)]

    def of_scores(self, value: Tensor) -> Axes:
        """What broadcasts to the scores."""
        return list(range(self.scores.ndim))[max(0, self.scores.ndim - value.ndim) :]

    def beside(self, what: str, value: Any, along: Callable[[Tensor], Axes]) -> Any:
        """What of a tensor for all scores goes with those of this rank; anything else as it came.

        `along` says which axes of the scores a tensor's axes run along. A plain tensor is the same on every rank, as a replicated
        one is, and so is its gradient.
        """
        if isinstance(value, nn.Module) and says_a_number(value):
            value = said(self.name, what, value)
        if isinstance(value, np.ndarray):
            value = as_tensor(self.name, what, value)
        if not isinstance(value, Tensor):
            return value
        shape, axes = self.scores.shape, along(value)
        wanted = tuple(1 if axis is None else shape[axis] for axis in axes)
        if len(axes) != value.ndim or any(size not in (1, there) for size, there in zip(value.shape, wanted, strict=True)):
            raise ValueError(
                f"{self.name}: {what} must have the shape {wanted} beside scores of shape {tuple(shape)}, got "
                f"{tuple(value.shape)}; a plain tensor is for the scores of all ranks, and for parts of them it must be a DTensor"
            )
        placements: list[Placement] = []
        slopes: list[Placement] = []
        for number, axis in enumerate(self.axes):
            place = None if axis is None or axis not in axes else list(axes).index(axis)
            is_sharded = place is not None and value.shape[place] == shape[axis]  # type: ignore[index]
            placements.append(Shard(place) if is_sharded else Replicate())  # type: ignore[arg-type]
            slopes.append(Partial() if not is_sharded and number in self.across else placements[-1])
        if not isinstance(value, DTensor):
            if all(isinstance(each, Replicate) for each in (slopes if learns(value) else placements)):
                return value
            value = DTensor.from_local(value, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        if value.device_mesh != self.mesh:
            raise ValueError(f"{self.name}: {what} must be on the mesh of the scores, {self.mesh}, got {value.device_mesh}")
        return value.redistribute(placements=placements).to_local(grad_placements=slopes)

    def put(self, values: Tensor, axes: Axes) -> DTensor:
        """Values of this rank as a DTensor, whose axes run along those of the scores; of whole rows on all their ranks."""
        shape = torch.Size(1 if axis is None else self.scores.shape[axis] for axis in axes)
        placements = [Replicate() if along is None or along not in axes else Shard(list(axes).index(along)) for along in self.axes]
        stride = tuple(math.prod([max(size, 1) for size in shape[i + 1 :]]) for i in range(len(shape)))
        return DTensor.from_local(values.contiguous(), self.mesh, placements, run_check=False, shape=shape, stride=stride)


def laid_out(name: str, x: DTensor, dims: tuple[int, ...]) -> Layout:
    """Scores with what is Partial added up."""
    placements = [p if type(p) is Shard else Replicate() for p in x.placements]
    if x.device_mesh.get_coordinate() is None:
        raise ValueError(f"{name}: this rank must be in the mesh of the scores, {x.device_mesh}; call on its ranks alone")
    layout = Layout(name, x if placements == list(x.placements) else x.redistribute(placements=placements), dims)
    if is_compiling():  # which would hold the next shape against the first
        return layout
    expected, _ = compute_local_shape_and_global_offset(x.shape, x.device_mesh, placements)
    if tuple(expected) != tuple(layout.scores.to_local().shape):
        raise ValueError(
            f"{name}: shards of scores of shape {tuple(x.shape)} must be torch.chunk's, here {tuple(expected)}, got "
            f"{tuple(layout.scores.to_local().shape)}; for others take sm.distributed"
        )
    return layout


def says_a_number(module: nn.Module) -> bool:
    """Whether it is called for without arguments."""
    return all(
        a.default is not a.empty or a.kind in (a.VAR_POSITIONAL, a.VAR_KEYWORD)
        for a in inspect.signature(module.forward).parameters.values()
    )


def of_map(map: Map, x: DTensor, dim: int | Sequence[int], temperature: Any, where: Any, params: Mapping[str, Any]) -> DTensor:
    """The map of x/τ, sharded as x is; where a map has no `blocks`, or several axes count as one, rows are whole on every rank."""
    name, every = map.name, range(x.ndim)
    dims = check_dims(name, dim, x.ndim)
    layout = laid_out(name, x, dims)
    layout = layout if map.blocks is not None and len(dims) == 1 else layout.whole()
    tau = layout.beside("temperature", temperature, layout.of_rows)
    values = {what: layout.beside(what, value, layout.of_rows) for what, value in map.complete(params).items()}
    mask, own = layout.beside("where", where, layout.of_scores), layout.own()
    if not layout.along:
        return layout.put(evaluate(map, own, dims, tau, mask, values), every)
    (dim,), scores = dims, as_map_scores(name, own)
    _, rows, tau, mask = rows_last(name, scores, dim, tau, mask)
    params_last = [moved_last(value, dim) for value in check_params(map, values, scores, dim)]
    ranks = ranks_along(name, layout.mesh, layout.along)
    p = of_shared_rows(name, map, ranks, layout.agreement(), rows, tau, mask, params_last)
    return layout.put(p.movedim(-1, dim), every)


def of_logsumexp(x: DTensor, dim: Any, **options: Any) -> Any:
    """logsumexp, and its sign where that is asked for, on every rank that has a part of a row.

    With weights, complex scores, signs or compensated sums, rows are whole on every rank.
    """
    name = "logsumexp"
    dims = check_dims(name, dim, x.ndim)
    layout = laid_out(name, x, dims)
    if options["weights"] is not None or options["return_sign"] or options["precision"] != "native" or x.is_complex():
        layout = layout.whole()
    options["temperature"] = layout.beside("temperature", options["temperature"], layout.of_rows)
    options |= {what: layout.beside(what, options[what], layout.of_scores) for what in ("where", "weights")}
    axes = [None if axis in dims else axis for axis in range(x.ndim) if options["keepdim"] or axis not in dims]
    if not layout.along:
        found = logsumexp(layout.own(), dims, **options)
        return tuple(layout.put(each, axes) for each in found) if options["return_sign"] else layout.put(found, axes)
    given = (options[what] for what in ("keepdim", "where", "temperature"))
    rows, tau, mask, _, shape = prepare_sum(name, layout.own(), dims, *given)
    ranks = ranks_along(name, layout.mesh, layout.along)
    return layout.put(sum_of_shared_rows(name, ranks, layout.agreement(), rows, tau, mask).reshape(shape), axes)


def of_loss(
    name: str,
    evaluation: Callable[..., Evaluation],
    options: Mapping[str, Any],
    x: DTensor,
    target: Any,
    weight: Any,
    ignore_index: Any,
    reduction: Any,
    smoothing: Any,
    empty: Any = "nan",
    temperature: Any = 1.0,
) -> DTensor:
    """The loss, the same on all ranks, or sharded as rows are where it is one of each.

    Rows are whole on every rank where a loss has no form in parts, and where it is asked for the derivative by anything but scores.
    """
    if x.ndim == 0:
        raise ValueError(f"{name}: scores need a class axis: (C), (N, C) or (N, C, d…); got a 0-d tensor")
    ignore_index, reduction, smoothing = check_shared(name, ignore_index, reduction, smoothing)
    empty = check_empty(name, empty)
    target = target if isinstance(target, Tensor) else as_tensor(name, "target", target)
    axis = 0 if x.ndim == 1 else 1
    layout = laid_out(name, x, (axis,))
    tau = layout.beside("temperature", temperature, layout.of_rows)
    options = {what: layout.beside(what, value, layout.of_rows) for what, value in options.items()}
    bound = None
    if layout.along and not learns(target, weight, tau, *options.values()):
        bound = _in_parts(name, layout, target.is_floating_point(), smoothing, ignore_index, tau, options)
    layout = layout if bound is not None else layout.whole()
    with layout.working(reduction):
        return _loss(layout, bound, evaluation, options, target, weight, ignore_index, reduction, smoothing, empty, tau)


def _loss(
    layout: Layout,
    bound: LossInParts | None,
    evaluation: Callable[..., Evaluation],
    options: Mapping[str, Any],
    target: Tensor,
    weight: Any,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    empty: str,
    tau: Any,
) -> DTensor:
    """The loss of checked options, in parts where it is bound to them."""
    name, x, (axis,) = layout.name, layout.scores, layout.dims
    every = range(x.ndim)
    rows = [each for each in every if each != axis]
    if not (isinstance(target, DTensor) or target.is_floating_point()):
        check_labels(name, target.long(), x.shape[axis], ignore_index)  # those of all rows, so that all ranks raise
    y = layout.beside("target", target, lambda y: every if y.is_floating_point() and y.ndim == x.ndim else rows)
    weight, own = layout.beside("weight", weight, lambda _: (axis,)), layout.own()
    total = _total(layout)
    if bound is not None:
        if isinstance(target, DTensor) and not y.is_floating_point():
            check_labels(name, y.long(), bound.n, ignore_index)
        batch = prepare(name, own, y, weight, ignore_index, reduction, smoothing, empty, shared=True)
        ranks = ranks_along(name, layout.mesh, layout.along)
        value = loss_of_scores(name, ranks, layout.agreement(), bound, batch, ignore_index, total)
    elif reduction == "none" or not layout.across:
        batch = prepare(name, own, y, weight, ignore_index, reduction, smoothing, empty, tau)
        value = evaluate_batch(batch, evaluation(batch, **options))
    else:
        batch = prepare(name, own, y, weight, ignore_index, "sum", smoothing, empty, tau)
        wide, number = replace(batch, dtype=torch.float64), batch.normaliser()
        sums = evaluate_batch(wide, evaluation(wide, **options))
        number = number if isinstance(number, Tensor) else sums.new_full((), math.prod(own.shape) / max(own.shape[axis], 1))
        sums, number = total(torch.stack((sums, number)))
        mean = mean_over(sums, number, "zero")  # so that scores of which no row counts get a gradient of 0
        mean = mean if empty == "zero" else mean.masked_fill(number == 0, math.nan)
        value = (mean if reduction == "mean" else sums).to(batch.dtype)
    return layout.put(value, rows if reduction == "none" else ())


def _in_parts(
    name: str, layout: Layout, soft: bool, smoothing: float, ignore_index: int, tau: Any, options: Mapping[str, Any]
) -> LossInParts | None:
    """The loss over parts of rows; None where it has no such form, or where whole rows will tell what is wrong with an argument."""
    loss = REGISTRY.get(name)
    if loss is None or loss.row_form is None:
        return None
    (axis,) = layout.dims
    ndim, n = layout.scores.ndim, layout.scores.shape[axis]
    last = lambda v: moved_last(v[(None,) * (ndim - v.ndim)], axis) if isinstance(v, Tensor) else v
    own = {what: last(value) for what, value in options.items() if loss.takes_any or what in loss.own_options}
    with contextlib.suppress(ValueError):
        return bind(name, loss.row_form, n, soft, smoothing, ignore_index, last(tau), loss.complete(own))
    return None


def _total(layout: Layout) -> Total:
    """Sums over the ranks that have other rows."""
    ranks = ranks_along(layout.name, layout.mesh, layout.across)
    return lambda sums: _Total.apply(sums, ranks, layout.name)  # type: ignore[return-value]


class _Total(torch.autograd.Function):
    """The sum over ranks, of whose gradient each has all."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, ranks: MeshRanks, name: str) -> Tensor:
        return ranks.total(name, sums)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return upstream[0], None, None


FORMS |= {"map": of_map, "logsumexp": of_logsumexp, "loss": of_loss}
