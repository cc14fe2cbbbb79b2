"""The numbers of a comparison of heads as JSON and CSV, and the trainings that are done out of a JSON, to go on from there."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from softmaxima_lab.compare import resumption, studies_saved
from softmaxima_lab.compare.heads import Finding, Result, Study
from softmaxima_lab.compare.heads_plan import EXPERIMENT, SAMPLES, SCALE, Settings
from softmaxima_lab.compare.heads_tasks import Task
from softmaxima_lab.compare.studies import Trained
from softmaxima_lab.compare.studies_saved import GAINS

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


def as_json(study: Study, rows: bool = True) -> dict[str, Any]:
    """Everything, or all but what batches of held-out rows and figures have; a number that is not finite becomes null, and a
    perplexity that is infinite "infinite"."""
    settings = {"samples": SAMPLES, "scale": SCALE}
    return studies_saved.of_study(study, EXPERIMENT, settings, [_task(finding, rows) for finding in study.findings])


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
        "questions": studies_saved.of_verdicts(finding, "head"),
        "results": [_result(finding, result, rows) for result in finding.results],
    }


def _result(finding: Finding, result: Result, rows: bool) -> dict[str, Any]:
    head = result.entry
    return {
        "name": result.name,
        **({} if head is None else {"kind": head.kind, "map": head.map, "params": head.params}),
        **{name: "infinite" if math.isinf(number := of(result)) else number for name, of in MEASURES.items()},
        **studies_saved.of_differences(finding, result, rows),
    }


def as_text(study: Study) -> str:
    """The JSON as it is written."""
    return resumption.as_text(as_json(study))


def as_csv(study: Study) -> str:
    """One line a task and a head, the best first; what it has not is empty, and gains are by the first question."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["task", "name", "kind", *MEASURES, *GAINS, "diverged", "recommended"])
    for finding in study.findings:
        for result in finding.results:
            lines.writerow(
                [
                    finding.task.name,
                    result.name,
                    result.entry.kind if result.entry else "",
                    *("" if math.isnan(number := of(result)) else number for of in MEASURES.values()),
                    *studies_saved.gains_of(finding, result),
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
    return studies_saved.read_trainings(path, EXPERIMENT, tasks, settings, "--text or --task", "--heads")
