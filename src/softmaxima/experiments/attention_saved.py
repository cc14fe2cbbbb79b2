"""The numbers of a comparison of attention as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from softmaxima.core.writing import finite
from softmaxima.experiments.attention import BETAS, WARMING, Finding, Result, Run, Study
from softmaxima.experiments.attention_plan import LEFT_OUT

MEASURES = ("quality", "log_loss", "step_seconds", "kept_bytes")
OF_HEADS = ("share", "keys", "mass")


def as_json(study: Study) -> dict[str, Any]:
    """Everything but what each held-out row adds; a number that is not finite becomes null."""
    record = {
        "versions": dict(study.versions),
        "settings": {**asdict(study.settings), "warming": WARMING, "betas": BETAS},
        "left_out": LEFT_OUT,
        "date": study.date,
        "command": study.command,
        "partial": study.partial,
        "tasks": [_task(finding) for finding in study.findings],
    }
    return finite(record)


def _task(finding: Finding) -> dict[str, Any]:
    task = finding.task
    layer, head = finding.pictured
    return {
        "task": task.name,
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
        "results": [_result(finding, result) for result in finding.results],
        "picture": {
            "layer": layer,
            "head": head,
            "weights": {
                result.name: [[round(p, 4) for p in row] for row in weights[layer, head].tolist()]
                for result in finding.results
                if (weights := result.runs[0].weights) is not None
            },
        },
    }


def _result(finding: Finding, result: Result) -> dict[str, Any]:
    variant = result.variant
    return {
        "name": result.name,
        **({} if variant is None else {"map": variant.map, "params": variant.params, "learnt": variant.learnt}),
        **{measure: getattr(result, measure) for measure in MEASURES},
        "gain": None if result is finding.softmax else asdict(finding.gain(result)),
        "diverged": result.diverged,
        "heads": [[asdict(head) for head in layer] for layer in result.heads],
        "runs": [] if variant is None else [_run(run) for run in result.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        **{measure: getattr(run, measure) for measure in MEASURES},
        "diverged": run.diverged,
        "heads": [[asdict(head) for head in layer] for layer in run.heads],
    }


def as_text(study: Study) -> str:
    """The JSON as it is written."""
    return json.dumps(as_json(study), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(study: Study) -> str:
    """One line a task and a map, the best first."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["task", "name", "map", *MEASURES, "gain", "gain_low", "gain_high", *OF_HEADS, "diverged", "recommended"])
    for finding in study.findings:
        for result in finding.results:
            gain = finding.gain(result)
            lines.writerow(
                [
                    finding.task.name,
                    result.name,
                    result.variant.map if result.variant else "",
                    *(getattr(result, measure) for measure in MEASURES),
                    *(gain.mean, gain.low, gain.high),
                    *(result.mean(measure) for measure in OF_HEADS),
                    len(result.diverged),
                    int(result is finding.taken),
                ]
            )
    return text.getvalue()
