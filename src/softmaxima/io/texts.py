"""What a text is before it is numbers: its encoding, the lines before its first row, its separator; and the table in an archive.

Tables to train on (the lab) and scores (`formats`) are read by this, so that both take the same files.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from softmaxima.base.numbers import InputError

SEPARATORS = ("\t", ";", "|", ",")  # of columns, the first of those that fit equally well: a comma may be a decimal one
TYPED = 4096  # bytes of one line, at most, that may come from a keyboard or a printf, which writes no line end
LETTERS, LINES = 200_000, 1000  # by which the separator is recognised
COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")  # by gzip, Zstandard and zip
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
STATED = re.compile(r"sep=([^\r\n\w\"])?[^\r\n]*(?:\r\n|\r|\n|\Z)", re.IGNORECASE)  # Excel's own line
BLANK = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))*")
DECIMAL = re.compile(r"[+-]?[0-9]+,[0-9]+")


def encoding_of(content: bytes, whole: bool = True) -> str:
    """That of a text, by its mark, as UTF-8 where it is that, or else Windows-1252; `content` may be its beginning."""
    if content.startswith(UTF16):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content, final=whole)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


class Recoded(io.RawIOBase):
    """A text in UTF-16 as UTF-8, without its mark."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name, self._rest, self._ended = file, name, b"", False
        self._decoder = codecs.getincrementaldecoder("utf-16")()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and not self._ended:
            read = self._file.read(len(buffer))
            self._ended = not read
            try:
                self._rest = self._decoder.decode(read, self._ended).encode()
            except UnicodeError:
                raise InputError(f"{self._name} begins as UTF-16 and is cut off or goes on as no text; save it in UTF-8") from None
        n = min(len(buffer), len(self._rest))
        buffer[:n], self._rest = self._rest[:n], self._rest[n:]
        return n


def most_unpacked(packed: int) -> int:
    """Bytes that so many may be unpacked to where nobody trusts who packed them: numbers are seldom packed to a hundredth."""
    return max(2**30, 100 * packed)


class Limited(io.RawIOBase):
    """What is unpacked, which raises InputError beyond so many bytes."""

    def __init__(self, file: Any, most: int, told: str) -> None:
        self._file, self._left, self._told = file, most, told

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._file.read(min(len(buffer), 2**20))
        self._left -= len(read)
        if self._left < 0:
            raise InputError(self._told)
        buffer[: len(read)] = read
        return len(read)


class Ended(io.RawIOBase):
    """A text that raises InputError where it ends as one that is cut off does: without a line end, unless it is one short line.

    After it comes what is to mark its end.
    """

    def __init__(self, file: Any, name: str, unended: bool, mark: bytes = b"") -> None:
        self._file, self._name, self._may, self._mark = file, name, unended, mark
        self._bytes, self._has_lines, self._last = 0, False, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if read := self._file.read(len(buffer)):
            self._bytes, self._last = self._bytes + len(read), read[-1:]
            self._has_lines = self._has_lines or b"\n" in read or b"\r" in read
        elif not self._may and self._last not in b"\r\n" and (self._has_lines or self._bytes > TYPED):
            repair = "copy it again, or say that it is whole with `unended`"
            raise InputError(f"{self._name} has no line end after its last line, as a file that is cut off; {repair}")
        else:
            read, self._mark = self._mark[: len(buffer)], self._mark[len(buffer) :]
        buffer[: len(read)] = read
        return len(read)


@dataclass(frozen=True)
class Layout:
    """How the rows of a text are written."""

    begin: int  # letters before the first row
    line: int  # the line of the first row, from 1
    separator: str
    width: int  # columns that most lines have
    lines: Sequence[str]  # the first, without those before

    @property
    def doubt(self) -> str | None:
        """Where each line may as well be one number, or a few between blanks: what to say."""
        return doubt_of([word for line in self.lines for word in line.split()]) if self.separator == "," else None


def layout_of(text: str) -> Layout:
    """Of a text, or of its beginning."""
    stated = STATED.match(text)
    begin = stated.end() if stated else 0
    begin = BLANK.match(text, begin).end()  # type: ignore[union-attr]
    sample = text[begin : text.find("\n", begin + LETTERS) + 1] or text[begin:]
    lines = list(islice(io.StringIO(sample, newline=None), LINES))
    line = 1 + len(re.findall(r"\r\n|\r|\n", text[:begin]))
    separator, width = separator_of(lines, [stated[1]] if stated and stated[1] else SEPARATORS)
    return Layout(begin, line, separator, width, lines)


def doubt_of(words: Sequence[str]) -> str | None:
    """Where each word of a text, or of its beginning, may be a number with a decimal comma: what to say."""
    if not words or not all(map(DECIMAL.fullmatch, words)):
        return None
    return (
        f"its commas are taken to separate numbers; if they are decimal ones, as that of {words[0]!r} may be, write points for them"
    )


def separator_of(lines: Sequence[str], separators: Sequence[str] = SEPARATORS) -> tuple[str, int]:
    """The separator that cuts the most lines into one number of columns, and that number; the last and 1 where none cuts."""

    def cut(separator: str) -> tuple[float, int]:
        widths = Counter(len(fields) for fields in rows_of(lines, separator) if any(fields))
        width, most = max(widths.items(), key=lambda item: item[1], default=(1, 0))
        return (most / widths.total(), width) if width > 1 else (0.0, 1)

    found = {separator: cut(separator) for separator in separators}
    separator = max(separators, key=lambda separator: found[separator][0])
    return (separator, found[separator][1]) if found[separator][1] > 1 else (separators[-1], 1)


def rows_of(lines: Sequence[str], separator: str) -> Iterator[list[str]]:
    """The fields of rows, but for those with a field of more letters than csv takes."""
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            continue


def table_in(archive: zipfile.ZipFile, readable: Collection[str]) -> str:
    """The one member with a suffix that can be read.

    Raises:
        InputError: without the archive's name.
    """
    members = [member for member in archive.namelist() if not member.startswith("__MACOSX/")]
    if "xl/workbook.xml" in members:
        raise InputError("is a workbook of Excel; save its sheet as CSV")
    tables = [member for member in members if PurePosixPath(member.removesuffix(".gz")).suffix.lower() in readable]
    if len(tables) != 1:
        told = ", ".join(map(repr, (tables or members)[:10])) or "none"
        raise InputError(f"needs one table in it, got {told}; take out the one that is meant")
    return tables[0]
