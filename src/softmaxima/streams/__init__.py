"""Sums that merge, of blocks and of files, in NumPy and the native library: nothing here loads torch before a tensor comes."""

from softmaxima.streams.files import file_logsumexp
from softmaxima.streams.state import LogSumExpState

__all__ = ["LogSumExpState", "file_logsumexp"]
