"""GPU kernels, one file a map; `kernels.py` is what the rest of the library calls."""
