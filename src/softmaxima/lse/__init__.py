"""logsumexp and the functions that are made of it."""

from softmaxima.base.public import listing
from softmaxima.io import LogSumExpState, file_logsumexp
from softmaxima.lse.adaptive import adaptive_logsumexp
from softmaxima.lse.bounds.intervals import (
    Interval,
    adaptive_bounds,
    basic_bounds,
    bounds,
    gap_bounds,
    histogram_bounds,
    lipschitz_bounds,
    mean_bounds,
    renyi_bounds,
)
from softmaxima.lse.bounds.score_summary import ScoreSummary
from softmaxima.lse.bounds.sparsified import Sparsified, sparsified_logsumexp
from softmaxima.lse.cumulative import logcumsumexp
from softmaxima.lse.estimates.estimate import estimate
from softmaxima.lse.estimates.inner_product import InnerProduct, inner_product_index
from softmaxima.lse.estimates.request import Estimate
from softmaxima.lse.log1mexp import log1mexp
from softmaxima.lse.log_mean_exp import log_mean_exp
from softmaxima.lse.logaddexp import logaddexp
from softmaxima.lse.logmatmulexp import logmatmulexp
from softmaxima.lse.logsumexp import logsumexp, real_softmax, real_softmin
from softmaxima.lse.matrix.lanczos import TraceEstimate
from softmaxima.lse.matrix.matrix import matrix_logsumexp
from softmaxima.lse.multimodal import multimodal_logsumexp
from softmaxima.lse.quantized import quantized_logsumexp, quantized_softmax
from softmaxima.lse.robust import median_of_means_logsumexp, robust_interval, trimmed_logsumexp, winsorized_logsumexp
from softmaxima.lse.scipy_logsumexp import scipy_logsumexp
from softmaxima.lse.softplus import inverse_softplus, softplus
from softmaxima.lse.streaming import sequence_logsumexp, streaming_logsumexp

__all__ = [
    "Estimate",
    "InnerProduct",
    "Interval",
    "LogSumExpState",
    "ScoreSummary",
    "Sparsified",
    "TraceEstimate",
    "adaptive_bounds",
    "adaptive_logsumexp",
    "basic_bounds",
    "bounds",
    "estimate",
    "file_logsumexp",
    "gap_bounds",
    "histogram_bounds",
    "inner_product_index",
    "inverse_softplus",
    "lipschitz_bounds",
    "log1mexp",
    "log_mean_exp",
    "logaddexp",
    "logcumsumexp",
    "logmatmulexp",
    "logsumexp",
    "matrix_logsumexp",
    "mean_bounds",
    "median_of_means_logsumexp",
    "multimodal_logsumexp",
    "quantized_logsumexp",
    "quantized_softmax",
    "real_softmax",
    "real_softmin",
    "renyi_bounds",
    "robust_interval",
    "scipy_logsumexp",
    "sequence_logsumexp",
    "softplus",
    "sparsified_logsumexp",
    "streaming_logsumexp",
    "trimmed_logsumexp",
    "winsorized_logsumexp",
]
__dir__ = listing(globals())
