"""Which source of scores something is: an array, in memory or in a file, is one itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor
from softmaxima.io.formats.opening import open_scores
from softmaxima.kernels import native
from softmaxima.lse.estimates.inner_product import InnerProduct
from softmaxima.lse.estimates.sources import (
    BLOCK,
    DRAW,
    SCORE,
    SCORE_OF_DOUBLE,
    SCORE_OF_RUN,
    Source,
    Times,
    Total,
    followed,
    mapped_file,
    summed,
    with_file,
)

RUN = 256  # neighbours in a draw from memory, where a score of a longer run is no cheaper
RUN_OF_FILE = 1024  # neighbours in a draw from a file, which is read by pages
SUMMED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # as they lie in memory
NARROW = 2.0**-20  # above what an exponential in float32 is off by, relatively, a nat of its argument; 40 times what was measured


def open_source(source: Any) -> Source:
    """The source that an array, a tensor, a memory-mapped file or the path of a .npy file is."""
    if isinstance(source, InnerProduct):
        return source
    if isinstance(source, (str, Path)):
        if Path(source).suffix != ".npy":
            raise ValueError(f"estimate: a path must name a .npy file, got {str(source)!r}; open raw files with numpy.memmap")
        source = open_scores(Path(source)).mapped()  # type: ignore[misc]  # which plain memory has
    return ArraySource(source)


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
        self._scores, self._file = scores, mapped_file(x, scores)

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
        return with_file(self._file, width, Times(score, DRAW + SCORE_OF_RUN * width))

    def blocks(self) -> Iterator[Tensor]:
        return (block.double() for block in self._scores.split(BLOCK)) if self.n else iter(())

    def total(self, tau: float, accuracy: float) -> Total:
        if self.differentiable or self._scores.device.type != "cpu" or not native.AVAILABLE:
            return followed(self.blocks(), tau)
        # Σ p_i |x_i − M|/τ, by which rounded arguments count, is at most log n.
        error = 0.0 if self._scores.dtype == torch.float64 else NARROW * (1.0 + math.log(max(self.n, 1)))
        if self.n and self._scores.dtype in SUMMED and error <= accuracy:
            return summed([self._scores] if self._scores.is_contiguous() else self._scores.split(BLOCK), tau, error)
        return summed(self.blocks(), tau, 0.0)

    @property
    def differentiable(self) -> bool:
        return self._scores.requires_grad and torch.is_grad_enabled()
