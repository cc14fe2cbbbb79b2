"""What an interrupted comparison left in its JSON, to go on from there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from softmaxima.core.numbers import InputError

T = TypeVar("T")

ELSEWHERE = "begin anew in another --out, without --resume"


def interrupted(path: Path) -> str | None:
    """Which experiment's record a JSON holds, where it was interrupted."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return record["experiment"] if record["partial"] is True else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_record(path: Path, experiment: str, taken: Callable[[Any], T]) -> T:
    """What is taken of the record that such an experiment left in a JSON.

    Raises:
        InputError: where there is none, or it is not what it should be.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if (other := record["experiment"]) != experiment:
            raise InputError(f"--resume: {path} is of softmaxima {other}, not of softmaxima {experiment}; {ELSEWHERE}")
        return taken(record)
    except FileNotFoundError:
        raise InputError(f"--resume: there is no {path} to go on from; leave --resume out to begin") from None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
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
