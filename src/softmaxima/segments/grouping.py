"""Which elements belong together: segments, found once and used by any number of maps and sums."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast, overload

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingModuleSource, reportMissingImports]

from softmaxima.base.arguments import Array, as_tensor, check_values
from softmaxima.base.numbers import check_count, check_int
from softmaxima.base.public import public
from softmaxima.engine.routing import is_native
from softmaxima.kernels import native_segments
from softmaxima.segments.padding import Table, table_of

MOST = 2**40  # segments


@public
class Segments:
    """The elements 0 … E − 1 in segments: those with the same number in `index`, in their order.

    To find them takes as long as a map or two, so whoever asks more than once, as each layer of a network over a graph does, makes
    this once and gives it in the place of an index.

    Args:
        index: integers [E], the segment of each element, in any order.
        num_segments: how many segments there are; by default one more than the largest index. Some may be empty.

    `Segments.from_ptr(ptr)` takes where segments begin, ptr[0] = 0 ≤ … ≤ ptr[S] = E (rows of a CSR matrix, offsets of a nested
    tensor), `Segments.from_lengths(lengths)` how long they are.

    Raises:
        TypeError or ValueError for an index below 0 or beyond `num_segments`, and a ptr that falls.

    Cost: one read of an index; the elements are put in order of their segments when that is first needed, which takes two reads of
    an index that is in order, of another also two writes of E numbers.

    >>> import torch, softmaxima as sm
    >>> segments = sm.Segments(torch.tensor([1, 0, 1]), num_segments=3)
    >>> segments, segments.lengths
    (Segments(3 elements in 3 segments), tensor([1, 2, 0]))
    >>> sm.segment_softmax(torch.tensor([0.0, 5.0, 0.0]), segments)
    tensor([0.5000, 1.0000, 0.5000])
    """

    elements: int
    given: Tensor  # the index, or where segments begin

    def __init__(self, index: Array, num_segments: int | None = None) -> None:
        # They are put in order later, and hold what was said of them, whatever becomes of the index.
        self._read("Segments", _integers("Segments", "index", index).clone(), num_segments)

    def __len__(self) -> int:
        return self._count

    @property
    def count(self) -> int:
        """How many segments there are."""
        return self._count

    def __repr__(self) -> str:
        return f"Segments({self.elements} elements in {len(self)} segments)"

    @classmethod
    def from_ptr(cls, ptr: Array) -> Segments:
        """Segments of elements in order, the s-th from ptr[s] to ptr[s + 1]."""
        return cls._from_ptr("Segments.from_ptr", ptr)

    @classmethod
    def from_lengths(cls, lengths: Array) -> Segments:
        """Segments of elements in order, of these lengths."""
        known = _integers("Segments.from_lengths", "lengths", lengths)
        if bool((known < 0).any()):
            raise ValueError(f"Segments.from_lengths: lengths must be at least 0, got {int(known.min())}")
        starts = torch.cat((known.new_zeros(1), known.cumsum(0)))
        if bool((starts[1:] < starts[:-1]).any()):  # beyond 64 bits
            raise ValueError(f"Segments.from_lengths: lengths must add up to less than 2**63, got one of {int(known.max())}")
        return cls._of(starts)

    @classmethod
    def _from_ptr(cls, name: str, ptr: Any) -> Segments:
        starts = _integers(name, "ptr", ptr)
        if len(starts) == 0 or int(starts[0]) != 0:
            got = "none" if len(starts) == 0 else f"one that begins at {int(starts[0])}"
            raise ValueError(f"{name}: ptr must begin at 0, and have one number more than there are segments, got {got}")
        falls = starts[1:] < starts[:-1]
        if bool(falls.any()):
            place = int(falls.int().argmax())
            raise ValueError(
                f"{name}: ptr must not fall, got {int(starts[place])} before {int(starts[place + 1])} at {place}; "
                "for the segment of each element give index="
            )
        return cls._of(starts.clone())

    @classmethod
    def _of(cls, starts: Tensor) -> Segments:
        made = cls.__new__(cls)
        made.elements, made._count, made.given = int(starts[-1]), len(starts) - 1, starts
        made._kept, made._version, made._in_order, made._grouped = None, None, True, (starts, None)
        return made

    @classmethod
    def _from_index(cls, name: str, index: Any, num_segments: Any) -> Segments:
        made = cls.__new__(cls)
        made._read(name, index, num_segments)
        return made

    def _read(self, name: str, index: Any, num_segments: Any) -> None:
        numbers = _integers(name, "index", index).contiguous()
        if num_segments is not None:
            check_int(name, "num_segments", num_segments, lambda n: 0 <= n <= MOST, "an int from 0 to 2**40")
        self.elements, self.given = len(numbers), numbers
        least, most, in_order = (native_segments.index_range if _is_native(numbers) else _index_range)(numbers)
        count = most + 1 if num_segments is None else num_segments
        if len(numbers) and (least < 0 or most >= count or most >= MOST):
            beyond = f"below {'2**40' if num_segments is None else f'num_segments={count}'}"
            got = least if least < 0 else most
            raise ValueError(f"{name}: index must be at least 0 and {beyond}, got {got}; it is the segment of each element")
        self._kept, self._in_order, self._count = numbers, in_order, count
        self._version = None if numbers.is_inference() else numbers._version

    @property
    def _numbers(self) -> Tensor:
        """The index, as it was."""
        kept = cast(Tensor, self._kept)
        if self._version is not None and kept._version != self._version:
            raise RuntimeError("Segments: the index was changed in place before a derivative was taken; give a copy of it")
        return kept

    @functools.cached_property
    def partition(self) -> native_segments.Partition | None:
        """The elements by windows of segments, for kernels; None where they are in order, or there are no kernels."""
        if self._kept is None or self._in_order or not _is_native(self._kept):
            return None
        if max(len(self), self.elements) > native_segments.MOST:
            return None
        return native_segments.partition(self._numbers, len(self))

    @functools.cached_property
    def _grouped(self) -> tuple[Tensor, Tensor | None]:
        """(starts, the elements of each segment, at the places of the partition if there is one)."""
        numbers = self._numbers
        try:
            if self.partition is not None or (self._in_order and _is_native(numbers)):
                return native_segments.group(numbers, len(self), self.partition)
            starts = torch.cat((numbers.new_zeros(1), numbers.bincount(minlength=len(self)).cumsum(0)))
        except RuntimeError as error:
            if "allocat" not in str(error):  # as torch says it, not what a handler of signals raises
                raise
            raise MemoryError(f"Segments: no memory for {len(self)} segments; is the largest index one?") from error
        return starts, None if self._in_order else numbers.argsort(stable=True)

    @property
    def starts(self) -> Tensor:
        """[segments + 1]: where the elements of each begin, once they are in order."""
        return self._grouped[0]

    @functools.cached_property
    def order(self) -> Tensor | None:
        """[elements]: the elements by segments; None where they are in order."""
        order = self._grouped[1]
        if order is None or self.partition is None:
            return order
        places = self.partition.places.long()
        return torch.empty_like(order).scatter_(0, places, torch.arange(len(places)))[order]

    @functools.cached_property
    def lay(self) -> native_segments.Lay:
        """Where elements are, for kernels that take them in any order."""
        return native_segments.Lay(len(self), self.partition, None if self.partition is not None else self.starts, None)

    @functools.cached_property
    def lay_of_rows(self) -> native_segments.Lay:
        """The same for kernels of rows."""
        return native_segments.Lay(len(self), self.partition, *self._grouped)

    def reach(self, length: int) -> bool:
        """Whether a segment, or a window of the partition, has more elements than this; of more than half as many it may say so."""
        length = check_count("Segments.reach", "length", length, 2)
        if self.partition is not None:
            # What is even of very many elements is for threads to share too.
            return bool((self.partition.bounds.diff() > max(length, 4 * self.elements // native_segments.WINDOWS)).any())
        places = torch.arange(0, self.elements, length // 2, device=self.given.device)
        # As every element in order: two of them in one segment.
        segments = torch.searchsorted(self.starts, places, right=True)
        return bool((segments.diff() == 0).any())

    @functools.cached_property
    def longest(self) -> int:
        """The length of the longest segment."""
        return int(self.lengths.max()) if len(self) else 0

    @functools.cached_property
    def by_width(self) -> tuple[tuple[int, Tensor], ...]:
        """(a power of two, the segments of no more elements than that and of more than half as many), but for empty ones."""
        powers = torch.log2((self.lengths - 1).clamp(min=1).double()).floor().add(1).to(torch.int64)
        powers = torch.where(self.lengths > 1, powers, self.lengths - 1)  # −1 of the empty ones
        order = powers.argsort(stable=True)
        kinds, counts = torch.unique_consecutive(powers[order], return_counts=True)
        parts = zip(kinds.tolist(), order.split(counts.tolist()), strict=True)
        return tuple((1 << power, own) for power, own in parts if power >= 0)

    @functools.cached_property
    def lengths(self) -> Tensor:
        """How many elements each segment has."""
        return self.starts.diff()

    @property
    def index(self) -> Tensor:
        """The segment of each element."""
        if self._kept is None:
            segments = torch.arange(len(self), device=self.given.device)
            self._kept = segments.repeat_interleave(self.lengths, output_size=self.elements)
        return self._numbers

    @functools.cached_property
    def table(self) -> Table:
        """The segments as padded rows, for what works on rows of one length."""
        return table_of(self.lengths, self.starts, self.order)


class Unfound:
    """Segments of so many elements, by an index or a ptr whose numbers a recorder does not know."""

    def __init__(self, name: str, given: Tensor, elements: int, count: int | None, by_ptr: bool) -> None:
        self.given, self.elements, self.by_ptr, self.is_counted = given, elements, by_ptr, count is not None
        self._name, self._count = name, count

    @property
    def count(self) -> int:
        if self._count is None:
            raise ValueError(f"{self._name}: who records a graph does not know the largest index; give num_segments=")
        return self._count

    @property
    def index(self) -> Tensor:
        """The segment of each element."""
        if not self.by_ptr:
            return self.given
        return torch.searchsorted(self.given, torch.arange(self.elements, device=self.given.device), right=True) - 1


@overload
def found_segments(name: str, index: Any, num_segments: Any, ptr: Any) -> Segments: ...
@overload
def found_segments(name: str, index: Any, num_segments: Any, ptr: Any, recorded: int | None) -> Segments | Unfound: ...
def found_segments(name: str, index: Any, num_segments: Any, ptr: Any, recorded: int | None = None) -> Segments | Unfound:
    """The segments that a function's arguments mean; of so many elements those that they will mean, where a graph is recorded."""
    if isinstance(index, (Segments, Unfound)):
        if num_segments is not None or ptr is not None:
            raise ValueError(f"{name}: Segments say all by themselves; leave out num_segments and ptr")
        return index
    if (index is None) == (ptr is None):
        given = "both" if ptr is not None else "neither"
        raise ValueError(f"{name}: give index, the segment of each element, or ptr, where segments begin; got {given}")
    if recorded is not None:
        return _unfound(name, index, num_segments, ptr, recorded)
    if ptr is None:
        return Segments._from_index(name, index, num_segments)
    made = Segments._from_ptr(name, ptr)
    if num_segments is not None:
        check_int(name, "num_segments", num_segments, lambda n: n >= 0, "an int of at least 0")
    if num_segments not in (None, len(made)):
        raise ValueError(f"{name}: num_segments is {num_segments}, and ptr has {len(made)} segments; leave num_segments out")
    return made


def _unfound(name: str, index: Any, num_segments: Any, ptr: Any, elements: int) -> Unfound:
    if ptr is None:
        numbers = _integers(name, "index", index, recorded=True)
        return Unfound(name, numbers, numbers.shape[0], num_segments, False)
    starts = _integers(name, "ptr", ptr, recorded=True)
    return Unfound(name, starts, elements, starts.shape[0] - 1, True)


# The last that were found -------------------------------------------------------------------------------------------------------


class _Last(NamedTuple):
    segments: Segments
    size: int | None
    inference: bool  # what was made in inference mode serves no training


_last: _Last | None = None  # one at a time, so that no more than one index stays in memory


def found_again(name: str, index: Any, size: int | None) -> Segments:
    """The segments of an index, which are those that were found last where its numbers are.

    Layers put an index together anew in each call, with the same numbers in it. So the last that was found is held, with a copy of
    its index, and serves again where the numbers are those: a read of both, in the place of putting elements in order.
    """
    global _last
    last, inference = _last, torch.is_inference_mode_enabled()
    if last is None or (last.size, last.inference) != (size, inference) or not _same(last.segments.given, index):
        # A copy, as what is compared with must not change with what it is compared to.
        own = index.clone() if isinstance(index, Tensor) else index
        _last = last = _Last(found_segments(name, own, size, None), size, inference)
    return last.segments


def _same(a: Tensor, b: Any) -> bool:
    alike = isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and not b.is_meta
    return alike and torch.equal(a, b)


def _is_native(index: Tensor) -> bool:
    """Whether the native library reads such an index."""
    return index.is_cpu and is_native(index.new_empty(0, dtype=torch.float32))


def _index_range(index: Tensor) -> tuple[int, int, bool]:
    """What `native_segments.index_range` says, by torch."""
    if len(index) == 0:
        return 0, -1, True
    least, most = index.aminmax()
    return int(least), int(most), bool((index[1:] >= index[:-1]).all())


def _integers(name: str, what: str, values: Any, recorded: bool = False) -> Tensor:
    numbers = as_tensor(name, what, values)
    if not recorded:
        check_values(name, what, numbers)
    if is_batchedtensor(numbers):
        raise ValueError(f"{name}: {what} must be the same for all that vmap goes over; give scores an axis for what differs")
    if type(numbers) is not Tensor:  # its memory may be elsewhere, as that of torch_geometric's Index is
        numbers = torch.empty(numbers.shape, dtype=numbers.dtype, device=numbers.device).copy_(numbers)
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"{name}: {what} must be integers, got {numbers.dtype}; make them int64")
    if numbers.ndim != 1:
        raise ValueError(f"{name}: {what} must have one axis, got shape {tuple(numbers.shape)}; an edge_index has it in a row, [1]")
    return numbers.to(torch.int64)
