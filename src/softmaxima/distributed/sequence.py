"""Tensors of a sequence whose places are shared among ranks: gathered, or passed round a ring, and their gradients on the way back.

Each rank knows what every rank reads, so that nothing is sent to who reads it not, and all know who sends what at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor, check_dim
from softmaxima.base.public import public
from softmaxima.distributed.agreement import alike
from softmaxima.distributed.layouts import Spans, check_layout, spans_of
from softmaxima.distributed.ranks import Group, Ranks, outside_the_graph, ranks_of


@public
@outside_the_graph
def unshard(shard: Tensor, dim: int = -2, *, layout: str = "balanced", group: Group = None) -> Tensor:
    """The whole sequence, of whose places along `dim` every rank has those at `places`; the same on every rank.

    Args:
        shard: this rank's part. All axes but `dim` are the same on every rank. In the contiguous layout parts may be of any length.
        dim, layout, group: the axis of places, and as of `places`.

    Raises:
        RanksError on every rank, where shapes or dtypes differ, the lengths are not those of the layout, or one does not
            answer within the group's timeout.

    Cost: one all-gather of the longest part. The gradient is what those of all ranks add up to, one message from each to each, and
    has a derivative of its own.
    """
    name = "distributed.unshard"
    ranks = ranks_of(name, group)
    with ranks.telling(name):
        layout, x = check_layout(name, layout), as_tensor(name, "shard", shard)
        axis = check_dim(name, dim, x.ndim)
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    same = alike({"shape": rest, "dim": axis, "dtype": x.dtype, "layout": layout}, learning={"shard": x})
    agreement = ranks.agree(name, x.shape[axis], same)
    every = [[True] * ranks.size] * ranks.size
    parts = Parts(name, ranks, spans_of(name, "places", agreement, layout), every)
    with ranks.working(name):
        (whole,) = parts.gathered(x.movedim(axis, -1).unsqueeze(-1))
    return whole.squeeze(-1).movedim(-1, axis)


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts that the ranks have of tensors [..., places, m], some of one dtype."""

    name: str
    ranks: Ranks
    spans: Sequence[Spans]
    reads: Sequence[Sequence[bool]]  # whether a rank, the first index, reads the part of another

    def length(self, rank: int) -> int:
        return sum(span.length for span in self.spans[rank])

    def gathered(self, *own: Tensor, is_same: bool = False) -> tuple[Tensor, ...]:
        """The tensors with all places in order, by one all-gather of the parts; differentiable any number of times.

        The gradient is what those of all ranks add up to, or, where all ranks make the same of the tensors, that of each.
        """
        return _Gathered.apply(self, is_same, *own)

    # Round a ring ----------------------------------------------------------------------------------------------------------------

    def passed(
        self, own: Sequence[Tensor], visit: Callable[[int, list[Tensor]], list[Tensor] | None], pulls: torch.dtype | None = None
    ) -> list[Tensor]:
        """Shows each rank the parts that it reads, one after the other, its own first: `visit(whose, tensors)`.

        A part goes from rank to rank as far as someone reads it, and is on its way while it is visited. With `pulls` a visit gives
        its gradients, of that dtype, which go the same way one step later; from the last who reads the part they go home, and those
        of this rank's part are returned.
        """
        ranks, name = self.ranks, self.name
        left, right = (ranks.rank - 1) % ranks.size, (ranks.rank + 1) % ranks.size
        part, slopes_next, home, settle = flat(own), None, None, _nothing
        for step in range(ranks.size):
            whose, following = (ranks.rank - step) % ranks.size, (left - step) % ranks.size
            is_here, goes, comes = step == 0 or self._goes(whose, step - 1), self._goes(whose, step), self._goes(following, step)
            arriving = self._empty(part, own, following) if comes else None
            comes_in = [] if arriving is None else [(arriving, left)]
            wait = ranks.start(name, [(part, right)] if goes else [], comes_in, part.device)
            added = None
            if is_here and self.reads[ranks.rank][whose]:
                added = visit(whose, unflat(part, own, self.length(whose)))
            wait()
            if pulls is not None:
                settle()  # the gradients that came with the part are here
                slopes = slopes_next
                if added is not None:
                    slopes = flat(added) if slopes is None else slopes + flat(added)
                elif slopes is None and is_here:
                    slopes = self._empty(part, own, whose, pulls).zero_()
                sends, receives, slopes_next = [], [], None
                if step == 0 and not goes:
                    home = slopes
                elif slopes is not None:
                    sends.append((slopes, right if goes else whose))
                if comes:
                    slopes_next = self._empty(part, own, following, pulls)
                    receives.append((slopes_next, left))
                if step > 0 and self._goes(ranks.rank, step - 1) and not self._goes(ranks.rank, step):
                    home = self._empty(part, own, ranks.rank, pulls)
                    receives.append((home, (ranks.rank + step) % ranks.size))
                settle = ranks.start(name, sends, receives, part.device)
            part = part if arriving is None else arriving
        settle()
        return [] if home is None else unflat(home, own, self.length(ranks.rank))

    def _goes(self, whose: int, step: int) -> bool:
        """Whether the part of a rank goes on from where it is after so many steps: someone further on reads it."""
        size = self.ranks.size
        return self.length(whose) > 0 and any(self.reads[(whose + later) % size][whose] for later in range(step + 1, size))

    def _empty(self, like: Tensor, own: Sequence[Tensor], whose: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for the part of a rank."""
        count = sum(x.shape[:-2].numel() * x.shape[-1] for x in own) * self.length(whose)
        return like.new_empty(count, dtype=like.dtype if dtype is None else dtype)


def _nothing() -> None:
    pass


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one dtype as one message."""
    return torch.cat([x.reshape(-1) for x in tensors])


def unflat(message: Tensor, like: Sequence[Tensor], length: int) -> list[Tensor]:
    """The tensors of a message, each as `like` but for so many places."""
    shapes = [torch.Size((*x.shape[:-2], length, x.shape[-1])) for x in like]
    pieces = message.split([shape.numel() for shape in shapes])
    return [x.view(shape) for x, shape in zip(pieces, shapes, strict=True)]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Parts, is_same: bool, *own: Tensor) -> tuple[Tensor, ...]:
        ctx.parts, ctx.is_same = parts, is_same
        longest = max(map(parts.length, range(parts.ranks.size)))
        with parts.ranks.working(parts.name):
            padded = [torch.nn.functional.pad(x, (0, 0, 0, longest - x.shape[-2])) for x in own]
            messages = parts.ranks.gather(parts.name, flat(padded))
        pieces: list[list[tuple[int, Tensor]]] = [[] for _ in own]
        for message, spans in zip(messages, parts.spans, strict=True):
            for of_one, x in zip(pieces, unflat(message, own, longest), strict=True):
                of_one += [(span.place, x[..., span.own, :]) for span in spans]
        return tuple(torch.cat([x for _, x in sorted(of_one, key=lambda piece: piece[0])], -2) for of_one in pieces)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return None, None, *_Returned.apply(ctx.parts, ctx.is_same, *slopes)


class _Returned(torch.autograd.Function):
    """What all ranks have for the places of this one, added up, or the same of each: tensors of all places to those of own ones."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, is_same: bool, *whole: Tensor) -> tuple[Tensor, ...]:
        ctx.parts, ctx.is_same = parts, is_same
        ranks, rank = parts.ranks, parts.ranks.rank
        others = [other for other in range(ranks.size) if other != rank and not is_same]
        with ranks.working(parts.name):
            of = [[torch.cat([x[..., span.whole, :] for span in spans], -2) for x in whole] for spans in parts.spans]
            sends = [(flat(of[other]), other) for other in others if parts.length(other) and parts.reads[rank][other]]
            comes = [
                (torch.empty_like(flat(of[rank])), other) for other in others if parts.length(rank) and parts.reads[other][rank]
            ]
            ranks.start(parts.name, sends, comes, whole[0].device)()
        wide = torch.promote_types(whole[0].dtype, torch.float32)
        total = sum((x.to(wide) for x, _ in comes), flat(of[rank]).to(wide))
        return tuple(x.to(whole[0].dtype) for x in unflat(total, whole, parts.length(rank)))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return None, None, *_Gathered.apply(ctx.parts, ctx.is_same, *slopes)
