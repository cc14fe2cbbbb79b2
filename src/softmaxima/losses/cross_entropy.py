r"""cross_entropy: L = −Σ_c y_c log softmax(x)_c = LSE(x) − ⟨x, y⟩, ∂L/∂x = p − y, ∂²L/∂x² = diag(p) − p pᵀ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, LossModule, register
from softmaxima.losses.evaluation import Evaluation, reduced
from softmaxima.losses.parts import RowForm, one_map
from softmaxima.losses.row_losses import losses_of
from softmaxima.maps.log_softmax import LOG_SOFTMAX
from softmaxima.maps.softmax import SOFTMAX


def reference(z: Tensor, y: Tensor) -> Tensor:
    return -torch.special.xlogy(y, SOFTMAX.reference(z)).sum(-1)


@public
def cross_entropy(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """Cross-entropy of softmax, `LSE(x) − x_t` for a label t and `−Σ_c y_c log p_c` for probabilities y, in nats.

    Args:
        input: scores x, (C), (N, C) or (N, C, d…), float64, float32, bfloat16 or float16.
        target: class indices () , (N) or (N, d…), or probabilities of x's shape. Probabilities may require grad.
        weight: one weight w_c a class (C), finite and not negative; of the smoothed target y it makes −Σ_c w_c y_c log p_c. A
            negative one, which torch takes, is refused on purpose: it would reward being wrong without bound, and the mean could be
            over a sum of 0.
        ignore_index: class indices of this value add nothing, and their scores get no gradient.
        reduction: "mean" (over the weights w_t of labels t that are not ignored, smoothed or not; over all rows for probabilities,
            so that it is another number for one-hot rows than for labels where classes have weights), "sum" or "none".
        label_smoothing: ε in [0, 1]; the target becomes (1 − ε) y + ε/C.
        temperature: τ > 0, for the loss of x/τ: a number, a tensor that broadcasts against x with size 1 along the class axis, or a
            module that says one, such as `Temperature`; it may require grad. Any but 1.0 is computed in float64. τ and 1/τ must be
            numbers in the dtype that computes x, from 1.2e-38 to 8.5e37 for float32 and narrower ones, and x/τ one in float64.
        dim: the axis of the classes; of a tuple the axes form one, in that order, whose places labels count. None: where
            `F.cross_entropy` has it, axis 1, or 0 of (C).
        where: a boolean mask that broadcasts against x; a class where it is False is not there, and its score is not read.
            Smoothing is among the others alone, in torch's operations. A target outside costs what one of the score −∞ does.
        empty: what the mean is where nothing counts, "nan", as in torch, or "zero", with a gradient of 0.

    Returns:
        A scalar, or one value a row, of x's dtype and array kind. A score of −∞ never gives NaN: the loss is +∞ if the target
        has that class, with the gradient of the finite terms, and does not know of it otherwise.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Where p_t rounds to 1 the loss and its gradient keep their digits. Probabilities of another dtype do not change that of the
    result. Cost: two reads, and one write for the gradient.

    >>> import torch, softmaxima as sm
    >>> sm.cross_entropy(torch.tensor([[0.0, 1.0], [3.0, 0.0]]), torch.tensor([1, 0]))
    tensor(0.1809)
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return reduced("cross_entropy", SOFTMAX, (), evaluation, {}, *shared)


def evaluation(batch: Batch) -> Evaluation:
    return Evaluation(losses_of(batch, SOFTMAX), composite, of_map=True)


def composite(batch: Batch) -> Tensor:
    return batch.reduce(batch.cost(LOG_SOFTMAX(batch.scores)))


@public
class CrossEntropyLoss(LossModule):
    """`cross_entropy` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.CrossEntropyLoss(reduction="sum")(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    tensor(2.0794)
    """

    function = cross_entropy


register(
    Loss(
        "cross_entropy",
        cross_entropy,
        CrossEntropyLoss,
        evaluation,
        reference,
        map="softmax",
        row_form=RowForm(one_map("softmax")),
    )
)
