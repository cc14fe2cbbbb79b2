"""`softmaxima --version`: what a bug report has to say of the installation."""

from __future__ import annotations

import platform
from importlib import metadata

import softmaxima


def version() -> str:
    """softmaxima and its packages, the machine, and which kernels run on it."""
    import torch

    from softmaxima.kernels import devices, interface

    packages = ["torch", "numpy", "triton", "scipy", "scikit-learn", "polars", "plotly"]
    found = [f"{name} {metadata.version(name)}" for name in packages if _is_installed(name)]
    graphics = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    on_graphics = "Triton" if graphics and devices.has_library("cuda") else "none"
    lines = (
        f"softmaxima {softmaxima.__version__}",
        f"python      {platform.python_version()}, {platform.platform()}",
        f"packages    {', '.join(found)}",
        f"CPU         {platform.machine()}, kernels: {_kernels(interface.instruction_set())}, threads: {torch.get_num_threads()}",
        f"GPU         {', '.join(graphics)}, kernels: {on_graphics}" if graphics else "GPU         none that torch can use",
    )
    return "\n".join(lines)


def _kernels(instruction_set: str) -> str:
    return "none, so torch's operations" if instruction_set == "none" else f"native, {instruction_set}"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
