"""Sums of files on the workers of a Dask cluster: `sm.dask.file_logsumexp("part-*.parquet", workers=4)`."""

from softmaxima.dask.files import file_logsumexp

__all__ = ["file_logsumexp"]
