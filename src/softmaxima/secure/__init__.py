"""Sums of exponentials of scores that no party shows another: secret sharing by mpyc."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("mpyc") is None:
    raise ImportError('sm.secure needs mpyc, which is not installed: pip install "softmaxima[secure]"', name="mpyc")

from softmaxima.base.public import listing
from softmaxima.secure.evaluation import Opened, evaluate
from softmaxima.secure.fixed_point import FixedPoint
from softmaxima.secure.functions import argmax, logsumexp, softmax

__all__ = ["FixedPoint", "Opened", "argmax", "evaluate", "logsumexp", "softmax"]
__dir__ = listing(globals())
