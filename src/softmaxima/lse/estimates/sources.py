"""Where an estimator finds its scores: an array in memory or in a file, or inner products W h with an index over the rows of W."""

from __future__ import annotations

import copy
import importlib
import math
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor, check_values
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public
from softmaxima.base.randomness import SEEDS, Randomness, as_seed
from softmaxima.io.formats.opening import open_scores
from softmaxima.kernels import native
from softmaxima.lse.bounds._gaps import quotient
from softmaxima.lse.logsumexp import row_logsumexp

BLOCK = 1 << 18  # numbers that are read at once, in float64: larger blocks leave the cache, and are new memory each
RUN = 256  # neighbours in a draw from memory, where a score of a longer run is no cheaper
RUN_OF_FILE = 1024  # neighbours in a draw from a file, which is read by pages
SUMMED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # as they lie in memory
NARROW = 2.0**-20  # above what an exponential in float32 is off by, relatively, a nat of its argument; 40 times what was measured

# Nanoseconds, measured on one core of a server whose disk gives 2 GB/s; docs/logsumexp.md has what comes of them.
SCORE = 0.2  # to sum a score
SCORE_OF_DOUBLE = 0.45  # the same in float64
SCORE_OF_RUN = 2.5  # the same of a run at a random place
PRODUCT = 0.4  # to multiply and add a number of an inner product
PRODUCT_OF_ROW = 1.5  # the same of a row at a random place
DRAW = 400.0  # to find a random place, and what is computed of it
FILE_BYTE = 0.6  # to read a byte of a file in order
FILE_PAGE = 20_000.0  # to read a page of a file at a random place, many at a time


class Times(NamedTuple):
    """Nanoseconds of a score in a pass over all, and of a draw."""

    score: float
    draw: float


class Total(NamedTuple):
    """What a pass finds."""

    log_sum: Tensor  # log Σ exp(x_i/τ), in float64
    largest: float  # x_i/τ
    error: float  # how far `log_sum` may be off, beside what float64 loses


class Source(Protocol):
    """Scores that are read by number.

    `like` is what a result is given back as: a tensor, or an array. `run` is how many neighbours a draw best reads, `row` of how
    many numbers a score is computed, `index` that of the rows, or None.
    """

    n: int
    like: Any

    @property
    def run(self) -> int: ...

    @property
    def row(self) -> int: ...

    @property
    def index(self) -> Any: ...

    def expect(self, numbers: np.ndarray, width: int) -> None:
        """Ask the disk for the runs of `width` neighbours of these numbers."""
        ...

    def runs(self, numbers: np.ndarray, width: int) -> Tensor:
        """These runs in float64, [runs, width], −∞ after the last score, for autograd to follow."""
        ...

    def blocks(self) -> Iterator[Tensor]:
        """All scores in order, a block at a time, in float64 and for autograd to follow."""
        ...

    def total(self, tau: float, accuracy: float) -> Total:
        """The sum of all, which is off by no more than `accuracy`, for autograd to follow."""
        ...

    def times(self, width: int) -> Times:
        """What a pass takes, and what a draw of so many neighbours does."""
        ...

    @property
    def differentiable(self) -> bool:
        """Whether autograd wants to follow."""
        ...


def open_source(source: Any) -> Source:
    """The source that an array, a tensor, a memory-mapped file or the path of a .npy file is."""
    if isinstance(source, InnerProduct):
        return source
    if isinstance(source, (str, Path)):
        if Path(source).suffix != ".npy":
            raise ValueError(f"estimate: a path must name a .npy file, got {str(source)!r}; open raw files with numpy.memmap")
        source = open_scores(Path(source)).mapped()  # type: ignore[misc]  # which plain memory has
    return ArraySource(source)


def _followed(blocks: Iterator[Tensor], tau: float) -> Total:
    """The total of blocks in float64, for autograd to follow."""
    largest, sums = -math.inf, [torch.tensor(-math.inf, dtype=torch.float64, device="cpu")]
    for block in blocks:
        z = quotient(block, tau)
        largest = max(largest, float(z.detach().max()))
        sums.append(row_logsumexp(z, 1.0, None))
    return Total(row_logsumexp(torch.stack([part.to(sums[-1].device) for part in sums]), 1.0, None), largest, 0.0)


def _summed(pieces: Iterable[Tensor], tau: float, error: float) -> Total:
    """The total of pieces by the native kernel, which reads each once."""
    states = [states for piece in pieces if (states := native.logsumexp(piece.detach(), tau, None, wide=True)[1]) is not None]
    if not states:
        return Total(torch.tensor(-math.inf, dtype=torch.float64, device="cpu"), -math.inf, 0.0)
    highest, rest = torch.stack(states, 1)
    tops = quotient(highest, tau)
    return Total(row_logsumexp(tops + rest, 1.0, None), float(tops.max()), error)


@dataclass(frozen=True)
class _Mapping:
    """A file that is mapped into memory: entry i begins `start + i·step` bytes into it."""

    file: mmap.mmap
    start: int
    step: int

    def expect(self, first: np.ndarray, count: int) -> None:
        """Ask for the pages of entries that will be read: the disk brings many at a time in the time of a few."""
        if not hasattr(mmap, "MADV_WILLNEED"):  # Windows
            return
        begins = (self.start + first * self.step) // mmap.PAGESIZE * mmap.PAGESIZE
        ends = np.minimum(self.start + (first + count) * self.step, len(self.file))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self.file.madvise(mmap.MADV_WILLNEED, begin, end - begin)


def _mapping(x: Any, entries: Tensor) -> _Mapping | None:
    """The file that an array lies in, if it lies in one and `entries` shares its memory."""
    base = x
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap):
        return None
    start = entries.data_ptr() - np.frombuffer(base, np.uint8).ctypes.data
    inside = 0 <= start < len(base)
    return _Mapping(base, start, entries.stride(0) * entries.element_size()) if inside else None


def _with_file(file: _Mapping | None, width: int, memory: Times) -> Times:
    """With what a file adds where it is not in memory yet; a draw is `width` scores."""
    if file is None:
        return memory
    pages = math.ceil(width * file.step / mmap.PAGESIZE)
    return Times(memory.score + FILE_BYTE * file.step, memory.draw + FILE_PAGE * pages)


class ArraySource:
    """The scores of a one-dimensional array or tensor, which may lie in a file. Nothing is copied."""

    def __init__(self, x: Any) -> None:
        scores = as_tensor("estimate", "source", x)
        if scores.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64) or scores.is_complex():
            raise TypeError(
                f"estimate: scores must be real numbers that torch can index, got {scores.dtype}; convert them to float64"
            )
        if scores.ndim != 1:
            raise ValueError(f"estimate: scores must have one axis, got shape {tuple(scores.shape)}; call .reshape(-1)")
        self.like = x
        self.n = len(scores)
        self._scores, self._file = scores, _mapping(x, scores)

    row, index = 1, None

    @property
    def run(self) -> int:
        return RUN if self._file is None else RUN_OF_FILE

    def expect(self, numbers: np.ndarray, width: int) -> None:
        if self._file is not None:
            self._file.expect(numbers * width, width)

    def runs(self, numbers: np.ndarray, width: int) -> Tensor:
        whole = self.n // width
        places = torch.from_numpy(numbers).to(self._scores.device)
        table = self._scores[: whole * width].unflatten(0, (whole, width))
        found = table.index_select(0, places.clamp(max=whole - 1)).double()
        if bool((last := places == whole).any()):
            rest = self._scores[whole * width :].double()
            found[last] = torch.nn.functional.pad(rest, (0, width - len(rest)), value=-math.inf)
        return found

    def times(self, width: int) -> Times:
        if self._scores.device.type != "cpu":
            return Times(0.0, DRAW)  # a pass ends before the first draws do
        narrow = self._scores.is_floating_point() and self._scores.dtype != torch.float64
        score = SCORE if narrow else SCORE_OF_DOUBLE
        return _with_file(self._file, width, Times(score, DRAW + SCORE_OF_RUN * width))

    def blocks(self) -> Iterator[Tensor]:
        return (block.double() for block in self._scores.split(BLOCK)) if self.n else iter(())

    def total(self, tau: float, accuracy: float) -> Total:
        if self.differentiable or self._scores.device.type != "cpu" or not native.AVAILABLE:
            return _followed(self.blocks(), tau)
        # Σ p_i |x_i − M|/τ, by which rounded arguments count, is at most log n.
        error = 0.0 if self._scores.dtype == torch.float64 else NARROW * (1.0 + math.log(max(self.n, 1)))
        if self.n and self._scores.dtype in SUMMED and error <= accuracy:
            return _summed([self._scores] if self._scores.is_contiguous() else self._scores.split(BLOCK), tau, error)
        return _summed(self.blocks(), tau, 0.0)

    @property
    def differentiable(self) -> bool:
        return self._scores.requires_grad and torch.is_grad_enabled()


class Cells(NamedTuple):
    """The coarse cells of an IVF index: cell j has the centroid [d], and the rows members[starts[j] : starts[j + 1]]."""

    centroids: np.ndarray  # [cells, d]
    members: np.ndarray  # [n]
    starts: np.ndarray  # [cells + 1]


class _Table:
    """The rows W [n, d] with what is computed from them once, whatever the query."""

    def __init__(self, rows: Tensor, index: Any, file: _Mapping | None) -> None:
        self.rows = rows
        self.index = index
        self.file = file

    @cached_property
    def largest_norm(self) -> float:
        with torch.no_grad():
            height = max(1, BLOCK // max(1, self.rows.shape[1]))
            return max((float(block.double().norm(dim=1).amax()) for block in self.rows.split(height)), default=0.0)

    @cached_property
    def cells(self) -> Cells:
        faiss = _faiss("cells")
        index = faiss.try_extract_index_ivf(self.index)
        if index is None:
            raise ValueError(
                "estimate: importance sampling needs an IVF index, whose cells it proposes from; call inner_product_index(W)"
            )
        lists = index.invlists
        members = [_row_numbers(faiss, lists, cell) for cell in range(index.nlist)]
        starts = np.concatenate([[0], np.cumsum([len(rows) for rows in members])])
        rows = np.concatenate(members)
        if not np.array_equal(np.sort(rows), np.arange(len(self.rows))):
            raise ValueError("estimate: the index must number its rows as W does, 0 to n − 1; add them with index.add(W)")
        return Cells(index.quantizer.reconstruct_n(0, index.nlist).astype(np.float64), rows, starts)


def _row_numbers(faiss: Any, lists: Any, cell: int) -> np.ndarray:
    size = lists.list_size(cell)
    return faiss.rev_swig_ptr(lists.get_ids(cell), size).astype(np.int64) if size else np.empty(0, np.int64)


@public
class InnerProduct:
    """The scores `x_i = ⟨W_i, h⟩` of the rows of a table, as a source for `estimate`; they are computed where they are read.

    Args:
        W: the rows, [n, d]; a tensor, an array or a memory-mapped file.
        h: the query, [d]. If it, or W, requires grad, so does an estimate, with ∇_h = Σ p̂_i W_i over the rows that were read.
        index: a FAISS index of the rows of W by inner product, such as from `inner_product_index`; None for none.

    `with_query(h)` is the same table with another query, without work on W. `maximum` is the largest score that the norms allow,
    ‖h‖ max_i ‖W_i‖, which `estimate` takes as its `maximum=`; the norms are read once, when it is first asked for.

    Raises TypeError or ValueError for shapes, kinds or an index that do not fit each other.

    >>> import numpy as np, softmaxima as sm
    >>> source = sm.InnerProduct(np.eye(3), np.array([1.0, 0.0, 0.0]))
    >>> source.n, source.maximum
    (3, 1.0)
    >>> round(float(sm.estimate(source, generator=0).value), 6)  # log(e + 2)
    1.551445
    """

    def __init__(self, W: Any, h: Any, index: Any = None) -> None:  # noqa: N803
        rows = as_tensor("InnerProduct", "W", W)
        if rows.ndim != 2 or not rows.is_floating_point():
            raise ValueError(f"InnerProduct: W must be floating point of shape [n, d], got {rows.dtype} of {tuple(rows.shape)}")
        if index is not None:
            _check_index(index, rows)
        self._table = _Table(rows, index, _mapping(W, rows))
        self._set_query(h)

    def with_query(self, h: Any) -> InnerProduct:
        other = copy.copy(self)
        other._set_query(h)
        return other

    def _set_query(self, h: Any) -> None:
        query, rows = as_tensor("InnerProduct", "h", h), self._table.rows
        if query.shape != rows.shape[1:] or not query.is_floating_point():
            raise ValueError(
                f"InnerProduct: h must be floating point of shape [{rows.shape[1]}], one for each column of W, "
                f"got {query.dtype} of {tuple(query.shape)}"
            )
        if query.device != rows.device:
            raise ValueError(f"InnerProduct: h is on {query.device} and W on {rows.device}; move one of them")
        self.like, self._query, self.n = h, query, len(rows)

    @property
    def index(self) -> Any:
        return self._table.index

    @property
    def maximum(self) -> float:
        return self._table.largest_norm * float(self._query.detach().double().norm())

    @property
    def query(self) -> np.ndarray:
        """h [d] in float64."""
        return self._query.detach().double().cpu().numpy()

    @property
    def cells(self) -> Cells:
        return self._table.cells

    @property
    def differentiable(self) -> bool:
        return (self._query.requires_grad or self._table.rows.requires_grad) and torch.is_grad_enabled()

    run = 1

    @property
    def row(self) -> int:
        return max(1, self._table.rows.shape[1])

    def expect(self, numbers: np.ndarray, width: int) -> None:
        if self._table.file is not None:
            self._table.file.expect(numbers, width)

    def runs(self, numbers: np.ndarray, width: int) -> Tensor:
        rows = self._table.rows
        found = rows.index_select(0, torch.from_numpy(numbers).to(rows.device)).double() @ self._query.double()
        return found.unsqueeze(1)

    def blocks(self) -> Iterator[Tensor]:
        rows, query, height = self._table.rows, self._query.double(), max(1, BLOCK // self.row)
        if self.differentiable or rows.dtype == torch.float64:
            return (block.double() @ query for block in rows.split(height)) if self.n else iter(())
        wide = rows.new_empty((min(height, self.n), rows.shape[1]), dtype=torch.float64)  # once: new memory is slow
        return (wide[: len(block)].copy_(block) @ query for block in rows.split(height)) if self.n else iter(())

    def total(self, tau: float, accuracy: float) -> Total:
        if self.differentiable or self._table.rows.device.type != "cpu" or not native.AVAILABLE:
            return _followed(self.blocks(), tau)
        return _summed(self.blocks(), tau, 0.0)

    def times(self, width: int) -> Times:
        d = self._table.rows.shape[1]
        if self._table.rows.device.type != "cpu":
            return Times(0.0, DRAW)
        return _with_file(self._table.file, width, Times(SCORE + PRODUCT * d, DRAW + PRODUCT_OF_ROW * d))

    def search(self, k: int) -> np.ndarray:
        """The rows that the index finds for the k largest scores; some may be missing."""
        _, found = self.index.search(self.query.astype(np.float32)[None], k)
        return np.unique(found[found >= 0])

    def search_cost(self) -> tuple[bool, int]:
        """(whether a search surely finds the largest, how many scores it computes, where the index is of a kind that tells)."""
        faiss = _faiss("search")
        index = faiss.downcast_index(self.index)
        if isinstance(index, faiss.IndexFlat):
            return True, self.n
        ivf = faiss.try_extract_index_ivf(self.index)
        if ivf is None:
            return False, 0
        probes = min(ivf.nprobe, ivf.nlist)
        return isinstance(index, faiss.IndexIVFFlat) and probes == ivf.nlist, ivf.nlist + math.ceil(self.n * probes / ivf.nlist)

    @property
    def rounding(self) -> float:
        """How far a score of the index, in float32, may be from its own: d rounded products and sums."""
        return 2.0 * (self._table.rows.shape[1] + 2) * 2.0**-24 * self.maximum


@public
def inner_product_index(W: Any, cells: int | None = None, *, probes: int | None = None, generator: Randomness = None) -> Any:  # noqa: N803
    """A FAISS index of the rows of W [n, d] by inner product: an inverted file over `cells` k-means cells.

    Args:
        W: the rows, a tensor or an array; FAISS copies them as float32.
        cells: how many; about 4√n by default, and never more than n/39, as k-means wants.
        probes: how many cells a search looks into; 1/16 of them by default.
        generator: of k-means; see `estimate`.

    Raises ImportError where FAISS is not installed (`pip install faiss-cpu`), ValueError for a W without rows.

    >>> import numpy as np, softmaxima as sm
    >>> W = np.random.default_rng(0).standard_normal((20_000, 8))
    >>> index = sm.inner_product_index(W)
    >>> index.ntotal, index.nlist
    (20000, 512)
    >>> source = sm.InnerProduct(W, W[0], index)
    >>> bool(abs(sm.estimate(source, 0.05, generator=0).value - sm.logsumexp(W @ W[0])) < 0.05)
    True
    """
    name = "inner_product_index"
    faiss = _faiss(name)
    rows = as_tensor(name, "W", W).detach()
    if rows.ndim != 2 or not rows.is_floating_point() or rows.numel() == 0:
        raise ValueError(f"{name}: W must be floating point of shape [n, d], got {rows.dtype} of {tuple(rows.shape)}")
    if not bool(check_values(name, "W", rows).isfinite().all()):
        raise ValueError(
            f"{name}: W must be finite, got NaN or an infinity; leave such rows out, as rows[rows.isfinite().all(1)] does"
        )
    n, d = rows.shape
    cells = min(math.ceil(4 * math.sqrt(n)), max(1, n // 39)) if cells is None else check_count(name, "cells", cells)
    if cells > n:
        raise ValueError(f"{name}: cells must be from 1 to n = {n}, got {cells}")
    probes = max(1, cells // 16) if probes is None else check_count(name, "probes", probes)
    seed = as_seed(name, generator)
    dense = rows.float().cpu().contiguous().numpy()
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.min_points_per_centroid = seed % SEEDS, 1
    index.train(dense)
    index.add(dense)
    index.nprobe = probes
    return index


def _check_index(index: Any, rows: Tensor) -> None:
    faiss = _faiss("InnerProduct")
    if not isinstance(index, faiss.Index):
        raise TypeError(f"InnerProduct: index must be a FAISS index, got {type(index).__name__}; call inner_product_index(W)")
    if (index.ntotal, index.d) != tuple(rows.shape):
        raise ValueError(
            f"InnerProduct: the index holds {index.ntotal} rows of {index.d} columns, and W has {rows.shape[0]} of {rows.shape[1]}"
        )
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ValueError("InnerProduct: the index must have faiss.METRIC_INNER_PRODUCT; L2 neighbours are not the largest scores")


def _faiss(name: str) -> Any:
    try:
        return importlib.import_module("faiss")
    except ImportError:
        raise ImportError(f"{name} needs FAISS, which is not installed: pip install faiss-cpu") from None
