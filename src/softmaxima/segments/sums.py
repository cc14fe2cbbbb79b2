"""Sums of exponentials over segments: `segment_logsumexp`, and `segment_log_mean_exp` without log of a segment's length."""

from __future__ import annotations

from typing import Any

from softmaxima.base.arguments import Array, as_floating, check_scores, like_input
from softmaxima.base.public import public
from softmaxima.lse.logsumexp import check_real, check_weights
from softmaxima.segments.arguments import prepared
from softmaxima.segments.grouping import Segments
from softmaxima.segments.nested import is_jagged, segments_of_nested, values_beside
from softmaxima.segments.operations import LOG_MEAN_EXP, LOGSUMEXP, WEIGHTED
from softmaxima.segments.ragged import Operation
from softmaxima.segments.recorded import compiled, evaluate


@public
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
        weights: b, which broadcasts to x, nested where x is; 1 by default. Those of attention make the sum the one that attends.
            The logarithm of a negative sum is NaN.

    Returns:
        x's array kind and dtype, with the segments along `dim`; −∞ for a segment with nothing in it.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else, such as no `num_segments` in a graph that is
        exported.

    Sums are taken in float64: a result is within about 1e-16 times the largest |x/τ| before it is rounded, and has all digits
    of what is beside a largest score of 0, as log1p has. τ·segment_logsumexp(x, …, temperature=τ) goes from the sum of the
    largest, as τ → 0, to the mean and τ log d of a segment of d scores, which `segment_log_mean_exp` is without. Derivatives of
    every order, the first of which is softmax/τ. Cost: as for `segment_map`; weighted sums are made of torch's operations.

    >>> import torch, softmaxima as sm
    >>> sm.segment_logsumexp(torch.zeros(3), torch.tensor([0, 2, 2]))
    tensor([0.0000,   -inf, 0.6931])
    """
    return compiled(_segment_sum, "a sum of segments", x, index, num_segments is not None or ptr is not None)(
        "segment_logsumexp", LOGSUMEXP, x, index, num_segments, ptr, dim, weights, temperature, where
    )


@public
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
    return compiled(_segment_sum, "a sum of segments", x, index, num_segments is not None or ptr is not None)(
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
    if is_jagged(name, x):
        own, segments = segments_of_nested(name, x, {"index": index, "num_segments": num_segments, "ptr": ptr}, dim)
        weights, where = values_beside(name, "weights", weights, x), values_beside(name, "where", where, x)
        return _segment_sum(name, operation, own, segments, None, None, 0, weights, temperature, where)
    scores = as_floating(name, x)
    check_real(name, scores)
    scores = check_scores(name, scores)
    segments, axis, tau, mask = prepared(name, scores, index, num_segments, ptr, dim, temperature, where)
    if weights is None:
        return like_input(evaluate(operation, segments, axis, scores, tau, mask, ()), x)
    factors = check_weights(name, weights, scores)
    check_real(name, factors)
    return like_input(evaluate(WEIGHTED, segments, axis, scores, tau, mask, (factors.expand(scores.shape),)), x)
