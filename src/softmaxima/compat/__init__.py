"""The interfaces of other packages over this library: what they compute, exactly, under their own names.

`softmaxima.compat.entmax` has every function and module of the entmax package; import it by name, as that package is.
"""
