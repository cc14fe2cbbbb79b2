"""What ranks must agree on before they send: what each says of its arguments, and what is wrong with what all say.

An argument is an option, whose value is the same on every rank to the last bit; beside the scores, with values of each rank's own
rows or classes, and then all or none have it; or learning, with a gradient that is a message.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.core.contract import Map


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
            return f"{key} must be the same on all ranks, got {each}; give every rank the same {key}"
    return None


# Values in words --------------------------------------------------------------------------------------------------------------


def in_words(value: Any, inside: tuple[Any, ...] = ()) -> str:
    """What is the same in every process where the value is, and as a rule differs where it differs; `inside` it holds the value."""
    if any(value is each for each in inside):
        return "itself"
    deeper = functools.partial(in_words, inside=(*inside, value))
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape} with the checksum {zlib.crc32(value.tobytes()):08x}"
    if isinstance(value, np.generic):
        return deeper(value.item())
    if isinstance(value, Map):
        return value.name
    if isinstance(value, Mapping):
        return ", ".join(f"{what} {deeper(each)}" for what, each in value.items()) or "nothing"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(deeper, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, (set, frozenset)):  # each process has an order of its own
        return f"{{{', '.join(sorted(map(deeper, value)))}}}"
    if isinstance(value, float):
        return str(value + 0.0)  # −0 is 0
    if isinstance(value, (str, int, torch.dtype, type(None))):
        return str(value)
    if isinstance(value, functools.partial):
        return f"{deeper(value.func)} with {deeper(value.args)} and {deeper(value.keywords)}"
    if isinstance(value, MethodType):
        return f"{deeper(value.__func__)} of {deeper(value.__self__)}"
    if isinstance(value, FunctionType):
        return f"{value.__qualname__} with the checksum {_checksum(_of_code(value.__code__), deeper(_taken(value)))}"
    if callable(value) and hasattr(value, "__dict__") and not hasattr(value, "__qualname__"):
        return f"{type(value).__qualname__} with the checksum {_checksum(deeper(vars(value)))}"
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def digest(x: Tensor) -> str:
    """The checksum of values in the memory of the CPU, in which −0 is 0."""
    x = x.detach() + 0 if x.is_floating_point() else x.detach()
    return f"{zlib.crc32(x.contiguous().view(-1).view(torch.uint8).numpy().data):08x}"


def _of_tensor(x: Tensor) -> str:
    """On a GPU, where reading values would wait, without these."""
    kind = f"{x.dtype} of shape {tuple(x.shape)}"
    if not x.is_cpu:
        return kind
    return f"{x.item() + 0} in {kind}" if x.numel() == 1 else f"{kind} with the checksum {digest(x)}"


def _checksum(*said: Any) -> str:
    return f"{zlib.crc32(repr(said).encode()):08x}"


def _taken(function: FunctionType) -> list[Any]:
    """What a function takes along from where it was made."""
    closed = [getattr(cell, "cell_contents", None) for cell in function.__closure__ or ()]
    return [closed, function.__defaults__, function.__kwdefaults__]


def _of_code(code: CodeType) -> tuple[Any, ...]:
    """What it does, wherever it was written."""
    inner = tuple(_of_code(each) if isinstance(each, CodeType) else in_words(each) for each in code.co_consts)
    return code.co_code, code.co_names, inner
