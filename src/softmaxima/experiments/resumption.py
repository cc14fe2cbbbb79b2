"""What an interrupted comparison left in its JSON, to go on from there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from softmaxima.core.numbers import InputError

T = TypeVar("T")


def interrupted(path: Path) -> bool:
    """Whether a JSON holds a comparison that was interrupted."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["partial"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def begun(path: Path, taken: Callable[[Any], T]) -> T:
    """What is taken of the record in a JSON.

    Raises:
        InputError: where there is none, or it is not what it should be.
    """
    try:
        return taken(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"--resume: there is no {path} to go on from; leave --resume out to begin") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"--resume: {path} cannot be read ({error}); begin again without --resume") from None


def changed(was: Mapping[str, Any], asked: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    """The settings that are other than they were, each as its option, or as what `options` has for it."""
    return [
        f"{options.get(name, f'--{name}')} {was.get(name)}, not {value}" for name, value in asked.items() if was.get(name) != value
    ]


def check_same(path: Path, other: Sequence[str]) -> None:
    """Raise `InputError` where anything is other than it was."""
    if other:
        raise InputError(f"--resume: {path} was begun with {'; '.join(other)}; give the same, or begin again without --resume")
