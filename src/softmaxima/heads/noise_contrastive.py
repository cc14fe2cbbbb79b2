r"""Noise-contrastive estimation: tell each label from m classes that were drawn from a known Q.

    L = −log σ(Δ(t)) − Σ_i log σ(−Δ(c_i)),     Δ(c) = s_c − log z − log(m Q(c)),     s = (W h + b)/τ

Δ(c) is the logarithm of the odds that c is the label and no draw. The gradient −(1 − σ(Δ(t))) ∇s_t + Σ_i σ(Δ(c_i)) ∇s_{c_i} has a
mean that tends to Σ_c e^{s_c}/z ∇s_c − ∇s_t as m grows: to the gradient of the cross-entropy where z = Σ_c e^{s_c}.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import check_value
from softmaxima.base.cosines import unrounded
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.tracing import sizes
from softmaxima.heads.candidates import Drawing, as_drawing
from softmaxima.heads.labelled import as_labelled
from softmaxima.heads.sampling_head import SamplingHead
from softmaxima.lse.softplus import softplus

FINITE = (lambda z: abs(z) < math.inf, "finite")


@public
def noise_contrastive_loss(
    hidden: Any,
    weight: Tensor,
    target: Any,
    *,
    samples: int,
    sampler: Any,
    bias: Tensor | None = None,
    log_z: float | Tensor = 0.0,
    shared: bool = True,
    temperature: float | Tensor = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    sparse: bool = False,
    generator: Randomness = None,
) -> Any:
    """Noise-contrastive estimation of a linear layer, `−log σ(Δ_t) − Σ_i log σ(−Δ_{c_i})`, in nats.

    Δ_c = s_c − log z − log(m Q(c)), s = (W h + b)/τ. Least, for every m, where e^{s_c}/z are the labels' own probabilities: the
    layer learns to be normalised, and s_c − log z is a logarithm of a probability without a sum over the classes. A draw that is
    the target counts as noise, as it must.

    Args:
        samples: m, how many are drawn with replacement for each row.
        log_z: log z, a number or a tensor that broadcasts to (…), which may require a gradient. 0 leaves it to the bias.
        The others: as for `sampled_softmax_loss`.

    Returns:
        A scalar, or one value a row, of hidden's dtype: a sum over m + 1 terms, and no estimate of the cross-entropy.

    Raises, cost: as `sampled_softmax_loss`. Sources: Gutmann and Hyvärinen (2010); Mnih and Teh (2012), arXiv:1206.6426.

    >>> import torch, softmaxima as sm
    >>> hidden, weight, target = torch.ones(2, 3), torch.zeros(10, 3), torch.tensor([0, 9])
    >>> sm.noise_contrastive_loss(hidden, weight, target, samples=1, sampler="uniform", log_z=2.302585)
    tensor(1.3863)
    """
    name = "noise_contrastive_loss"
    labelled = as_labelled(name, hidden, weight, target, bias, temperature, ignore_index, reduction)
    drawing = as_drawing(name, labelled, samples, sampler, shared, sparse, generator)
    return contrastive_loss(drawing, check_value(name, "log_z", log_z, *FINITE))


def contrastive_loss(drawing: Drawing, log_z: float | Tensor) -> Any:
    """The target's odds and those of its negatives."""
    labelled, rows, level = drawing.labelled, drawing.labelled.rows, log_z
    if isinstance(level, Tensor):
        try:
            level = level.to(rows.hidden).expand(rows.shape).reshape(-1)
        except RuntimeError:
            raise ValueError(f"{drawing.name}: log_z must broadcast to the rows' shape {rows.shape}, got {sizes(level)}") from None
    with unrounded(rows.hidden):
        found = drawing.candidates()
        count = math.log(drawing.samples)
        target_odds = found.target - (found.log_q_target + count).to(found.target.dtype) - level
        odds = found.negatives - (found.log_q + count).to(found.negatives.dtype)
        odds = odds - (level.unsqueeze(-1) if isinstance(level, Tensor) else level)
        return labelled.reduce(softplus(-target_odds) + softplus(odds).sum(-1))


@public
class NoiseContrastive(SamplingHead):
    """A linear layer of very many classes with `noise_contrastive_loss`; in eval mode the loss is the exact cross-entropy.

    Args:
        log_z: log z, a number, a tensor, or an `nn.Parameter` that learns; None: log(classes), that of scores of 0.
        The others: as of `SampledSoftmax`.

    Shapes: as `SampledSoftmax`; log_prob and predict are exact, and normalised whatever log_z is.

    Raises:
        TypeError, ValueError or IndexError as `noise_contrastive_loss` does.

    >>> import torch, softmaxima as sm
    >>> head = sm.NoiseContrastive(16, 1000, samples=20, sampler="uniform", log_z=torch.nn.Parameter(torch.tensor(7.0)))
    >>> loss = head(torch.randn(8, 16), torch.arange(8))
    >>> loss.backward()
    >>> head.log_z.grad.shape, head.log_prob(torch.randn(8, 16)).exp().sum(-1).allclose(torch.ones(8))
    (torch.Size([]), True)
    """

    loss = staticmethod(contrastive_loss)

    def __init__(
        self,
        in_features: int,
        classes: int,
        samples: int,
        sampler: Any = "log_uniform",
        *,
        bias: bool = True,
        log_z: float | Tensor | None = None,
        shared: bool = True,
        temperature: float | Tensor | nn.Module = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        sparse: bool = False,
        generator: Randomness = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        name = type(self).__name__
        level = check_value(name, "log_z", math.log(check_count(name, "classes", classes)) if log_z is None else log_z, *FINITE)
        super().__init__(
            in_features, classes, samples, sampler, bias=bias, generator=generator, device=device, dtype=dtype, shared=shared,
            sparse=sparse, temperature=temperature, ignore_index=ignore_index, reduction=reduction, log_z=level,
        )  # fmt: skip
