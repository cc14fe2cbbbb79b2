r"""eps_cross_entropy: L = −log((p_t + ε)/(1 + nε)), p = map(x): a cross-entropy for maps that give exact zeros. Not convex."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.base.arguments import Array
from softmaxima.base.numbers import check_number
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete, is_exporting_to_onnx, sizes
from softmaxima.engine.contract import AnyMap
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, register
from softmaxima.losses.evaluation import Evaluation, evaluated
from softmaxima.losses.fenchel_young import MapLossModule, any_map, class_params, probability_map, with_params
from softmaxima.losses.parts import RowForm
from softmaxima.losses.row_losses import losses_of_p

STEEP = (
    1e-20  # with an ε below so much of a weight w the slope w/(p + ε) may be larger than the numbers of float32, of which p is one
)


def reference(z: Tensor, y: Tensor, map: AnyMap, eps: float, **params: Any) -> Tensor:
    found, values = with_params("eps_cross_entropy", map, params)
    return -torch.special.xlogy(y, (found.reference(z, **values) + eps) / (1 + z.shape[-1] * eps)).sum(-1)


@public
def eps_cross_entropy(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    map: AnyMap = "sparsemax",
    eps: float = 1e-6,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
    **params: Any,
) -> Array:
    """Cross-entropy of any map with ε added to each probability, `−log((p_t + ε)/(1 + nε))`, in nats, at most log(1/ε + n).

    Args:
        map: a registered name, the function of a map or a `Map`.
        eps: ε ≥ 0, finite; of any size in any dtype. With 0 it is −log p_t, and +∞ without gradient where p_t = 0.
        **params: the map's parameters (`order=4`). One whose name is an option here is called `map_…`: `map_eps=0.5` is the ε
            of `map="eps_softmax"`, and `map_empty` that of `map="rectified_softmax"`.
        where: as for `cross_entropy`; n counts the classes that are there.
        The others, errors: as for `cross_entropy`. Cost: the map, and one more read.

    It is not convex, and a target far outside the support gets no gradient: where the map has a Fenchel–Young loss, prefer that.

    >>> import torch, softmaxima as sm
    >>> sm.eps_cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([1]), eps=1e-3)
    tensor(6.9098)
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return evaluated("eps_cross_entropy", evaluation, {"map": map, "eps": eps, **params}, *shared)


def evaluation(batch: Batch, map: AnyMap, eps: float, **params: Any) -> Evaluation:
    eps = _check_eps(batch.name, eps)
    found = probability_map(batch.name, map)
    found, values, absolute = batch.shifted(found, class_params(batch, found, params))

    def composite(batch: Batch) -> Tensor:
        p = batch.probabilities(found, values, absolute)
        return batch.reduce(0.0 - batch.expectation(p, batch.class_weight, lambda p: log_share(p, n, eps)))

    n = batch.classes
    losses = None if absolute else losses_of_p(batch, found, values.values(), partial(_of_p, eps=eps))
    steep = eps < STEEP * _largest(batch.class_weight)
    return Evaluation(losses, composite, tuple(values.values()), wide=True, double=steep)


def log_share(p: Tensor, n: int | Tensor, eps: float) -> Tensor:
    """log((p + ε)/(1 + nε)) ≤ 0; from p = ½ as log1p of −((1 − p) + (n − 1)ε)/(1 + nε), no part of which has another sign.

    p, 1 and ε are all divided by an ε that is above 1, which may be beyond the numbers that p is one of.
    """
    one = 1 / max(1.0, eps)
    eps = min(1.0, eps)
    n = n.to(p.dtype) if isinstance(n, Tensor) else n
    whole, more = one + n * eps, (one - 1) + n * eps
    log_whole = torch.log1p(more) if isinstance(more, Tensor) else math.log1p(more)
    # An optimiser of ONNX takes 1 + nε for 1, and does not divide by it.
    likely = torch.zeros_like(p, dtype=torch.bool) if is_exporting_to_onnx() else p >= 0.5
    low = torch.where(likely, 1.0, p * one + eps)
    possible = low != 0  # also NaN
    unlikely = torch.where(possible, torch.where(possible, low, 1.0).log(), -math.inf) - log_whole
    missing = 1 - torch.where(likely, p, 1.0)
    missing = missing - missing.detach().clamp_max(0.0)  # where p was rounded above 1
    return torch.where(likely, torch.log1p(-(missing * one + (n - 1) * eps) / whole), unlikely)


def _of_p(p: Tensor, n: int | Tensor, eps: float) -> tuple[Tensor, Tensor]:
    eps = _check_eps("eps_cross_entropy", eps)
    return -log_share(p, n, eps), torch.where(p + eps == 0, 0.0, -1 / (p + eps))


def _largest(weight: Tensor | None) -> float:
    """The largest class weight, or 1; that of float32 where a compiler has no number for it."""
    if weight is None or 0 in sizes(weight):
        return 1.0
    return max(1.0, float(weight.detach().max())) if is_concrete(weight) and not is_compiling() else torch.finfo(torch.float32).max


def _check_eps(name: str, eps: Any) -> float:
    return check_number(name, "eps", eps, lambda eps: 0 <= eps < math.inf, "a finite number of at least 0")


@public
class EpsCrossEntropyLoss(MapLossModule):
    """`eps_cross_entropy` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.EpsCrossEntropyLoss("taylor_softmax", eps=0.0, order=2)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.6931)
    """

    function = eps_cross_entropy

    def __init__(self, map: AnyMap = "sparsemax", eps: float = 1e-6, weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(map, weight, {"eps": _check_eps(type(self).__name__, eps)}, **options)


register(
    Loss(
        "eps_cross_entropy",
        eps_cross_entropy,
        EpsCrossEntropyLoss,
        evaluation,
        reference,
        row_form=RowForm(any_map("eps"), of_p=_of_p),
        examples=(
            {"map": "sparsemax"},
            {"map": "taylor_softmax", "eps": 0.0},
            {"map": "softmax", "eps": 0.01},
            {"map": "eps_softmax", "map_eps": 0.5},
        ),
    )
)
