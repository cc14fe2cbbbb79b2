"""The numbers of a comparison of heads as JSON and CSV, and the trainings that are done out of a JSON, to go on from there."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from softmaxima import __version__
from softmaxima.core.writing import finite
from softmaxima.experiments.heads import COST, NONE, Finding, Result, Run, Study, Trained
from softmaxima.experiments.heads_plan import EXPERIMENT, SAMPLES, SCALE, Settings
from softmaxima.experiments.heads_tasks import Reached, Task
from softmaxima.experiments.resumption import changed, check_same, read_record
from softmaxima.experiments.turns import BETAS, WARMING

if TYPE_CHECKING:
    from pathlib import Path

MEASURES: dict[str, Callable[[Result], float]] = {
    "eps_perplexity": lambda result: result.perplexity,
    "perplexity": lambda result: result.exact_perplexity,
    "zeros": lambda result: result.mean("zeros"),
    "sparsemax_score": lambda result: result.score,
    "top1": lambda result: result.top1,
    "top5": lambda result: result.mean("top5"),
    "calibration_error": lambda result: result.mean("calibration"),
    "support": lambda result: result.mean("support"),
    "recall": lambda result: result.recall,
    "accuracy": lambda result: result.accuracy,
    "pairs_in_order": lambda result: result.mean("pairs"),
    "step_seconds": lambda result: result.step_seconds,
    "gradient_seconds": lambda result: result.seconds("gradient"),
    "update_seconds": lambda result: result.seconds("update"),
    "predict_seconds": lambda result: result.seconds("predict"),
    "peak_bytes": lambda result: result.peak_bytes,
}
TIMES = ("gradient_seconds", "update_seconds", "predict_seconds", "peak_bytes")
GAINS = ("gain", "gain_low", "gain_high", "faster_percent", "faster_percent_low", "faster_percent_high")


def as_json(study: Study, rows: bool = True) -> dict[str, Any]:
    """Everything, or all but what batches of held-out rows and figures have; a number that is not finite becomes null, and a
    perplexity that is infinite "infinite"."""
    record = {
        "experiment": EXPERIMENT,
        "versions": dict(study.versions),
        "settings": {**asdict(study.settings), "warming": WARMING, "betas": BETAS, "samples": SAMPLES, "scale": SCALE},
        "left_out": dict(study.left_out),
        "date": study.date,
        "command": study.command,
        "partial": study.partial,
        "tasks": [_task(finding, rows) for finding in study.findings],
    }
    return finite(record)


def _task(finding: Finding, rows: bool) -> dict[str, Any]:
    task = finding.task
    return {
        "task": task.name,
        "digest": task.digest,
        "title": task.title,
        "notes": task.notes,
        "model": task.model,
        "batch": task.batch,
        "learning_rate": task.rate,
        "questions": [
            {
                "question": verdict.question.title,
                "metric": verdict.question.metric.words,
                "headline": verdict.headline,
                "head": verdict.taken and verdict.taken.name,
                "reason": verdict.reason,
            }
            for verdict in finding.verdicts
        ],
        "results": [_result(finding, result, rows) for result in finding.results],
    }


def _result(finding: Finding, result: Result, rows: bool) -> dict[str, Any]:
    head = result.head
    gains = {question.metric.name: asdict(finding.gain(result, question)) for question in finding.task.questions}
    return {
        "name": result.name,
        **({} if head is None else {"kind": head.kind, "map": head.map, "params": head.params}),
        **{name: "infinite" if math.isinf(number := of(result)) else number for name, of in MEASURES.items()},
        "gains": None if result is finding.softmax else gains,  # of a perplexity, a difference of logarithms
        "faster": None if result is finding.softmax else asdict(finding.pace(result)),  # as well
        "diverged": result.diverged,
        "runs": [_run(run, rows) for run in result.runs],
    }


def _run(run: Run, rows: bool) -> dict[str, Any]:
    reached = asdict(run.reached) if rows else {"means": run.reached.means}
    return {**reached, **{name: getattr(run, name) for name in TIMES}, "diverged": run.diverged}


def as_text(study: Study) -> str:
    """The JSON as it is written."""
    return json.dumps(as_json(study), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(study: Study) -> str:
    """One line a task and a head, the best first; what it has not is empty, and gains are by the first question."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["task", "name", "kind", *MEASURES, *GAINS, "diverged", "recommended"])
    for finding in study.findings:
        for result in finding.results:
            question = finding.task.questions[0]
            gain, pace = finding.gain(result, question), finding.pace(result)
            gains = [
                *map(question.metric.in_unit, (gain.mean, gain.low, gain.high)),
                *map(COST.in_unit, (pace.mean, pace.low, pace.high)),
            ]
            lines.writerow(
                [
                    finding.task.name,
                    result.name,
                    result.head.kind if result.head else "",
                    *("" if math.isnan(number := of(result)) else number for of in MEASURES.values()),
                    *(finite(gains) if result is not finding.softmax else [""] * len(gains)),
                    len(result.diverged),
                    int(result is finding.taken),
                ]
            )
    return text.getvalue()


def read_trainings(path: Path, tasks: Sequence[Task], settings: Settings) -> list[tuple[str, Trained]]:
    """The trainings in a JSON that such a comparison of these tasks began, in their order.

    Raises:
        InputError: where there is none, or it is of other tasks, other settings or other heads.
    """
    was, version, digests, heads, found = read_record(path, EXPERIMENT, _begun)
    other = changed(was, asdict(settings), {"quick": "--quick"})
    if version != __version__:
        other.insert(0, f"with softmaxima {version}, not {__version__}")
    asked = {task.name: task for task in tasks}
    if not digests.keys() <= asked.keys() or any(asked[name].digest != digest for name, digest in digests.items()):
        other.insert(0, "with another --text or --task")
    elif any({head.name for head in asked[name].heads} != names for name, names in heads.items()):
        other.append("with other --heads")
    check_same(path, other)
    count = max(len(runs) for of_task in found.values() for runs in of_task.values())
    expected = [(task.name, number) for number in range(count) for task in tasks]
    done: list[tuple[str, Trained]] = [
        (name, {result: runs[number] for result, runs in found[name].items()})
        for name, number in expected
        if name in found and all(number < len(runs) for runs in found[name].values())
    ]
    if [name for name, _ in done] != [name for name, _ in expected[: len(done)]]:
        check_same(path, ["with another --task"])
    return done


Runs = Mapping[str, Mapping[str, list[Run]]]  # of each task and result


def _begun(record: Any) -> tuple[dict[str, Any], str, dict[str, str], dict[str, set[str]], Runs]:
    """Settings, version, and of each task its digest, its heads and all runs."""
    tasks = {task["task"]: task for task in record["tasks"]}
    found = {name: {each["name"]: list(map(_read_run, each["runs"])) for each in task["results"]} for name, task in tasks.items()}
    if not found:
        raise IndexError("it has no trainings")
    digests = {name: task["digest"] for name, task in tasks.items()}
    heads = {name: {each["name"] for each in task["results"] if "kind" in each} for name, task in tasks.items()}
    return record["settings"], record["versions"]["softmaxima"], digests, heads, found


def _read_run(record: dict[str, Any]) -> Run:
    """A run as it was. JSON has no number for an infinite loss, which a measure may have, nor for a time that was not measured."""

    def numbers(kind: str) -> dict[str, tuple[float, ...]]:
        return {name: tuple(math.inf if x is None else x for x in values) for name, values in record[kind].items()}

    means = {name: math.inf if mean is None else mean for name, mean in record["means"].items()}
    times = {name: math.nan if record[name] is None else record[name] for name in TIMES}
    reached = Reached(means, numbers("batches"), record["rows"], numbers("drawn"))
    return Run(reached if means else NONE, **times, diverged=record["diverged"])
