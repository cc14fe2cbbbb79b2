"""Sums of exponentials over segments: `segment_logsumexp`, and `segment_log_mean_exp` without log of a segment's length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from softmaxima.core.arguments import Array, as_floating, check_scores, like_input
from softmaxima.core.tracing import outside_compilers
from softmaxima.lse.log_mean_exp import row_log_mean_exp
from softmaxima.lse.logsumexp import check_real, check_weights, row_logsumexp, row_signed_logsumexp
from softmaxima.segments.arguments import prepared
from softmaxima.segments.grouping import Segments
from softmaxima.segments.nested import is_jagged, segments_of_nested
from softmaxima.segments.ragged import Operation, of_segments


def segment_logsumexp(
    x: Array,
    index: Array | Segments | None = None,
    num_segments: int | None = None,
    *,
    ptr: Array | None = None,
    dim: int = 0,
    weights: Array | None = None,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """The logarithm of the sum of exponentials of each segment, `log Σ_e b_e exp(x_e/τ)`, in nats.

    Args:
        x: scores, E of them along `dim`. Integers become torch's default dtype, or float64 for NumPy.
        index, num_segments, ptr, dim, temperature, where: as for `segment_map`.
        weights: b, which broadcasts to x; 1 by default. Those of attention make the sum the one that attends. The logarithm of a
            negative sum is NaN.

    Returns:
        x's array kind and dtype, with the segments along `dim`; −∞ for a segment with nothing in it.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Sums are taken in float64: a result is within about 1e-16 times the largest |x/τ| before it is rounded, and has all digits
    of what is beside a largest score of 0, as log1p has. τ·segment_logsumexp(x, …, temperature=τ) goes from the sum of the
    largest, as τ → 0, to the mean and τ log d of a segment of d scores, which `segment_log_mean_exp` is without. Derivatives of
    every order, the first of which is softmax/τ. Cost: as for `segment_map`; weighted sums are made of torch's operations.

    >>> import torch, softmaxima as sm
    >>> sm.segment_logsumexp(torch.zeros(3), torch.tensor([0, 2, 2]))
    tensor([0.0000,   -inf, 0.6931])
    """
    return outside_compilers(_segment_sum, "a sum of segments")(
        "segment_logsumexp", LOGSUMEXP, x, index, num_segments, ptr, dim, weights, temperature, where
    )


def segment_log_mean_exp(
    x: Array,
    index: Array | Segments | None = None,
    num_segments: int | None = None,
    *,
    ptr: Array | None = None,
    dim: int = 0,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """The logarithm of the mean of exponentials of each segment, `log((1/d) Σ_e exp(x_e/τ))` over its d scores, in nats.

    `segment_logsumexp` less log d, with the digits that cancel: τ times it is between the mean of a segment and its largest score,
    however long it is, so that a node's degree has no say. Arguments, errors and cost as for `segment_logsumexp`.

    >>> import torch, softmaxima as sm
    >>> sm.segment_log_mean_exp(torch.ones(3), torch.tensor([0, 2, 2]))
    tensor([1., -inf, 1.])
    """
    return outside_compilers(_segment_sum, "a sum of segments")(
        "segment_log_mean_exp", LOG_MEAN_EXP, x, index, num_segments, ptr, dim, None, temperature, where
    )


def _segment_sum(
    name: str,
    operation: Operation,
    x: Any,
    index: Any,
    num_segments: Any,
    ptr: Any,
    dim: Any,
    weights: Any,
    temperature: Any,
    where: Any,
) -> Any:
    if is_jagged(x):
        own, segments = segments_of_nested(name, x, {"index": index, "num_segments": num_segments, "ptr": ptr}, dim)
        return _segment_sum(name, operation, own, segments, None, None, 0, weights, temperature, where)
    scores = as_floating(name, x)
    check_real(name, scores)
    scores = check_scores(name, scores)
    segments, axis, tau, mask = prepared(name, scores, index, num_segments, ptr, dim, temperature, where)
    if weights is None:
        return like_input(of_segments(operation, segments, axis, scores, tau, mask, ()), x)
    factors = check_weights(name, weights, scores)
    check_real(name, factors)
    return like_input(of_segments(WEIGHTED, segments, axis, scores, tau, mask, (factors.expand(scores.shape),)), x)


def _weighted(x: Tensor, tau: Any, mask: Tensor | None, params: Sequence[Any]) -> Tensor:
    value, sign = row_signed_logsumexp(x, tau, mask, params[0], "native")
    return value.masked_fill(sign < 0, math.nan)


def _sum(name: str, rows: Callable[[Tensor, Any, Tensor | None], Tensor]) -> Operation:
    return Operation(
        lambda x, tau, mask, params: rows(x, tau, mask),
        lambda library, params: library.of_sum(name),
        sums=True,
        uses_scores=True,
    )


LOGSUMEXP, LOG_MEAN_EXP = _sum("logsumexp", row_logsumexp), _sum("log_mean_exp", row_log_mean_exp)
WEIGHTED = Operation(_weighted, lambda library, params: None, sums=True, uses_scores=True, weighted=True)
