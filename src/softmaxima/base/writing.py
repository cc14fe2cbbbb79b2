"""Files that appear complete or not at all, numbers as JSON takes them, and texts that do nothing where they are shown."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def finite(value: Any) -> Any:
    """The same with None for each number that is not finite, of which JSON has none."""
    if isinstance(value, Mapping):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# What terminals obey, marks that turn the direction of what follows, and halves of letters, which no file holds.
_ACTIVE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# What begins a formula, also after what some spreadsheets take to separate cells, and what looks as if ' had been put before one.
_FORMULA = re.compile("(^|[;,|\t\n])(?='*\\s*[=+@\uff0b\uff0d\uff1d\uff20-])")


def visible(text: str) -> str:
    """The text with � for each letter that would act and not show.

    >>> visible("red \\x1b[31m")
    'red �[31m'
    """
    return _ACTIVE.sub("\N{REPLACEMENT CHARACTER}", text)


def visible_lines(text: str) -> str:
    """The same of a text of lines."""
    return "\n".join(map(visible, text.split("\n")))


def as_cell(text: str) -> str:
    """The text as a cell of CSV, with ' where a spreadsheet would see a formula begin; a number stays.

    >>> as_cell("=1+1"), as_cell("'=1+1"), as_cell("-1")
    ("'=1+1", "''=1+1", '-1')
    """
    try:
        float(text)
    except ValueError:
        return visible_lines(_FORMULA.sub(r"\1'", text))
    return text


def write_text(path: Path, text: str, follow: bool = True) -> None:
    """Write a text in the place of a file, as `write_bytes` does."""
    write_bytes(path, text.encode(), follow)


def write_bytes(path: Path, content: bytes, follow: bool = True) -> None:
    """Write bytes in the place of a file. A link stays, and its file is written; a device or a pipe stays, and takes the bytes.

    Without `follow` a link is replaced too, for that of a path that has been resolved is one that somebody has put there since.
    """
    if follow and path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path)) if follow else path
    # a name that nobody foresees, and "x" opens no file and follows no link that is there
    partial = path.with_name(f".softmaxima-{secrets.token_hex(8)}.partial")
    file = partial.open("xb")
    try:
        with file:
            if path.exists() and (follow or not path.is_symlink()):
                partial.chmod(path.stat().st_mode & 0o777)  # what others may not read they still may not
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a disk that is full shows here, before the old file is gone
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
