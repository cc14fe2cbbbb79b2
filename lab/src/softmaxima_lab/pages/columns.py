"""What the reports of comparisons share: columns of a table, on a page and in a terminal, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from softmaxima.base.writing import write_text
from softmaxima_lab.pages.markdown import table

R = TypeVar("R")
F = TypeVar("F")


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of the table: its heading, a short one for terminals, a result's cell, and what it is sorted by."""

    heading: str
    short: str
    cell: Callable[[R], str]
    value: Callable[[R], float | str]
    spare: int = 0  # of columns that a narrow terminal has no room for, the largest is left out first, and 0 never
    best_first: str = "descending"  # the order in which it is sorted at first
    orders: bool = False  # the results are in its order, so that it is never left out
    meaning: str = ""  # for who does not know it


def spare(columns: Sequence[Column[R]]) -> list[int]:
    """The numbers of those that may be left out, the first to go first."""
    found = [number for number, column in enumerate(columns) if column.spare and not column.orders]
    return sorted(found, key=lambda number: -columns[number].spare)


def markdown_table(name: str, columns: Sequence[Column[R]], results: Sequence[R], taken: R | None) -> str:
    """The table as text, the first column under that name, what is recommended in bold."""
    cells = [[column.cell(result) for column in columns] for result in results]
    rows = [
        [cell and f"**{cell}**" for cell in own] if result is taken else own for result, own in zip(results, cells, strict=True)
    ]
    return table([name, *(column.heading for column in columns[1:])], rows)


def write_files(files: Mapping[str, Callable[[F], str]], found: F, directory: Path, names: Sequence[str] = ()) -> tuple[Path, ...]:
    """Write all files, or those of these names. One appears complete or not at all."""
    paths = [directory / name for name in names or files]
    for path in paths:
        write_text(path, files[path.name](found))
    return tuple(paths)
