"""The benchmark: maps, losses and sums on the CPU or a GPU, checked against their definitions, then timed beside other packages."""
