"""The numbers of a comparison as JSON and CSV, and the folds that are done out of a JSON, to go on from there."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from softmaxima.base.writing import finite
from softmaxima.integrations.pairs import Pair
from softmaxima.temperature.reliability import Bin
from softmaxima_lab.compare.measures import BINS, EPS, METRICS, ClassCounts, Fold, Result
from softmaxima_lab.compare.record import changed, check_same, experiment_of, lines, made_by, read_record, written
from softmaxima_lab.compare.table import BASELINE, BATCH, Comparison, Settings, compared
from softmaxima_lab.tables.tables import Table

NAME = "table"
MEASURES = (*(metric.attribute for metric in METRICS.values()), "support", "zeros")


def as_json(comparison: Comparison, folds: bool = True) -> dict[str, Any]:
    """Everything, or what tables show; a number that is not finite becomes null."""
    taken = comparison.recommendation
    constants = {
        "batch": BATCH,
        "hidden": comparison.settings.hidden,
        "learning_rate": comparison.settings.rates if comparison.settings.tune else comparison.settings.rate,
        "eps": EPS,
        "bins": BINS,
    }
    record = {
        **made_by(NAME, comparison, constants),
        "table": asdict(comparison.facts),
        "recommendation": {
            "headline": taken.headline,
            "pair": taken.pair and taken.pair.name,
            "reason": taken.reason,
            "code": taken.pair and taken.pair.code,
        },
        "results": [
            {
                "pair": result.name,
                "twins": result.twins,
                **_of_pair(result.pair),
                **{measure: getattr(result, measure) for measure in MEASURES},
                "gain": None if result is comparison.softmax else asdict(comparison.gain(result)),
                **(_drawn(result) if folds else {}),
            }
            for result in comparison.results
        ],
    }
    if folds:
        record["folds"] = [{name: asdict(fold) for name, fold in split.items()} for split in comparison.folds]
    return finite(record)


def _drawn(result: Result) -> dict[str, Any]:
    """What figures show."""
    return {
        "support_rows": result.support_rows,
        "classes": [asdict(counts) for counts in result.classes],
        "bins": [asdict(bin) for bin in result.bins],
    }


def _of_pair(pair: Pair | None) -> dict[str, Any]:
    return {} if pair is None else {"map": pair.map, "loss": pair.loss, "head": pair.head, "code": pair.code}


def as_text(comparison: Comparison) -> str:
    """The JSON as it is written."""
    return written(as_json(comparison))


def as_csv(comparison: Comparison) -> str:
    """One line a result, the best first; the gain over softmax is by the metric that was asked for, empty where none is known."""
    found = []
    for result in comparison.results:
        gain, pair = comparison.gain(result), result.pair
        gains = ["", "", ""] if result is comparison.softmax else finite([gain.mean, gain.low, gain.high])
        numbers = [getattr(result, measure) for measure in MEASURES]
        about = [result.name, ", ".join(result.twins), pair.map if pair else "", pair.loss if pair else ""]
        found.append([*about, *numbers, *gains, int(result is comparison.taken)])
    return lines(["pair", "twins", "map", "loss", *MEASURES, "gain", "gain_low", "gain_high", "recommended"], found)


def read_folds(path: Path, table: Table, settings: Settings, chosen: Any = None) -> list[dict[str, Fold]]:
    """The folds in a JSON that such a comparison of this table began.

    Raises:
        InputError: where there is none, or it is of another table, other settings or other pairs.
    """
    asked = asdict(settings)
    if not settings.tune:
        del asked["metric"]  # the folds tell all of them
    flags = {"rows": "--quick", "tune": "--tune"}
    other, digest, folds = read_record(path, experiment_of(NAME), lambda record: (changed(record, asked, flags), *_begun(record)))
    names = {pair.name for pair in compared(table, chosen)}
    has_all = set(folds[0]) - {BASELINE} == names
    check_same(path, other, (digest == table.digest, "table or target"), (has_all, "--maps"))
    return folds


def _begun(record: Any) -> tuple[str, list[dict[str, Fold]]]:
    """Digest of the table and folds, of which there is one at least."""
    folds = [{name: _fold(fold) for name, fold in split.items()} for split in record["folds"]]
    if not folds:
        raise IndexError("it has no folds")
    return record["table"]["digest"], folds


def _fold(record: dict[str, Any]) -> Fold:
    """A fold as it was; what JSON has no number for was NaN."""
    parts: dict[str, Any] = {name: math.nan if value is None else value for name, value in record.items()}
    parts |= {
        "bins": tuple(Bin(**bin) for bin in record["bins"]),
        "classes": tuple(ClassCounts(**counts) for counts in record["classes"]),
        "support_rows": tuple(record["support_rows"]),
        "squares": {
            reference: {name: math.nan if square is None else square for name, square in squares.items()}
            for reference, squares in record["squares"].items()
        },
    }
    return Fold(**{part.name: parts[part.name] for part in fields(Fold)})
