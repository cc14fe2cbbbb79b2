r"""topk_softmax: the softmax over Ω_k, the k highest scores, and 0 elsewhere. Of equal scores the lowest index counts as higher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.monoid import log_sum
from softmaxima.base.public import public
from softmaxima.base.rows import highest, normalise_exp
from softmaxima.base.tracing import is_keeping
from softmaxima.engine.blocks import Blocks, Part, State, places
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps.softmax import sensitivity


def reference(x: Tensor, k: int) -> Tensor:
    order = x.double().sort(dim=-1, descending=True, stable=True).indices
    kept = torch.zeros_like(x, dtype=torch.bool).scatter(-1, order[..., :k], True)
    e = torch.where(kept, x.double().exp(), 0.0)
    return e / e.sum(-1, keepdim=True)


def first_of_ties(ties: Tensor, count: Tensor) -> Tensor:
    """The `count` lowest indices of each row where `ties` holds."""
    return ties & (ties.to(torch.int64).cumsum(-1) <= count)


def topk_mask(z: Tensor, k: int) -> Tensor:
    """True at exactly k scores of each row (fewer if the row is shorter), and at NaN."""
    if not is_keeping() and k >= z.shape[-1]:
        return torch.ones_like(z, dtype=torch.bool)
    lowest = highest(z, k)[0].amin(-1, keepdim=True)
    above = z > lowest
    return above | first_of_ties(z == lowest, k - above.sum(-1, keepdim=True)) | z.isnan()


def forward(z: Tensor, k: int) -> Tensor:
    return normalise_exp(z.masked_fill(~topk_mask(z, k), -math.inf))


class Selected(NamedTuple):
    """The k highest scores of a part in order, and their places in the row: of equal scores the first."""

    x: Tensor
    place: Tensor


def selected(x: Tensor, place: Tensor, k: int) -> Selected:
    """The k highest of scores that stand anywhere in their rows."""
    x, place = _narrowed(x, place, k) if x.shape[-1] > 4 * k else (x, place)
    by_place = place.argsort(-1)
    ordered = x.gather(-1, by_place).sort(dim=-1, descending=True, stable=True)
    return Selected(ordered.values[..., :k], place.gather(-1, by_place).gather(-1, ordered.indices)[..., :k])


def _narrowed(x: Tensor, place: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """2k scores with the k highest among them, and their places: far less work than to sort a long row."""
    nowhere = torch.iinfo(place.dtype).max
    top = x.topk(k, -1)  # of scores that equal the lowest any
    lowest = top.values[..., -1:]
    first = torch.where(x == lowest, place, nowhere).topk(k, -1, largest=False).values
    higher = ~(top.values <= lowest)  # NaN too
    values = torch.where(higher, top.values, -math.inf), torch.where(first < nowhere, lowest, -math.inf)
    return torch.cat(values, -1), torch.cat((torch.where(higher, place.gather(-1, top.indices), nowhere), first), -1)


def _begin(part: Part, known: State | None, k: int) -> State:
    return selected(part.x, places(part), k)


def _merge(a: State, b: State, tau: float | Tensor, k: int) -> State:
    return selected(torch.cat((a[0], b[0]), -1), torch.cat((a[1], b[1]), -1), k)


def _finish(part: Part, state: State, k: int) -> Tensor:
    x, place = (values[..., :k] for values in state)  # which may have been sent with room for more
    kept = part.x == math.inf
    if x.shape[-1]:
        lowest = x[..., -1:]
        kept = (part.x > lowest) | ((part.x == lowest) & (places(part) <= place[..., -1:]))
    return log_sum(x, part.tau).shares(part.x.masked_fill(~kept, -math.inf), part.tau)


def _conjugate(state: State, tau: float | Tensor, k: int) -> tuple[Tensor, Tensor]:
    total = log_sum(state[0], tau)
    return total.anchor, total.log_mass().masked_fill(total.top == math.inf, math.nan)  # of +∞ any number of others is left


BLOCKS = Blocks(_begin, _merge, _finish, conjugate=_conjugate)

TOPK_SOFTMAX = register(
    Map(
        name="topk_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="k",
                default=10,
                examples=(1, 3, 10),
                valid=lambda k: k >= 1,
                domain="an int of at least 1",
                kind=int,
            ),
        ),
        properties=Properties(sparse=True, continuous=False),
        cost=Cost(reads=3),
        kernel=Kernel("topk_softmax", "softmax_backward"),
        blocks=BLOCKS,
        formula="softmax over the k highest",
        source="Sun et al. (2021), arXiv:2112.12433",
    )
)


@public
def topk_softmax(
    x: Array,
    *,
    k: int = 10,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Softmax over the k highest scores, and exactly zero for the others: sparse softmax, or top-k sampling's distribution.

    Args:
        k: how many scores to keep, exactly, ties included: of equal scores the lowest indices are kept. At least the row's
            length gives softmax.
        x, dim, temperature, where, dtype: as for `softmax`.

    It jumps where the k-th score changes hands. Errors as for `softmax`. Cost: a selection (never a sort) and two reads.

    >>> import numpy as np, softmaxima as sm
    >>> sm.topk_softmax(np.array([1.0, 2.0, 1.0, 0.0]), k=2).round(4)
    array([0.2689, 0.7311, 0.    , 0.    ])
    """
    return evaluate(TOPK_SOFTMAX, x, dim, temperature, where, {"k": k}, dtype)


@public
class TopKSoftmax(MapModule):
    """`topk_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.TopKSoftmax(k=1)(torch.tensor([1.0, 1.0]))
    tensor([1., 0.])
    """

    def __init__(self, k: int = 10, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0) -> None:
        super().__init__(TOPK_SOFTMAX, dim, temperature=temperature, k=k)
