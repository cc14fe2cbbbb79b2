"""A text to learn from, as bytes. Without torch, so that what is wrong with a file is told at once."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from softmaxima.base.numbers import InputError

LEAST = 10_000  # characters: a tenth of them is held out
MOST = 1 << 26  # bytes that are read of a longer file


@dataclass(frozen=True)
class Text:
    """A text in UTF-8."""

    name: str
    content: bytes
    notes: tuple[str, ...] = ()

    @property
    def characters(self) -> int:
        return characters(self.content)


def characters(content: bytes) -> int:
    """Of a text in UTF-8, where the bytes 10xxxxxx continue a character."""
    return len(content.translate(None, bytes(range(0x80, 0xC0))))


def read_text(path: Path | None) -> Text:
    """The text in a file, or that of Python's own help.

    Raises:
        InputError: for a file that cannot be read, is no text in UTF-8, or is too short to learn from.
    """
    if path is None:
        from pydoc_data.topics import topics

        return Text(f"the help of Python {platform.python_version()}", "\n".join(dict.fromkeys(topics.values())).encode())
    try:
        with path.open("rb") as file:
            content = file.read(MOST + 1)
    except OSError as error:
        raise InputError(f"--text: cannot read {path} ({error.strerror}); give a text file") from None
    notes = ()
    if len(content) > MOST:
        content = content[:MOST].rsplit(b"\n", 1)[0]
        notes = (f"the first {len(content)} bytes are taken, of more",)
    content = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"--text: {path} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    if b"\0" in content:
        raise InputError(f"--text: {path} has zero bytes, so that it is no text; give a text file")
    text = Text(path.name, content, notes)
    if text.characters < LEAST:
        raise InputError(f"--text: {path} has {text.characters} characters, too few to learn from; give at least {LEAST}")
    return text
