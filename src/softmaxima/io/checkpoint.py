"""Checkpoints of a long sum over a file: the state, how far it came, and the fingerprint of the file that it is of.

A checkpoint is JSON, with numbers in hexadecimal so that none is rounded, and the checksum of it all; it is replaced as a whole, so
that a half-written one is never found.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place, Remote, files_in
from softmaxima.base.writing import write_text
from softmaxima.io._scaled import Scaled
from softmaxima.io.formats.source import unreadable
from softmaxima.io.state import LogSumExpState

KIND = "softmaxima lse checkpoint"
FORMAT = 2
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
            files = {str(p.relative_to(path)): p.stat() for p in files_in(path) if p.is_file()}
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

    def save(self, path: Path, follow: bool = True) -> None:
        """Write the checkpoint in the place of the last one, and of a link itself unless it is to be followed."""
        content = {
            "kind": f"{KIND} {FORMAT}",
            "file": self.file,
            "fingerprint": asdict(self.fingerprint),
            "options": self.options,
            "state": _written(self.state),
        }
        write_text(path, json.dumps(content | {"sha256": _checksum(content)}, indent=1), follow)

    @staticmethod
    def load(path: Path) -> Checkpoint:
        """The checkpoint in a file. Raises InputError if it is none, or not as it was written."""
        if not path.is_file():
            raise InputError(f"`checkpoint`: {path} is no regular file; give another path")
        try:
            with path.open("rb") as file:
                content = json.loads(file.read(MOST_BYTES))
            if not content["kind"].startswith(KIND):
                raise ValueError
        except OSError as error:
            raise InputError(f"`checkpoint`: cannot read {path} ({error.strerror}); give another path, or permit it") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(f"`checkpoint`: {path} is no checkpoint of this command; give another path, or remove it") from None
        if content["kind"] != f"{KIND} {FORMAT}":
            raise InputError(f"`checkpoint`: {path} is of another version of softmaxima; continue with that, or remove it")
        try:
            if content.pop("sha256") != _checksum(content):
                raise ValueError
            fingerprint = Fingerprint(**content["fingerprint"])
            found = Checkpoint(content["file"], fingerprint, content["options"], _read(content["state"]))
            found._check_values()
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise InputError(f"`checkpoint`: {path} is not as it was written; remove it, and the sum begins anew") from None
        return found

    def _check_values(self) -> None:
        """Raise ValueError or TypeError where anything is of another type, or out of its range."""
        of = self.fingerprint
        types = {str: (self.file, of.head, of.tail, *self.options), int: (of.size, of.changed)}
        if any(type(value) is not kind for kind, values in types.items() for value in values):
            raise TypeError
        if of.size < 0 or (self.state.squares is None) == self.options["effective size"]:
            raise ValueError

    def check(self, place: Path, path: Place, fingerprint: Fingerprint, options: dict[str, Any], count: int | None) -> None:
        """Raise InputError unless this is a checkpoint of that file, as it is now, with those options and so many scores."""
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
        if count is not None and self.state.n > count:
            raise InputError(f"`checkpoint`: {where}, and {path} has {count}; remove it, and the sum begins anew")


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _written(state: LogSumExpState) -> dict[str, Any]:
    return {
        "maximum": float(state.maximum).hex(),
        "count": int(state.count),
        "rest": [float(part).hex() for part in state.rest.scaled],
        "squares": None if state.squares is None else [float(part).hex() for part in state.squares.scaled],
        "n": int(state.n),
    }


def _read(content: dict[str, Any]) -> LogSumExpState:
    """The state, if its counts are counts and its sums sums. Raises ValueError, TypeError or OverflowError."""

    def scaled(parts: list[str]) -> Scaled:
        high, low, exponent = (np.array(float.fromhex(part)) for part in parts)
        if high < 0 or not np.isfinite(exponent):
            raise ValueError
        return Scaled(high, low, exponent)

    n, count = content["n"], content["count"]
    if type(n) is not int or type(count) is not int or not 0 <= count <= n < 2**63:
        raise ValueError
    squares = None if content["squares"] is None else scaled(content["squares"])
    maximum = np.array(float.fromhex(content["maximum"]))
    return LogSumExpState(maximum, np.array(count), scaled(content["rest"]), squares, np.array(n))
