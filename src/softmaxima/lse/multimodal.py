"""multimodal_logsumexp: LSE of the scores of several modalities, each at its own temperature: log Σ_m Σ_i exp(x_{m,i}/τ_m)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.error_free import two_product
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.base.temperature import anchored_at
from softmaxima.lse._scores import scores_last
from softmaxima.lse.logsumexp import logsumexp


@public
def multimodal_logsumexp(
    scores: Sequence[Array],
    temperatures: Sequence[float | Array] | float | Array = 1.0,
    dim: int = -1,
    *,
    where: Sequence[Array | None] | None = None,
) -> Array:
    """LSE of the scores of all modalities, `log Σ_m Σ_i exp(x_{m,i}/τ_m)`, in nats: of [x_I/τ_I, x_T/τ_T, …] laid end to end.

    Args:
        scores: one tensor, or array, a modality, of any lengths along `dim`; their other axes broadcast. One kind of array.
        temperatures: one τ_m > 0 a modality, or one for all: numbers, or tensors that broadcast against x_m with size 1 along
            `dim`; tensors may require grad.
        dim: the axis summed over, counted in each modality.
        where: one boolean mask a modality, or None for it.

    Returns:
        The scores' array kind and promoted dtype, broadcast without `dim`. −∞ where no modality has a score.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient is the softmax over all scores together, divided by each modality's τ. Cost: two reads of the scores; nothing is
    concatenated. Source of one τ a modality: contrastive models, Radford et al. (2021), arXiv:2103.00020.

    >>> import torch, softmaxima as sm
    >>> image, text = torch.tensor([[0.9, 0.1]]), torch.tensor([[6.0, 2.0, 1.0]])
    >>> sm.multimodal_logsumexp([image, text], temperatures=[0.1, 1.0])  # LSE(9, 1, 6, 2, 1)
    tensor([9.0501])
    """
    name = "multimodal_logsumexp"
    if isinstance(scores, (Tensor, np.ndarray)) or not isinstance(scores, Sequence) or not scores:
        kind = "an empty one" if isinstance(scores, Sequence) else f"{type(scores).__name__}; a single modality is [x]"
        raise TypeError(f"{name}: scores must be a list with at least one tensor or array a modality, got {kind}")
    taus = _one_each(name, "temperatures", temperatures, len(scores))
    masks = [None] * len(scores) if where is None else _one_each(name, "where", where, len(scores))
    if len({isinstance(x, Tensor) for x in scores}) > 1:
        raise TypeError(f"{name}: scores must be all tensors or all arrays, got both; call torch.from_numpy() on the arrays")
    rows = [scores_last(name, x, dim, tau, mask) for x, tau, mask in zip(scores, taus, masks, strict=True)]
    shapes = [tuple(x.shape[:-1]) for x, _, _ in rows]
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(f"{name}: the modalities' axes other than dim must broadcast, got shapes {shapes} without it") from None
    parts = []
    for x, tau, _ in rows:
        anchor = row_maximum(x)
        top, z = anchored_at(anchor, x, tau)
        parts.append((top.squeeze(-1), _lost(anchor, tau, top.detach()), logsumexp(z)))
    tops, lost, sums = (torch.stack(torch.broadcast_tensors(*part), -1) for part in zip(*parts, strict=True))
    highest = tops.detach().masked_fill(sums == -math.inf, -math.inf).max(-1, keepdim=True)
    top = highest.values.masked_fill(~highest.values.isfinite(), 0.0)
    lost_there = lost.gather(-1, highest.indices)
    log_sum = logsumexp((tops - top) + (lost - lost_there) + sums)
    return _promoted(scores, top.squeeze(-1) + (lost_there.squeeze(-1) + log_sum))


def _lost(anchor: Tensor, tau: float | Tensor, quotient: Tensor) -> Tensor:
    """What division rounded off A/τ, A the largest score [...]; 0 where A or A/τ is too large, or too small, to tell."""
    divisor = torch.as_tensor(tau, dtype=anchor.dtype, device=anchor.device).detach()
    product, error = two_product(quotient, divisor)
    lost = ((anchor - product) - error) / divisor
    return lost.masked_fill(~(lost.abs() <= quotient.abs() * 2.0**-52), 0.0).squeeze(-1)


def _one_each(name: str, what: str, values: Any, count: int) -> list[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        values = [values] * count
    if len(values) != count:
        raise ValueError(f"{name}: {what} must be one a modality, {count}, got {len(values)}")
    return list(values)


def _promoted(scores: Sequence[Any], value: Tensor) -> Any:
    """The value in the kind of array and the promoted dtype of the scores, integers as logsumexp takes them."""
    if isinstance(scores[0], Tensor):
        dtype = functools.reduce(torch.promote_types, (x.dtype for x in scores))
        return value.to(dtype if dtype.is_floating_point else torch.get_default_dtype())
    dtype = np.result_type(*scores)
    return value.detach().numpy().astype(dtype if dtype.kind == "f" else np.float64)[()]
