"""What the reports of comparisons share that train on tasks with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Protocol, TypeVar

from softmaxima_lab.compare.differences import LEVEL
from softmaxima_lab.pages.columns import Column, page_table
from softmaxima_lab.pages.figures import Figure
from softmaxima_lab.pages.page import figure, sentences
from softmaxima_lab.wording import listed, rows

R = TypeVar("R")


class Settings(Protocol):
    """For how long is trained."""

    @property
    def seeds(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def quick(self) -> bool: ...


class Study(Protocol):
    """Everything that was found."""

    @property
    def settings(self) -> Settings: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def done(self) -> int: ...
    @property
    def wanted(self) -> int: ...
    @property
    def date(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def partial(self) -> bool: ...


class Result(Protocol):
    """What was reached with all seeds."""

    @property
    def runs(self) -> Sized: ...
    @property
    def diverged(self) -> Sequence[int]: ...


def first_look(settings: Settings, seeds: int, few_steps: str) -> list[str]:
    """Why what so many seeds say is a first word; what few steps show is given."""
    found = [f"Partial: interrupted after {seeds} of {settings.seeds} seeds."] if seeds < settings.seeds else []
    if settings.quick:
        found.append(
            f"Made with --quick: {rows(settings.steps, 'step')}, {rows(settings.seeds, 'seed')}. It is a first look: {few_steps}, "
            "and few seeds show only enormous differences."
        )
    return found


def unseen_failures(seeds: int, one: str) -> list[str]:
    """What so many seeds do not show of what is recommended."""
    unseen = 0.9**seeds
    told = f"What fails with one seed in ten is not seen in {seeds} seeds {100 * unseen:.0f} times of 100, of each {one}."
    return [told] if unseen > LEVEL else []


def divergence(result: Result, numbers: str) -> str:
    """Of what came to no numbers, in its loss or in what it is marked by."""
    steps, seeds = listed([str(step) for step in result.diverged]), f"{len(result.diverged)} of {len(result.runs)} seeds"
    return f"It diverged with {seeds}, at step {steps}: its loss or its {numbers} were no numbers."


def made_with(study: Study, what: str, left_out: str) -> dict[str, str]:
    """Seeds, what was left out, date, versions and command."""
    left = f"; {study.done} of {study.wanted} trainings of all {what} done, interrupted" if study.partial else ""
    return {
        "Seeds": f"{study.settings.seeds}, from {study.settings.seed} on{left}",
        "Left out": left_out,
        "Date": study.date,
        "Versions": ", ".join(f"{name} {version}" for name, version in study.versions.items()),
        "Command": study.command,
    }


def sections(
    one: str,
    name: str,
    heading: str,
    table: tuple[Sequence[Column[R]], Sequence[R], R | None, str],
    said: Mapping[str, str],
    times: str,
    drawn: Sequence[Figure],
    columns_explained: Sequence[str] = (),
) -> list[str]:
    """Of a task: its table (columns, results, what is taken and caption), what is said of each and of times, and its figures."""
    return [
        page_table(f"{name}-{one}s", f"{heading}: all {one}s, the best first", *table),
        *columns_explained,
        sentences(f"{heading}: {one} by {one}", said, times),
        *map(figure, drawn),
    ]
