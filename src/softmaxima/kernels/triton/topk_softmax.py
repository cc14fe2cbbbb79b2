"""topk_softmax: the goal is θ = k scores. Those that are −∞ may be among them, and get nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.selection import Goal, Selection, begin_rows
from softmaxima.kernels.triton.softmax import BACKWARD as BACKWARD


@triton.jit
def measure(x, maximum, tau, TEMPERED: tl.constexpr):
    return tl.full(x.shape, 1, tl.int32)


@triton.jit
def target(theta, total):
    return theta[0]


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_rows(x, theta, tau, TEMPERED, measure, target)


FORWARD = Selection(begin=begin, goal=Goal(measure, target))
