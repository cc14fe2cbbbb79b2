"""What people use today for the same thing: what a competent user writes with torch, the entmax package and scipy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from softmaxima.experiments.subjects import Direction, Shape, Subject, of_target

PARTIAL_SORT = 100  # the entmax package's k: faster than its full sort where the support is smaller, and exact anyway


@dataclass(frozen=True)
class Peer:
    """The same thing by another package: `function(x, axis, *operands)`; for a loss `function(x, target)`, the mean over rows."""

    label: str
    package: str
    function: Callable[..., Any]
    differentiable: bool = True
    above: int = 0  # takes part where rows have more scores: below, it is what another peer is


def _torch(function: Callable[..., Any]) -> tuple[Peer, ...]:
    return (Peer("torch", "torch", function),)


def _scipy(function: Callable[..., Any]) -> tuple[Peer, ...]:
    """function(scipy.special, x, axis, *operands), on the NumPy arrays over the same memory."""

    def run(x: Tensor, axis: int, *operands: Tensor) -> Any:
        from scipy import special

        return function(special, x.numpy(), axis, *(operand.numpy() for operand in operands))

    return (Peer("scipy", "scipy", run, differentiable=False),)


def _entmax(function: Callable[[Any, Tensor, Any, int | None], Tensor], sorts: bool = True) -> tuple[Peer, ...]:
    """function(entmax, x, axis or target, k): with k = None, the package's default, and with the partial sort that it offers."""

    def peer(label: str, k: int | None, above: int) -> Peer:
        def run(x: Tensor, second: Any) -> Tensor:
            import entmax

            return function(entmax, x, second, k)

        return Peer(label, "entmax", run, above=above)

    full, partial = peer("entmax", None, 0), peer(f"entmax k={PARTIAL_SORT}", PARTIAL_SORT, PARTIAL_SORT)
    return (full, partial) if sorts else (full,)


def _with_sink(x: Tensor, axis: int, level: float) -> Tensor:
    """x with one more score in each row."""
    sink = x.new_full((), level).expand([1 if d == axis else size for d, size in enumerate(x.shape)])
    return torch.cat((x, sink), axis)


def _elastic(x: Tensor, axis: int, level: float) -> Tensor:
    return _with_sink(x, axis, level).softmax(axis).narrow(axis, 0, x.shape[axis])


def _over_sum(f: Tensor, axis: int) -> Tensor:
    return f / f.sum(axis, keepdim=True)


def _topk(x: Tensor, axis: int) -> Tensor:
    values, order = x.topk(min(10, x.shape[axis]), axis)
    return torch.zeros_like(x).scatter(axis, order, values.softmax(axis))


def _topp(x: Tensor, axis: int) -> Tensor:
    ordered, order = x.softmax(axis).sort(axis, descending=True)
    kept = ordered * (ordered.cumsum(axis) - ordered < 0.9)
    return torch.zeros_like(x).scatter(axis, order, _over_sum(kept, axis))


def _surrogate(x: Tensor, target: Tensor) -> Tensor:
    residual = x.detach().softmax(1)  # p − y
    residual.scatter_add_(1, target[:, None], residual.new_full((1, 1), -1.0).expand(len(target), 1))
    return (residual * x).sum() / len(target)


def _with_margin(x: Tensor, target: Tensor, margin: float, scale: float) -> Tensor:
    penalty = x.new_full((1, 1), -margin).expand(len(target), 1)
    return F.cross_entropy(scale * x.scatter_add(1, target[:, None], penalty), target)


def _with_angle(x: Tensor, target: Tensor) -> Tensor:
    cosine = x.gather(1, target[:, None])
    moved = (cosine.acos() + 0.5).cos()
    moved = torch.where(cosine < -math.cos(0.5), -2 - moved, moved)
    return F.cross_entropy(64 * x.scatter(1, target[:, None], moved), target)


PACKAGES = ("torch", "entmax", "scipy")

PEERS: dict[str, tuple[Peer, ...]] = {
    "logsumexp": _torch(torch.logsumexp) + _scipy(lambda special, x, axis: special.logsumexp(x, axis)),
    "weighted_logsumexp": _torch(lambda x, axis, b: (x + b.log()).logsumexp(axis))
    + _scipy(lambda special, x, axis, b: special.logsumexp(x, axis, b=b)),
    "log_mean_exp": _torch(lambda x, axis: x.logsumexp(axis) - math.log(x.shape[axis])),
    "logcumsumexp": _torch(torch.logcumsumexp),
    "logaddexp": _torch(lambda x, axis, y: torch.logaddexp(x, y)),
    "quantized_logsumexp": _torch(lambda q, axis, scale: (q * scale).logsumexp(axis)),
    "sparsified_logsumexp": _torch(torch.logsumexp),
    "bounds": _torch(torch.logsumexp),
    "state_update": _torch(torch.logsumexp),
    "softmax": _torch(torch.softmax) + _scipy(lambda special, x, axis: special.softmax(x, axis)),
    "log_softmax": _torch(torch.log_softmax) + _scipy(lambda special, x, axis: special.log_softmax(x, axis)),
    "sparsemax": _entmax(lambda entmax, x, axis, k: entmax.sparsemax(x, axis, k)),
    "entmax15": _entmax(lambda entmax, x, axis, k: entmax.entmax15(x, axis, k)),
    "entmax": _entmax(lambda entmax, x, axis, k: entmax.entmax_bisect(x, 1.3, axis, n_iter=50), sorts=False),
    "elastic_softmax": _torch(lambda x, axis: _elastic(x, axis, 0.0)),
    "eps_softmax": _torch(lambda x, axis: _elastic(x, axis, math.log(1e-6))),
    "rectified_softmax": _torch(lambda x, axis: torch.where(x < 0, -math.inf, x).softmax(axis)),
    "taylor_softmax": _torch(lambda x, axis: _over_sum((x + 1).square() + 1, axis)),  # the same as of half that, 1 + x + x²/2
    "topk_softmax": _torch(_topk),
    "topp_softmax": _torch(_topp),
    "proportional": _torch(lambda x, axis: _over_sum(x.sigmoid(), axis)),
    "cross_entropy": _torch(F.cross_entropy),
    "elastic_cross_entropy": _torch(lambda x, target: F.cross_entropy(_with_sink(x, 1, 0.0), target)),
    "sparsemax_loss": _entmax(lambda entmax, x, target, k: entmax.sparsemax_loss(x, target, k).mean()),
    "entmax15_loss": _entmax(lambda entmax, x, target, k: entmax.entmax15_loss(x, target, k).mean()),
    "entmax_loss": _entmax(lambda entmax, x, target, k: entmax.entmax_bisect_loss(x, target, 1.3, 50).mean(), sorts=False),
    "fenchel_young_loss": _torch(F.cross_entropy),  # softmax's, and the entropy of a label is 0
    "eps_cross_entropy": _entmax(
        lambda entmax, x, target, k: -((of_target(entmax.sparsemax(x, 1, k), target) + 1e-6) / (1 + x.shape[1] * 1e-6)).log().mean()
    ),
    "soft_accuracy_loss": _torch(lambda x, target: -of_target(x.softmax(1), target).mean()),
    "surrogate_loss": _torch(_surrogate),
    "sparse_softmax_loss": _torch(
        lambda x, target: (x.topk(min(10, x.shape[1]), 1).values.logsumexp(1) - of_target(x, target)).mean()
    ),
    "am_softmax_loss": _torch(lambda x, target: _with_margin(x, target, 0.35, 30.0)),
    "cosface": _torch(lambda x, target: _with_margin(x, target, 0.35, 64.0)),
    "arcface": _torch(_with_angle),
}


def peers_of(subject: Subject, shape: Shape, packages: Sequence[str], direction: Direction) -> tuple[Peer, ...]:
    """The peers that take part in a row of the result."""
    return tuple(
        peer
        for peer in PEERS.get(subject.name, ())
        if peer.package in packages and shape.n > peer.above and (peer.differentiable or direction == "forward")
    )
