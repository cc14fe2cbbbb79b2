"""Where and with what something was measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

import softmaxima as sm


def machine(device: str = "cpu") -> dict[str, Any]:
    """The processor, its cores, and the threads that torch takes now; of a GPU its name, clocks and sizes too."""
    host = {"processor": _processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return host if device == "cpu" else {**_gpu(), **host}


def _processor() -> str:
    """Its name, and the numbers that tell generations apart which hypervisors give one name."""
    source = Path("/proc/cpuinfo")
    facts = dict(re.findall(r"^(.+?)\s*: (.+)$", source.read_text(encoding="utf-8"), re.MULTILINE)) if source.exists() else {}
    name = facts.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if {"cpu family", "model"} <= facts.keys() else name


def _gpu() -> dict[str, Any]:
    found = torch.cuda.get_device_properties(0)
    driver, clock, memory_clock = _nvidia_smi("driver_version", "clocks.max.sm", "clocks.max.memory")
    return {
        "device": found.name,
        "driver": driver,
        "memory": f"{found.total_memory / 2**30:.0f} GiB",
        "L2": f"{found.L2_cache_size / 2**20:.0f} MiB",
        "multiprocessors": found.multi_processor_count,
        "clock": clock,
        "memory clock": memory_clock,
    }


def _nvidia_smi(*fields: str) -> tuple[str | None, ...]:
    try:
        asked = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
        return tuple(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().split(", "))
    except (OSError, subprocess.CalledProcessError):
        return (None,) * len(fields)


def versions(device: str = "cpu") -> dict[str, str]:
    """Of softmaxima, of Python, and of what is installed that it runs on or is compared with."""
    of_gpus = () if device == "cpu" else ("triton", "liger_kernel", "adasplash")
    found = {"softmaxima": sm.__version__, **installed("torch", "numpy", "scipy", "entmax", *of_gpus)}
    if device != "cpu":
        found["CUDA"] = str(torch.version.cuda)
    return {**found, "python": platform.python_version()}


def installed(*packages: str) -> dict[str, str]:
    """The versions of those that are there."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if util.find_spec(name) is not None:  # a folder on the path, of which nothing is known
                found[name] = "unknown"
    return found


def commit() -> str | None:
    """The commit that softmaxima is imported from, "-dirty" if files have changed since; None outside its git checkout."""
    source = Path(sm.__file__)

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=source.parent, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", source.name)
        return git("describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None
