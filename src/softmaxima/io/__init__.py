"""Sums that merge, of blocks and of files, in NumPy and the native library: nothing here loads torch before a tensor comes."""

from softmaxima.base.public import listing
from softmaxima.io.files import file_logsumexp
from softmaxima.io.state import LogSumExpState

__all__ = ["LogSumExpState", "file_logsumexp"]
__dir__ = listing(globals())
