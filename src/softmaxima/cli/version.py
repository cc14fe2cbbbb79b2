"""`softmaxima --version`: what a bug report has to say of the installation."""

from __future__ import annotations

import platform

import softmaxima


def version() -> str:
    """softmaxima and its packages, the machine, and which kernels run on it."""
    import torch

    from softmaxima.bench.machine import installed
    from softmaxima.kernels import devices, interface

    packages = installed("torch", "numpy", "triton", "scipy", "scikit-learn", "polars", "plotly")
    graphics = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    on_graphics = "Triton" if graphics and devices.has_library("cuda") else "none"
    lines = (
        f"softmaxima {softmaxima.__version__}",
        f"python      {platform.python_version()}, {platform.platform()}",
        f"packages    {', '.join(map(' '.join, packages.items()))}",
        f"CPU         {platform.machine()}, kernels: {_kernels(interface.instruction_set())}, threads: {torch.get_num_threads()}",
        f"GPU         {', '.join(graphics)}, kernels: {on_graphics}" if graphics else "GPU         none that torch can use",
    )
    return "\n".join(lines)


def _kernels(instruction_set: str) -> str:
    return "none, so torch's operations" if instruction_set == "none" else f"native, {instruction_set}"
