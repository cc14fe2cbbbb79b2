"""The numbers of a comparison of estimators as JSON and CSV, and the trainings that are done out of a JSON, to go on from there."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from softmaxima_lab.compare import resumption, studies_saved
from softmaxima_lab.compare.attention_plan import Settings
from softmaxima_lab.compare.studies import Trained
from softmaxima_lab.compare.studies_saved import GAINS
from softmaxima_lab.compare.vae_claims import claims
from softmaxima_lab.compare.vae_plan import EXPERIMENT
from softmaxima_lab.compare.vae_study import KL_WARMING, SAMPLES, SHARE, Finding, Result, Study, Task, steps_to, target

if TYPE_CHECKING:
    from pathlib import Path

MEASURES: dict[str, Callable[[Result], float]] = {
    "elbo": lambda result: result.elbo,
    "bound": lambda result: result.bound,
    "own_objective": lambda result: result.mean("own"),
    "snr": lambda result: result.mean("snr"),
    "snr_of_draws": lambda result: result.mean("snr of draws"),
    "bias": lambda result: result.mean("bias"),
    "step_seconds": lambda result: result.step_seconds,
}


def as_json(study: Study, rows: bool = True) -> dict[str, Any]:
    """Everything, or all but what batches of held-out rows and figures have; a number that is not finite becomes null."""
    settings = {"samples": SAMPLES, "share": SHARE, "kl_warming": KL_WARMING}
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
        "target": target(finding),
        "questions": studies_saved.of_verdicts(finding, "estimator"),
        "claims": [asdict(claim) for claim in claims(finding)],
        "results": [_result(finding, result, rows) for result in finding.results],
    }


def _result(finding: Finding, result: Result, rows: bool) -> dict[str, Any]:
    entry = result.entry
    return {
        "name": result.name,
        **({} if entry is None else {"kind": entry.family, "map": entry.map, "params": entry.params, "samples": entry.samples}),
        **{name: of(result) for name, of in MEASURES.items()},
        **({} if entry is None else {"steps_to_target": steps_to(result, target(finding))}),
        **studies_saved.of_differences(finding, result, rows),
    }


def as_text(study: Study) -> str:
    """The JSON as it is written."""
    return resumption.as_text(as_json(study))


def as_csv(study: Study) -> str:
    """One line a task and an estimator, the best first; what it has not is empty, and gains are by the first question."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["task", "name", "kind", *MEASURES, *GAINS, "diverged", "recommended"])
    for finding in study.findings:
        for result in finding.results:
            numbers = ("" if math.isnan(number := of(result)) else number for of in MEASURES.values())
            kind, gains = result.entry.family if result.entry else "", studies_saved.gains_of(finding, result)
            taken = int(result is finding.taken)
            lines.writerow([finding.task.name, result.name, kind, *numbers, *gains, len(result.diverged), taken])
    return text.getvalue()


def read_trainings(path: Path, tasks: Sequence[Task], settings: Settings) -> list[tuple[str, Trained]]:
    """The trainings in a JSON that such a comparison of these tasks began, in their order.

    Raises:
        InputError: where there is none, or it is of other tasks, other settings or other estimators.
    """
    return studies_saved.read_trainings(path, EXPERIMENT, tasks, settings, "--data", "--estimators")
