"""Losses of a linear layer in parts, differentiable: as one function of autograd, and as operations, which compilers see.

Where a loss is reduced, the forward pass makes the gradients too: g = ∂L/∂x of a part of the rows gives ∂L/∂h = g W and adds gᵀ h
to ∂L/∂W, and the scores of the next part take its place. Otherwise the backward pass, which knows what each row counts, makes them,
and the scores once more.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_exporting

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.tracing import is_concrete, is_eager, operation, transforming
from softmaxima.engine.fused import fused
from softmaxima.heads.margins import Margin
from softmaxima.heads.passes import Pass
from softmaxima.heads.request import Request, compose
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import REGISTRY


def evaluate(request: Request) -> Tensor:
    """The reduced loss in the dtype of hidden, or [1 + outputs, rows] in the compute dtype."""
    tensors, compiling = request.tensors, is_compiling()
    needs = [tensor.requires_grad for tensor in tensors]
    # An operation has no autograd inside.
    there = _is_writable(request) and request.is_by_kernel(needs) and not is_exporting() if compiling else is_eager(request.hidden)
    learns = any(x is not None and x.requires_grad for x in (request.batch.soft, request.batch.class_weight))
    if transforming() or not there or (learns and torch.is_grad_enabled()):
        return compose(request)

    def by_parts(*values: Any) -> tuple[Tensor, Any, tuple[Any, ...]]:
        *given, gradient = values
        found = request.of(given)
        if found.is_of_rows:
            rows = _losses(*Given.of(found), []) if compiling else losses(found, [])
            return rows[0], partial(_pull_rows, request, needs), ()
        wanted = needs if gradient else []
        value, *gradients = _losses(*Given.of(found), wanted) if compiling else losses(found, wanted)
        rest = iter(gradients)
        return value, _pull, tuple(next(rest) if need else None for need in wanted)

    return fused(by_parts, lambda *values: compose(request.of(values)), *tensors)


def _is_writable(request: Request) -> bool:
    """Whether the options can be written down, for an operation."""
    return all(isinstance(value, (Tensor, float, int, str, type(None))) for value in request.options.values())


def losses(request: Request, needs: list[bool]) -> list[Tensor]:
    """[what `evaluate` returns, the gradients of a reduced loss that are needed]."""
    if request.is_of_rows:
        return [Pass(request, needs).run().values.to(request.dtype)]
    batch = request.batch
    normaliser: Any = batch.normaliser() if batch.reduction == "mean" else 1.0
    if isinstance(normaliser, Tensor) and is_concrete(request.hidden):
        normaliser = float(normaliser)
    counts, of_nothing = normaliser > 0, math.nan if batch.empty == "nan" else 0.0
    if isinstance(normaliser, Tensor):
        scale = torch.where(counts, 1 / normaliser, of_nothing)
    else:
        scale = 1 / normaliser if counts else of_nothing
    done = Pass(request, needs, scale=scale).run()
    return [(done.values.sum() * scale).to(request.hidden.dtype), *done.gradients()]


def _pull(g: Tensor, *tensors: Any) -> tuple[Any, ...]:
    """The gradients that the forward pass made, times g: in their own memory, unless the graph stays for another pass."""
    gradients = tensors[len(tensors) // 2 :]
    stays = is_compiling() or torch._C._autograd._get_current_graph_task_keep_graph()  # type: ignore[attr-defined]
    if not is_compiling() and g.is_cpu and float(g) == 1.0:
        return tuple(value.clone() if stays and value is not None else value for value in gradients)
    scaled = lambda value: value * g.to(value.dtype) if stays else value.mul_(g.to(value.dtype))
    return tuple(None if value is None else scaled(value) for value in gradients)


def _pull_rows(request: Request, needs: list[bool], g: Tensor, *tensors: Tensor) -> tuple[Any, ...]:
    found = request.of(tensors)
    rest = iter(_slopes(*Given.of(found), needs, g) if is_compiling() else Pass(found, needs, slopes=g).run().gradients())
    return tuple(next(rest) if need else None for need in needs)


# As operations, which compilers see ---------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """A request as the operations have it: each field is an argument of both, of a type that torch has in a schema."""

    loss: str
    options: str  # those that are no tensors, a dict in Python
    names: str  # of those that are
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    taus: Tensor | None
    tau: float
    tensors: Sequence[Tensor]  # of the options
    target: Tensor  # negative labels are ignored
    class_weight: Tensor | None
    smoothing: float
    reduction: str
    empty: str
    softcap: float  # 0 for none
    z_loss: float
    outputs: str
    rows_at_once: int  # 0 for as many as memory is for
    classes_at_once: int  # 0 for all
    unit: bool
    centres: int
    margin: Sequence[float]  # of none empty

    @classmethod
    def of(cls, request: Request) -> Given:
        batch, tau = request.batch, request.tau
        return cls(
            loss=request.loss.name,
            options=repr({name: value for name, value in request.options.items() if not isinstance(value, Tensor)}),
            names=" ".join([name for name, value in request.options.items() if isinstance(value, Tensor)]),
            hidden=request.hidden,
            weight=request.weight,
            bias=request.bias,
            taus=tau if isinstance(tau, Tensor) else None,
            tau=1.0 if isinstance(tau, Tensor) else tau,
            tensors=[value for value in request.options.values() if isinstance(value, Tensor)],
            target=batch.kernel_target(),
            class_weight=batch.class_weight,
            smoothing=batch.smoothing,
            reduction=batch.reduction,
            empty=batch.empty,
            softcap=request.softcap or 0.0,
            z_loss=request.z_loss,
            outputs=" ".join(request.outputs),
            rows_at_once=request.rows_at_once or 0,
            classes_at_once=request.classes_at_once or 0,
            unit=request.unit,
            centres=request.centres,
            margin=list(request.margin or ()),
        )

    def request(self) -> Request:
        """The request that it was."""
        dtype = COMPUTE_DTYPE[self.hidden.dtype]
        rows = self.hidden.new_zeros((), dtype=dtype).expand(len(self.hidden), len(self.weight) // self.centres)
        soft = self.target.is_floating_point()
        ignored = None if soft or not bool((self.target < 0).any()) else self.target < 0
        batch = Batch(
            name="linear_loss",
            rows=rows,
            labels=None if soft else self.target.clamp_min(0),
            soft=self.target if soft else None,
            ignored=ignored,
            class_weight=self.class_weight,
            smoothing=self.smoothing,
            reduction=self.reduction,
            empty=self.empty,
            given=rows,
            dtype=dtype,
        )
        return Request(
            loss=REGISTRY[self.loss],
            options=ast.literal_eval(self.options) | dict(zip(self.names.split(), self.tensors, strict=True)),
            batch=batch,
            hidden=self.hidden,
            weight=self.weight,
            bias=self.bias,
            tau=self.tau if self.taus is None else self.taus,
            softcap=self.softcap or None,
            z_loss=self.z_loss,
            outputs=tuple(self.outputs.split()),
            rows_at_once=self.rows_at_once or None,
            classes_at_once=self.classes_at_once or None,
            unit=self.unit,
            centres=self.centres,
            margin=Margin(*self.margin) if self.margin else None,
        )


@operation("linear_losses")
def _losses(given: Given, needs: Sequence[bool]) -> list[Tensor]:
    return losses(given.request(), list(needs))


@_losses.register_fake
def _(*arguments: Any) -> list[Tensor]:
    given, needs = Given(*arguments[:-1]), arguments[-1]
    hidden, outputs = given.hidden, given.outputs.split()
    if given.reduction == "none" or outputs:
        return [hidden.new_empty((1 + len(outputs), hidden.shape[0]), dtype=COMPUTE_DTYPE[hidden.dtype])]
    return [hidden.new_empty(()), *_like_needed(given, needs)]


@operation("linear_slopes")
def _slopes(given: Given, needs: Sequence[bool], g: Tensor) -> list[Tensor]:
    return list(Pass(given.request(), list(needs), slopes=g).run().gradients())


@_slopes.register_fake
def _(*arguments: Any) -> list[Tensor]:
    return _like_needed(Given(*arguments[:-2]), arguments[-2])


def _like_needed(given: Given, needs: Sequence[bool]) -> list[Tensor]:
    found = [value for value in (given.hidden, given.weight, given.bias, given.taus, *given.tensors) if value is not None]
    return [value.new_empty(value.shape) for value, need in zip(found, needs, strict=False) if need]
