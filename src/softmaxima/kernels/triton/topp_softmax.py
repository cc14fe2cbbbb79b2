"""topp_softmax: the goal is the share θ = p of the mass; all of it is kept whole, whatever rounding says."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY
from softmaxima.kernels.triton.selection import Goal, Selection, begin_rows, weight
from softmaxima.kernels.triton.softmax import BACKWARD as BACKWARD


@triton.jit
def measure(x, maximum, tau, TEMPERED: tl.constexpr):
    return weight(x, maximum, tau, TEMPERED)


@triton.jit
def target(theta, total):
    return tl.where((theta[0] == 1.0) | (total == 0.0), INFINITY, theta[0] * total)


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_rows(x, theta, tau, TEMPERED, measure, target)


FORWARD = Selection(begin=begin, goal=Goal(measure, target))
