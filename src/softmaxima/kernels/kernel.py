"""What a map states of its kernels, on each device."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from softmaxima.kernels.interface import LIBRARY, find_checked, opened

Theta = Sequence[float | Tensor]  # the numbers of a kernel, each for all rows or one a row [..., 1]


class Functions(NamedTuple):
    """What a library has for a map: a `Function` each, or None."""

    forward: Any = None
    backward: Any = None
    loss: Any = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """What evaluates a map on each device, and what it takes.

    forward, backward, loss: functions of the library (`softmaxima_…` there); `loss`, of the map's Fenchel–Young loss, may be None.
    labels_only: whether that takes no targets but labels.
    theta: θ, the numbers that they take, from the map's parameters in their order; of a parameter that may be a tensor a tensor.
        None for parameters that they do not know.
    library: a library of its own, built of csrc/dispatch.cpp and its kernels; without it they are in the package's.
    triton: the module with FORWARD, BACKWARD and, where there is a loss, LOSS; without it that of the package called as `forward`.
    """

    forward: str
    backward: str
    loss: str | None = None
    labels_only: bool = False
    theta: Callable[..., Theta | None] = lambda *params: params
    library: Path | None = None
    triton: str | None = None
    key: str = field(init=False, repr=False, default="")  # by which the registered operations know the kernel

    def __post_init__(self) -> None:
        triton = self.triton or f"softmaxima.kernels.triton.{self.forward}"
        object.__setattr__(self, "triton", triton)
        own = (self.library and self.library.name, triton, self.forward, self.backward, self.loss)
        object.__setattr__(self, "key", " ".join(map(str, own)))
        KERNELS[self.key] = self

    @functools.cached_property
    def functions(self) -> Functions:
        """Those of the library."""
        library = LIBRARY if self.library is None or LIBRARY is None else opened(self.library)
        if library is None:
            return Functions()
        names = {"Forward": self.forward, "Backward": self.backward, "Loss": self.loss}
        return Functions(*(name and find_checked(name, kind, library) for kind, name in names.items()))

    @functools.cached_property
    def on_gpus(self) -> bool:
        """Whether there is a Triton module for it, which is not imported."""
        try:
            return importlib.util.find_spec(self.triton or "") is not None
        except ModuleNotFoundError:  # of a package above
            return False

    @functools.cached_property
    def addresses(self) -> Functions:
        """Where those functions are, for `CALLS`."""
        return Functions(*(function and ctypes.cast(function, ctypes.c_void_p).value for function in self.functions))


KERNELS: dict[str, Kernel] = {}
