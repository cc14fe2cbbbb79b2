r"""perturb_max_loss: E max(x + σε) + Ω(y) − ⟨x, y⟩, the Fenchel–Young loss of perturb-max; ∂L/∂x = p − y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.losses.contract import LossModule
from softmaxima.losses.fenchel_young import fenchel_young, register_named
from softmaxima.maps._noises import NoiseLike, is_noise
from softmaxima.maps._perturb_max_conjugate import with_loss
from softmaxima.maps.perturb_max import PERTURB_MAX


@public
def perturb_max_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    noise: NoiseLike = "normal",
    scale: float | Array = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """The loss of perturb-max, `E max_j (x_j + σ ε_j) + Ω(y) − ⟨x, y⟩`: convex, and zero exactly where perturb_max(x) = y.

    Ω is the conjugate of the first term: −σ E ε of a label, and of other targets what Newton's method finds. With Gumbel noise
    this is KL(y ‖ softmax(x/σ)) times σ. With uniform noise it is exactly zero once x_t exceeds every other score by σ.

    Args:
        noise, scale: as for `perturb_max`; one of the six noises with a name of one word, or their distributions.
        The others and errors: as for `fenchel_young_loss`.

    Cost for labels: that of `perturb_max`. For rows of target probabilities, or with smoothing, some ten steps of Newton's method,
    each of a `perturb_max` and some ten products with its m·n rates, in memory for those of a few rows. Targets that require grad
    take n² numbers a row: they are for some hundred classes. As the probabilities, the loss is right within some 1e-13 in absolute
    terms, times σ: one that is smaller has no digits.
    Source: Berthet et al. (2020), arXiv:2002.08676.

    >>> import torch, softmaxima as sm
    >>> sm.perturb_max_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]), reduction="none")
    tensor([0.0503, 0.5642])
    """
    if is_noise(noise):
        with_loss(noise)
    params = {"noise": noise, "scale": scale}
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return fenchel_young("perturb_max_loss", PERTURB_MAX, params, *shared)


@public
class PerturbMaxLoss(LossModule):
    """`perturb_max_loss` as a module; give `Positive(1.0)` as the scale to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.PerturbMaxLoss("uniform")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    function = perturb_max_loss

    def __init__(
        self, noise: NoiseLike = "normal", scale: float | Tensor | nn.Module = 1.0, weight: Tensor | None = None, **options: Any
    ) -> None:
        name = type(self).__name__
        held = {p.name: p.held(name, v) for p, v in zip(PERTURB_MAX.params, (noise, scale), strict=True)}
        with_loss(noise)
        super().__init__(weight, **held, **options)


register_named(perturb_max_loss, PerturbMaxLoss, PERTURB_MAX, {"noise": "uniform", "scale": 2.0})
