r"""eps_cross_entropy: L = −log((p_t + ε)/(1 + nε)), p = map(x): a cross-entropy for maps that give exact zeros. Not convex."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima._map import Array, Map
from softmaxima.losses._classification import Loss, LossModule, prepare, register
from softmaxima.losses.fenchel_young import class_params, probability_map


def eps_cross_entropy(
    x: Array,
    target: Any,
    weight: Any = None,
    *,
    map: str | Map = "sparsemax",
    eps: float = 1e-6,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **params: Any,
) -> Array:
    """Cross-entropy of any map with ε added to each probability, `−log((p_t + ε)/(1 + nε))`, in nats, at most log(1/ε + n).

    Args:
        map: a registered name or a `Map`.
        eps: ε ≥ 0. With 0 it is −log p_t, and +∞ without gradient where p_t = 0.
        **params: the map's parameters (`order=4`).
        The others, errors: as for `cross_entropy`. Cost: the map, and one more read.

    It is not convex, and a target far outside the support gets no gradient: where the map has a Fenchel–Young loss, prefer that.

    >>> import torch, softmaxima as sm
    >>> sm.eps_cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([1]), eps=1e-3)
    tensor(6.9098)
    """
    batch = prepare("eps_cross_entropy", x, target, weight, ignore_index, reduction, label_smoothing)
    if not isinstance(eps, (int, float, np.number)) or not 0 <= eps < math.inf:
        raise ValueError(f"{batch.name}: eps must be a finite number of at least 0, got {eps!r}")
    found = probability_map(batch.name, map)
    p = found(batch.scores, **class_params(batch, found, params)) + eps
    positive = p != 0  # True for NaN
    log_p = torch.where(positive, torch.where(positive, p, 1.0).log(), -math.inf) - math.log1p(p.shape[-1] * eps)
    return batch.result(batch.reduce(-batch.weighted_expectation(log_p)))


class EpsCrossEntropyLoss(LossModule):
    """`eps_cross_entropy` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.EpsCrossEntropyLoss("taylor_softmax", eps=0.0, order=2)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.6931)
    """

    function = eps_cross_entropy

    def __init__(self, map: str | Map = "sparsemax", eps: float = 1e-6, weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(weight, map=map, eps=eps, **options)


register(
    Loss(
        "eps_cross_entropy",
        eps_cross_entropy,
        EpsCrossEntropyLoss,
        examples=({"map": "sparsemax"}, {"map": "taylor_softmax", "eps": 0.0}, {"map": "softmax", "eps": 0.01}),
    )
)
