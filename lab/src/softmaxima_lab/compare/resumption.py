"""What a comparison leaves in its JSON, to go on from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from softmaxima.core.numbers import InputError

T = TypeVar("T")

ELSEWHERE = "begin anew in another --out, without --resume"


def as_text(record: Mapping[str, Any]) -> str:
    """A record as it is written, with a checksum of all else, so that what was damaged or edited is known when it is read."""
    written = {**record, "checksum": checksum(record)}
    return json.dumps(written, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def checksum(record: Mapping[str, Any]) -> str:
    """Of a record in its order, which is the same before it is written and after it is read."""
    return hashlib.sha256(json.dumps(record, allow_nan=False).encode()).hexdigest()[:16]


def kept(path: Path) -> tuple[str, bool] | None:
    """Which experiment's record a file holds, "" of something else, and whether it was interrupted; None where there is no file."""
    try:
        record = json.loads(path.read_bytes())
        return record["experiment"], record.get("partial", False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", False


def read_record(path: Path, experiment: str, taken: Callable[[Any], T]) -> T:
    """What is taken of the record that such an experiment left in a JSON.

    Raises:
        InputError: where there is none, or it is not what was written.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if (other := record["experiment"]) != experiment:
            raise InputError(f"--resume: {path} is of softmaxima {other}, not of softmaxima {experiment}; {ELSEWHERE}")
        if record.pop("checksum", None) != checksum(record):
            raise InputError(f"--resume: {path} is not as it was written, for its checksum is another; {ELSEWHERE}")
        return taken(record)
    except FileNotFoundError:
        raise InputError(f"--resume: there is no {path} to go on from; leave --resume out to begin") from None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(f"--resume: {path} cannot be read ({type(error).__name__}: {error}); {ELSEWHERE}") from None


def changed(was: Mapping[str, Any], asked: Mapping[str, Any], flags: Mapping[str, str]) -> list[str]:
    """The settings that are other than they were, as options; `flags` has the option of each that is on or off."""

    def told(name: str, value: Any) -> str:
        if name in flags:
            return f"{'with' if was.get(name) else 'without'} {flags[name]}"
        return f"with --{name} {was.get(name)}, not {value}"

    return [told(name, value) for name, value in asked.items() if was.get(name) != value]


def check_same(path: Path, other: Sequence[str]) -> None:
    """Raise `InputError` where anything is other than it was."""
    if other:
        raise InputError(f"--resume: {path} was begun {'; '.join(other)}; give the same, or {ELSEWHERE}")
