"""Files that appear complete or not at all, and numbers as JSON takes them."""

from __future__ import annotations

import math
import os
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


def write_text(path: Path, text: str) -> None:
    """Write a text in the place of a file, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes in the place of a file. A link stays, and its file is written; a device or a pipe stays, and takes the bytes."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    # a name that nobody foresees, and "x" opens no file and follows no link that is there
    partial = path.with_name(f".softmaxima-{secrets.token_hex(8)}.partial")
    file = partial.open("xb")
    try:
        with file:
            if path.exists():
                partial.chmod(path.stat().st_mode & 0o777)  # what others may not read they still may not
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a disk that is full shows here, before the old file is gone
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
