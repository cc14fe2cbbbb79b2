"""A loss of a linear layer as it is asked for, and what it comes to by differentiable operations on all scores at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.cosines import unit, unrounded
from softmaxima.base.temperature import quotient
from softmaxima.base.tracing import sizes
from softmaxima.engine.contract import Map, find_map
from softmaxima.engine.routing import is_native
from softmaxima.heads.margins import Margin
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import REGISTRY, Loss
from softmaxima.losses.evaluation import Evaluation, evaluate_batch
from softmaxima.losses.fenchel_young import class_params, conjugate


@dataclass(frozen=True, eq=False)
class Request:
    """A loss of the scores x = c·tanh((W h + b)/c)/τ, and the tensors that it is of."""

    loss: Loss
    options: dict[str, Any]  # of the loss; tensors are [rows, 1] or [1, 1]
    batch: Batch  # with no scores: its rows are one number, expanded
    hidden: Tensor  # [rows, features]
    weight: Tensor  # [classes · centres, features]
    bias: Tensor | None = None  # [classes]
    tau: float | Tensor = 1.0  # a tensor is [rows, 1] or [1, 1]
    softcap: float | None = None
    z_loss: float = 0.0
    outputs: tuple[str, ...] = ()
    rows_at_once: int | None = None
    classes_at_once: int | None = None
    unit: bool = False  # whether the rows of W are divided by their norms
    centres: int = 1  # the score of a class is the largest with its rows of W
    margin: Margin | None = None  # of cosines τx

    @property
    def tensors(self) -> list[Tensor]:
        """What may learn: hidden, weight, and of bias, τ and the options those that are tensors."""
        found = (self.hidden, self.weight, self.bias, self.tau, *self.options.values())
        return [value for value in found if isinstance(value, Tensor)]

    def of(self, tensors: Sequence[Tensor]) -> Request:
        """The same of other tensors."""
        rest = iter(tensors)
        own = {name: _replaced(getattr(self, name), rest) for name in ("hidden", "weight", "bias", "tau")}
        return replace(self, **own, options={name: _replaced(value, rest) for name, value in self.options.items()})

    def with_scores(self, scores: Tensor, options: dict[str, Any] | None = None) -> Request:
        """The same of a batch that has scores."""
        batch = replace(self.batch, rows=scores, given=scores, reduction="none", dtype=torch.float64)
        return replace(self, batch=batch, options={**self.options, **(options or {})})

    def part(self, span: slice | Tensor) -> Request:
        """That of some rows."""
        of = lambda value: None if value is None else value[span]
        batch = self.batch
        soft = None if batch.soft is None else batch.soft[span].to(self.dtype)
        batch = replace(batch, rows=batch.rows[span], labels=of(batch.labels), soft=soft, ignored=of(batch.ignored))
        options = {name: of_rows(value, span) for name, value in self.options.items()}
        return replace(self, batch=batch, hidden=self.hidden[span], tau=of_rows(self.tau, span), options=options)

    @property
    def dtype(self) -> torch.dtype:
        """What scores are computed in."""
        return COMPUTE_DTYPE[self.hidden.dtype]

    @property
    def map(self) -> tuple[Map, dict[str, Any]]:
        """The map of the loss, which has one, and its parameters."""
        map, params, _ = self.loss.row_form.map(self.loss.name, self.options)  # type: ignore[union-attr]
        found = find_map(map, self.batch.name)
        return found, found.complete(params)

    @property
    def how(self) -> Evaluation:
        """How the loss is made of the batch; raises for options that it does not take."""
        return self.loss.evaluation(self.batch, **self.options)

    def is_by_kernel(self, needs: list[bool]) -> bool:
        """Whether a kernel makes the gradient, of those of the tensors that need it."""
        how, options = self.how, sum(isinstance(value, Tensor) for value in self.options.values())
        if how.losses is None or any(needs[len(needs) - options :]):
            return False
        return self.z_loss == 0 or (how.of_map and is_native(self.hidden))

    @property
    def is_of_rows(self) -> bool:
        """Whether the result is one value a row, and only the backward pass knows what each counts."""
        return self.batch.reduction == "none" or bool(self.outputs)


def _replaced(value: Any, rest: Iterator[Tensor]) -> Any:
    return next(rest) if isinstance(value, Tensor) else value


def of_rows(value: Any, span: slice | Tensor) -> Any:
    """Those numbers of a tensor [rows, 1] that are of some rows; anything else as it is."""
    return value[span] if isinstance(value, Tensor) and sizes(value)[0] > 1 else value


def compose(request: Request) -> Tensor:
    """The reduced loss in the dtype of hidden, or [1 + outputs, rows] in the compute dtype."""
    dtype, tau, cap = request.dtype, request.tau, request.softcap
    weight = request.weight.to(dtype)
    with unrounded(weight):
        scores = torch.mm(request.hidden.to(dtype), (unit(weight) if request.unit else weight).T)
    if request.centres > 1:
        scores = scores.unflatten(-1, (-1, request.centres)).amax(-1)
    scores = scores if request.bias is None else scores + request.bias.to(dtype)
    scores = scores if cap is None else (scores / cap).tanh() * cap
    scores = quotient(scores, tau)
    values = composed(request.part(slice(None)).with_scores(scores))
    return values.to(dtype) if request.is_of_rows else replace(request.batch, dtype=request.hidden.dtype).reduce(values[0])


def composed(part: Request) -> Tensor:
    """The losses of a batch with scores, and what is asked for beside them, [1 + outputs, rows] in float64."""
    outputs = composed_outputs(part)
    if part.margin is not None:
        scores, index = part.batch.rows, part.batch.labels.unsqueeze(-1)  # type: ignore[union-attr]
        moved = part.margin.moved(scores.gather(-1, index) * part.tau) / part.tau
        part = part.with_scores(scores.scatter(-1, index, moved))
    return torch.stack([_composed_losses(part), *outputs])


def _composed_losses(part: Request) -> Tensor:
    batch, how = part.batch, part.how
    values = how.composite((batch.in_double() if how.double else batch).in_range()).double()
    return values if part.z_loss == 0 else values + _z_loss(part)


def _z_loss(part: Request) -> Tensor:
    """What z·V² adds to the loss of each row [rows]."""
    map, z, params = in_double(part)
    found = counted(part, part.z_loss * conjugate(map, z, map(z, **params), params).square(), z)
    return found if part.batch.ignored is None else found.masked_fill(part.batch.ignored, 0.0)


def counted(part: Request, values: Tensor, z: Tensor) -> Tensor:
    """Numbers of rows [rows], times what p counts in the gradient of the loss."""
    if part.loss.row_form.fenchel:  # type: ignore[union-attr]
        return part.batch.weigh(values)
    return part.batch.weighted_expectation(values.unsqueeze(-1).expand(sizes(z)).masked_fill(z == -math.inf, 0.0))


def in_double(part: Request) -> tuple[Map, Tensor, dict[str, Any]]:
    """(the map, the scores and the map's parameters in float64), of a batch with scores."""
    map, params = part.map
    wide = {name: v.double() if isinstance(v, Tensor) else v for name, v in class_params(part.batch, map, params).items()}
    return map, part.batch.scores.double(), wide


def composed_outputs(part: Request) -> list[Tensor]:
    """What is asked for beside the loss, in float64, [rows] each, 0 in rows that are ignored."""
    found = [OUTPUTS[output](part) for output in part.outputs]
    ignored = part.batch.ignored
    return found if ignored is None else [value.masked_fill(ignored, 0.0) for value in found]


def _entropy(part: Request) -> Tensor:
    map, params = part.map
    p = map(part.batch.scores, **params)
    return torch.special.entr(p.masked_fill(p == 0, 1.0)).sum(-1).double()  # at 0 it has no slope


def _log_prob(part: Request) -> Tensor:
    """log p_t of the labels t: from the scores where a loss says it, else of p in float64."""
    if (loss := loss_of_log(part.map[0])) is not None:
        batch = replace(part.batch, class_weight=None, smoothing=0.0)
        return -evaluate_batch(batch, loss.evaluation(batch, **part.map[1]))
    map, z, params = in_double(part)
    p = map(z, **params).gather(-1, part.batch.labels.unsqueeze(-1)).squeeze(-1)  # type: ignore[union-attr]
    impossible = p == 0
    return p.masked_fill(impossible, 1.0).log().masked_fill(impossible, -math.inf)


def _z_loss_beside(part: Request) -> Tensor:
    return _z_loss(part) if part.z_loss else torch.zeros(sizes(part.batch.rows)[0], dtype=torch.float64, device=part.hidden.device)


OUTPUTS = {"log_prob": _log_prob, "entropy": _entropy, "z_loss": _z_loss_beside}


def loss_of_log(map: Map) -> Loss | None:
    """The loss −log p_t of a map, whose options are the map's parameters; None where there is none."""
    return next((loss for loss in REGISTRY.values() if loss.map == map.name and loss.is_of_log), None)
