"""The report of a calibration: its table, and one page with the pictures of reliability before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from softmaxima.temperature.calibration import METHODS
from softmaxima.temperature.reliability import BINS, Reliability
from softmaxima_lab.calibrate.calibration import CLAIMED, Calibrated, as_text
from softmaxima_lab.calibrate.calibration_peers import Peer, beside_others
from softmaxima_lab.compare.measures import Metric
from softmaxima_lab.pages.columns import Column
from softmaxima_lab.pages.documents import Block, Entry
from softmaxima_lab.pages.figures import COLOURS, Figure, gain_cell
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.pages.page import choice, document, facts, figure, page_table
from softmaxima_lab.pages.reliability import reliability_panels

SIDES = "#D55E00", COLOURS[0]  # before and after


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    name: str
    measured: Reliability


def lines(result: Calibrated) -> tuple[Line, Line]:
    """Before and after."""
    return Line("as they are", result.before), Line(f"with {METHODS[result.settings.method].words}", result.after)


def columns(result: Calibrated) -> tuple[Column[Line], ...]:
    """Of the table."""

    def measure(heading: str, short: str, of: str, shown: str, spare: int, scale: float = 1.0, best: str = "ascending") -> Column:
        value = attrgetter(f"measured.{of}")
        return Column(heading, short, lambda line: shown.format(scale * value(line)), value, spare, best)

    def gain(metric: Metric, heading: str, short: str, spare: int) -> Column[Line]:
        found = result.gains[metric.name]

        def is_changed(line: Line) -> bool:
            return line.measured is result.after

        return Column(
            heading,
            short,
            lambda line: gain_cell(found, metric) if is_changed(line) else "",
            lambda line: found.mean if is_changed(line) else 0.0,
            spare,
        )

    log_loss, brier = CLAIMED
    return (
        Column("scores", "scores", attrgetter("name"), attrgetter("name"), best_first="ascending"),
        measure("log loss, nats", "log loss", "log_loss", "{:.3f}", 0),
        gain(log_loss, "better by, nats", "better by", 0),
        measure("Brier score", "Brier", "brier", "{:.4f}", 1),
        gain(brier, "Brier score better by", "better by", 3),
        measure("calibration error, %", "ECE %", "calibration_error", "{:.2f}", 2, 100),
        measure("accuracy, %", "acc. %", "accuracy", "{:.2f}", 4, 100, "descending"),
    )


CAPTION = (
    "Of rows that were held out: what calibrates a fold was fitted to the others. Log loss: −log p of the true class. Brier score: "
    "squared error of the probabilities, 0 to 2. Better by: the mean over rows ± half of its interval, or with its ends where it "
    "goes as far as errors may take it that so many rows need not show; ▲ better and ▼ worse, where 0 is not in it. Both hold "
    "at about 95 % where rows are independent, and less where they are few. Calibration error (ECE): "
    f"{BINS} bins of the top probability; few rows bias it upwards, and nothing is claimed of it."
)


def settings_in_words(result: Calibrated) -> dict[str, str]:
    """What was fitted to what."""
    scores, settings, fitted = result.scores, result.settings, result.calibration
    found = {
        "Table": scores.name,
        "Rows": str(scores.rows),
        "Classes": str(len(scores.classes)),
        "Target": repr(scores.target),
        "Scores": "probabilities, taken as log p" if settings.probabilities else "logits",
        "Calibration": METHODS[settings.method].words,
        "Held out": f"each row once, in {settings.folds} folds; seed {settings.seed}",
    }
    if fitted.temperature is not None:
        found["Temperature, of all rows"] = _number(fitted.temperature, 6)
        found["Temperatures of the folds"] = ", ".join(_number(each, 4) for each in result.temperatures)
    elif METHODS[settings.method].has_penalty:
        found["Penalty"] = "of normal priors" if settings.penalty is None else f"{settings.penalty:g}"
    found["Date"] = result.date
    found["Versions"] = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return {**found, "Command": result.command}


def _number(temperature: float, digits: int) -> str:
    return "∞" if math.isinf(temperature) else f"{temperature:.{digits}g}"


def reliability_figure(result: Calibrated) -> Figure:
    """Before and after."""
    shown = zip(lines(result), SIDES, strict=True)
    return reliability_panels([(line.name, line.measured.bins, colour) for line, colour in shown], large=True)


def page(result: Calibrated) -> str:
    """The page, complete in itself."""
    before, after = lines(result)
    taken = after if result.changed.better else before
    drawn = reliability_figure(result)
    return document(
        f"softmaxima calibrate: {result.scores.name}",
        f"Do the probabilities of {result.scores.name} mean what they say?",
        "The softmax of the scores as they are, and calibrated, each row by what was fitted to others.",
        (
            choice(result.headline, result.reason, result.reservations, result.code, "What to do"),
            figure(drawn),
            page_table("measures", "Before and after", columns(result), (before, after), taken, CAPTION),
            facts("What was fitted", settings_in_words(result), result.scores.notes),
        ),
        [drawn],
    )


FILES = {"results.json": as_text, "report.html": page}


BESIDE_OTHERS = (
    "Logits of an overfitted network on the digits, and drawn ones; half the rows are fitted to, and the measures are of the other "
    "half. The time is the median of 5 fits, ours with what it says of before and after, scikit-learn's of "
    "`CalibratedClassifierCV` whole."
)


def beside_others_table(peers: Sequence[Peer]) -> str:
    """A line a data set and a package: what held-out rows cost, and how long a fit took."""
    lines = []
    for peer in peers:
        tau = "" if peer.temperature is None else f"{peer.temperature:.3f}"
        of = peer.held_out
        cells = [f"{of.log_loss:.4f}", f"{of.brier:.4f}", f"{100 * of.calibration_error:.2f}"]
        time = "" if peer.name == "none" else f"{1e3 * peer.seconds:.1f} ms"
        lines.append([f"{peer.data}, {peer.rows} × {peer.classes}", peer.name, tau, *cells, time])
    return table(["data, rows × classes", "scaled by", "τ", "log loss", "Brier", "ECE, %", "time"], lines, left=(0, 1))


ENTRY = Entry(
    "calibration",
    "measures temperature scaling beside scikit-learn's",
    lambda found: [Block("calibration", (beside_others_table(found),), BESIDE_OTHERS)],
    lambda told: list(beside_others()),
    "calibration.json",
    list[Peer],
    threads=1,
)
