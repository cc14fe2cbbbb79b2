"""Where scores are: paths and patterns of this machine, and by a URL, as s3://bucket/part-*.parquet, what fsspec reaches."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from softmaxima.base.numbers import InputError, described

STANDARD_INPUT = Path("-")
_URL = re.compile(r"[a-z][a-z0-9+.:_-]*://", re.IGNORECASE)
_HERE = re.compile(r"^(file|local)://")  # URLs of this machine, which are paths
# What libraries call the time of the last change, the version or a digest of a file, in small letters and without - and _. Other
# things that they tell change where the file does not: its address after redirections, when it was last read.
_OF_CONTENTS = frozenset(
    {"blobid", "checksum", "chksum", "contentmd5", "crc", "crc32c", "datetime", "digest", "etag", "generation", "hash", "hex"}
    | {"lastmodified", "lastwritetime", "md5", "md5checksum", "md5hash", "modificationtime", "modified", "modifiedat"}
    | {"modifiedtime", "modify", "mtime", "sha", "sha256", "updated", "version", "versionid"}
)


@dataclass(frozen=True)
class Stat:
    """As much of what `os.stat` says as fsspec knows of all its files."""

    st_size: int


@dataclass(frozen=True)
class Remote:
    """A file or directory at a URL, with what readers ask of a `pathlib.Path`. Errors are OSError or InputError."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self.url,)  # the connection stays in its process

    @cached_property
    def place(self) -> tuple[Any, str]:
        """The file system, and the path in it."""
        return _file_system(self.url)

    @property
    def name(self) -> str:
        path = self.place[1]
        return PurePosixPath(path.partition("?")[0] if path.startswith("http") else path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    def absolute(self) -> Remote:
        return self

    def exists(self) -> bool:
        try:
            return bool(self._info())
        except FileNotFoundError as error:
            if error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError):
                return False
            raise OSError(str(error.__cause__)) from error  # a server that does not answer is no missing file

    def is_file(self) -> bool:
        return self.exists() and self._info()["type"] == "file"

    def is_dir(self) -> bool:
        return self.exists() and self._info()["type"] == "directory"

    def is_fifo(self) -> bool:
        return False

    def stat(self) -> Stat:
        size = self._info()["size"]
        if size is None:  # of a server that does not tell
            raise OSError("its server does not tell its size; download it first")
        return Stat(size)

    def open(self, mode: str = "rb", buffering: int = -1) -> Any:
        """An open file, whose buffer is that of the file system."""
        with self._reached() as (system, path):
            return system.open(path, mode)

    def version(self) -> tuple[int, str]:
        """(bytes, what changes when it does): a digest of the sizes, times of change, versions and entity tags told of it."""
        with self._reached() as (system, path):
            system.invalidate_cache()
            about = system.info(path)
            told = system.find(path, detail=True) if about["type"] == "directory" else {path: about}
        said = repr([(name, info["size"], _of_contents(info)) for name, info in sorted(told.items())])
        return sum(info["size"] or 0 for info in told.values()), hashlib.sha256(said.encode()).hexdigest()

    def _info(self) -> dict[str, Any]:
        with self._reached() as (system, path):
            return system.info(path)  # not its exists(), which takes any error for a no

    @contextlib.contextmanager
    def _reached(self) -> Iterator[tuple[Any, str]]:
        """What libraries of object stores raise of their own is an OSError, as the file system's would be."""
        place = self.place
        try:
            yield place
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


Place: TypeAlias = Path | Remote


def _of_contents(info: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a file system says of a file that changes with its contents alone."""
    known = [(key, info[key]) for key in sorted(info) if re.sub("[-_]", "", key).lower() in _OF_CONTENTS]
    return known or [("created", info.get("created"))]  # of one that begins files anew, as that in memory


def _file_system(url: str) -> tuple[Any, str]:
    protocol = url.partition("://")[0]
    try:
        fsspec = importlib.import_module("fsspec")
        return fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec's, of the library of a protocol, comes from that of the library
        missing = next((name for e in (error, error.__cause__) if (name := getattr(e, "name", None))), None)
        package = "its library" if missing is None else missing.partition(".")[0]
        repair = f"pip install {package}" if missing else str(error)
        raise InputError(f"{protocol}:// needs {package}, which is not installed: {repair}") from None
    except ValueError as error:
        raise InputError(f"{url} cannot be reached ({error}); give a path, or a URL such as s3://bucket/scores.npy") from None
    except Exception as error:  # of a library that looks for its server or its keys at once
        raise InputError(f"{url} cannot be reached ({type(error).__name__}: {error}); check the address and your keys") from None


def files_in(path: Path) -> list[Path]:
    """The file, or all in a directory. Raises InputError where it is too deep to be walked through."""
    try:
        return sorted(Path(folder, name) for folder, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
    except RecursionError:
        raise InputError(f"{path} has directories within directories, too many deep; copy its scores out of them") from None


def handed(path: Place) -> Any:
    """What a library opens: a path, or an open file of another machine."""
    return path if isinstance(path, Path) else path.open()


def is_pattern(given: str) -> bool:
    """Whether this may stand for several files. In a web address ? begins a query."""
    return "*" in given if given.startswith("http") else glob.has_magic(given)


def found(name: str, given: Any) -> list[Place]:
    """The files that a path, a pattern or a URL stands for, or several of these: in their order, and those of a pattern by name.

    One that is meant twice, as by patterns that overlap, by another way of writing its path or URL or by a symbolic link of this
    machine, is found once.
    """
    if isinstance(given, (str, os.PathLike)):
        given = (given,)
    if not isinstance(given, Iterable):
        raise TypeError(f"{name}: path must be a path, got {described(given, 'a str or a pathlib.Path, or several of these')}")
    places = [place for one in given for place in _found(name, one)]
    if not places:
        raise InputError(f"{name}: path holds no paths; name a file")
    once = {_itself(place): place for place in reversed(places)}  # of each the first way of writing it
    places = [place for place in places if once[_itself(place)] is place]
    if STANDARD_INPUT in places and len(places) > 1:
        raise InputError("standard input is one of several files; give it alone")
    return places


def _itself(place: Place) -> Any:
    """What is the same for two ways of writing one file: of URLs not the path alone, which lies on some server or in an archive."""
    return place.place if isinstance(place, Remote) else str(place) if place == STANDARD_INPUT else os.path.realpath(place)


def _found(name: str, given: Any) -> list[Place]:
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"{name}: path must be a path, got {described(given, 'a str or a pathlib.Path')}")
    text = os.fspath(given)
    if not text:
        raise ValueError(f"{name}: path must be a path, got the empty string; name a file")
    text = _HERE.sub("", text)
    if _URL.match(text):
        places: list[Place] = _matches(text) if is_pattern(text) else [Remote(text)]
    elif is_pattern(text) and not os.path.lexists(text):  # a name may have brackets
        places = [Path(match) for match in sorted(glob.glob(text, recursive=True))]
    else:
        return [Path(text)]
    if not places:
        raise InputError(f"no file matches {text}; give another pattern, or a path to an existing file")
    return places


def _matches(url: str) -> list[Place]:
    system, path = _file_system(url)
    try:
        matches = sorted(system.glob(path))
    except Exception as error:
        raise InputError(f"{url} cannot be listed ({type(error).__name__}: {error}); name its files") from None
    # in the URL as it was given, for its server or archive stands beside the path
    return [Remote(url.replace(path, match, 1) if path in url else system.unstrip_protocol(match)) for match in matches]
