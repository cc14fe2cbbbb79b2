"""What people use today for the same thing on a GPU: torch, eager and compiled, the entmax package, Liger-Kernel and adasplash; and
our own CPU path.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.subjects import SUBJECTS, Problem, Subject
from benchmarks.workers import describe
from softmaxima.experiments.peers import PARTIAL_SORT
from softmaxima.experiments.peers import PEERS as CPU_PEERS
from softmaxima.kernels import native

EAGER, COMPILED, OUR_CPU = "torch eager", "torch.compile", "softmaxima CPU"
LABELS = (EAGER, COMPILED, "entmax", f"entmax k={PARTIAL_SORT}", "Liger", "adasplash", OUR_CPU)

# What is imported of each package, and what its distribution is called.
MODULES = {
    "torch": ("torch", "torch"),
    "entmax": ("entmax", "entmax"),
    "Liger": ("liger_kernel.transformers.functional", "liger_kernel"),
    "adasplash": ("adasplash", "adasplash"),
}
ON_GPU_ONLY = ("Liger", "adasplash")


@dataclass(frozen=True, eq=False)
class Peer:
    """The same thing by someone else: `function(x, given)`; of a loss the mean over the rows."""

    label: str
    package: str
    function: Callable[[Tensor, Problem], Tensor]
    above: int = 0  # takes part where rows have more scores: below, it is what another peer is
    overwrites: bool = False  # its scores
    waits: bool = False  # for a number from the device, so that no graph can hold it
    on_cpu: bool = False


@dataclass(frozen=True)
class Package:
    """A package that peers come from; `problem` says why it is left out."""

    name: str
    version: str | None = None
    problem: str = ""


def _entmax(function: Callable[[Any, Tensor, Problem, int | None], Tensor], sorts: bool = True) -> Iterator[Peer]:
    """function(entmax, x, given, k): with k = None, the package's default, and with the partial sort that it offers."""

    def peer(label: str, k: int | None, above: int) -> Peer:
        return Peer(label, "entmax", lambda x, given: function(_module("entmax"), x, given, k), above, waits=k is not None)

    yield peer("entmax", None, 0)
    if sorts:
        yield peer(f"entmax k={PARTIAL_SORT}", PARTIAL_SORT, PARTIAL_SORT)


def _alpha(x: Tensor, given: Problem) -> Tensor:
    """α as a tensor: a number would be copied to the device at each call, which no graph can hold."""
    alpha = given.options["alpha"]
    return alpha if isinstance(alpha, Tensor) else x.new_full((), alpha)


def _liger(name: str, **facts: bool) -> Peer:
    return Peer("Liger", "Liger", lambda x, given: getattr(_module("Liger"), name)(x, *given.target), **facts)


def _adasplash(alpha: float) -> Peer:
    return Peer("adasplash", "adasplash", lambda x, given: _module("adasplash").triton_entmax(x, alpha=alpha))


def _module(package: str) -> Any:
    return importlib.import_module(MODULES[package][0])


OTHERS: dict[str, tuple[Peer, ...]] = {
    "softmax": (_liger("liger_softmax"),),
    "cross_entropy": (_liger("liger_cross_entropy", overwrites=True, waits=True),),
    "sparsemax": (
        *_entmax(lambda entmax, x, given, k: entmax.sparsemax(x, -1, k)),
        _liger("liger_sparsemax"),
        _adasplash(2.0),
    ),
    "entmax15": (*_entmax(lambda entmax, x, given, k: entmax.entmax15(x, -1, k)), _adasplash(1.5)),
    "entmax alpha=1.25": (
        *_entmax(lambda entmax, x, given, k: entmax.entmax_bisect(x, _alpha(x, given), -1, 50), sorts=False),
        _adasplash(1.25),
    ),
    "entmax alpha=one a row": tuple(
        _entmax(lambda entmax, x, given, k: entmax.entmax_bisect(x, _alpha(x, given), -1, 50), sorts=False)
    ),
    "sparsemax_loss": tuple(_entmax(lambda entmax, x, given, k: entmax.sparsemax_loss(x, *given.target, k).mean())),
    "entmax15_loss": tuple(_entmax(lambda entmax, x, given, k: entmax.entmax15_loss(x, *given.target, k).mean())),
    "entmax_loss alpha=1.25": tuple(
        _entmax(lambda entmax, x, given, k: entmax.entmax_bisect_loss(x, *given.target, _alpha(x, given), 50).mean(), sorts=False)
    ),
}


def _torch(subject: Subject) -> Callable[..., Tensor] | None:
    """What a competent user writes with torch, as the CPU benchmark has it: function(x, axis) or function(x, target)."""
    return next((peer.function for peer in CPU_PEERS.get(subject.name, ()) if peer.package == "torch"), None)


def _of_problem(function: Callable[..., Tensor]) -> Callable[[Tensor, Problem], Tensor]:
    return lambda x, given: function(x, *(given.target or (x.ndim - 1,)))


def peers_of(title: str, n: int, packages: Iterable[str], device: str, cpu: bool) -> Iterator[Peer]:
    """The peers of a subject on rows of n scores, of the packages that are there; with `cpu` our own CPU path as well."""
    subject, packages = SUBJECTS[title], tuple(packages)
    function = _torch(subject)
    if function is not None:
        yield Peer(EAGER, "torch", _of_problem(function))
        if device != "cpu":  # where a compiler takes longer than all the rest
            torch.compiler.reset()  # after some shapes a function would not be compiled again
            yield Peer(COMPILED, "torch", _of_problem(torch.compile(function, dynamic=False)))
    yield from (peer for peer in OTHERS.get(title, ()) if peer.package in packages and n > peer.above)
    if cpu and device != "cpu" and native.AVAILABLE:
        yield Peer(OUR_CPU, "softmaxima", subject, on_cpu=True)


# Their packages ---------------------------------------------------------------------------------------------------------------


@contextmanager
def installed(wheels: Path | None) -> Iterator[list[Package]]:
    """Has the wheels installed in a temporary folder, without an index and without what they depend on; gives those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.append(folder)
        try:
            yield [failed for wheel in sorted(wheels.glob("*.whl")) if (failed := _install(wheel, folder))] if wheels else []
        finally:
            sys.path.remove(folder)


def _install(wheel: Path, folder: str) -> Package | None:
    """What failed."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder, str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1].replace(str(wheel), wheel.name)
    return Package(wheel.name, problem=f"pip could not install it: {reason}") if done.returncode else None


def packages(device: str) -> list[Package]:
    """Each package with its version, or why it is left out; our own CPU path too."""
    ours = Package(OUR_CPU, problem="" if native.AVAILABLE else "its native library is not there")
    return [*(_package(name, *MODULES[name], device) for name in MODULES), ours]


def _package(name: str, module: str, distribution: str, device: str) -> Package:
    if device == "cpu" and name in ON_GPU_ONLY:
        return Package(name, problem="it computes on a GPU only")
    try:
        importlib.import_module(module)
        return Package(name, metadata.version(distribution))
    except Exception as error:  # an import may fail in any way, and the others can still be measured
        return Package(name, problem=describe(error))
