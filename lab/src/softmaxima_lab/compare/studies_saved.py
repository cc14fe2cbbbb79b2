"""The numbers of a study as JSON, and the trainings that are done out of a JSON, to go on from there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from softmaxima import __version__
from softmaxima.core.writing import finite
from softmaxima_lab.compare.resumption import changed, check_same, read_record
from softmaxima_lab.compare.studies import COST, NONE, Finding, Reached, Result, Run, Study, Task, Trained
from softmaxima_lab.compare.turns import BETAS, WARMING

if TYPE_CHECKING:
    from pathlib import Path

TIMES = ("gradient_seconds", "update_seconds", "predict_seconds", "peak_bytes")
GAINS = ("gain", "gain_low", "gain_high", "faster_percent", "faster_percent_low", "faster_percent_high")


def of_study(study: Study[Any, Any], experiment: str, settings: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> Any:
    """The record of a study; a number that is not finite becomes null."""
    record = {
        "experiment": experiment,
        "versions": dict(study.versions),
        "settings": {**asdict(study.settings), "warming": WARMING, "betas": BETAS, **settings},
        "left_out": dict(study.left_out),
        "date": study.date,
        "command": study.command,
        "partial": study.partial,
        "tasks": tasks,
    }
    return finite(record)


def of_verdicts(finding: Finding, entry: str) -> list[dict[str, Any]]:
    """What is asked and answered; `entry` is what is recommended."""
    return [
        {
            "question": verdict.question.title,
            "metric": verdict.question.metric.words,
            "headline": verdict.headline,
            entry: verdict.taken and verdict.taken.name,
            "reason": verdict.reason,
        }
        for verdict in finding.verdicts
    ]


def of_differences(finding: Finding, result: Result, rows: bool) -> dict[str, Any]:
    """What a result has beside its measures: differences to the first entry, of which none is known to itself, and all runs."""
    gains = {question.metric.name: asdict(finding.gain(result, question)) for question in finding.task.questions}
    return {
        "gains": None if result is finding.softmax else gains,  # of a perplexity, a difference of logarithms
        "faster": None if result is finding.softmax else asdict(finding.pace(result)),  # as well
        "diverged": result.diverged,
        "runs": [_run(run, rows) for run in result.runs],
    }


def gains_of(finding: Finding, result: Result) -> list[Any]:
    """GAINS by the first question, in a line of a table; empty of what is compared with."""
    if result is finding.softmax:
        return [""] * len(GAINS)
    question = finding.task.questions[0]
    gain, pace = finding.gain(result, question), finding.pace(result)
    ends = [(question.metric, gain), (COST, pace)]
    return finite([metric.in_unit(end) for metric, of in ends for end in (of.mean, of.low, of.high)])


def _run(run: Run, rows: bool) -> dict[str, Any]:
    reached = asdict(run.reached) if rows else {"means": run.reached.means}
    return {**reached, **{name: getattr(run, name) for name in TIMES}, "diverged": run.diverged}


def read_trainings(
    path: Path, experiment: str, tasks: Sequence[Task], settings: Any, of_data: str, of_entries: str
) -> list[tuple[str, Trained]]:
    """The trainings in a JSON that such a study of these tasks began, in their order; `of_data` and `of_entries` are options.

    Raises:
        InputError: where there is none, or it is of other tasks, other settings or other entries.
    """
    was, version, digests, entries, found = read_record(path, experiment, _begun)
    other = changed(was, asdict(settings), {"quick": "--quick"})
    if version != __version__:
        other.insert(0, f"with softmaxima {version}, not {__version__}")
    asked = {task.name: task for task in tasks}
    if not digests.keys() <= asked.keys() or any(asked[name].digest != digest for name, digest in digests.items()):
        other.insert(0, f"with another {of_data}")
    elif any({entry.name for entry in asked[name].entries} != names for name, names in entries.items()):
        other.append(f"with other {of_entries}")
    check_same(path, other)
    count = max(len(runs) for of_task in found.values() for runs in of_task.values())
    expected = [(task.name, number) for number in range(count) for task in tasks]
    done: list[tuple[str, Trained]] = [
        (name, {result: runs[number] for result, runs in found[name].items()})
        for name, number in expected
        if name in found and all(number < len(runs) for runs in found[name].values())
    ]
    if [name for name, _ in done] != [name for name, _ in expected[: len(done)]]:
        check_same(path, [f"with another {of_data}"])
    return done


Runs = Mapping[str, Mapping[str, list[Run]]]  # of each task and result


def _begun(record: Any) -> tuple[dict[str, Any], str, dict[str, str], dict[str, set[str]], Runs]:
    """Settings, version, and of each task its digest, its entries and all runs."""
    tasks = {task["task"]: task for task in record["tasks"]}
    found = {name: {each["name"]: list(map(_read_run, each["runs"])) for each in task["results"]} for name, task in tasks.items()}
    if not found:
        raise IndexError("it has no trainings")
    digests = {name: task["digest"] for name, task in tasks.items()}
    entries = {name: {each["name"] for each in task["results"] if "kind" in each} for name, task in tasks.items()}
    return record["settings"], record["versions"]["softmaxima"], digests, entries, found


def _read_run(record: dict[str, Any]) -> Run:
    """A run as it was. JSON has no number for an infinite loss, which a measure may have, nor for a time that was not measured."""

    def numbers(kind: str) -> dict[str, tuple[float, ...]]:
        return {name: tuple(math.inf if x is None else x for x in values) for name, values in record[kind].items()}

    means = {name: math.inf if mean is None else mean for name, mean in record["means"].items()}
    times = {name: math.nan if record[name] is None else record[name] for name in TIMES}
    reached = Reached(means, numbers("batches"), record["rows"], numbers("drawn"))
    return Run(reached if means else NONE, **times, diverged=record["diverged"])
