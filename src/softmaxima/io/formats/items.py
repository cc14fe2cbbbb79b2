"""Items of memory, the fields of each that hold scores, and their dtypes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import InputError
from softmaxima.io.formats.source import choose_column, no_column, unreadable

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block

_BFLOAT16 = np.dtype("V2")  # NumPy has no bfloat16: as two bytes it is what ml_dtypes, and JAX with it, writes to NPY


@dataclass(frozen=True)
class Items:
    """Items of memory, and where the scores of each are: in `fields`, one in the other, of which the last may be an array."""

    dtype: np.dtype
    fields: tuple[str, ...] = ()

    @property
    def _held(self) -> np.dtype:
        return self._within(self.dtype)

    @property
    def each(self) -> int:
        """Scores in an item."""
        return math.prod(self._held.shape)

    @property
    def name(self) -> str:
        """Of the dtype of scores."""
        return "bfloat16" if self._held.base == _BFLOAT16 else self._held.base.name

    def in_place(self, items: np.ndarray) -> Block:
        """The scores where they lie, one in an item."""
        found = self._within(items)
        if found.dtype != _BFLOAT16:
            return found
        import torch  # here, for other scores do without it

        from softmaxima.base.arguments import as_tensor

        return as_tensor("lse", "scores", found.view(np.int16)).view(torch.bfloat16)

    def scores(self, items: np.ndarray) -> np.ndarray:
        """The scores, one behind the other; those of bfloat16 as two bytes."""
        return np.ascontiguousarray(self._within(np.asarray(items))).reshape(-1)

    def _within(self, held: Any) -> Any:
        """What the fields have of an array, or of a dtype."""
        return functools.reduce(lambda outer, field: outer[field], self.fields, held)


def numpy_dtype(dtype: str) -> np.dtype:
    return _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)


def npy_header(file: IO[bytes], name: str) -> tuple[np.dtype, int]:
    """(dtype, number of items) of an NPY file, and the file at its first byte of data."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise unreadable(name, error) from None
    return dtype, math.prod(shape)


def items_of(name: str, dtype: np.dtype, column: str | None) -> Items:
    """The items of an array, and the field with the scores that is asked for, or the only one."""
    if dtype.names is None:
        no_column(name, column)
        check_real(name, dtype)
        return Items(dtype)
    return among(name, "field", {"": dtype}, column, ".")[1]


def among(name: str, what: str, arrays: Mapping[str, np.dtype], column: str | None, mark: str) -> tuple[str, Items]:
    """The array that is asked for, or the only one, and in its items the field: "t.score" of the array t by the mark "."."""
    found = [(array, field, held) for array, dtype in arrays.items() for field, held in _fields(dtype)]
    whole = [mark.join(filter(None, (array, *field))) for array, field, _ in found]
    array, field, held = found[whole.index(choose_column(name, what, whole, column))]
    check_real(name, held)
    return array, Items(arrays[array], field)


def _fields(dtype: np.dtype, outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.dtype]]:
    """(the names of a field and those around it, its dtype) for all that have none within; () of a dtype without fields."""
    if dtype.names is None:
        yield outer, dtype
    for field in dtype.names or ():
        yield from _fields(dtype[field], (*outer, field))


def check_real(name: str, dtype: np.dtype) -> None:
    dtype = dtype.base  # of an array in a field
    if dtype != _BFLOAT16 and (dtype.kind not in "fiub" or dtype.itemsize > 8):
        repair = REPAIRS.get(dtype.kind, "save numbers instead")
        raise InputError(f"{name} holds {dtype}; scores are real numbers of at most 64 bits: {repair}")


# Of each kind of dtype that holds no scores: what to do with it.
REPAIRS = {
    "f": "save it with .astype(numpy.float64)",
    "c": "save x.real, or sum the array itself with softmaxima.logsumexp",
    "U": "save it with .astype(numpy.float64), if all of it is numbers",
    "S": "save it with .astype(numpy.float64), if all of it is numbers",
    "O": "save numpy.hstack(list(x)).astype(float), if all of it is numbers",
    "M": "dates have no exponential, so save numbers",
    "m": "save it divided by its unit, as x / numpy.timedelta64(1, 's')",
    "V": "save what it was before with .astype(numpy.float32); two bytes without a kind are read as bfloat16",
}
