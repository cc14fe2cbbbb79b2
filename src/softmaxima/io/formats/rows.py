"""CSV and its relatives: one column of a text in rows."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import InputError, Problems
from softmaxima.base.places import Place
from softmaxima.io.formats import source
from softmaxima.io.formats.columns import decoded
from softmaxima.io.formats.numbers import LONGEST, is_number
from softmaxima.io.formats.source import Asked, Scores, choose_column, library, missing_values, skip_scores
from softmaxima.io.formats.stream import Stream, refuse_compressed
from softmaxima.io.texts import Ended, Recoded, encoding_of, layout_of, rows_of

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block

ROW = 2**23  # letters of a row of a table in a text
NO_MORE = -1  # in the place of that number

MISSING = ("", "NA", "N/A", "null", "NULL")

POINTED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+")

GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+")  # a decimal comma, or thousands


def open_csv(path: Place, asked: Asked) -> Scores:
    return csv_stream(Stream(path, asked))


def csv_stream(stream: Stream) -> Scores:
    """A column of a table. A first line of numbers is no header."""
    pyarrow, reader = library("pyarrow", "CSV"), library("pyarrow.csv", "CSV")
    table = _table(stream)
    # Threads read one column no faster. All columns have their number for a name, whatever they are called.
    reading = lambda: reader.ReadOptions(
        block_size=8 * source.PIECE,
        column_names=[str(number) for number in range(table.width)],
        skip_rows_after_names=int(table.has_names),
        use_threads=False,
    )
    parsing = reader.ParseOptions(delimiter=table.separator)
    # A row after the last, with a number that nobody foresees: it is part of the row before it where a quote there is not closed.
    mark = secrets.randbits(52)
    row = f"\n{table.separator * table.place}{mark}{table.separator * (table.width - 1 - table.place)}\n"
    converting = reader.ConvertOptions(
        include_columns=[str(table.place)],
        column_types={str(table.place): pyarrow.float64()},
        null_values=[*MISSING],
        decimal_point="," if table.with_commas else ".",
    )

    def blocks(file: Any) -> Iterator[Block]:
        done, last = 0, np.empty(0)
        with contextlib.suppress(pyarrow.ArrowInvalid):  # of what it does not read as it is
            for batch in reader.open_csv(
                table.rows(file, row), read_options=reading(), parse_options=parsing, convert_options=converting
            ):
                column = batch.column(0)
                if column.null_count or np.isposinf(column.to_numpy()).any():  # as of a million digits
                    break
                for block in decoded(stream.name, iter([column]), pyarrow):
                    yield last
                    yield block[:-1]
                    done, last = done + len(last) + len(block) - 1, np.array(block[-1:])
            else:
                if done and last == mark:
                    return
        with stream.open() as again:
            yield from skip_scores(table.row_by_row(again), done)

    return stream.scores("text", blocks)


@dataclass(frozen=True)
class _Table:
    """A table in a text, and the column of it that holds the scores."""

    name: str
    encoding: str
    begin: int  # bytes before the first row
    line: int  # of the first row, from 1
    separator: str
    names: Sequence[str]
    has_names: bool
    column: str
    with_commas: bool  # before decimals, in the first rows
    may_have_commas: bool  # before them, in any row
    unended: bool

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def place(self) -> int:
        return self.names.index(self.column)

    def rows(self, file: Any, mark: str = "") -> Any:
        """The file from its first row on, in UTF-8 where it was UTF-16, and what is to mark its end."""
        file = Recoded(file, self.name) if self.encoding == "utf-16" else file
        file = io.BufferedReader(Ended(file, self.name, self.unended, mark.encode()), 2**20)
        left = self.begin
        while left and (more := file.read(left)):
            left -= len(more)
        return file

    def row_by_row(self, file: Any) -> Iterator[np.ndarray]:
        """The scores, read slowly, with less asked of what is around them; all that is wrong in some rows is told at once."""
        encoding = "cp1252" if self.encoding == "cp1252" else "utf-8"
        found: list[float] = []
        wrong: dict[str, list[str]] = {"missing": [], "no number": [], "no row": []}
        line, names, place, came = self.line, self.has_names, self.place, 0
        with io.TextIOWrapper(self.rows(file), encoding, errors="replace", newline="") as text:
            letters = [0]  # of the row that is read
            reader = csv.reader(self._lines(text, letters), delimiter=self.separator, skipinitialspace=True)
            for fields in self._whole(reader):
                first, line = line, self.line + reader.line_num
                if letters[0] == NO_MORE:
                    raise InputError(f"{self.name}: the row of line {first} has a quote that is never closed; close it")
                letters[0] = 0
                if not any(map(str.strip, fields)):
                    continue
                if names:
                    names = False
                elif len(fields) != self.width:
                    wrong["no row"].append(f"line {first} has {len(fields)} field{'s' * (len(fields) != 1)}")
                elif (cell := fields[place].strip()) in MISSING:
                    wrong["missing"].append(f"line {first}")
                elif (number := self._number(cell)) is None:
                    wrong["no number"].append(f"line {first} holds {cell[:40]!r}")
                else:
                    found.append(number)
                if len(found) + sum(map(len, wrong.values())) >= source.PIECE:
                    self._refuse(wrong)
                    yield np.array(found)
                    came, found = came + len(found), []
        self._refuse(wrong)
        if not (came or found or self.unended):
            repair = "write it again, or say that it is whole with `unended`"
            raise InputError(f"{self.name} is empty: no row came after its header, as of a file that is cut off; {repair}")
        yield np.array(found)

    def _lines(self, text: Any, letters: list[int]) -> Iterator[str]:
        """The lines of a text, of which a row takes no more than `ROW` letters; then `letters` says that a row wanted more."""
        while line := text.readline(ROW):
            letters[0] += len(line)
            if letters[0] >= ROW:
                raise InputError(
                    f"{self.name}: a row has {ROW} letters or more, as where no line ends; give a table of shorter rows"
                )
            yield line
        letters[0] = NO_MORE

    def _whole(self, reader: Any) -> Iterator[list[str]]:
        """The rows of a reader of csv, of which none is too long."""
        try:
            yield from reader
        except csv.Error:
            held = f"line {self.line + reader.line_num - 1} ends a field of more than {csv.field_size_limit()} letters"
            raise InputError(f"{self.name}: {held}, as where a quote is not closed; repair it") from None

    def _number(self, cell: str) -> float | None:
        # 1.234 beside 2,5 is more than a thousand, and so may be 1,234 where no row before it has a comma
        grouped = (POINTED if self.with_commas else GROUPED).fullmatch(cell) if self.may_have_commas else None
        text = "" if grouped else cell.replace(",", ".") if self.may_have_commas and "." not in cell else cell
        return float(text) if len(text) <= LONGEST and is_number(text.encode()) else None

    def _refuse(self, wrong: Mapping[str, Sequence[str]]) -> None:
        """Raise InputError where anything is wrong."""
        problems, other = Problems(), ", or name another column" if self.width > 1 else ""
        if lines := wrong["no number"]:
            repair = "write its decimals after a point and its thousands without commas" if "," in lines[0] else "repair it"
            if self.with_commas and "." in lines[0]:
                repair = "write its decimals after a comma and its thousands without points"
            problems.append(f"column {self.column!r} is not numeric: {_first_of(lines)}; {repair}{other}")
        if lines := wrong["missing"]:
            problems.append(f"{missing_values(len(lines), lines[0])}; fill them in, or remove those rows")
        if lines := wrong["no row"]:
            repair = f"give every row as many, or quote what holds {self.separator!r}"
            problems.append(f"{_first_of(lines)}, where the first line has {self.width}; {repair}")
        if problems:
            problems.fail(of=f"{self.name}: ")


def _first_of(lines: Sequence[str]) -> str:
    return lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")


def _table(stream: Stream) -> _Table:
    """What the beginning of a text tells. Raises InputError where it is none, or has no such column."""
    with stream.open() as file:
        content = file.read(8 * source.PIECE)
    content = content[: content.find(b"\n", source.PIECE) + 1 or None]
    refuse_compressed(stream.name, content)
    encoding = encoding_of(content, whole=False)
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    text = decoder.decode(content)
    layout = layout_of(text)
    try:
        first = next(csv.reader(layout.lines, delimiter=layout.separator, skipinitialspace=True), [])
    except csv.Error:
        held = f"its first line has a field of more than {csv.field_size_limit()} letters"
        raise InputError(f"{stream.name}: {held}, as where a quote is not closed; repair it") from None
    if found := re.search("[\x01-\x08\x0e-\x1f\x7f]", "".join(first)):
        raise InputError(f"{stream.name}: its first line holds a control character, {found[0]!r}; take it out")
    if re.search("[\x00\ufffd]", "".join(first)):
        raise InputError(f"{stream.name}: its first line is no text in UTF-8, UTF-16 or Windows-1252; save it as CSV in UTF-8")
    names = [name.strip() for name in first]
    numbers = [not name or is_number(name.replace(",", ".").encode()) for name in names]
    bare = all(numbers)
    if bare:
        names = [f"f{i}" for i in range(len(names))]  # as pyarrow calls them
    try:
        chosen = choose_column(stream.name, "column", names, stream.asked.column)
    except InputError as error:
        doubt = f"; {layout.doubt}" if layout.doubt else ""
        taken = "; its first line was taken for the header: give it one, if that is a row" if any(numbers) and not bare else doubt
        raise InputError(f"{error}{taken}") from None
    if layout.doubt:
        warnings.warn(f"{stream.name}: {layout.doubt}", stacklevel=2)
    place = names.index(chosen)
    rows = rows_of(layout.lines[not bare :], layout.separator)
    cells = [row[place].strip() for row in rows if place < len(row)]
    commas = [cell for cell in cells if "," in cell]
    may_group = bool(commas) and all(map(GROUPED.fullmatch, commas))
    if may_group and layout.separator != ",":
        told = f"{stream.name}: the commas in column {chosen!r} are taken for decimal ones"
        warnings.warn(f"{told}; if they group thousands, as that of {commas[0]!r} may, leave them out", stacklevel=2)
    before = text[: layout.begin]
    begin = len(before.encode()) + (len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0)
    with_commas = bool(commas) and (layout.separator != "," or not may_group)
    may_have_commas = with_commas or (layout.separator != "," and not any("." in cell for cell in cells))
    return _Table(
        stream.name,
        encoding,
        begin,
        layout.line,
        layout.separator,
        names,
        not bare,
        chosen,
        with_commas,
        may_have_commas,
        stream.asked.unended,
    )
