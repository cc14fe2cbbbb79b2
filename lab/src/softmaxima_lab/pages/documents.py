"""What studies write to the documents: their data, pictures and blocks of text, and the one way to run, read and write them."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import plotly.graph_objects as go

from softmaxima.base.numbers import InputError
from softmaxima.base.writing import write_bytes, write_text
from softmaxima_lab.bench.machine import installed, machine, versions
from softmaxima_lab.compare.turns import one_thread

F = TypeVar("F")
Told = Callable[..., None]  # told(what="", steps=1): that so many steps are done, and what comes next
PACKAGES = ("scikit-learn", "mpmath", "opendp", "mpyc", "gymnasium", "torch-geometric", "adversarial-robustness-toolbox")
DOCS = Path("docs")  # of the checkout, whose root is the directory that the command is called in


@dataclass(frozen=True)
class Picture:
    """A figure, drawn to a file beside the documents."""

    file: str
    plot: go.Figure
    says: str  # to those who do not see it


@dataclass(frozen=True)
class Block:
    """Paragraphs and pictures between two markers of a document. A note stands below them, in italics, and tells what made them."""

    name: str
    parts: Sequence[str | Picture]
    note: str | None = None
    after: str = ""  # the note


@dataclass(frozen=True)
class File:
    """A whole file, by its path in the repository."""

    path: str
    text: str


@dataclass(frozen=True)
class Entry(Generic[F]):
    """What one study, comparison or benchmark writes to the documents.

    `run` finds it, and `shown` says what it writes. What was found is saved in `data`, a file in docs/, with the `facts` about it,
    and is read from there as a `kind`; or `read` has it from elsewhere. What can be neither is shown by a run alone.
    """

    name: str
    about: str
    shown: Callable[[F], Sequence[Block | File | Picture]]
    run: Callable[[Told], F] | None = None
    data: str = ""
    kind: Any = None
    read: Callable[[], F] | None = None
    facts: Callable[[F], Mapping[str, Any]] = lambda found: {}
    steps: Callable[[], int] = lambda: 0  # that a run is told of; 0: unknown
    threads: int | None = None  # that it runs on; None: as many as torch takes

    @property
    def is_kept(self) -> bool:
        """Whether it can be shown without a run."""
        return self.read is not None or (self.kind is not None and (DOCS / self.data).exists())


# What is saved ------------------------------------------------------------------------------------------------------------


def made_on(entry: Entry[F], commit: str | None) -> dict[str, Any]:
    """When, where, from which commit and with what it runs."""
    here = machine()
    return {
        "date": datetime.date.today().isoformat(),
        "machine": here["processor"],
        "threads": entry.threads or here["threads"],
        "commit": commit,
        "versions": {**versions(), **installed(*PACKAGES)},
    }


def as_text(entry: Entry[F], found: F, made: Mapping[str, Any]) -> str:
    """What was found as JSON: a line for each fact, and for each part of a list."""
    from pydantic import TypeAdapter  # which takes a while to import, and of which commands that compare have no need

    record = {**made, **entry.facts(found)}
    if entry.kind is not None:
        results = TypeAdapter(entry.kind).dump_python(found)
        record |= results if hasattr(entry.kind, "__dataclass_fields__") else {"results": results}

    def line(value: Any) -> str:
        return json.dumps(_in_json(value), ensure_ascii=False, allow_nan=False)

    def lines(value: Any) -> str:
        is_long = isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value)
        return "[\n  " + ",\n  ".join(map(line, value)) + "\n ]" if is_long else line(value)

    return "{\n " + ",\n ".join(f"{json.dumps(name)}: {lines(value)}" for name, value in record.items()) + "\n}\n"


def _in_json(value: Any) -> Any:
    """JSON has no infinite numbers, and so "inf" stands for one, and "nan" for none."""
    if isinstance(value, dict):
        return {name: _in_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(each) for each in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value


def saved(entry: Entry[F]) -> tuple[F, dict[str, Any]]:
    """What was found, and how it was made.

    Raises:
        InputError: where only a run can tell.
    """
    from pydantic import TypeAdapter

    if entry.read is not None:
        return entry.read(), {}
    if not entry.is_kept:
        raise InputError(f"docs: {entry.name} keeps no numbers that its text could be made of; run it again with --run")
    record = json.loads((DOCS / entry.data).read_text(encoding="utf-8"))
    results = record if hasattr(entry.kind, "__dataclass_fields__") else record["results"]
    return TypeAdapter(entry.kind).validate_python(results), record


def found_anew(entry: Entry[F], commit: str | None, told: Told) -> tuple[F, dict[str, Any]]:
    """What a run finds, which is saved, and how it was made.

    Raises:
        InputError: where another command runs it.
    """
    if entry.run is None:
        raise InputError(f"docs: {entry.name} is no study: it {entry.about}; leave --run out")
    made = made_on(entry, commit)
    with one_thread() if entry.threads == 1 else contextlib.nullcontext():
        found = entry.run(told)
    if entry.data:
        write_text(DOCS / entry.data, as_text(entry, found, made))
    return saved(entry) if entry.kind is not None else (found, made)


# What is written ----------------------------------------------------------------------------------------------------------


def made_by(entry: Entry[F], made: Mapping[str, Any]) -> str:
    """What made a block, when and where."""
    threads = f"{made['threads']} thread{'s' * (made['threads'] != 1)}"
    used = f"torch {made['versions']['torch']}, Python {made['versions']['python']}"
    return f"`softmaxima docs {entry.name} --run`, {made['date']}, commit {made['commit']}, {made['machine']}, {threads}, {used}."


def in_markdown(block: Block, made: str, folder: str) -> str:
    """The text between the markers of a document from which the folder of the pictures has that path."""
    parts = [f"![{part.says}]({folder}{part.file})" if isinstance(part, Picture) else part for part in block.parts]
    if block.note is not None:
        parts.append(f"*{f'{block.note} {made}'.strip()}*{block.after}")
    return "\n\n".join(parts)


def texts(entry: Entry[F], parts: Sequence[Block | File | Picture], made: Mapping[str, Any]) -> dict[Path, str]:
    """The files and documents as they are to be.

    Raises:
        InputError: where no document has the markers of a block.
    """
    found: dict[Path, str] = {Path(part.path): part.text for part in parts if isinstance(part, File)}
    words = made_by(entry, made) if made else ""
    for block in (part for part in parts if isinstance(part, Block)):
        begin, end = f"<!-- {block.name}: written by softmaxima docs {entry.name} -->\n", f"<!-- end of {block.name} -->"
        between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        for path in documents():
            folder = "" if path.parent == DOCS else f"{DOCS}/"
            text = f"{begin}{in_markdown(block, words, folder)}\n{end}"
            after, count = between.subn(lambda place, text=text: text, found.get(path) or path.read_text(encoding="utf-8"))
            if count:
                found[path] = after
                break
        else:
            raise InputError(f"docs: no document has the markers {begin.strip()} and {end}")
    return found


def documents() -> list[Path]:
    """Those that may have markers."""
    return [Path("README.md"), *sorted(DOCS.glob("*.md"))]


def write(entry: Entry[F], found: F, made: Mapping[str, Any]) -> None:
    """Draw the pictures, and write the documents and files."""
    parts = entry.shown(found)
    shown = texts(entry, parts, made)
    for part in parts:
        for picture in part.parts if isinstance(part, Block) else [part]:
            if isinstance(picture, Picture):
                draw(picture.plot, DOCS / picture.file)
    for path, text in shown.items():
        write_text(path, text)


def draw(plot: go.Figure, path: Path) -> None:
    """The figure, in its own size, as a PNG of twice as many pixels, complete or not at all."""
    chromium = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        raise InputError("docs: the pictures are drawn with Chromium; install the package chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        page.write_text(plot.to_html(include_plotlyjs=True, config={"staticPlot": True}))
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2",
            f"--user-data-dir={folder}/profile", f"--window-size={plot.layout.width + 16},{plot.layout.height + 16}",
            "--virtual-time-budget=20000", f"--screenshot={folder}/figure.png", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        write_bytes(path, (Path(folder) / "figure.png").read_bytes())
