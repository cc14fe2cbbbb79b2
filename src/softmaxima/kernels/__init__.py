"""The native library on the CPU and Triton on a GPU: the same functions, chosen by the device."""
