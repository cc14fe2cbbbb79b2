"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text in the place of a file, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes in the place of a file. A link stays, and its file is written; a device or a pipe stays, and takes the bytes."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a disk that is full shows here, before the old file is gone
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
