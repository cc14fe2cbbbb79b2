"""What ranks must agree on before they send: what each says of its arguments, and what is wrong with what all say.

An argument is an option, whose value is the same on every rank to the last bit; beside the scores, with values of each rank's own
rows or classes, and then all or none have it; or learning, with a gradient that is a message.
"""

from __future__ import annotations

import copyreg
import functools
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from softmaxima.engine.contract import REGISTRY as MAPS
from softmaxima.engine.contract import Map
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses.contract import Loss

# What each rank has one of its own of, though a function that holds it is the same
OF_A_RANK = (torch.device, torch.Generator, np.random.Generator, random.Random, dist.ProcessGroup, DeviceMesh)
DEPTH = 50  # of values that hold each other, below which their types are told alone


@dataclass(frozen=True)
class Agreement:
    """What is known of all ranks in a call."""

    widths: tuple[int, ...]  # scores of a row on each rank

    def first(self, rank: int) -> int:
        """The place in its row of a rank's first score."""
        return sum(self.widths[:rank])

    @property
    def whole(self) -> int:
        return sum(self.widths)


def alike(
    options: Mapping[str, Any], *, beside: Mapping[str, Any] | None = None, learning: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """What must be the same on all ranks, in words."""
    said = {what: in_words(value) for what, value in options.items()}
    said |= {what: "none" if value is None else "given" for what, value in (beside or {}).items()}
    return {**said, "gradients": " and ".join(what for what, value in (learning or {}).items() if learns(value)) or "none"}


def learns(*values: Any) -> bool:
    """Whether any is asked for a gradient."""
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)


def wrong(said: Sequence[Mapping[str, Any]], names: Sequence[int]) -> str | None:
    """What is wrong with what the ranks of these names said, as the end of a sentence."""
    refused = [f"on rank {rank}: {each['problem']}" for rank, each in zip(names, said, strict=True) if "problem" in each]
    if refused:
        return f"refused {'; '.join(refused)}"
    for key in said[0]:
        if key != "widths" and len({each.get(key) for each in said}) > 1:
            each = ", ".join(f"{each.get(key)} on rank {rank}" for rank, each in zip(names, said, strict=True))
            fix = "every rank must make the same calls in the same order" if key == "call" else f"give every rank the same {key}"
            return f"{key} must be the same on all ranks, got {each}; {fix}"
    return None


# Values in words --------------------------------------------------------------------------------------------------------------


def in_words(value: Any, inside: tuple[Any, ...] = ()) -> str:
    """What is the same in every process where the value is, and as a rule differs where it differs; `inside` it holds the value."""
    if any(value is each for each in inside):
        return "itself"
    deeper = functools.partial(in_words, inside=(*inside, value))
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} of shape {value.shape} with the checksum {zlib.crc32(value.tobytes()):08x}"
    if isinstance(value, np.generic | np.ndarray):
        return deeper(value.tolist())
    if isinstance(value, Map | Loss):
        known = MAPS if isinstance(value, Map) else LOSSES
        return value.name if known.get(value.name) is value else f"{value.name} with the checksum {_checksum(deeper(_held(value)))}"
    if isinstance(value, Mapping):
        return ", ".join(sorted(f"{what} {deeper(each)}" for what, each in value.items())) or "nothing"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(deeper, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, (set, frozenset)):  # each process has an order of its own
        return f"{{{', '.join(sorted(map(deeper, value)))}}}"
    if isinstance(value, (bool, str, torch.dtype, type(None))):
        return str(value)
    if isinstance(value, (int, float)):
        return _of_number(value)
    if isinstance(value, (bytes, bytearray, complex)):
        return repr(value)
    if isinstance(value, functools.partial):
        return f"{deeper(value.func)} with {deeper(value.args)} and {deeper(value.keywords)}"
    if isinstance(value, MethodType):
        return f"{deeper(value.__func__)} of {deeper(value.__self__)}"
    if isinstance(value, FunctionType):
        return f"{value.__qualname__} with the checksum {_checksum(_of_code(value.__code__), deeper(_taken(value)))}"
    if isinstance(value, ModuleType):
        return value.__name__
    if hasattr(value, "__wrapped__"):
        return deeper(value.__wrapped__)
    if hasattr(value, "__qualname__"):
        of = getattr(value, "__module__", None) or "builtins"
        return value.__qualname__ if of.startswith(("builtins", "__")) else f"{of}.{value.__qualname__}"  # "__main__" has two names
    kind = type(value).__qualname__
    if isinstance(value, OF_A_RANK) or len(inside) > DEPTH:
        return kind
    called = deeper(type(value).__call__) if callable(value) else None
    return f"{kind} with the checksum {_checksum(called, deeper(_held(value)))}"


def _of_number(value: float) -> str:
    """2.0 is 2, and −0 is 0."""
    return str(int(value)) if abs(value) < 2**53 and value == int(value) else str(value)


def digest(x: Tensor) -> str:
    """The checksum of values in the memory of the CPU, in which −0 is 0."""
    x = x.detach() + 0 if x.is_floating_point() else x.detach()
    return f"{zlib.crc32(x.contiguous().view(-1).view(torch.uint8).numpy().data):08x}"


def _of_tensor(x: Tensor) -> str:
    """On a GPU, where reading values would wait, without these."""
    kind = f"{x.dtype} of shape {tuple(x.shape)}"
    if not x.is_cpu:
        return kind
    return f"{in_words(x.item())} in {kind}" if x.numel() == 1 else f"{kind} with the checksum {digest(x)}"


def _checksum(*said: Any) -> str:
    return f"{zlib.crc32(repr(said).encode()):08x}"


def _held(value: Any) -> Any:
    """What an object keeps, by what would be pickled of it."""
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    if hasattr(value, "__dict__"):
        return vars(value)
    try:
        made = value.__reduce_ex__(2)
    except Exception:  # whatever an object raises that cannot be pickled
        return None
    return made[1:] if isinstance(made, tuple) and made[0] is copyreg.__newobj__ else made  # type: ignore[attr-defined]


def _taken(function: FunctionType) -> list[Any]:
    """What a function takes along from where it was made."""
    closed = [getattr(cell, "cell_contents", None) for cell in function.__closure__ or ()]
    return [closed, function.__defaults__, function.__kwdefaults__]


def _of_code(code: CodeType) -> tuple[Any, ...]:
    """What it does, wherever it was written."""
    known = lambda each: _of_code(each) if isinstance(each, CodeType) else (type(each).__name__, in_words(each))
    return code.co_code, code.co_names, tuple(map(known, code.co_consts))
