"""Numbers as text, between white space or commas."""

from __future__ import annotations

import codecs
import io
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place
from softmaxima.io.formats import source
from softmaxima.io.formats.source import Asked, Scores, empty_file, no_column
from softmaxima.io.formats.stream import Rejoined, Stream, refuse_compressed
from softmaxima.io.texts import UTF16, Ended, Recoded, doubt_of

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block

LONGEST = 1000  # letters of a number in a text

CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")

AS_TEXT = "give numbers between spaces, commas or line ends, or `dtype` for raw memory"


def text_stream(stream: Stream) -> Scores:
    no_column(stream.name, stream.asked.column)
    return stream.scores("text", lambda file: numbers_in(file, stream.name, stream.asked.unended))


def open_text(path: Place, asked: Asked) -> Scores:
    return text_stream(Stream(path, asked))


def numbers_in(file: Any, name: str, unended: bool) -> Iterator[Block]:
    """Numbers between white space or commas."""
    text = file.read(8 * source.PIECE)
    refuse_compressed(name, text)
    if not text.startswith(UTF16) and CONTROLS.search(text):
        raise InputError(f"{name}: it is no text; {AS_TEXT}")
    file = Rejoined(text, file)
    file = io.BufferedReader(Ended(Recoded(file, name) if text.startswith(UTF16) else file, name, unended), 2**20)
    text = file.read(8 * source.PIECE)
    text = text.removeprefix(codecs.BOM_UTF8)  # some editors begin a text with it
    words = text[:4096].decode(errors="replace").split()
    if doubt := doubt_of(words[: -1 if len(text) > 4096 else None]):
        warnings.warn(f"{name}: {doubt}", stacklevel=2)
    rest, lines, is_blank = b"", 1, True
    while text:
        whole = rest + text
        words = whole.replace(b",", b" ").split()
        is_blank = is_blank and not words
        rest = words.pop() if words and not text[-1:].isspace() and text[-1:] != b"," else b""
        if len(rest) > LONGEST:
            raise InputError(
                f"{name}: {rest[:40].decode(errors='replace')!r}… is no number of at most {LONGEST} letters; repair it"
            )
        if words:
            yield _parsed(words, name, whole, lines)
        lines += text.count(b"\n")
        text = file.read(8 * source.PIECE)
    if is_blank:
        raise empty_file(name, "nothing but blanks")
    if rest:
        yield _parsed([rest], name, rest, lines)


def _parsed(words: list[bytes], name: str, text: bytes, line: int) -> np.ndarray:
    """The numbers of a text, whose first line has that number."""
    try:
        if (b"_" in text and any(b"_" in word for word in words)) or max(map(len, words)) > LONGEST:
            raise ValueError  # Python takes _ in numbers
        return np.fromiter(map(float, words), np.float64, len(words))  # not an array of texts, all as long as the longest
    except ValueError:
        wrong = next(word for word in words if not is_number(word) or b"_" in word or len(word) > LONGEST)
        line += next(i for i, words in enumerate(text.split(b"\n")) if wrong in words.replace(b",", b" ").split())
        word = wrong.decode(errors="replace")[:40]
        is_text = word.isprintable() and "\N{REPLACEMENT CHARACTER}" not in word
        raise InputError(f"{name}: {f'{word!r} in line {line} is no number' if is_text else 'it is no text'}; {AS_TEXT}") from None


def is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return b"_" not in word
