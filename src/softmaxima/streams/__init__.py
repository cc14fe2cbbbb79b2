"""Sums that merge, of blocks and of files, in NumPy and the native library: nothing here loads torch before a tensor comes."""

from softmaxima.core.public import listing
from softmaxima.streams.files import file_logsumexp
from softmaxima.streams.state import LogSumExpState

__all__ = ["LogSumExpState", "file_logsumexp"]
__dir__ = listing(globals())
