"""`softmaxima --version`: what a bug report has to say of the installation."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import softmaxima
from softmaxima_lab.commands.terminal import say

ASKED = ("SOFTMAXIMA_BACKEND", "SOFTMAXIMA_ISA")  # variables that choose kernels


def version() -> None:
    """Print what a bug report needs: the versions of softmaxima and its packages, the machine, and which kernels run on it."""
    import torch

    from softmaxima.kernels import devices, interface
    from softmaxima_lab.bench.machine import installed, machine

    packages = installed("torch", "numpy", "triton", "scipy", "scikit-learn", "polars", "plotly")
    graphics = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    on_graphics = "Triton" if graphics and devices.has_library("cuda") else "none"
    processor = f"{machine()['processor']}, {platform.machine()}"
    kernels = _kernels(interface.instruction_set())
    asked = [f"{name}={value}" for name in ASKED if (value := os.environ.get(name)) is not None]
    lines = [
        f"softmaxima {softmaxima.__version__}",
        f"place       {Path(softmaxima.__file__).parent}",
        f"python      {platform.python_version()}, {platform.platform()}",
        f"packages    {', '.join(map(' '.join, packages.items()))}",
        f"CPU         {processor}, kernels: {kernels}, threads: {torch.get_num_threads()}",
        f"GPU         {', '.join(graphics)}, kernels: {on_graphics}" if graphics else "GPU         none that torch can use",
    ]
    if asked:
        lines.append(f"asked for   {', '.join(asked)}")
    for line in lines:
        say(line)


def _kernels(instruction_set: str) -> str:
    return "none, so torch's operations" if instruction_set == "none" else f"native, {instruction_set}"
