"""The tables of how often recommendations are confirmed, in Markdown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from softmaxima_lab.compare.confirmation import (
    KNOWN,
    METRICS_OF_PROBABILITIES,
    NOISE,
    SETTINGS,
    STEPS,
    Share,
    Trial,
    confirmation,
    of_kind,
    splits,
)
from softmaxima_lab.compare.verdicts import STAY
from softmaxima_lab.pages.documents import Block, Entry
from softmaxima_lab.pages.markdown import table

HEADINGS = ("halves", "no recommendation", STAY.lower(), "another pair", "not confirmed", "not for certain")
KINDS: Mapping[str, Mapping[str, object]] = {"known tables": KNOWN, "noise": NOISE}

CAPTION = (
    "Halves that were compared, what was recommended on them, and of the recommendations of another pair than softmax those that "
    "the other half did not confirm, and those that it did not confirm for certain. "
    f"`--model {SETTINGS.model} --folds {SETTINGS.folds} --repeats {SETTINGS.repeats}`, all pairs, at least {STEPS} steps of each."
)


def by_table(found: Sequence[Trial], metric: str = "accuracy") -> str:
    """A line for each table, and one for each kind of tables."""
    lines = []
    for kind, tables in KINDS.items():
        lines += [[name, *_counts(list(of_kind(found, {name: None}, metric)))] for name in tables]
        lines.append([f"**{kind}, together**", *(f"**{count}**" for count in _counts(list(of_kind(found, tables, metric))))])
    return table(["table", *HEADINGS], lines)


def by_metric(found: Sequence[Trial]) -> str:
    """A line for each metric: of the halves of each kind of tables, those whose recommendation was not confirmed."""
    lines = []
    for metric in METRICS_OF_PROBABILITIES:
        cells = []
        for tables in KINDS.values():
            trials = list(of_kind(found, tables, metric))
            taken = sum(trial.pair is not None for trial in trials)
            cells += [str(taken), _share(refuted(trials)), _share(uncertain(trials))]
        lines.append([metric, *cells])
    head = [f"{heading}, {kind}" for kind in KINDS for heading in ("another pair", "not confirmed", "not for certain")]
    return table(["`--metric`", *head], lines)


def _counts(trials: Sequence[Trial]) -> list[str]:
    stay = sum(trial.pair is None and trial.headline == STAY for trial in trials)
    taken = sum(trial.pair is not None for trial in trials)
    none = len(trials) - stay - taken  # nothing to choose, or too few folds to tell
    return [str(count) for count in (len(trials), none, stay, taken, refuted(trials).count, uncertain(trials).count)]


def refuted(trials: Sequence[Trial]) -> Share:
    """Of all halves, those whose recommendation the other half does not confirm."""
    return Share(sum(trial.refuted for trial in trials), len(trials))


def uncertain(trials: Sequence[Trial]) -> Share:
    """Of all halves, those whose recommendation the other half does not confirm for certain."""
    return Share(sum(trial.uncertain for trial in trials), len(trials))


def _share(share: Share) -> str:
    low, high = share.interval
    return f"{share.count} of {share.of}: {100 * share.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def verdict(found: Sequence[Trial], metric: str = "accuracy") -> str:
    """The share on noise, in words."""
    on_noise = list(of_kind(found, NOISE, metric))
    return (
        f"On noise, another pair was recommended and not confirmed in {_share(refuted(on_noise))}, with the interval of Clopper "
        "and Pearson at 95 %."
    )


def blocks(found: Sequence[Trial]) -> list[Block]:
    """What docs/compare.md says of it, for each table and for each metric."""
    note = f"{CAPTION} {verdict(found)}"
    return [Block("confirmation", (by_table(found),), note), Block("metrics", (by_metric(found),))]


ENTRY = Entry(
    "confirmation",
    "measures how often what compare recommends is confirmed by other data, in 20 minutes",
    blocks,
    lambda told: list(confirmation(processes=os.cpu_count() or 1, advanced=told)),
    "confirmation.json",
    list[Trial],
    steps=splits,
    threads=1,
)
