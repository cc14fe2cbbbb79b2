"""Differential privacy on OpenDP: logsumexp, draws and the largest of scores, with what they cost, and an audit of that."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("opendp") is None:
    raise ImportError('sm.privacy needs opendp, which is not installed: pip install "softmaxima[privacy]"', name="opendp")

from softmaxima.base.public import listing
from softmaxima.privacy.audit import Audit, audit
from softmaxima.privacy.budget import Budget
from softmaxima.privacy.choice import Choice, argmax, sample
from softmaxima.privacy.records import Entries, Scores
from softmaxima.privacy.sums import Release, logsumexp

__all__ = ["Audit", "Budget", "Choice", "Entries", "Release", "Scores", "argmax", "audit", "logsumexp", "sample"]
__dir__ = listing(globals())
