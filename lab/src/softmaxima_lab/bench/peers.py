"""What people use today for the same thing: what a competent user writes with torch, eager or compiled, the packages entmax, scipy,
Liger-Kernel and adasplash, and beside a GPU our own CPU path.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from softmaxima.kernels import native
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS
from softmaxima_lab.bench.case import FORWARD
from softmaxima_lab.bench.maps import Problem, Shape, Subject

PARTIAL_SORT = 100  # the entmax package's k: faster than its full sort where the support is smaller, and exact anyway
COMPILED, OUR_CPU = "torch.compile", "softmaxima CPU"

# The packages that take part on each device, in the order of their columns, and what is imported of each.
PACKAGES = {"cpu": ("torch", "entmax", "scipy"), "cuda": ("torch", COMPILED, "entmax", "liger", "adasplash", OUR_CPU)}
MODULES = {"scipy": "scipy.special", "liger": "liger_kernel.transformers.functional", COMPILED: "torch", OUR_CPU: "softmaxima"}


@dataclass(frozen=True, eq=False)
class Peer:
    """The same thing by another package: `function(given)`; of a loss the mean over rows."""

    label: str
    package: str
    function: Callable[[Problem], Any]
    differentiable: bool = True
    above: int = 0  # takes part where rows have more scores: below, it is what another peer is
    overwrites: bool = False  # its scores
    waits: bool = False  # for a number from the device, so that no graph can hold it
    last_axis: bool = False  # knows no other


def missing(package: str) -> str:
    """Why a package cannot take part; nothing if it can."""
    if package == OUR_CPU and not native.AVAILABLE:
        return "its native library is not there"
    try:
        importlib.import_module(MODULES.get(package, package))
    except ModuleNotFoundError:
        return "it is not installed"
    except Exception as error:  # an import may fail in any way, and the others can still be measured
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


def _torch(function: Callable[..., Any]) -> tuple[Peer, ...]:
    """function(x, axis, *operands, **options), of a loss function(x, target, **options), with the options of the subject."""
    return (Peer("torch", "torch", lambda given: function(given.x, *given.arguments, **given.options)),)


def _by_default(name: str) -> dict[str, Any]:
    """The options of a map or a loss."""
    return (MAPS[name] if name in MAPS else LOSSES[name]).complete({})


def _scipy(function: Callable[..., Any]) -> tuple[Peer, ...]:
    """function(scipy.special, x, axis, *operands), on the NumPy arrays over the same memory."""

    def run(given: Problem) -> Any:
        from scipy import special

        axis, *operands = given.arguments
        return function(special, given.x.numpy(), axis, *(operand.numpy() for operand in operands))

    return (Peer("scipy", "scipy", run, differentiable=False),)


def _entmax(function: Callable[..., Tensor]) -> tuple[Peer, ...]:
    """function(entmax, x, axis or target, k): with k = None, the package's default, and with the partial sort that it offers."""

    def peer(label: str, k: int | None, above: int) -> Peer:
        def run(given: Problem) -> Tensor:
            import entmax

            return function(entmax, given.x, *given.arguments, k)

        return Peer(label, "entmax", run, above=above, waits=k is not None)

    return (peer("entmax", None, 0), peer(f"entmax k={PARTIAL_SORT}", PARTIAL_SORT, PARTIAL_SORT))


def _entmax_bisect(function: Callable[[Any, Problem], Tensor]) -> tuple[Peer, ...]:
    """function(entmax, given), one of those that bisect."""

    def run(given: Problem) -> Tensor:
        import entmax

        return function(entmax, given)

    return (Peer("entmax", "entmax", run),)


def _alpha(given: Problem) -> Tensor:
    """α as a tensor: a number would be copied to a GPU at each call, which no graph can hold."""
    alpha = given.options["alpha"]
    return alpha if isinstance(alpha, Tensor) else given.x.new_full((), alpha)


def _halvings(given: Problem) -> int:
    """As many as the package recommends for the precision."""
    return 50 if given.x.dtype == torch.float64 else 24


def _entmax_of_alpha(entmax: Any, given: Problem) -> Tensor:
    return entmax.entmax_bisect(given.x, _alpha(given), *given.arguments, _halvings(given))


def _normmax(entmax: Any, given: Problem, alpha: float) -> Tensor:
    return entmax.normmax_bisect(given.x, given.x.new_full((), alpha), *given.arguments, _halvings(given))


def _budget(entmax: Any, given: Problem, budget: float) -> Tensor:
    (axis,) = given.arguments  # the package's gradient wants the last one to be −1
    return entmax.budget_bisect(given.x, given.x.new_full((), budget), axis if axis < given.x.ndim - 1 else -1, _halvings(given))


def _liger(name: str, *, on_labels: bool = False) -> tuple[Peer, ...]:
    """Of a loss, which overwrites its scores by its gradient and waits for the number of labels that count."""

    def run(given: Problem) -> Tensor:
        return getattr(importlib.import_module(MODULES["liger"]), name)(given.x, *(given.arguments if on_labels else ()))

    return (Peer("Liger", "liger", run, overwrites=on_labels, waits=on_labels, last_axis=True),)


def _adasplash(alpha: float | None = None) -> tuple[Peer, ...]:
    """For α, or the number that the subject has."""

    def run(given: Problem) -> Tensor:
        return importlib.import_module("adasplash").triton_entmax(given.x, alpha=alpha or given.options["alpha"])

    return (Peer("adasplash", "adasplash", run, last_axis=True),)


def of_target(values: Tensor, target: Tensor) -> Tensor:
    """[rows, classes], [rows] → [rows]"""
    return values.gather(1, target[:, None]).squeeze(1)


def _with_sink(x: Tensor, axis: int, level: float) -> Tensor:
    """x with one more score in each row."""
    sink = x.new_full((), level).expand([1 if d == axis else size for d, size in enumerate(x.shape)])
    return torch.cat((x, sink), axis)


def _elastic(x: Tensor, axis: int, beta: float) -> Tensor:
    return _with_sink(x, axis, beta).softmax(axis).narrow(axis, 0, x.shape[axis])


def _elastic_cross_entropy(x: Tensor, target: Tensor, beta: float) -> Tensor:
    return F.cross_entropy(_with_sink(x, 1, beta), target)


def _over_sum(f: Tensor, axis: int) -> Tensor:
    return f / f.sum(axis, keepdim=True)


def _topk(x: Tensor, axis: int, k: int) -> Tensor:
    values, order = x.topk(min(k, x.shape[axis]), axis)
    return torch.zeros_like(x).scatter(axis, order, values.softmax(axis))


def _topp(x: Tensor, axis: int, p: float) -> Tensor:
    ordered, order = x.softmax(axis).sort(axis, descending=True)
    kept = ordered * (ordered.cumsum(axis) - ordered < p)
    return torch.zeros_like(x).scatter(axis, order, _over_sum(kept, axis))


def _minp(x: Tensor, axis: int, p: float) -> Tensor:
    probable = x.softmax(axis)
    return torch.where(probable < p * probable.amax(axis, keepdim=True), -math.inf, x).softmax(axis)


def _surrogate(x: Tensor, target: Tensor) -> Tensor:
    residual = x.detach().softmax(1)  # p − y
    residual.scatter_add_(1, target[:, None], residual.new_full((1, 1), -1.0).expand(len(target), 1))
    return (residual * x).sum() / len(target)


def _focal(x: Tensor, target: Tensor, gamma: float) -> Tensor:
    cost = F.cross_entropy(x, target, reduction="none")
    return ((1 - (-cost).exp()) ** gamma * cost).mean()


def _with_margin(x: Tensor, target: Tensor, margin: float, scale: float) -> Tensor:
    penalty = x.new_full((1, 1), -scale * margin).expand(len(target), 1)
    return F.cross_entropy((scale * x).scatter_add(1, target[:, None], penalty), target)


def _am_softmax(x: Tensor, target: Tensor, margin: float, temperature: float) -> Tensor:
    return _with_margin(x, target, margin, 1 / temperature)


def _with_angle(x: Tensor, target: Tensor, margin: float, scale: float) -> Tensor:
    cosine = x.gather(1, target[:, None])
    moved = (cosine.acos() + margin).cos()
    moved = torch.where(cosine < -math.cos(margin), -2 - moved, moved)
    return F.cross_entropy((scale * x).scatter(1, target[:, None], scale * moved), target)


def _of_share(entmax: Any, x: Tensor, target: Tensor, k: int | None, map: str, eps: float) -> Tensor:
    p = of_target(getattr(entmax, map)(x, 1, k), target)
    return -((p + eps) / (1 + x.shape[1] * eps)).log().mean()


# By the title of a subject, or by its name.
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
    "softmax": _torch(torch.softmax) + _scipy(lambda special, x, axis: special.softmax(x, axis)) + _liger("liger_softmax"),
    "log_softmax": _torch(torch.log_softmax) + _scipy(lambda special, x, axis: special.log_softmax(x, axis)),
    "sparsemax": _entmax(lambda entmax, x, axis, k: entmax.sparsemax(x, axis, k)) + _liger("liger_sparsemax") + _adasplash(2.0),
    "entmax15": _entmax(lambda entmax, x, axis, k: entmax.entmax15(x, axis, k)) + _adasplash(1.5),
    "entmax": _entmax_bisect(_entmax_of_alpha) + _adasplash(),
    "entmax alpha=one a row": _entmax_bisect(_entmax_of_alpha),
    "normmax": _entmax_bisect(partial(_normmax, **_by_default("normmax"))),
    "budget_sparsemax": _entmax_bisect(partial(_budget, **_by_default("budget_sparsemax"))),
    "elastic_softmax": _torch(partial(_elastic, **_by_default("elastic_softmax"))),
    "eps_softmax": _torch(partial(_elastic, beta=math.log(_by_default("eps_softmax")["eps"]))),
    "rectified_softmax": _torch(lambda x, axis: torch.where(x < 0, -math.inf, x).softmax(axis)),
    "taylor_softmax": _torch(lambda x, axis: _over_sum((x + 1).square() + 1, axis)),  # the same as of half that, 1 + x + x²/2
    "topk_softmax": _torch(partial(_topk, **_by_default("topk_softmax"))),
    "topp_softmax": _torch(partial(_topp, **_by_default("topp_softmax"))),
    "minp_softmax": _torch(partial(_minp, **_by_default("minp_softmax"))),
    "proportional": _torch(lambda x, axis: _over_sum(x.sigmoid(), axis)),
    "cross_entropy": _torch(F.cross_entropy) + _liger("liger_cross_entropy", on_labels=True),
    "elastic_cross_entropy": _torch(partial(_elastic_cross_entropy, **_by_default("elastic_cross_entropy"))),
    "sparsemax_loss": _entmax(lambda entmax, x, target, k: entmax.sparsemax_loss(x, target, k).mean()),
    "entmax15_loss": _entmax(lambda entmax, x, target, k: entmax.entmax15_loss(x, target, k).mean()),
    "entmax_loss": _entmax_bisect(
        lambda entmax, given: entmax.entmax_bisect_loss(given.x, *given.arguments, _alpha(given), _halvings(given)).mean()
    ),
    "fenchel_young_loss": _torch(F.cross_entropy),  # softmax's, and the entropy of a label is 0
    "eps_cross_entropy": _entmax(partial(_of_share, **_by_default("eps_cross_entropy"))),
    "soft_accuracy_loss": _torch(lambda x, target: -of_target(x.softmax(1), target).mean()),
    "surrogate_loss": _torch(_surrogate),
    "focal_loss": _torch(partial(_focal, **_by_default("focal_loss"))),
    "sparse_softmax_loss": _torch(
        lambda x, target, k: (x.topk(min(k, x.shape[1]), 1).values.logsumexp(1) - of_target(x, target)).mean()
    ),
    "am_softmax_loss": _torch(partial(_am_softmax, **_by_default("am_softmax_loss"))),
    "cosface": _torch(partial(_with_margin, **_by_default("cosface"))),
    "arcface": _torch(partial(_with_angle, **_by_default("arcface"))),
}


def stated_peers(subject: Subject) -> tuple[Peer, ...]:
    """Those of all packages on all devices."""
    return PEERS.get(subject.title, PEERS.get(subject.name, ()))


def peers_of(subject: Subject, shape: Shape, packages: Iterable[str], direction: str) -> Iterator[Peer]:
    """The peers that take part on a shape, of the packages that are there."""
    is_last = shape.axis == len(shape.sizes) - 1
    for peer in _all_peers(subject, tuple(packages)):
        if shape.n > peer.above and (is_last or not peer.last_axis) and (peer.differentiable or direction == FORWARD):
            yield peer


def _all_peers(subject: Subject, packages: tuple[str, ...]) -> Iterator[Peer]:
    stated = stated_peers(subject)
    yield from (peer for peer in stated if peer.package in packages)
    if COMPILED in packages:
        torch.compiler.reset()  # after some shapes a function would not be compiled again
        for peer in stated:
            if peer.package == "torch":
                yield Peer(COMPILED, COMPILED, torch.compile(peer.function, dynamic=False))
    if OUR_CPU in packages:
        yield Peer(OUR_CPU, OUR_CPU, subject, waits=True)
