"""GPU kernels, one file a map; `library.py` is what the rest of the library calls."""
