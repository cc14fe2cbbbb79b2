"""The record of a comparison: its numbers as JSON and CSV, and what is done out of a JSON, to go on from there."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from softmaxima import __version__
from softmaxima.base.numbers import InputError
from softmaxima.base.writing import finite

if TYPE_CHECKING:
    from softmaxima_lab.compare.engine import Comparison, Finding, Result, Run, Study, Task, Trained
    from softmaxima_lab.compare.settings import Settings

X = TypeVar("X")

ELSEWHERE = "begin anew in another --out, without --resume"
GAINS = ("gain", "gain_low", "gain_high", "faster_percent", "faster_percent_low", "faster_percent_high")


# Any record ---------------------------------------------------------------------------------------------------------------


def experiment_of(comparison: str) -> str:
    """What a record calls a comparison, which is the command that made it."""
    return f"compare {comparison}"


def written(record: Mapping[str, Any]) -> str:
    """A record as it is written, with a checksum of all else, so that what was damaged or edited is known when it is read."""
    return json.dumps({**record, "checksum": checksum(record)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


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


def read_record(path: Path, experiment: str, taken: Callable[[Any], X]) -> X:
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


def changed(record: Mapping[str, Any], asked: Mapping[str, Any], flags: Mapping[str, str]) -> list[str]:
    """The settings that are other than in a record, as options, and its version; `flags` has the options that are on or off."""
    was = record["settings"]

    def told(name: str, value: Any) -> str:
        if name in flags:
            return f"{'with' if was.get(name) else 'without'} {flags[name]}"
        return f"with --{name} {was.get(name)}, not {value}"

    found = [told(name, value) for name, value in asked.items() if was.get(name) != value]
    version = record["versions"]["softmaxima"]
    return found if version == __version__ else [f"with softmaxima {version}, not {__version__}", *found]


def check_same(path: Path, other: list[str], data: tuple[bool, str], candidates: tuple[bool, str]) -> None:
    """Raise `InputError` where any setting, the data or the candidates are other than they were: whether these are the same, and
    what they are called."""
    if not data[0]:
        other.append(f"with another {data[1]}")
    elif not candidates[0]:
        other.append(f"with other {candidates[1]}")
    if other:
        raise InputError(f"--resume: {path} was begun {'; '.join(other)}; give the same, or {ELSEWHERE}")


class Found(Protocol):
    """What a comparison found, of all that it is to train or of a part."""

    @property
    def settings(self) -> Any: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def date(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def partial(self) -> bool: ...


def made_by(comparison: str, found: Found, constants: Mapping[str, Any]) -> dict[str, Any]:
    """How a record was made: with the settings that were asked for and those that are the same each time."""
    return {
        "experiment": experiment_of(comparison),
        "versions": dict(found.versions),
        "settings": {**asdict(found.settings), **constants},
        "date": found.date,
        "command": found.command,
        "partial": found.partial,
    }


def lines(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV, in which what is NaN is empty."""
    text = io.StringIO()
    found = csv.writer(text, lineterminator="\n")
    found.writerow(heading)
    found.writerows([["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in row] for row in rows])
    return text.getvalue()


# Of a comparison with seeds -----------------------------------------------------------------------------------------------


def as_json(study: Study, runs: bool = True) -> dict[str, Any]:
    """Everything, or what tables show; a number that is not finite becomes null, and an infinite measure "infinite"."""
    from softmaxima_lab.compare.turns import BETAS, WARMING

    comparison = study.comparison
    record = {
        **made_by(comparison.name, study, {"warming": WARMING, "betas": BETAS, **comparison.settings}),
        "left_out": dict(study.left_out),
        "tasks": [_task(comparison, finding, runs) for finding in study.findings],
    }
    return finite(record)


def _task(comparison: Comparison, finding: Finding, runs: bool) -> dict[str, Any]:
    task = finding.task
    return {
        "task": task.name,
        "digest": task.digest,
        "title": task.title,
        "notes": task.notes,
        "model": task.model,
        "batch": task.batch,
        "learning_rate": task.rate,
        **comparison.of_task(finding),
        "verdicts": [
            {
                "question": verdict.question.title,
                "metric": verdict.question.metric.words,
                "headline": verdict.headline,
                "taken": verdict.taken and verdict.taken.name,
                "reason": verdict.reason,
            }
            for verdict in finding.verdicts
        ],
        "results": [_result(comparison, finding, result, runs) for result in finding.results],
    }


def _result(comparison: Comparison, finding: Finding, result: Result, runs: bool) -> dict[str, Any]:
    measures = {name: of(result) for name, of in comparison.measures.items()}
    gains = {question.metric.name: asdict(finding.gain(result, question)) for question in finding.task.questions}
    return {
        "name": result.name,
        **({} if result.candidate is None else {"candidate": asdict(result.candidate)}),
        **{name: "infinite" if math.isinf(number) else number for name, number in measures.items()},
        **comparison.of_result(finding, result),
        "gains": None if result is finding.softmax else gains,  # where the metric is a ratio, a difference of logarithms
        "faster": None if result is finding.softmax else asdict(finding.pace(result)),  # as well
        "diverged": result.diverged,
        **({"runs": [asdict(run) for run in result.runs]} if runs else {}),
    }


def as_text(study: Study) -> str:
    """The JSON as it is written."""
    return written(as_json(study))


def as_csv(study: Study) -> str:
    """One line a task and a result, the best first; gains are by the first question, in the unit of its metric."""
    measures = study.comparison.measures
    heading = ["task", "name", "kind", "map", *measures, *GAINS, "diverged", "recommended"]
    found = [(finding, result) for finding in study.findings for result in finding.results]
    return lines(
        heading,
        [
            [
                finding.task.name,
                result.name,
                *((result.candidate.kind, result.candidate.map) if result.candidate else ("", "")),
                *(of(result) for of in measures.values()),
                *_gains(finding, result),
                len(result.diverged),
                int(result is finding.taken),
            ]
            for finding, result in found
        ],
    )


def _gains(finding: Finding, result: Result) -> list[Any]:
    """GAINS by the first question; empty of what the others are compared with, and what is not finite."""
    from softmaxima_lab.compare.engine import COST

    if result is finding.softmax:
        return [""] * len(GAINS)
    question = finding.task.questions[0]
    ends = [(question.metric, finding.gain(result, question)), (COST, finding.pace(result))]
    return finite([metric.in_unit(end) for metric, gain in ends for end in (gain.mean, gain.low, gain.high)])


def read_trainings(path: Path, comparison: Comparison, tasks: Sequence[Task], settings: Settings) -> list[tuple[str, Trained]]:
    """The trainings in a JSON that such a comparison of these tasks began, in their order.

    Raises:
        InputError: where there is none, or it is of other tasks, other settings or other candidates.
    """

    def taken(record: Any) -> Any:
        return changed(record, asdict(settings), {"quick": "--quick"}), *_begun(record)

    other, digests, candidates, found = read_record(path, experiment_of(comparison.name), taken)
    of_data, of_candidates = comparison.options
    asked = {task.name: task for task in tasks}
    count = max(len(runs) for of_task in found.values() for runs in of_task.values())
    expected = [(task.name, number) for number in range(count) for task in tasks]
    done: list[tuple[str, Trained]] = [
        (name, {result: runs[number] for result, runs in found[name].items()})
        for name, number in expected
        if name in found and all(number < len(runs) for runs in found[name].values())
    ]
    in_order = [name for name, _ in done] == [name for name, _ in expected[: len(done)]]
    is_same = in_order and all(name in asked and asked[name].digest == digest for name, digest in digests.items())
    has_all = is_same and all({own.name for own in asked[name].candidates} == names for name, names in candidates.items())
    check_same(path, other, (is_same, of_data), (has_all, of_candidates))
    return done


def _begun(record: Any) -> tuple[dict[str, str], dict[str, set[str]], dict[str, dict[str, list[Run]]]]:
    """Of each task its digest, its candidates and all runs."""
    tasks = {task["task"]: task for task in record["tasks"]}
    found = {name: {each["name"]: list(map(_run, each["runs"])) for each in task["results"]} for name, task in tasks.items()}
    if not found:
        raise IndexError("it has no trainings")
    digests = {name: task["digest"] for name, task in tasks.items()}
    candidates = {name: {each["name"] for each in task["results"] if "candidate" in each} for name, task in tasks.items()}
    return digests, candidates, found


def _run(record: dict[str, Any]) -> Run:
    """A run as it was. JSON has no number for an infinite loss, which a measure may have, nor for a time that was not measured."""
    from softmaxima_lab.compare.engine import NONE, Reached, Run

    reached = record["reached"]

    def numbers(kind: str) -> dict[str, tuple[float, ...]]:
        return {name: tuple(math.inf if x is None else x for x in values) for name, values in reached[kind].items()}

    means = {name: math.inf if mean is None else mean for name, mean in reached["means"].items()}
    names = ("gradient_seconds", "update_seconds")
    seconds: dict[str, Any] = {name: math.nan if record[name] is None else record[name] for name in names}
    costs = {name: math.nan if cost is None else cost for name, cost in record["costs"].items()}
    found = Reached(means, numbers("batches"), reached["rows"], numbers("drawn")) if means else NONE
    return Run(found, **seconds, costs=costs, diverged=record["diverged"])
