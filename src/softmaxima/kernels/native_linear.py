"""What native libraries do with linear layers: scores, and their derivatives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from softmaxima.kernels.interface import find_function, run, threads
from softmaxima.kernels.layout import DTYPES, address_of
from softmaxima.kernels.structures import LINEAR, LINEAR_BACKWARD, Linear, LinearBackward


class Layer(NamedTuple):
    """A linear layer: contiguous tensors of one dtype, and factors of each class in double: of its products, and of its weight."""

    weight: Tensor  # [classes, features]
    bias: Tensor | None = None  # [classes]
    scales: Tensor | None = None  # s [classes]
    powers: Tensor | None = None  # of 2 [classes, 1], by which rows of extreme norms have come near to 1

    def fields(self, hidden: Tensor, scores: Tensor, tau: float = 1.0) -> Linear:
        classes, features = self.weight.shape
        return Linear(
            dtype=DTYPES[self.weight.dtype],
            rows=hidden.shape[0],
            classes=classes,
            features=features,
            threads=threads(),
            hidden=hidden.data_ptr(),
            weight=self.weight.data_ptr(),
            scales=address_of(self.scales),
            bias=address_of(self.bias),
            tau=tau,
            scores=scores.data_ptr(),
        )


def linear_scores(hidden: Tensor, layer: Layer, tau: float, out: Tensor) -> None:
    """out = (s ⊙ (hidden weightᵀ) + bias)/τ [rows, classes], as the layer is computed in, and so is hidden [rows, features]."""
    run(find_function("linear_scores"), LINEAR(*layer.fields(hidden, out, tau)))


def linear_backward(
    hidden: Tensor,
    layer: Layer,
    g: Tensor,
    *,
    hidden_grad: Tensor | None,
    weight_grad: Tensor | None,
    bias_grad: Tensor | None,
    adds: bool,
) -> None:
    """The derivatives of ⟨g, s ⊙ (hidden weightᵀ) + bias⟩, all of the dtype that is computed in; zeros in g cost next to nothing.

    Those by weight and bias are added to what is there, where it `adds`.
    """
    own = LinearBackward(int(adds), *(address_of(x) for x in (hidden_grad, weight_grad, bias_grad)))
    run(find_function("linear_backward"), LINEAR_BACKWARD(*layer.fields(hidden, g), *own))
