"""Inner products W h as a source of scores, with an index over the rows of W."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor, check_values
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public
from softmaxima.base.randomness import SEEDS, Randomness, as_seed
from softmaxima.kernels import native
from softmaxima.lse.estimates.sources import (
    BLOCK,
    DRAW,
    PRODUCT,
    PRODUCT_OF_ROW,
    SCORE,
    MappedFile,
    Times,
    Total,
    followed,
    mapped_file,
    summed,
    with_file,
)


class Cells(NamedTuple):
    """The coarse cells of an IVF index: cell j has the centroid [d], and the rows members[starts[j] : starts[j + 1]]."""

    centroids: np.ndarray  # [cells, d]
    members: np.ndarray  # [n]
    starts: np.ndarray  # [cells + 1]


class _Table:
    """The rows W [n, d] with what is computed from them once, whatever the query."""

    def __init__(self, rows: Tensor, index: Any, file: MappedFile | None) -> None:
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
        self._table = _Table(rows, index, mapped_file(W, rows))
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
            return followed(self.blocks(), tau)
        return summed(self.blocks(), tau, 0.0)

    def times(self, width: int) -> Times:
        d = self._table.rows.shape[1]
        if self._table.rows.device.type != "cpu":
            return Times(0.0, DRAW)
        return with_file(self._table.file, width, Times(SCORE + PRODUCT * d, DRAW + PRODUCT_OF_ROW * d))

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
