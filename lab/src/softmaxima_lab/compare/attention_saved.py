"""The numbers of a comparison of attention as JSON and CSV, and the trainings that are done out of a JSON, to go on from there."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from softmaxima import __version__
from softmaxima.core.writing import finite
from softmaxima_lab.compare import resumption
from softmaxima_lab.compare.attention import COST, Finding, Head, Result, Run, Study, Trained, compared
from softmaxima_lab.compare.attention_plan import EXPERIMENT, LEFT_OUT, Settings, Variant
from softmaxima_lab.compare.attention_tasks import Task
from softmaxima_lab.compare.resumption import changed, check_same, read_record
from softmaxima_lab.compare.turns import BETAS, WARMING

MEASURES = ("quality", "log_loss", "step_seconds", "kept_bytes")
GAINS = ("gain", "gain_low", "gain_high", "faster_percent", "faster_percent_low", "faster_percent_high")
OF_HEADS = ("share", "keys", "mass")


def as_json(study: Study, rows: bool = True) -> dict[str, Any]:
    """Everything, or all but what each held-out row adds; a number that is not finite becomes null."""
    record = {
        "experiment": EXPERIMENT,
        "versions": dict(study.versions),
        "settings": {**asdict(study.settings), "warming": WARMING, "betas": BETAS},
        "left_out": LEFT_OUT,
        "date": study.date,
        "command": study.command,
        "partial": study.partial,
        "tasks": [_task(finding, rows) for finding in study.findings],
    }
    return finite(record)


def _task(finding: Finding, rows: bool) -> dict[str, Any]:
    task = finding.task
    layer, head = finding.pictured
    return {
        "task": task.name,
        "digest": task.digest,
        "title": task.title,
        "notes": task.notes,
        "model": {**asdict(task.shape), "length": task.length, "classes": task.classes, "causal": task.causal},
        "batch": task.batch,
        "learning_rate": task.rate,
        "metric": task.metric.words,
        "unit": task.metric.unit,
        "recommendation": {
            "headline": finding.headline,
            "map": finding.taken and finding.taken.name,
            "reason": finding.reason,
        },
        "results": [_result(finding, result, rows) for result in finding.results],
        "picture": {
            "layer": layer,
            "head": head,
            "weights": {
                result.name: [[float(f"{p:.4g}") for p in row] for row in weights.tolist()]
                for result in finding.results
                if (weights := result.runs[0].weights) is not None
            },
        },
    }


def _result(finding: Finding, result: Result, rows: bool) -> dict[str, Any]:
    variant = result.variant
    return {
        "name": result.name,
        **({} if variant is None else {"map": variant.map, "params": variant.params, "learnt": variant.learnt}),
        **{measure: getattr(result, measure) for measure in MEASURES},
        "gain": None if result is finding.softmax else asdict(finding.gain(result)),
        "faster": None if result is finding.softmax else asdict(finding.pace(result)),  # a difference of logarithms
        "diverged": result.diverged,
        "heads": [[asdict(head) for head in layer] for layer in result.heads],
        "runs": [] if variant is None else [_run(run, rows) for run in result.runs],
    }


def _run(run: Run, rows: bool) -> dict[str, Any]:
    return {
        **({"rows": run.rows} if rows else {}),
        **{measure: getattr(run, measure) for measure in MEASURES},
        "diverged": run.diverged,
        "heads": [[asdict(head) for head in layer] for layer in run.heads],
    }


def as_text(study: Study) -> str:
    """The JSON as it is written."""
    return resumption.as_text(as_json(study))


def as_csv(study: Study) -> str:
    """One line a task and a map, the best first; gains over softmax are empty where none is known."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["task", "name", "map", *MEASURES, *GAINS, *OF_HEADS, "diverged", "recommended"])
    for finding in study.findings:
        for result in finding.results:
            gain, pace = finding.gain(result), finding.pace(result)
            gains = [gain.mean, gain.low, gain.high, *map(COST.in_unit, (pace.mean, pace.low, pace.high))]
            lines.writerow(
                [
                    finding.task.name,
                    result.name,
                    result.variant.map if result.variant else "",
                    *(getattr(result, measure) for measure in MEASURES),
                    *(finite(gains) if result is not finding.softmax else [""] * len(gains)),
                    *(result.mean(measure) for measure in OF_HEADS),
                    len(result.diverged),
                    int(result is finding.taken),
                ]
            )
    return text.getvalue()


def read_trainings(path: Path, tasks: Sequence[Task], settings: Settings, chosen: Sequence[Variant]) -> list[tuple[str, Trained]]:
    """The trainings in a JSON that such a comparison of these tasks began, in their order.

    Raises:
        InputError: where there is none, or it is of other tasks, other settings or other maps.
    """
    was, version, digests, found = read_record(path, EXPERIMENT, _begun)
    other = changed(was, asdict(settings), {"quick": "--quick"})
    if version != __version__:
        other.insert(0, f"with softmaxima {version}, not {__version__}")
    if any(digests.get(task.name, task.digest) != task.digest for task in tasks) or not digests.keys() <= {t.name for t in tasks}:
        other.insert(0, "with another --text or --task")
    if any(runs.keys() != {variant.name for variant in compared(chosen)} for runs in found.values()):
        other.append("with other --maps")
    count = max(len(runs) for of_task in found.values() for runs in of_task.values())
    expected = [(task.name, number) for number in range(count) for task in tasks]
    done: list[tuple[str, Trained]] = [
        (name, {map: runs[number] for map, runs in found[name].items()})
        for name, number in expected
        if name in found and all(number < len(runs) for runs in found[name].values())
    ]
    if [name for name, _ in done] != [name for name, _ in expected[: len(done)]]:
        other.append("with another --task")
    check_same(path, other)
    return done


def _begun(record: Any) -> tuple[dict[str, Any], str, dict[str, str], dict[str, dict[str, list[Run]]]]:
    """Settings, version, and of each task its digest and each map's runs."""
    tasks = {task["task"]: task for task in record["tasks"]}
    found = {
        name: {
            result["name"]: [
                _read_run(run, task["picture"]["weights"].get(result["name"]) if number == 0 else None)
                for number, run in enumerate(result["runs"])
            ]
            for result in task["results"]
            if "map" in result
        }
        for name, task in tasks.items()
    }
    digests = {name: task["digest"] for name, task in tasks.items()}
    if not found:
        raise IndexError("it has no trainings")
    return record["settings"], record["versions"]["softmaxima"], digests, found


def _read_run(record: dict[str, Any], weights: list[list[float]] | None) -> Run:
    """A run as it was; what JSON has no number for was NaN."""
    measures: dict[str, Any] = {name: math.nan if record[name] is None else record[name] for name in MEASURES}
    return Run(
        **measures,
        rows=tuple(record["rows"]),
        heads=tuple(tuple(Head(**head) for head in layer) for layer in record["heads"]),
        diverged=record["diverged"],
        weights=None if weights is None else torch.tensor(weights),
    )
