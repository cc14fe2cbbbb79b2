r"""softmax: p_i = exp(x_i) / Σ_j exp(x_j) = argmax_{q∈Δ} ⟨q, x⟩ + H(q)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType, as_map_scores, like_input
from softmaxima.base.dtensors import is_dtensor
from softmaxima.base.public import public
from softmaxima.base.rows import normalise_exp, xlogx
from softmaxima.engine.blocks import exponential
from softmaxima.engine.contract import Cost, Map, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule


def reference(x: Tensor) -> Tensor:
    e = x.double().exp()
    return e / e.sum(-1, keepdim=True)


def sensitivity(p: Tensor, z: None, /, **params: object) -> tuple[Tensor, Tensor]:
    return p, p


def shannon(p: Tensor) -> Tensor:
    """Ω(p) = Σ p log p."""
    return xlogx(p).sum(-1)


BLOCKS = exponential(lambda part, total: total.shares(part.x, part.tau), lambda total, tau: (total.anchor, total.log_mass()))

SOFTMAX = register(
    Map(
        name="softmax",
        reference=reference,
        forward=normalise_exp,
        sensitivity=sensitivity,
        regulariser=shannon,
        cost=Cost(reads=2),
        kernel=Kernel("softmax", "softmax_backward", "softmax_loss"),
        blocks=BLOCKS,
        formula="exp(x_i) / Σ exp(x_j)",
        source="Boltzmann (1868); Bridle (1990)",
        with_sink=("elastic_softmax", "beta"),
    )
)


@public
def softmax(
    x: Array,
    dim: int | Sequence[int] = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
    _stacklevel: Any = 3,
) -> Array:
    """Softmax, `p_i = exp(x_i/τ) / Σ_j exp(x_j/τ)`.

    Args:
        x: scores of any shape.
        dim: the axis that the probabilities sum to one along, or several that count as one.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.
        where: boolean, broadcasts to x; False (like a score of −∞) gives probability 0 and gradient 0.
        dtype: what x is converted to first, as by torch's function. None keeps the dtype of x; integers become torch's default
            dtype, or float64 for NumPy, as in `logsumexp`.

    Returns:
        Probabilities with the shape, dtype and array kind of x. A row with nothing allowed is all zeros; a row that holds
        NaN or +∞ is NaN. Sums are taken in float64. A constant that can be added to all scores exactly changes p by roundings only.
        Of the largest probability less than about 1e-38, in float64 2e-308, is 0: shares that are subnormal numbers.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: two reads and one write of a row; a temperature costs one more read. It can take the place of torch's:
    `torch.nn.functional.softmax = sm.softmax`, for which `_stacklevel` is taken and not read.

    >>> import numpy as np, softmaxima as sm
    >>> sm.softmax(np.array([2.0, 1.0, 0.1])).round(3)
    array([0.659, 0.242, 0.099])
    """
    return evaluate(SOFTMAX, x, dim, temperature, where, {}, dtype)


@public
class Softmax(MapModule):
    """`softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.Softmax(dim=0)(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0) -> None:
        super().__init__(SOFTMAX, dim, temperature=temperature)


@public
def softmin(
    x: Array,
    dim: int | Sequence[int] = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
    _stacklevel: Any = 3,
) -> Array:
    """Softmin, `p_i = exp(−x_i/τ) / Σ_j exp(−x_j/τ)`: `softmax(−x)`. Here +∞ is the score that gets exactly zero.

    Arguments, errors and cost as for `softmax`.

    >>> import numpy as np, softmaxima as sm
    >>> sm.softmin(np.array([2.0, 1.0, 0.1])).round(3)
    array([0.096, 0.261, 0.643])
    """
    if is_dtensor(x):
        return evaluate(SOFTMIN, -x, dim, temperature, where, {}, dtype)
    scores = as_map_scores(SOFTMIN.name, x, dtype)
    return like_input(evaluate(SOFTMIN, -scores, dim, temperature, where, {}), x)


SOFTMIN = replace(SOFTMAX, name="softmin")  # of scores whose sign is already changed; named in errors


@public
class Softmin(Softmax):
    """`softmin` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.Softmin()(torch.tensor([0.0, float("inf")]))
    tensor([1., 0.])
    """

    def forward(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        return softmin(x, where=where, **self.options)
