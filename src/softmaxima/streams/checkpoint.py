"""Checkpoints of a long sum over a file: the state, how far it came, and the fingerprint of the file that it is of.

A checkpoint is JSON, with numbers in hexadecimal so that none is rounded; it is replaced as a whole, so that a half-written one is
never found.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softmaxima.core.numbers import InputError
from softmaxima.core.places import Place, Remote
from softmaxima.core.writing import write_text
from softmaxima.streams._scaled import Scaled
from softmaxima.streams.formats import unreadable
from softmaxima.streams.state import LogSumExpState

KIND = "softmaxima lse checkpoint 1"
ENDS = 2**16  # bytes at the beginning and at the end that are hashed
MOST_BYTES = 2**16  # of a checkpoint, which has some thousand


@dataclass(frozen=True)
class Fingerprint:
    """What changes when a file does. Of a directory: its files' sizes, latest change, and names; of a URL, what its server says."""

    size: int
    changed: int  # nanoseconds
    head: str
    tail: str

    @staticmethod
    def of(path: Place) -> Fingerprint:
        """The fingerprint of a file or directory as it is now. Raises InputError if it cannot be read."""
        try:
            return Fingerprint._of(path)
        except FileNotFoundError:
            raise InputError(f"there is no file {path}; give a path to an existing file") from None
        except OSError as error:
            raise unreadable(str(path), error) from None

    @staticmethod
    def _of(path: Place) -> Fingerprint:
        if isinstance(path, Remote):
            size, version = path.version()
            return Fingerprint(size, int(version[:15], 16), "", "")
        if path.is_dir():
            files = {str(p.relative_to(path)): p.stat() for p in sorted(path.rglob("*")) if p.is_file()}
            names = hashlib.sha256("\n".join(files).encode()).hexdigest()
            stats = files.values()
            return Fingerprint(sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0), names, "")
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            head = file.read(ENDS)
            file.seek(max(0, stat.st_size - ENDS))
            tail = file.read(ENDS)
        return Fingerprint(stat.st_size, stat.st_mtime_ns, hashlib.sha256(head).hexdigest(), hashlib.sha256(tail).hexdigest())

    def difference(self, now: Fingerprint) -> str | None:
        """What happened to the file since, or None."""
        if now.size < self.size:
            return f"was cut off from {self.size} to {now.size} bytes"
        if now.size > self.size:
            return f"has grown from {self.size} to {now.size} bytes"
        if now.head != self.head or now.tail != self.tail:
            return f"has other {'contents' if now.head != self.head else 'contents at its end'}"
        return "was written to" if now.changed != self.changed else None


@dataclass(frozen=True)
class Checkpoint:
    """A state of the first scores of a file, and what was asked for."""

    file: str
    fingerprint: Fingerprint
    options: dict[str, Any]  # of the command, as it writes them
    state: LogSumExpState

    def save(self, path: Path) -> None:
        """Write the checkpoint in the place of the last one."""
        content = {
            "kind": KIND,
            "file": self.file,
            "fingerprint": asdict(self.fingerprint),
            "options": self.options,
            "state": _written(self.state),
        }
        write_text(path, json.dumps(content, indent=1))

    @staticmethod
    def load(path: Path) -> Checkpoint:
        """The checkpoint in a file. Raises InputError if it is none."""
        if not path.is_file():
            raise InputError(f"`checkpoint`: {path} is no regular file; give another path")
        try:
            with path.open("rb") as file:
                content = json.loads(file.read(MOST_BYTES))
            if content["kind"] != KIND:
                raise ValueError
            state = _read(content["state"])
            return Checkpoint(content["file"], Fingerprint(**content["fingerprint"]), content["options"], state)
        except OSError as error:
            raise InputError(f"`checkpoint`: cannot read {path} ({error.strerror}); give another path, or permit it") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"`checkpoint`: {path} is no checkpoint of this command; give another path, or remove it") from None

    def check(self, place: Path, path: Place, fingerprint: Fingerprint, options: dict[str, Any]) -> None:
        """Raise InputError unless this is a checkpoint of that file, as it is now, with those options."""
        where = f"the {int(self.state.n)} scores summed so far are in the checkpoint"
        if (happened := self.fingerprint.difference(fingerprint)) is not None:
            if self.file != str(path.absolute()):
                other = f"{place} is of another file, {self.file}, and not of {path}"
                raise InputError(f"`checkpoint`: {other}; {where}: give another path, or remove it")
            raise InputError(f"{path} {happened} since the checkpoint of {self.file}; {where}: bring that file back, or remove it")
        for name in {**self.options, **options}:
            value = options.get(name)
            if self.options.get(name) != value:
                had = self.options.get(name)
                raise InputError(f"`checkpoint` was made with {name} {had}, got {value}; {where}: ask for the same, or remove it")


def _written(state: LogSumExpState) -> dict[str, Any]:
    return {
        "maximum": float(state.maximum).hex(),
        "count": int(state.count),
        "rest": [float(part).hex() for part in state.rest.scaled],
        "squares": None if state.squares is None else [float(part).hex() for part in state.squares.scaled],
        "n": int(state.n),
    }


def _read(content: dict[str, Any]) -> LogSumExpState:
    def scaled(parts: list[str]) -> Scaled:
        high, low, exponent = (np.array(float.fromhex(part)) for part in parts)
        return Scaled(high, low, exponent)

    squares = None if content["squares"] is None else scaled(content["squares"])
    maximum = np.array(float.fromhex(content["maximum"]))
    return LogSumExpState(maximum, np.array(content["count"]), scaled(content["rest"]), squares, np.array(content["n"]))
