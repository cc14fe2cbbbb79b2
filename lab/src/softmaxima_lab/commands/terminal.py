"""What all commands share: what they print, how they fail and end, and progress where someone watches."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import cyclopts
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from softmaxima.base.numbers import InputError
from softmaxima.base.writing import visible, visible_lines
from softmaxima_lab.interruption import asked, heard

if TYPE_CHECKING:
    from softmaxima_lab.pages.columns import Column

WRONG_RESULT, NOT_WRITTEN, WRONG_USE, NOT_READ = 1, 1, 2, 141
WIDE = 116  # columns of a terminal that fit the tables with their full headings


class OutputError(Exception):
    """Standard output cannot be written."""


class Terminal(Console):
    """A console that texts of others, as names of files and classes, can only be shown on."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """As rich does, with � for what a terminal would obey."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=visible_lines(part.text))


class Output(Terminal):
    """Standard output, where a full disk is an OutputError, and a pipe that nobody reads any more a silent end."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints."""
        if sys.stdout is None:
            raise OutputError("it is closed")
        try:
            super().print(*objects, **options)
        except OSError as error:
            with contextlib.suppress(OSError):
                sys.stdout.close()  # or Python writes the rest at its end, and fails again
            if isinstance(error, BrokenPipeError):
                raise SystemExit(NOT_READ) from None
            raise OutputError(error.strerror) from None

    def on_broken_pipe(self) -> NoReturn:
        """Where rich would end the process, and what was measured would be lost."""
        raise


def check_exists(file: Path, otherwise: str) -> None:
    """Raise at once where there is nothing of that name: what reads files takes a second to load."""
    if not file.exists():
        raise InputError(f"there is no file {file}; give a path to an existing file{otherwise}")


def check_file(file: Path, otherwise: str) -> None:
    """The same, and where it is a directory or, as a pipe, may never end."""
    check_exists(file, otherwise)
    if not file.is_file():
        fail(f"{file} is a {'directory' if file.is_dir() else 'pipe or a device'}; give a file{otherwise}")


def check_writable(option: str, path: Path, is_directory: bool = False) -> None:
    """Fail before any work where a file, or files in a directory, cannot be written. Directories are made; a device or a pipe need
    only be open to us."""
    try:
        if path.is_dir() and not is_directory:
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it is read-only")
        if is_directory or path.is_file() or not path.exists():
            directory = path if is_directory else Path(os.path.realpath(path)).parent
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
    except OSError as error:
        fail(f"{option}: cannot write to {path} ({error.strerror}); choose another {'directory' if is_directory else 'file'}")


def names(given: Sequence[str] | None) -> tuple[str, ...]:
    """The names in an option that takes several, separated by commas."""
    return tuple(name.strip() for part in given or () for name in part.split(",") if name.strip())


def check_named(option: str, given: Sequence[str] | None, otherwise: str) -> None:
    """Fail where an option that takes names is given none, as by a variable of the shell that is not set."""
    if given is not None and not names(given):
        fail(f"{option}: no name is given; leave it out {otherwise}")


def progress_bar(*columns: ProgressColumn) -> Progress:
    """On stderr, and only where someone watches."""
    console = Terminal(stderr=True)
    left = TimeRemainingColumn(), TextColumn("left")
    columns = (TextColumn("{task.description}"), BarColumn(18), *(columns or (MofNCompleteColumn(),)), *left)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def padding(wide: bool) -> int:
    """Blanks between the columns of a table."""
    return 2 if wide else 1


def plain_table(headings: Sequence[str], wide: bool) -> RichTable:
    """A table without lines, its first column flush left and the others flush right."""
    table = RichTable(box=None, padding=(0, padding(wide), 0, 0), pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", vertical="bottom", overflow="fold")
    return table


def fitting(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, between: int, spare: Sequence[int]
) -> dict[int, str]:
    """The numbers and headings of the columns that fit side by side: headings are broken, then columns in `spare` left out."""
    kept = dict(enumerate(headings))
    cells = [max(map(cell_len, column), default=0) for column in zip(*rows, strict=True)] or [0] * len(headings)

    def needed() -> int:
        return sum(max(cells[number], *map(cell_len, heading.split("\n"))) + between for number, heading in kept.items()) - between

    if needed() > width:
        kept = {number: heading.replace(" ", "\n") for number, heading in kept.items()}
    for column in spare:
        if needed() > width:
            del kept[column]
    return kept


def show_table(
    console: Console, name: str, columns: Sequence[Column], results: Sequence[Any], bold: Sequence[bool]
) -> list[Column]:
    """The columns that fit, which are returned, the first under that name, with those rows bold, and which columns are left out."""
    from softmaxima_lab.pages.columns import spare

    headings = [visible_lines(name), *(column.short for column in columns[1:])]
    rows = [[visible_lines(column.cell(result)) for column in columns] for result in results]
    wide = console.width >= WIDE
    kept = fitting(headings, rows, console.width, padding(wide), spare(columns))
    table = plain_table(list(kept.values()), wide)
    for row, is_bold in zip(rows, bold, strict=True):
        table.add_row(*(Text(row[number]) for number in kept), style="bold" if is_bold else None)
    console.print()
    console.print(table)
    console.print()
    if len(kept) < len(headings):
        without = ", ".join(heading for number, heading in enumerate(headings) if number not in kept)
        console.print(Text(f"Left out, for a terminal of {console.width} columns: {without}.", style="dim"))
    return [columns[number] for number in kept]


def about(seconds: float) -> str:
    """A duration in the unit that people would say."""
    if seconds < 100:
        return f"about {round(seconds)} s" if seconds >= 1 else "less than 1 s"
    return f"about {round(seconds / 60)} min" if seconds < 6000 else f"about {seconds / 3600:.1f} h"


def in_the_table_alone() -> str:
    return "what was measured is in the table alone"


@contextlib.contextmanager
def keeping(option: str, path: Path, write: Callable[[], Any], otherwise: Callable[[], str] = in_the_table_alone) -> Iterator[None]:
    """What is shown is written after it, so that a full disk or a closed pipe does not lose both; `otherwise` says what is left."""
    try:
        yield
    finally:
        try:
            write()
        except OSError as error:
            fail(f"{option}: cannot write to {path} ({error.strerror}); {otherwise()}", NOT_WRITTEN)


def say(line: str) -> None:
    """A line on stdout."""
    Output().print(Text(visible(line)), soft_wrap=True)


_OPTIONS: ContextVar[frozenset[str]] = ContextVar("options", default=frozenset())


@contextlib.contextmanager
def naming(options: Iterable[str]) -> Iterator[None]:
    """Tells of these parameters as options: `zero_point` is --zero-point."""
    before = _OPTIONS.set(frozenset(options))
    try:
        yield
    finally:
        _OPTIONS.reset(before)


def _option(name: re.Match[str]) -> str:
    return "--" + name[1].replace("_", "-") if name[1] in _OPTIONS.get() else name[0]


def tell(message: str) -> None:
    """One line on stderr, where a parameter of the command in backticks is an option."""
    line = re.sub(r"`([a-z_]+)`", _option, " ".join(message.split()))
    Terminal(stderr=True).print(Text(f"softmaxima: {line.removeprefix('softmaxima ')}"), soft_wrap=True)


def fail(message: str | Exception, code: int = WRONG_USE) -> NoReturn:
    """One line on stderr, of an InputError what it has for a command, and the exit code. A signal may be behind any problem."""
    if asked() and code != heard()[1]:
        message, code = heard()
    tell(getattr(message, "command", None) or str(message))
    raise SystemExit(code)


@contextlib.contextmanager
def short_warnings() -> Iterator[None]:
    """Tells of a warning in one line, without the place in our files where it arose."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: tell(str(message))
        yield


def converted(hint: Any, tokens: Sequence[cyclopts.Token]) -> Any:
    """What an argument says; an int with a fraction, which cyclopts rounds, and a path without a name say nothing."""
    for token in tokens:
        if hint is int and "." in token.value:
            raise ValueError(f"must be an int, got {token.value}")
        if hint is Path and not token.value:
            raise ValueError("a path is empty; name a file")
    return cyclopts.convert(hint, tokens)
