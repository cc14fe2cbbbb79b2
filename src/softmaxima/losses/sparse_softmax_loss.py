r"""sparse_softmax_loss: L = log Σ_{i∈Ω} exp(x_i) − x_t, Ω the k highest scores or the nucleus of mass p; ∂L/∂x = p_Ω − y."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.numbers import as_number
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.engine.contract import Map
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, LossModule, register
from softmaxima.losses.evaluation import Evaluation, reduced
from softmaxima.losses.parts import RowForm
from softmaxima.losses.row_losses import losses_given
from softmaxima.lse.logsumexp import logsumexp
from softmaxima.maps.log_softmax import LOG_SOFTMAX
from softmaxima.maps.topk_softmax import TOPK_SOFTMAX, topk_mask
from softmaxima.maps.topp_softmax import TOPP_SOFTMAX, topp_mask

KERNEL = "selected_loss"


def reference(z: Tensor, y: Tensor, k: int | None, p: float | None) -> Tensor:
    kept = (TOPK_SOFTMAX.reference(z, k) if p is None else TOPP_SOFTMAX.reference(z, p)) > 0
    log_sum = torch.where(kept, z, -math.inf).exp().sum(-1, keepdim=True).log()
    return (y * (log_sum - z)).sum(-1)


@public
def sparse_softmax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    k: int | None = None,
    p: float | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """The loss of top-k and top-p softmax, `log Σ_{i∈Ω} exp(x_i) − x_t`; the target need not be in Ω.

    It is at least 0, finite also where the target's probability is exactly zero, and pulls such a target up. Only scores in Ω and
    the target's have a gradient, so it suits fine-tuning better than training from scratch.

    Args:
        k: Ω is the k highest scores; or
        p: Ω is the fewest highest scores with softmax mass of at least p. Give exactly one of the two.
        The others, errors: as for `cross_entropy`. Cost: a selection and two reads.

    Source: Sun et al. (2021), arXiv:2112.12433.

    >>> import torch, softmaxima as sm
    >>> sm.sparse_softmax_loss(torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([2]), k=1)
    tensor(3.)
    """
    name = "sparse_softmax_loss"
    k, p = _check_choice(name, k, p, weight)
    map, theta = (TOPK_SOFTMAX, k) if k is not None else (TOPP_SOFTMAX, p)
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return reduced(name, map, (theta,), evaluation, {"k": k, "p": p}, *shared, given=KERNEL)


def evaluation(batch: Batch, k: int | None, p: float | None) -> Evaluation:
    k, p = _check_choice(batch.name, k, p)
    map, theta = (TOPK_SOFTMAX, k) if k is not None else (TOPP_SOFTMAX, p)

    def composite(batch: Batch) -> Tensor:
        z = batch.scores - row_maximum(batch.scores)
        z = z * torch.ones_like(z[..., :1]).masked_fill(z.isnan().any(-1, keepdim=True), math.nan)  # and its slopes
        kept = topk_mask(z.detach(), k) if k is not None else topp_mask(z.detach(), p)  # type: ignore[arg-type]
        log_sum = logsumexp(z, keepdim=True, where=kept)
        log_sum = log_sum.masked_fill(log_sum == -math.inf, 0.0).masked_fill(log_sum == math.inf, math.nan)
        log_p = LOG_SOFTMAX(z.masked_fill(~kept, -math.inf))  # whose slope has its digits where p is near 1
        return batch.reduce(batch.cost(torch.where(kept, log_p, z - log_sum)))

    return Evaluation(losses_given(batch, KERNEL, map, (theta,)), composite, wide=True)


def _check_choice(name: str, k: Any, p: Any, third: Any = None) -> tuple[int | None, float | None]:
    """(k, p), of which one is None; a number in the `third` place may be meant for it."""
    if (k is None) == (p is None):
        number = as_number(third) if k is None and p is None else None
        own = "k" if isinstance(third, int) and third >= 1 else "p" if number is not None and 0 < number <= 1 else ""
        named = f"; the third place is weight's: write {own}={third}" if own else ""
        raise ValueError(f"{name}: give exactly one of k and p, got k={k} and p={p}{named}")
    of_k, of_p = TOPK_SOFTMAX.params[0], TOPP_SOFTMAX.params[0]
    return None if k is None else of_k.check(name, k), None if p is None else of_p.check(name, p)


@public
class SparseSoftmaxLoss(LossModule):
    """`sparse_softmax_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.SparseSoftmaxLoss(k=1)(torch.tensor([[3.0, 2.0]]), torch.tensor([1]))
    tensor(1.)
    """

    function = sparse_softmax_loss

    def __init__(self, k: int | None = None, p: float | None = None, weight: Tensor | None = None, **options: Any) -> None:
        self.check_names(options)
        k, p = _check_choice(type(self).__name__, k, p)
        super().__init__(weight, k=k, p=p, **options)


def _selection(name: str, options: dict[str, Any]) -> tuple[Map, dict[str, Any], dict[str, Any]]:
    k, p = _check_choice(name, options.get("k"), options.get("p"))
    return (TOPK_SOFTMAX, {"k": k}, {}) if k is not None else (TOPP_SOFTMAX, {"p": p}, {})


register(
    Loss(
        "sparse_softmax_loss",
        sparse_softmax_loss,
        SparseSoftmaxLoss,
        evaluation,
        reference,
        row_form=RowForm(_selection),
        examples=({"k": 3}, {"p": 0.8}),
    )
)
