"""What stands below the kernels: checks, numbers, tensors and arrays, stable sums."""
