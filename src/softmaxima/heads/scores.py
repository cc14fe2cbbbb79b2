r"""The scores x = c·tanh((W h + b)/c)/τ of some rows, the largest of the centres of a class, and the way back from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from softmaxima.base.tracing import sizes
from softmaxima.heads.margins import Margin
from softmaxima.heads.products import put_scores
from softmaxima.heads.request import Request
from softmaxima.kernels.native_linear import Layer


class Scored(NamedTuple):
    """Scores of some rows, and what their derivative needs; arrays of `products` are written over on the way back."""

    x: Tensor  # [rows, classes]
    products: Tensor  # [rows, classes · centres]
    bent: Tensor | None  # tanh, below a softcap
    chosen: Tensor | None  # the centre of each class

    def back(self, g: Tensor) -> Tensor:
        """∂/∂products of what has ∂/∂(τx) = g, in g's memory where it can be."""
        if self.bent is not None:
            g.mul_(self.bent.square_().neg_().add_(1.0))
        if self.chosen is None:
            return g
        rows, classes = sizes(self.chosen)
        by_centre = self.products.zero_().view(rows, classes, sizes(self.products)[1] // max(classes, 1))
        return by_centre.scatter_(-1, self.chosen.unsqueeze(-1), g.unsqueeze(-1)).view_as(self.products)


def scored(part: Request, layer: Layer, room: Callable[[str, int], Tensor]) -> Scored:
    """The scores of all rows of a part; `room(name, columns)` is memory for them."""
    classes, cap = sizes(layer.weight)[0] // part.centres, part.softcap
    number = 1.0 if isinstance(part.tau, Tensor) else part.tau
    products = x = room("products", classes * part.centres)
    bent = chosen = None
    put_scores(part.hidden, layer, number if cap is None else 1.0, products)
    if part.centres > 1:
        x, chosen = products.view(sizes(products)[0], classes, part.centres).max(-1)
    if cap is not None:
        bent = x.div_(cap).tanh_()
        x = torch.mul(bent, cap, out=room("capped", classes))  # c/τ may be beyond the dtype where x/τ is not
        if number != 1.0:
            x.div_(number)
    if isinstance(part.tau, Tensor):
        x.div_(part.tau.to(x.dtype))
    return Scored(x, products, bent, chosen)


class Moved(NamedTuple):
    """The scores of labels without and with their margin, and the slope of these by those, [rows, 1] each."""

    before: Tensor
    after: Tensor
    slope: Tensor


def move_labels(x: Tensor, place: Tensor, tau: float | Tensor, margin: Margin, hit: Tensor | None = None) -> Moved:
    """Gives the scores x = cos θ/τ at the places [rows, 1] their margin, only where they are `hit`."""
    before = x.gather(-1, place)
    cosine = before * tau
    after, slope = (margin.moved(cosine) / tau).to(x.dtype), margin.slope(cosine)
    if hit is not None:
        after, slope = torch.where(hit, after, before), torch.where(hit, slope, 1.0)
    x.scatter_(-1, place, after)
    return Moved(before, after, slope)
