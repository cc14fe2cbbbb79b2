"""What ways of choosing a map gain over softmax, in a sentence and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from softmaxima.experiments.differences import Difference
from softmaxima.experiments.mixtures import FOLDS, MAPS, STEPS, WAYS, Chosen, gain, overall, verdict
from softmaxima.report.markdown import table

CAPTION = (
    f"Accuracy of softmax in %, the mean over {FOLDS} folds, and what each way gains over it in points, and in nats of log loss "
    "(above 0: better), with intervals that hold at once over the tables of a column at 95 % (corrected resampled t; Bonferroni), "
    "and in the last line over the ways (t over tables); ↑ and ↓ where they leave out 0, = where softmax was taken in all folds. "
    f"Each way chooses on the rows that a fold trains on alone. The mixture is of {', '.join(MAPS)}; {STEPS} steps of a network of "
    "128 hidden units for all."
)


def sentence(found: Sequence[Chosen]) -> str:
    """The verdict on the claim."""
    return f"{verdict(found)}."


def markdown(found: Sequence[Chosen]) -> str:
    """The gains, and what was chosen."""
    tables = tuple(dict.fromkeys(each.table for each in found))
    accuracy = {each.table: 100 * fmean(each.reached["accuracy"]) for each in found if each.way == "softmax"}

    def cell(d: dict[str, Difference]) -> str:
        if all(own.low == own.high == 0 for own in d.values()):
            return "="
        lines = []
        for measure, scale in (("accuracy", 100), ("log-loss", 1)):
            own = d[measure]
            mark = " ↑" if own.better else " ↓" if own.worse else ""
            digits = 1 if scale == 100 else 3
            ends = " to ".join(f"{scale * end:+.{digits}f}" for end in (own.low, own.high))
            lines.append(f"{scale * own.mean:+.{digits}f} ({ends}){mark}")
        return "<br>".join(lines)

    both = ("accuracy", "log-loss")
    rows = [
        [name, f"{accuracy[name]:.1f}", *(cell({m: gain(found, name, way, m) for m in both}) for way in WAYS)] for name in tables
    ]
    rows.append(["all", f"{fmean(accuracy.values()):.1f}", *(cell({m: overall(found, way, m) for m in both}) for way in WAYS)])
    choices = {(each.table, each.way): Counter(each.choices).most_common() for each in found}
    chosen = [[name, *(", ".join(f"{what} {n}" for what, n in choices[name, way]) for way in WAYS)] for name in tables]
    return f"{table(['', 'softmax', *WAYS], rows)}\n\nWhat was chosen, in how many folds:\n\n{table(['', *WAYS], chosen)}"
