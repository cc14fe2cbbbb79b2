"""A loss of a linear layer, and its gradients, of some rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.cosines import unrounded
from softmaxima.base.tracing import sizes
from softmaxima.engine.routing import is_native
from softmaxima.engine.rowwise import compute, keeps_scores, pull
from softmaxima.heads.class_parts import add_part
from softmaxima.heads.products import LayerGradients, layer_of, wanted
from softmaxima.heads.request import Request, composed, composed_outputs, counted, in_double, loss_of_log, of_rows
from softmaxima.heads.scores import Moved, move_labels, scored
from softmaxima.losses.evaluation import is_by_kernel
from softmaxima.losses.fenchel_young import class_params, conjugate

AT_ONCE = {"cpu": 2**26, "cuda": 2**28}  # bytes of the scores of some rows, and of what is made of them
BESIDE = 2**23  # of these bytes, what other things take
MOST_ROWS = 384  # by more the products gain nothing


class Pass:
    """A pass over all rows: their values, and the gradients of Σ scale·loss or, with slopes, of ⟨slopes, values⟩.

    `needs` tells which of the request's tensors want a gradient; none for values alone.
    """

    def __init__(self, request: Request, needs: list[bool], *, scale: float | Tensor = 1.0, slopes: Tensor | None = None) -> None:
        self.request, self.scale, self.slopes = request, scale, slopes
        self.needs = needs or [False] * len(request.tensors)
        rest = iter(self.needs)
        of_hidden, of_weight = next(rest), next(rest)
        of_bias = request.bias is not None and next(rest)
        self.of_tau = isinstance(request.tau, Tensor) and next(rest)
        self.differentiates = any(needs)
        self.by_kernel = request.is_by_kernel(needs)
        self.in_place = self.by_kernel and request.how.of_map and is_native(request.hidden)
        weight, bias = request.weight.detach(), None if request.bias is None else request.bias.detach()
        self.layer = layer_of(weight, bias, request.unit)
        self.of_layer = LayerGradients.of(request.hidden.detach(), self.layer, (of_hidden, of_weight, of_bias))
        rows, device = sizes(request.hidden)[0], request.hidden.device
        self.values = torch.zeros((1 + len(request.outputs), rows), dtype=torch.float64, device=device)
        self.others = {
            name: torch.zeros_like(value, dtype=torch.float64)
            for name, value in {"τ": request.tau, **request.options}.items()
            if isinstance(value, Tensor)
        }

    def spans(self) -> Iterator[slice]:
        """The rows of each part, as many as memory is for."""
        request = self.request
        rows, classes = sizes(request.batch.rows)
        classes = request.classes_at_once or classes
        copies = 12 if request.classes_at_once else 1 if self.in_place else 3 if self.by_kernel else 10
        copies += (request.softcap is not None) + self.of_tau
        if request.outputs:
            copies += 8 if loss_of_log(request.map[0]) is not None else 16  # those of float64
        copies += request.centres + 2 if request.centres > 1 else 0
        room = AT_ONCE.get(request.hidden.device.type, AT_ONCE["cuda"]) - BESIDE
        if request.unit:  # what made the hidden states of length 1 is kept for the way back
            room = max(room // 4, room - 4 * request.hidden.numel() * request.dtype.itemsize)
        most = MOST_ROWS if classes > MOST_ROWS else room
        numbers = copies * max(classes, 1) + 3 * sizes(request.hidden)[1]  # packed rows, and sums of their gradients
        some = request.rows_at_once or max(1, min(most, room // (numbers * request.dtype.itemsize)))
        return (slice(begin, min(begin + some, rows)) for begin in range(0, rows, some))

    def run(self) -> Pass:
        memory: dict[str, Tensor] = {}
        with unrounded(self.request.hidden):
            for span in self.spans():

                def room(name: str, columns: int, rows: int = span.stop - span.start) -> Tensor:
                    if name not in memory:  # the first part is the largest
                        memory[name] = self.request.hidden.new_empty((rows, columns), dtype=self.request.dtype)
                    return memory[name][:rows]

                self._add(span, room)
            self.of_layer.finish()
        return self

    def gradients(self) -> Iterator[Tensor]:
        """By those of the request's tensors that need one, in the dtype that they want."""
        of_layer = self.of_layer
        found = [of_layer.hidden, of_layer.weight, *([] if self.request.bias is None else [of_layer.bias]), *self.others.values()]
        for value, of, needed in zip(found, self.request.tensors, self.needs, strict=True):
            if needed:
                yield wanted(value, of)

    def _add(self, span: slice, room: Callable[[str, int], Tensor]) -> None:
        """The scores of some rows, and what comes of them; then, from the last to the first, the derivatives."""
        request = self.request
        part = request.part(span)
        part = part.of([value.detach() for value in part.tensors])
        if request.classes_at_once is not None:
            weights = self.scale if self.slopes is None else self.slopes[0, span].double().unsqueeze(-1)
            self.values[0, span] = add_part(part, span.start, self.layer, self.of_layer, weights if self.differentiates else None)
            return
        number = 1.0 if isinstance(part.tau, Tensor) else part.tau
        found = scored(part, self.layer, room)
        x = found.x
        part = part.with_scores(x)
        before = x.clone() if self.of_tau and (self.in_place or part.margin is not None) else x
        g = self._gradient(part, span, number)
        if g is None:
            return
        if isinstance(part.tau, Tensor):
            g.div_(part.tau.to(g.dtype))
        if self.of_tau:
            moments = torch.linalg.vecdot(before.clamp_min_(torch.finfo(g.dtype).min), g)  # where x is −∞, g is 0
            _add_to(self.others["τ"], span, -moments.double().unsqueeze(-1))
        self.of_layer.add(part.hidden, found.back(g), span.start)

    def _gradient(self, part: Request, span: slice, tau: float) -> Tensor | None:
        """∂/∂x of what the values of a part count, over τ; puts the values where they belong."""
        batch, how = part.batch, part.how
        slopes = None if self.slopes is None else self.slopes[:, span]
        if how.double:
            batch = batch.in_double()
        if not self.by_kernel or not is_by_kernel(batch, how):
            return self._composed_gradient(part, span, slopes, tau)
        of_outputs = None
        if part.outputs:
            self.values[1:, span] = torch.stack(composed_outputs(part))
            if self.differentiates:
                of_outputs = _gradient_of_outputs(part, slopes[1:])  # type: ignore[index]
        moved = _move_targets(part)
        scale = (self.scale if slopes is None else 1.0) / tau
        account: dict[str, Any] = {"class_weight": batch.class_weight, "smoothing": batch.smoothing, "scale": scale}
        if self.in_place:
            account |= {"square": part.z_loss, "in_place": True}
        self.values[0, span], g = how.losses(batch.rows, batch.kernel_target(), **account, gradient=self.differentiates)  # type: ignore[misc]
        if g is None:
            return None
        g = g.to(part.dtype)
        if slopes is not None:
            g.mul_(slopes[0].to(g.dtype).unsqueeze(-1))
        if moved is not None:
            index = batch.labels.unsqueeze(-1)  # type: ignore[union-attr]
            of_target = g.gather(-1, index)
            g.scatter_(-1, index, (of_target * moved.slope).to(g.dtype))
            if self.of_tau:  # ψ(c)/τ falls with τ otherwise than by c/τ
                _add_to(self.others["τ"], span, (of_target * (moved.before * moved.slope - moved.after) / part.tau).double())
        return g if of_outputs is None else g.add_(of_outputs.to(g.dtype), alpha=1 / tau)

    def _composed_gradient(self, part: Request, span: slice, slopes: Tensor | None, tau: float) -> Tensor | None:
        """The same by differentiable operations, which also make the gradients by options."""
        if not self.differentiates:
            self.values[:, span] = composed(part)
            return None
        options = {name: value for name, value in part.options.items() if isinstance(value, Tensor)}
        if self.of_tau and part.margin is not None:
            options["τ"] = part.tau  # type: ignore[assignment]
        with torch.enable_grad():
            x, *learnt = (value.detach().requires_grad_() for value in (part.batch.rows, *options.values()))
            named = dict(zip(options, learnt, strict=True))
            values = composed(replace(part, tau=named.pop("τ", part.tau)).with_scores(x, named))
            weights = torch.ones_like(values) * self.scale if slopes is None else slopes.to(values.dtype)
            g, *others = torch.autograd.grad(values, (x, *learnt), weights, allow_unused=True)
        self.values[:, span] = values.detach()
        for name, value in zip(options, others, strict=True):
            if value is not None:
                _add_to(self.others[name], span, value.double())
        return torch.zeros_like(x) if g is None else g / tau


def _move_targets(part: Request) -> Moved | None:
    """Gives the scores of labels their margin."""
    if part.margin is None:
        return None
    return move_labels(part.batch.rows, part.batch.labels.unsqueeze(-1), part.tau, part.margin)  # type: ignore[union-attr]


def _gradient_of_outputs(part: Request, slopes: Tensor) -> Tensor:
    """∂/∂x of ⟨slopes, outputs⟩ of a part, slopes [outputs, rows]: as autograd has it, which operations do not have."""
    total = torch.zeros_like(part.batch.rows)
    for output, slope in zip(part.outputs, slopes, strict=True):
        slope = slope if part.batch.ignored is None else slope.masked_fill(part.batch.ignored, 0.0)
        total += GRADIENTS[output](part, slope.unsqueeze(-1))
    return total


def _gradient_of_entropy(part: Request, slope: Tensor) -> Tensor:
    map, params = part.map
    x, values = part.batch.rows, list(class_params(part.batch, map, params).values())
    p = compute(map, x, 1.0, None, values)
    of_p = torch.where(p > 0, -(p.log() + 1), 0.0) * slope.to(p.dtype)
    return pull(map, p, of_p, x if keeps_scores(map, x.dtype) else None, 1.0, None, values)


def _gradient_of_log_prob(part: Request, slope: Tensor) -> Tensor:
    index = part.batch.labels.unsqueeze(-1)  # type: ignore[union-attr]
    if loss_of_log(part.map[0]) is not None:
        map, params = part.map
        p = compute(map, part.batch.rows, 1.0, None, list(class_params(part.batch, map, params).values()))
        slope = slope.to(p.dtype).masked_fill(part.batch.rows.gather(-1, index) == -math.inf, 0.0)
        likely = p.gather(-1, index)
        lack = 1 - likely
        if map.properties.mass == "one":  # near 1 it has the digits of the others
            lack = torch.where(likely > 0.5, p.scatter_(-1, index, 0.0).sum(-1, keepdim=True), lack)
        return (p * -slope).scatter_(-1, index, slope * lack)
    map, z, params = in_double(part)
    values = list(params.values())
    p = compute(map, z, 1.0, None, values)
    likely = p.gather(-1, index)
    of_p = torch.zeros_like(p).scatter_(-1, index, torch.where(likely > 0, slope.double() / likely, 0.0))
    return pull(map, p, of_p, z if keeps_scores(map, z.dtype) else None, 1.0, None, values)


def _gradient_of_z_loss(part: Request, slope: Tensor) -> Tensor:
    """2zV p, as often as the row counts."""
    map, z, params = in_double(part)
    p = compute(map, z, 1.0, None, list(params.values()))
    each = counted(part, 2 * part.z_loss * conjugate(map, z, p, params), z) if part.z_loss else torch.zeros_like(z[:, 0])
    return torch.where(p == 0, 0.0, p * each.unsqueeze(-1) * slope)


GRADIENTS = {"log_prob": _gradient_of_log_prob, "entropy": _gradient_of_entropy, "z_loss": _gradient_of_z_loss}


def _add_to(total: Tensor, span: slice, values: Tensor) -> None:
    """Adds numbers of some rows to one a row, or to one of all."""
    part = of_rows(total, span)
    part += values.sum_to_size(part.shape)
