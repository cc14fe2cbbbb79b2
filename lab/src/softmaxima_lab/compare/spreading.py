"""compare on the workers of a Dask cluster: they train different folds and, where they are many, different pairs of a fold.

A fold is the same wherever it trains, and a pair the same whatever trains beside it, so that all but the times is what one process
finds, to the last bit on processors of one kind. Times are told by a clock that goes along: softmax trains in every group of pairs,
in turns with them, and a pair takes what it took beside it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from softmaxima.dask.cluster import TIMEOUT, heard, processes, report
from softmaxima.dask.tasks import Shared, Tasks
from softmaxima.integrations.pairs import Pair
from softmaxima_lab.compare.measures import Fold
from softmaxima_lab.compare.table import BASELINE, REFERENCE, Settings, compared, total_steps, trained_folds
from softmaxima_lab.tables.tables import Table

TELLING = 0.5  # seconds between two reports of a training
_ALONE = threading.Lock()  # of a worker's threads one trains, for torch has one number of threads for all


@dataclass(frozen=True)
class _Training:
    """Of a group of pairs in a fold."""

    fold: int
    group: int

    def __str__(self) -> str:
        return f"fold {self.fold + 1}"


@dataclass(frozen=True)
class Spread:
    """The folds of a table from number `start` on, by the workers of a client of Dask."""

    client: Any
    table: Table
    settings: Settings
    chosen: Sequence[Pair]
    start: int = 0
    timeout: float = TIMEOUT

    @cached_property
    def groups(self) -> list[tuple[Pair, ...]]:
        """Of the pairs of a fold, each with softmax: as many as keep all workers busy."""
        softmax, others = _softmax_and_others(compared(self.table, self.chosen))
        wanted = math.ceil(processes(self.client) / max(1, self.settings.splits - self.start))
        return [(softmax, *others[i::wanted]) for i in range(max(1, min(wanted, len(others))))]

    @property
    def parts(self) -> int:
        """How many train at the same time."""
        return max(1, min(processes(self.client), len(self.groups) * (self.settings.splits - self.start)))

    def steps(self) -> int:
        """Of all trainings together."""
        return sum(total_steps(self.table, self.settings, group, self.start) for group in self.groups)

    def folds(self, advanced: Callable[[int], None] = lambda steps: None) -> Iterator[dict[str, Fold]]:
        """What every pair reached in each fold, in the order of the folds; `advanced(steps)` is called after steps of training."""
        steps = _Steps(advanced)
        found: dict[int, dict[int, dict[str, Fold]]] = {}
        following = self.start
        with heard(self.client, steps.heard) as topic, Tasks[_Training](self.client, self.timeout) as tasks:
            table = Shared(replace(self.table, encoder=None))
            for fold in range(self.start, self.settings.splits):
                for number, group in enumerate(self.groups):
                    tasks.submit(_Training(fold, number), _trained, table, self.settings, group, fold, (topic, fold, number))
            for training, (reached, taken) in tasks:
                steps.at((training.fold, training.group), taken)
                found.setdefault(training.fold, {})[training.group] = reached
                while len(found.get(following, ())) == len(self.groups):
                    groups = found.pop(following)
                    yield _together([groups[number] for number in range(len(groups))], compared(self.table, self.chosen))
                    following += 1


class _Steps:
    """How far each training is, as its workers tell; one that begins anew on another worker goes back."""

    def __init__(self, advanced: Callable[[int], None]) -> None:
        self.advanced = advanced
        self.done: dict[tuple[int, int], int] = {}
        self.ended: set[tuple[int, int]] = set()
        self.lock = threading.Lock()  # reports come by a thread of the client's

    def heard(self, message: tuple[int, int, int]) -> None:
        *training, steps = message
        with self.lock:
            if tuple(training) not in self.ended:
                self._move((training[0], training[1]), steps)

    def at(self, training: tuple[int, int], steps: int) -> None:
        with self.lock:
            self.ended.add(training)
            self._move(training, steps)

    def _move(self, training: tuple[int, int], steps: int) -> None:
        moved = steps - self.done.get(training, 0)
        self.done[training] = steps
        self.advanced(moved)


def _trained(
    table: Table, settings: Settings, group: Sequence[Pair], number: int, whom: tuple[str, int, int]
) -> tuple[dict[str, Fold], int]:
    """(what the pairs of a group reached in a fold, steps of training), on a worker."""
    topic, fold, place = whom
    done, last = 0, time.monotonic()

    def advanced(steps: int) -> None:
        nonlocal done, last
        done += steps
        if (now := time.monotonic()) > last + TELLING:
            last = now
            report(topic, (fold, place, done))

    with _ALONE, contextlib.closing(trained_folds(table, settings, group, number, advanced)) as folds:
        return next(folds), done


def _softmax_and_others(pairs: Sequence[Pair]) -> tuple[Pair, list[Pair]]:
    softmax = next(pair for pair in pairs if pair.name == REFERENCE)
    return softmax, [pair for pair in pairs if pair is not softmax]


def _together(groups: Sequence[Mapping[str, Fold]], pairs: Sequence[Pair]) -> dict[str, Fold]:
    """A fold of which groups of pairs trained apart, in the order of one that trained whole."""
    first = groups[0]
    found = {name: fold for group in groups for name, fold in _by_one_clock(group, first).items()}
    return {name: found[name] for name in (BASELINE, *(pair.name for pair in pairs))}


def _by_one_clock(group: Mapping[str, Fold], first: Mapping[str, Fold]) -> dict[str, Fold]:
    """With the times that the pairs would have had beside the softmax of the first group."""
    pace = first[REFERENCE].step_seconds / group[REFERENCE].step_seconds
    return {name: replace(fold, step_seconds=fold.step_seconds * pace) for name, fold in group.items()}
