"""What stands above the kernels: the contract of a map, its evaluation and its derivatives, whole and in parts."""
