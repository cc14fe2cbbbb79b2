"""Scores in files, a block at a time: NumPy, raw memory, Parquet, Arrow, Feather, HDF5, Zarr, CSV, numbers as text, standard input.

A logsumexp takes its scores in any order, so an array of any shape is read as it lies, and a file of plain memory from several
places at once.
"""
