r"""Sampled softmax: the cross-entropy of a linear layer of very many classes, estimated from a few that are drawn from a known Q.

    L = log(e^{s_t} + Ẑ) − s_t,     Ẑ = (1/m′) Σ_{i: c_i≠t} e^{s_{c_i}}/Q′(c_i),     Q′(c) = Q(c)/(1 − Q(t)),     s = (W h + b)/τ

E Ẑ = Σ_{c≠t} e^{s_c}. `corrections.py` derives it, and says how it differs from the usual log-Q correction.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.cosines import unrounded
from softmaxima.base.numbers import check_choice, check_flag
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.heads.candidates import Drawing, as_drawing
from softmaxima.heads.corrections import CORRECTIONS, check_removal, target_correction
from softmaxima.heads.labelled import as_labelled
from softmaxima.heads.sampling_head import SamplingHead
from softmaxima.losses.cross_entropy import cross_entropy


@public
def sampled_softmax_loss(
    hidden: Any,
    weight: Tensor,
    target: Any,
    *,
    samples: int,
    sampler: Any,
    bias: Tensor | None = None,
    correction: str = "positive",
    shared: bool = True,
    remove_hits: bool | None = None,
    temperature: float | Tensor = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    sparse: bool = False,
    generator: Randomness = None,
) -> Any:
    r"""Cross-entropy over all classes of a linear layer, `log Σ_c e^{s_c} − s_t`, estimated from `samples` negatives, in nats.

    L = −log(e^{s_t + a} / (e^{s_t + a} + Σ_i e^{s_{c_i} − log Q(c_i)})), s = (W h + b)/τ, over the drawn negatives c_i ≠ t.

    - "positive": a = log m′ − log(1 − Q(t)), with m′ the number of negatives that are no hits. The target has no correction by its
      own Q: it is there always, and was not drawn. L = log(e^{s_t} + Ẑ) − s_t with Ẑ an estimate of Σ_{c≠t} e^{s_c}, unbiased
      where a negative is left. So L is too small on average, and its gradient is not quite that over all classes, both by O(1/m)
      once m Q(c) > 1 for every class of much probability; below that by as much as the gradient itself.
    - "log_q": a = −log Q(t). With remove_hits=False the loss is least at the labels' own probabilities whatever m is, and the
      gradient is off by O(1/m), from m Q(c) > 1 on as well, and by much where m Q(t) < 1. Without the hits it tends to ∇L/(1 − p_t)
      as m grows, and not to ∇L.
    - "none": a = 0, and no log Q. With remove_hits=False the scores learn log p − log Q whatever m is, but for a constant a row;
      without the hits they learn something else.

    Args:
        hidden: h, (…, features), float64, float32, bfloat16 or float16.
        weight: W, (classes, features), of the dtype of hidden. `bias`: b, (classes).
        target: class indices (…).
        samples: m, how many are drawn with replacement, at least 1.
        sampler: "uniform", "log_uniform" (for classes by falling frequency), a tensor of one weight for each class, a `Sampler`,
            or any object with its `classes`, `log_prob` and `sample`. Weights become tables at each call: `UnigramSampler` makes
            them once.
        shared: one set of negatives for all rows, (m); False: others for each row, (…, m).
        remove_hits: leave out negatives that are the row's target; None: as the correction needs it, True with "positive" and False
            otherwise. A row whose negatives are then none has the loss 0.
        temperature: τ > 0, a number or a tensor that broadcasts to (…, 1).
        ignore_index, reduction: as for `cross_entropy`.
        sparse: give the weight and the bias sparse gradients, as `torch.nn.functional.embedding` does. In half precision these,
            like dense ones, are sums in float32 that are rounded once.
        generator: a torch.Generator, a NumPy one or a seed.

    Returns:
        A scalar, or one value a row, of hidden's dtype. Scores are float32 at least, also under autocast. Log Q is a constant.

    Raises:
        TypeError, ValueError or IndexError, before any work: shapes and dtypes, a target out of range, a sampler that gives a
        target or a class that it drew the probability 0.

    Cost: rows · m scores of rows + m vectors of the weight, or of rows · (m + 1) where negatives are not shared. Of those, beyond
    64 MiB or the weight's own size, parts are read one after the other, and again for the gradient. Without sparse=True the
    gradient has the weight's size. In half precision the vectors of all classes that occur are held in float32, each once. Sources:
    Khrylchenko et al. (2025), arXiv:2507.09331; for "log_q" Bengio and Senécal (2008), and Ma and Collins (2018), arXiv:1809.01812.

    >>> import torch, softmaxima as sm
    >>> hidden, weight, target = torch.ones(2, 3), torch.arange(30.0).reshape(10, 3) / 30, torch.tensor([0, 9])
    >>> sm.sampled_softmax_loss(hidden, weight, target, samples=10_000, sampler="uniform", generator=0)
    tensor(2.6519)
    >>> sm.cross_entropy(hidden @ weight.T, target)
    tensor(2.6492)
    """
    name = "sampled_softmax_loss"
    removes = check_options(name, correction, remove_hits)
    labelled = as_labelled(name, hidden, weight, target, bias, temperature, ignore_index, reduction)
    return corrected_loss(as_drawing(name, labelled, samples, sampler, shared, sparse, generator), correction, removes)


def check_options(name: str, correction: Any, remove_hits: Any) -> bool:
    """Whether hits are removed."""
    check_choice(name, "correction", correction, CORRECTIONS)
    if remove_hits is None:
        return correction == "positive"
    check_removal(name, correction, check_flag(name, "remove_hits", remove_hits))
    return bool(remove_hits)


def corrected_loss(drawing: Drawing, correction: str, remove_hits: bool) -> Any:
    """The cross-entropy of the target, the first, among its negatives."""
    labelled = drawing.labelled
    with unrounded(labelled.rows.hidden):
        found = drawing.candidates()
        target, negatives = found.target, found.negatives
        if correction != "none":
            negatives = negatives - found.log_q.to(negatives.dtype)
        if remove_hits:
            negatives = negatives.masked_fill(found.hits, -math.inf)
        target = target + target_correction(correction, found.log_q_target, (~found.hits).sum(-1)).to(target.dtype)
        scores = torch.cat((target.unsqueeze(-1), negatives), -1)
        return labelled.result(cross_entropy(scores, labelled.first, reduction=labelled.reduction))


@public
class SampledSoftmax(SamplingHead):
    """A linear layer of very many classes with `sampled_softmax_loss`; in eval mode the loss is the exact one, over all classes.

    Args:
        in_features, classes: of the layer, whose parameters and initial values are those of `nn.Linear(in_features, classes)`.
        samples: how many negatives are drawn.
        sampler: "log_uniform", "uniform", "frequency" (learned from the labels as they come), "in_batch" (the batch's own labels),
            a tensor of one weight for each class, or a sampler. In training mode one that has `observe(target)` is told of the
            labels that are not ignored, once all checks of a call have passed.
        bias: whether the layer has one.
        correction, shared, remove_hits, temperature, ignore_index, reduction, sparse: as of `sampled_softmax_loss`. A temperature
            may be an `nn.Parameter`.
        generator: of the draws; a seed makes a generator once.
        device, dtype: of the parameters.

    Shapes: forward(hidden, target) takes (…, in_features) and (…), arrays too, and gives a tensor. log_prob(hidden) gives
    (…, classes), exactly, and predict(hidden, k) the k best classes (…, k), the best first, as the kind of array that hidden is;
    beside what is returned, and a copy of a half-precision layer in float32 where it is to have a gradient, no array of these
    exceeds 64 MiB.

    Raises:
        TypeError, ValueError or IndexError as `sampled_softmax_loss` does.

    >>> import torch, softmaxima as sm
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> head = sm.SampledSoftmax(16, 100_000, samples=64, sparse=True)
    >>> hidden, target = torch.randn(8, 16), torch.arange(8)
    >>> loss = head(hidden, target)
    >>> loss.backward()
    >>> head.weight.grad.layout, head.predict(hidden, k=5).shape
    (torch.sparse_coo, torch.Size([8, 5]))
    """

    loss = staticmethod(corrected_loss)

    def __init__(
        self,
        in_features: int,
        classes: int,
        samples: int,
        sampler: Any = "log_uniform",
        *,
        bias: bool = True,
        correction: str = "positive",
        shared: bool = True,
        remove_hits: bool | None = None,
        temperature: float | Tensor | nn.Module = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        sparse: bool = False,
        generator: Randomness = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        removes = check_options(type(self).__name__, correction, remove_hits)
        super().__init__(
            in_features, classes, samples, sampler, bias=bias, generator=generator, device=device, dtype=dtype, shared=shared,
            sparse=sparse, temperature=temperature, ignore_index=ignore_index, reduction=reduction, correction=correction,
            remove_hits=removes,
        )  # fmt: skip
