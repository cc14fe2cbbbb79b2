"""A loss of a linear layer of some rows and some classes at a time, by the map's states of parts of a row, in float64.

The scores are computed anew for each pass over the classes: one for the targets, those that make the map's state, and one for the
gradient. It is for layers of which not even the scores of a few rows are to be held, and what shards of classes are held to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.tracing import sizes
from softmaxima.heads.products import LayerGradients, put_scores
from softmaxima.heads.request import Request
from softmaxima.kernels.native_linear import Layer
from softmaxima.losses.parts import Chunk, bind


def add_part(part: Request, begin: int, layer: Layer, total: LayerGradients, factor: Tensor | float | None) -> Tensor:
    """The losses of some rows, from `begin` on; adds the gradients of ⟨factor, losses⟩, of none where that is None."""
    batch, classes, step = part.batch, sizes(layer.weight)[0], part.classes_at_once
    spans = [slice(first, min(first + step, classes)) for first in range(0, classes, step)]  # type: ignore[operator, arg-type]
    tau: Any = part.tau
    form, is_soft = part.loss.row_form, batch.soft is not None
    own = bind(batch.name, form, classes, is_soft, batch.smoothing, -1, tau, part.options, part.z_loss)
    target: Any = batch.kernel_target()

    def scores(span: slice) -> Tensor:
        """Before τ."""
        some = Layer(layer.weight[span], None if layer.bias is None else layer.bias[span])
        x = torch.empty((len(part.hidden), span.stop - span.start), dtype=part.dtype, device=part.hidden.device)
        put_scores(part.hidden, some, 1.0, x)
        return x.double() if part.softcap is None else (x.double() / part.softcap).tanh() * part.softcap

    def chunks() -> Iterator[Chunk]:
        for span in spans:
            weight = None if batch.class_weight is None else batch.class_weight[span]
            yield own.rows.part(scores(span), first=span.start), target if batch.soft is None else target[:, span], weight

    values, gradients = own.evaluate(chunks, own.targets(chunks))
    if factor is None:
        return values
    for span, g in zip(spans, gradients, strict=True):
        g = g * factor
        if part.softcap is not None:
            g = g * (1 - (scores(span) / part.softcap).square())
        total.add_classes(part.hidden, g.to(part.dtype), begin, span)
    total.is_empty = False
    return values
