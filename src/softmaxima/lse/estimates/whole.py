"""Sums that read every score: exactly, or in buckets where a target allows."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import like_input
from softmaxima.lse.bounds._gaps import quotient
from softmaxima.lse.estimates.request import Estimate, Request
from softmaxima.lse.logsumexp import logsumexp, row_logsumexp

LARGEST_HISTOGRAM = 1 << 22

NEGLIGIBLE = 40.0  # nats below the total, in which the last bucket of a histogram ends


def exact(ask: Request, spent: int) -> Estimate:
    """log Σ exp(x_i/τ) over a pass, which `spent` reads came before."""
    total, largest, error = ask.source.total(ask.tau, ask.target)
    ask.check(largest)
    value = float(total.detach())
    if math.isnan(value):
        return not_a_number(ask, spent + ask.source.n)
    slack = rounding(ask, value) + (error if math.isfinite(value) else 0.0)
    lower = value - slack
    if value == math.inf and not any(bool((block == math.inf).any()) for block in ask.source.blocks()):
        lower = sys.float_info.max  # beyond which a sum of numbers may be, but it is one
    return Estimate(like_input(total, ask.source.like), lower, value + slack, spent + ask.source.n, "deterministic")


def bucket(ask: Request) -> Estimate:
    """Counts c_b of gaps in [b·w, (b+1)·w) to the maximum M of a block: M + log Σ c_b e^{−(b+1)w} ≤ LSE ≤ M + log Σ c_b e^{−bw}.

    The width is 2·target, the value the middle. Gaps beyond the last edge have the lower limit 0.
    """
    width, n = 2.0 * ask.target, max(ask.source.n, 1)
    buckets = math.ceil((math.log(n) + NEGLIGIBLE) / width)
    if buckets > LARGEST_HISTOGRAM:
        raise ValueError(
            f"estimate: a target of {ask.target} nats needs {buckets} buckets, more than {LARGEST_HISTOGRAM}; "
            "call logsumexp, which is exact"
        )
    weights = np.exp(-width * np.arange(buckets + 1))
    lowers, uppers, values = [], [], []
    for scores in ask.source.blocks():
        scaled = quotient(scores, ask.tau)
        z = scaled.detach().cpu().numpy()
        largest = float(z.max())
        ask.check(largest)
        if math.isnan(largest):
            return not_a_number(ask, ask.source.n)
        if math.isinf(largest):
            limits = (largest, largest)
        else:
            with np.errstate(over="ignore"):
                gaps = (largest - z[z > -math.inf]) / width
            counts = np.bincount(np.minimum(gaps, buckets).astype(np.int64), minlength=buckets + 1).astype(np.float64)
            limits = largest + math.log(counts[:-1] @ weights[1:]), largest + math.log(counts @ weights)
        lowers.append(limits[0])
        uppers.append(limits[1])
        if ask.source.differentiable:
            values.append(row_logsumexp(scaled, 1.0, None))
    lower, upper = log_sum(np.array(lowers)), log_sum(np.array(uppers))
    value = lower if math.isinf(lower) else 0.5 * lower + 0.5 * upper
    slack = rounding(ask, value)
    exact = row_logsumexp(torch.stack(values), 1.0, None) if values else None
    return Estimate(as_asked(ask, value, exact), lower - slack, upper + slack, ask.source.n, "deterministic")


def rounding(ask: Request, value: float) -> float:
    """A bound of what float64 loses in a sum of exponentials; 0 for a sum that is not finite."""
    return 2.0**-48 * (1.0 + abs(value) + math.log(max(ask.source.n, 1))) if math.isfinite(value) else 0.0


def not_a_number(ask: Request, evaluations: int, draws: int = 0) -> Estimate:
    return Estimate(as_asked(ask, math.nan, None), math.nan, math.nan, evaluations, "none", draws)


def as_asked(ask: Request, value: float, differentiable: Tensor | None) -> Any:
    """The value as the kind of the source, with the gradient of a tensor that is about it."""
    number = torch.tensor(value, dtype=torch.float64, device="cpu")
    if isinstance(ask.source.like, Tensor):
        number = number.to(ask.source.like.device)
    if differentiable is not None:
        number = differentiable + (number - differentiable.detach()).nan_to_num(nan=0.0)
    return like_input(number, ask.source.like)


def log_sum(z: np.ndarray) -> float:
    """LSE in float64, −∞ of nothing."""
    return float(logsumexp(z))
