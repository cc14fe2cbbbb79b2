"""What commands share that measure: where, how far they are, what is shown and written, and what is wrong."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.markup import escape

from softmaxima_lab.commands.terminal import WRONG_RESULT, check_writable, fail, keeping, progress_bar, say

B = TypeVar("B")


class Result(Protocol):
    """What was measured, and what is wrong with it, which may be nothing."""

    @property
    def case(self) -> object: ...
    @property
    def problem(self) -> str: ...


def check_place(device: str, json: Path | None) -> None:
    """Fail before any work where there is no such device, or the file cannot be written."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        fail("--device: torch finds no CUDA device here; leave it out to measure on the CPU")
    if json is not None:
        check_writable("--json", json)


@contextlib.contextmanager
def announcing(steps: int) -> Iterator[Callable[[str], None]]:
    """What is to be called before each of so many steps, with what it measures."""
    with progress_bar() as progress:
        task = progress.add_task("", total=steps)
        done = itertools.count()
        yield lambda what: progress.update(task, completed=next(done), description=escape(what))


def show_and_write(benchmark: B, show: Callable[[B], None], write: Callable[[B, Path], Any], json: Path | None) -> None:
    """Show what was measured, and write it where a file is named."""
    if json is None:
        show(benchmark)
        return
    with keeping("--json", json, lambda: write(benchmark, json)):
        show(benchmark)
    say("")
    say(f"written: {json}")


def check_results(results: Sequence[Result]) -> None:
    """Fail where any is wrong."""
    if wrong := [f"{result.case}: {result.problem}" for result in results if result.problem]:
        fail(f"{len(wrong)} of {len(results)} results are wrong: {'; '.join(wrong)}", WRONG_RESULT)
