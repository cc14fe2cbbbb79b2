"""Losses of a linear layer whose classes are shared among ranks: each has the hidden states of all rows, and its own classes.

The scores of some rows at a time make the states of all rows, which one message merges; the gradient takes the scores once more,
under the merged state. So no rank holds the scores of all rows, and no message is of the size of scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.cosines import unrounded
from softmaxima.base.numbers import check_flag
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.tracing import sizes
from softmaxima.distributed.kept import once, save, saved
from softmaxima.distributed.labels import here
from softmaxima.distributed.losses import RowLosses, Scores, alike_of_batch, bind_to, check_constants, per_row
from softmaxima.distributed.partial import some_classes
from softmaxima.distributed.ranks import Group, Ranks, outside_the_graph, ranks_of, summed
from softmaxima.heads.labelled import slices
from softmaxima.heads.linear_loss import as_layer, as_request, check_z_loss
from softmaxima.heads.margin_softmax import as_cosines
from softmaxima.heads.passes import AT_ONCE, BESIDE, MOST_ROWS
from softmaxima.heads.products import LayerGradients, layer_of, wanted
from softmaxima.heads.request import Request, of_rows
from softmaxima.heads.scores import Moved, Scored, move_labels, scored
from softmaxima.kernels.native_linear import Layer
from softmaxima.losses.finding import find_loss
from softmaxima.losses.parts import all_rows


@public
@outside_the_graph
def linear_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    group: Group = None,
    loss: str | tuple[str, Any] = "cross_entropy",
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    class_weight: Tensor | None = None,
    reduction: str = "mean",
    z_loss: float = 0.0,
    chunk: int | str = "auto",
    reduce_hidden: bool = True,
) -> Tensor:
    """`sm.linear_loss` of a layer of whose classes every rank of a group has some, in the order of ranks, in nats.

    L = Σ_i ℓ((s_{i0}, …, s_{i,R−1}), y_i) / Σ_i w_i,    s_{ir} = c·tanh((W_r h_i + b_r)/c)/τ,    r one of R ranks,

    with the loss ℓ and the weights w_i that it gives to rows, and c = ∞ without `softcap`.

    Args:
        hidden: h (…, features), the same rows on every rank.
        weight: W (own classes, features), of this rank's classes: any number of them, and none.
        target: labels (…), which count the classes of all ranks, the same on every rank; or probabilities (…, own classes).
        group: a process group, a mesh of one axis, or None for all ranks.
        bias, class_weight: of own classes.
        reduce_hidden: whether the gradient by hidden is summed over the ranks, as Megatron's vocabulary-parallel layers do: hidden
            is the same everywhere, and each rank's classes add to its gradient. False leaves each rank its own part, for hidden
            states that come by a collective whose backward pass sums, such as the all-gather of sequence parallelism. The gradient
            by a temperature is summed in any case.
        The others: as of `sm.linear_loss`, the same on every rank; a temperature may require grad, options of the loss may not.

    Returns:
        The loss, the same to the last bit on every rank, in hidden's dtype: of no axes, or (…) by reduction="none". The gradients
        by weight and bias are of own classes.

    Raises:
        TypeError or ValueError for what `sm.linear_loss` refuses, and for a loss without a form in parts, and RanksError on the
        other ranks then. RanksError on every rank, as of `shared_loss`. There is no second derivative.

    Scores are in float32, or in float64 where hidden is; states are float64, and gradients sums in the dtype of scores, which are
    rounded once.

    Cost: for N rows and D features one all-gather of 4N numbers in float64 for cross-entropy, of up to 2N and 64 candidates a row
    for a map with a threshold (all candidates where one has more), and one all-reduce of N·D numbers in the backward pass. Of n own
    classes 2NnD operations forward and 6NnD backward, for the scores are made twice. Memory: `chunk`, 64 MiB, beside gradients and
    what is sent. Source: Shoeybi et al. (2019), arXiv:1909.08053, for the parallelism.
    """
    name = "distributed.linear_loss"
    ranks = ranks_of(name, group)
    with ranks.telling(name):
        states, layer, more = as_layer(name, hidden, weight, bias, temperature, softcap, z_loss)
        asked = _Asked(loss, ignore_index, label_smoothing, class_weight, reduction, chunk, reduce_hidden)
        head = _checked(name, ranks, asked, states, layer, target, more)
    agreement = ranks.agree(name, head.classes, head.alike(sizes(states)[:-1]))
    with ranks.working(name):
        return head.evaluate(agreement, sizes(states)[:-1]).to(states.dtype)


@public
@outside_the_graph
def margin_softmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    group: Group = None,
    kind: str = "arcface",
    margin: float | tuple[float, float, float] = 0.5,
    scale: float | Tensor = 64.0,
    centres: int = 1,
    loss: str | tuple[str, Any] = "cross_entropy",
    samples: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    class_weight: Tensor | None = None,
    reduction: str = "mean",
    chunk: int | str = "auto",
    reduce_hidden: bool = True,
    generator: Randomness = None,
) -> Tensor:
    r"""`sm.margin_softmax_loss` of the vectors of very many classes, of which every rank of a group has some, in nats.

    L = ℓ(s, t),    s_c = scale · cos(h, W_c) of the classes c of all ranks, with the margin of `kind` at the label t.

    Args:
        hidden: h (…, features), the same rows on every rank.
        weight: (own classes · centres, features), of this rank's classes: any number of them, and none.
        target: labels (…), which count the classes of all ranks, the same on every rank.
        samples: how many of its classes each rank takes (partial FC): all that are labels of the batch, and others to make up that
            number, one at least, drawn without replacement. None for all.
        generator: of these draws: a torch.Generator, a NumPy one or a seed, of this rank.
        The others: as of `linear_loss` here and of `sm.margin_softmax_loss`.

    With `samples`, of a rank with n classes of which b are labels, each other class is taken with the probability
    π = (samples − b)/(n − b), and counts 1/π times: L = log Σ_c e^{x_c}/π_c − x_t, π = 1 for labels. The sum is an unbiased
    estimate of that over all classes, and with samples ≥ n it is that sum. L itself is too small on average, to first order by half
    the relative variance of the sum. It is for cross-entropy without label smoothing.

    Returns:
        The loss, as that of `linear_loss` here. The gradient by weight is of own classes, that by scale of all.

    Raises:
        As `linear_loss` here; and ValueError for `samples` with another loss than cross-entropy, or with label smoothing.

    Cost: as of `linear_loss` here, over the classes that are taken. The gradient by weight is as large as that, 0 for the others.
    Sources: An et al. (2022), "Killing two birds with one stone", arXiv:2203.15565, whose partial FC counts each class once;
    Horvitz and Thompson (1952) for the weights.
    """
    name = "distributed.margin_softmax_loss"
    ranks = ranks_of(name, group)
    with ranks.telling(name):
        states, layer, labels, more = as_cosines(name, hidden, weight, target, kind, margin, scale, centres)
        asked = _Asked(loss, ignore_index, label_smoothing, class_weight, reduction, chunk, reduce_hidden)
        head = _checked(name, ranks, asked, states, layer, labels, more)
        drawing = None if samples is None else some_classes(name, head.request, samples, generator)
    agreement = ranks.agree(name, head.classes, head.alike(sizes(states)[:-1], samples=samples))
    with ranks.working(name):
        if drawing is not None:
            request, agreement, log_rates = drawing.draw(agreement, ranks.rank)
            head = replace(head, request=request, ignore_index=-1, log_rates=log_rates)
        return head.evaluate(agreement, sizes(states)[:-1]).to(hidden.dtype)


class _Asked(NamedTuple):
    """Arguments that all of these have."""

    loss: Any
    ignore_index: Any
    label_smoothing: Any
    class_weight: Any
    reduction: Any
    chunk: Any
    reduce_hidden: Any


def _checked(name: str, ranks: Ranks, asked: _Asked, states: Tensor, layer: Tensor, target: Any, more: dict[str, Any]) -> Head:
    found, options = find_loss(name, asked.loss)
    check_constants(name, options)
    reduces = check_flag(name, "reduce_hidden", asked.reduce_hidden)
    if isinstance(asked.chunk, (tuple, list)):
        raise ValueError(f"{name}: chunk must be a number of rows, got {asked.chunk!r}; classes come in parts here, one a rank")
    request = as_request(
        name, (found, options), states, layer, target, class_weight=asked.class_weight, ignore_index=asked.ignore_index,
        label_smoothing=asked.label_smoothing, reduction=asked.reduction, chunk=asked.chunk, shared=True, **more,
    )  # fmt: skip
    bind_to(request.batch, found, request.options, asked.ignore_index)
    check_z_loss(name, request)
    return Head(name, ranks, request, asked.ignore_index, reduces)


@dataclass(frozen=True, eq=False)
class Head:
    """A layer of own classes, and a loss of its scores and those of the other ranks."""

    name: str
    ranks: Ranks
    request: Request
    ignore_index: int
    reduces: bool  # whether the gradient by hidden is that of all ranks
    log_rates: Tensor | None = None  # log π [classes] of classes that were taken with the probability π, whose scores are x − log π

    @property
    def classes(self) -> int:
        return sizes(self.request.weight)[0] // self.request.centres

    def alike(self, rows: tuple[int, ...], **more: Any) -> dict[str, str]:
        """What must be the same on all ranks, where rows came in this shape."""
        request = self.request
        options = {
            "rows": rows, "features": sizes(request.hidden)[1], "dtype": request.weight.dtype, "loss": request.loss,
            **request.options, "1/scale" if request.unit else "temperature": request.tau, "softcap": request.softcap,
            "z_loss": request.z_loss, "centres": request.centres, "margin": request.margin, "reduce_hidden": self.reduces, **more,
        }  # fmt: skip
        learning = {"hidden": request.hidden, "temperature": request.tau}
        return alike_of_batch(request.batch, self.ignore_index, options, {"bias": request.bias}, **learning)

    def evaluate(self, agreement: Any, shape: tuple[int, ...]) -> Tensor:
        """The reduced loss, or one value a row in this shape, in the dtype of scores."""
        request = self.request
        bound = bind_to(request.batch, request.loss, request.options, self.ignore_index, z_loss=request.z_loss)
        losses = RowLosses.of(self.name, self.ranks, agreement, bound, request.batch, self.ignore_index)
        if (some := losses.counting()) is not None:
            own = replace(self, request=request.part(some)).evaluate(agreement, some.shape)
            return all_rows(own, some, shape) if request.batch.reduction == "none" else own
        value = _LayerLoss.apply(self, losses, request.hidden, request.weight, request.bias, request.tau)
        return value.reshape(shape) if request.batch.reduction == "none" else value

    def of(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, tau: Any) -> Head:
        """The same of these tensors, without their graphs."""
        plain = [value.detach() if isinstance(value, Tensor) else value for value in (hidden, weight, bias, tau)]
        named = dict(zip(("hidden", "weight", "bias", "tau"), plain, strict=True))
        return replace(self, request=replace(self.request, **named))

    def layer(self) -> Layer:
        request = self.request
        return layer_of(request.weight, request.bias, request.unit)

    def parts(self, losses: RowLosses, layer: Layer) -> Iterator[_Scores]:
        """The scores of own classes, some rows at a time, in the memory of those before."""
        request, memory, batch = self.request, {}, self.request.batch
        labels: Any = batch.labels if batch.ignored is None else batch.labels.masked_fill(batch.ignored, -1)  # type: ignore[union-attr]
        for span in slices(len(request.hidden), self._at_once(losses)):

            def room(what: str, columns: int, rows: int = span.stop - span.start) -> Tensor:
                if what not in memory:  # the first part is the largest
                    memory[what] = request.hidden.new_empty((rows, columns), dtype=request.dtype)
                return memory[what][:rows]

            part = request.part(span)
            found, moved = scored(part, layer, room), None
            if request.margin is not None and self.classes:
                hit, place = (value.unsqueeze(-1) for value in here(labels[span], None, losses.agreement, self.ranks.rank))
                moved = _Labels(place, move_labels(found.x, place, part.tau, request.margin, hit))
            if self.log_rates is not None:
                found.x.sub_(self.log_rates)
            yield _Scores(span, part, found, moved)

    def _at_once(self, losses: RowLosses) -> int:
        """Rows, as many as memory is for."""
        request, size = self.request, self.request.dtype.itemsize
        copies = 4 if losses.is_by_kernels(request.hidden, request.dtype) else 96 // size  # of float64
        copies += (request.softcap is not None) + (request.centres + 2 if request.centres > 1 else 0)
        room = AT_ONCE.get(request.hidden.device.type, AT_ONCE["cuda"]) - BESIDE
        most = MOST_ROWS if self.classes > MOST_ROWS else room
        numbers = copies * max(self.classes, 1) + 3 * max(sizes(request.hidden)[1], 1)
        return request.rows_at_once or max(1, min(most, room // (numbers * size)))


class _Labels(NamedTuple):
    place: Tensor  # [rows, 1]
    moved: Moved


class _Scores(NamedTuple):
    """Scores of some rows."""

    span: slice
    part: Request
    scored: Scored
    labels: _Labels | None  # those that have a margin


class _LayerLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, head: Head, losses: RowLosses, hidden: Tensor, weight: Tensor, bias: Tensor | None, tau: Any) -> Tensor:
        own = head.of(hidden, weight, bias, tau)
        layer = own.layer()
        scores: Scores = lambda: ((each.span, each.scored.x) for each in own.parts(losses, layer))
        with unrounded(hidden):
            found = losses.evaluate(scores)
        value, scale = found.reduced(head.request.batch.reduction)
        ctx.kept = losses.kept()
        ctx.head, ctx.losses = head, losses
        save(ctx, hidden, weight, bias, tau, scale, found)
        return value.to(head.request.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        head, losses = ctx.head, ctx.losses
        once(head.name, "take the loss of whole rows")
        with head.ranks.working(head.name):
            ctx.kept.check(head.name)
            hidden, weight, bias, tau, scale, found = saved(ctx)
            by_hidden, by_weight, by_bias, by_tau = ctx.needs_input_grad[2:]
            own = head.of(hidden, weight, bias, tau)
            layer = own.layer()
            by_rows = per_row(upstream[0], scale, found, head.request.batch.reduction == "none")
            of_layer = LayerGradients.of(own.request.hidden, layer, (by_hidden, by_weight, by_bias))
            of_tau = torch.zeros_like(tau, dtype=torch.float64) if by_tau else None
            with unrounded(hidden):
                for span, part, scores, labels in own.parts(losses, layer):
                    g = losses.slope(span, scores.x, found, by_rows[span] / part.tau)
                    if of_tau is not None:  # where x is −∞, g is 0
                        x = scores.x if own.log_rates is None else scores.x + own.log_rates.to(g.dtype)
                        moments = torch.linalg.vecdot(x.clamp_min(torch.finfo(g.dtype).min), g).double().unsqueeze(-1)
                        some = of_rows(of_tau, span)
                        some -= moments.sum_to_size(some.shape)
                    if labels is not None:
                        g.scatter_(-1, labels.place, (g.gather(-1, labels.place) * labels.moved.slope).to(g.dtype))
                    of_layer.add(part.hidden, scores.back(g), span.start)
                of_layer.finish()
        dtype, of_hidden = head.request.dtype, of_layer.hidden
        whole, of_tau = summed(head.ranks, head.name, (of_hidden if head.reduces else None, of_tau), dtype)
        of_hidden = whole if head.reduces else of_hidden
        found_of: Any = ((of_hidden, hidden), (of_layer.weight, weight), (of_layer.bias, bias), (of_tau, tau))
        return None, None, *(None if value is None else wanted(value, of) for value, of in found_of)
