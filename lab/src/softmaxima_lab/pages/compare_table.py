"""The report of a comparison: its table, and one page with figures that needs no network."""

from __future__ import annotations

import math
from functools import partial
from operator import attrgetter
from statistics import median_low

from softmaxima_lab import wording
from softmaxima_lab.compare.fold_differences import rows_of
from softmaxima_lab.compare.measures import BINS, EPS, METRICS, Result
from softmaxima_lab.compare.recommendation import proving
from softmaxima_lab.compare.table import BASELINE, BATCH, HIDDEN, Comparison, Settings, compare
from softmaxima_lab.compare.table_saved import as_csv, as_json, as_text
from softmaxima_lab.compare.verdicts import interval, paces
from softmaxima_lab.pages.columns import Column, markdown_table
from softmaxima_lab.pages.compare_table_figures import figures, rarest_first, simplex_figure
from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import TWICE, cut_note, gain_cell, in_panels, same_in_words, same_note
from softmaxima_lab.pages.page import choice, document, facts, figure, page_table, recall, sentences
from softmaxima_lab.tables.suspicions import Doubt
from softmaxima_lab.tables.tables import read_table
from softmaxima_lab.wording import listed

COST = METRICS["cost"]

# The table ----------------------------------------------------------------------------------------------------------------


def twins(comparison: Comparison) -> str:
    """Which pairs are one row, for they predicted the same."""
    found = "; ".join(", ".join((result.name, *result.twins)) for result in comparison.results if result.twins)
    return f"One row for pairs that predicted the same: {found}." if found else ""


def columns(comparison: Comparison) -> tuple[Column[Result], ...]:
    """Of the table."""
    metric = comparison.metric

    def measure(heading: str, short: str, of: str, shown: str, spare: int, scale: float = 1.0, best: str = "descending") -> Column:
        value = attrgetter(of)
        orders = of == metric.attribute
        return Column(heading, short, lambda result: shown.format(scale * value(result)), value, spare, best, orders)

    def gain(result: Result) -> str:
        return "" if result is comparison.softmax else gain_cell(comparison.gain(result), metric)

    return (
        Column("pair", "pair", attrgetter("name"), attrgetter("name"), best_first="ascending"),
        measure("accuracy, %", "acc. %", "accuracy", "{:.2f}", 1, 100),
        Column(
            metric.with_unit(f"{metric.words}, better than softmax by") + TWICE * metric.by_ratio,
            metric.with_unit("vs softmax"),
            gain,
            lambda result: 0.0 if result is comparison.softmax else comparison.gain(result).mean,
        ),
        measure("macro F1, %", "F1 %", "macro_f1", "{:.2f}", 6, 100),
        measure("log loss", "log loss", "log_loss", "{:.3f}", 2, best="ascending"),
        measure("Brier score", "Brier", "brier", "{:.4f}", 4, best="ascending"),
        measure("calibration error, %", "ECE %", "calibration", "{:.2f}", 5, 100, "ascending"),
        measure("mean support", "supp.", "support", "{:.2f}", 7),
        measure("true class zero, %", "zero %", "zeros", "{:.2f}", 8, 100, "ascending"),
        Column(
            "step, ms",
            "ms",
            lambda result: f"{1000 * result.step_seconds:.2f}" if result.pair else "",
            lambda result: result.step_seconds if result.pair else math.nan,
            3,
            "ascending",
            metric is COST,
        ),
    )


DIFFERENCES = (
    "Better than softmax by: {} on the same fold {} of its interval, widened so "
    "that the intervals of all pairs together hold at 95 %; ▲ better and ▼ worse, where 0 is not in it (corrected resampled t of "
    "Nadeau and Bengio, Bonferroni)."
)
IN_UNITS = "the mean over folds of the difference to softmax", "± half"
IN_PER_CENT = "the geometric mean over folds of the ratio to softmax", "with the ends"
MEASURES = (
    f"Log loss, in nats: −log((p + ε)/(1 + nε)), ε = {EPS:.0e}, for the true class, so that an exact zero "
    f"counts {-math.log(EPS):.1f} nats instead of ∞. "
    "Brier score: squared error of the probabilities, 0 to 2. "
    f"Macro F1, and calibration error (ECE, {BINS} bins of the top probability): of the rows held out in all folds together, as in "
    "the figures; what is said of differences in them goes by the folds. "
    "Support: classes with a non-zero probability. "
    "True class zero: share of rows whose true class gets exactly 0. "
    "Step: the time of a training step, in turns with the other pairs: the median of each fold, and of these the geometric mean. "
    "Class frequencies: the same probabilities for every row, the shares of the classes."
).replace("e-0", "e-")


def caption(comparison: Comparison) -> str:
    """What the table's numbers are."""
    metric = comparison.metric
    gains = [comparison.gain(result) for result in comparison.results if result is not comparison.softmax]
    words = [DIFFERENCES.format(*(IN_PER_CENT if metric.by_ratio else IN_UNITS))]
    words.append(cut_note(gains, metric))
    if any(gain.same for gain in gains):
        words.append(same_note(rows_of(comparison.softmax, comparison.settings.folds), len(comparison.others)))
    return " ".join(part for part in (*words, MEASURES, twins(comparison)) if part)


def settings_in_words(comparison: Comparison) -> dict[str, str]:
    """What was trained, on what, and with what."""
    table, settings = comparison.facts, comparison.settings
    sampled = "" if table.rows == table.rows_in_table else f" of {table.rows_in_table}, sampled"
    hidden = f"one hidden layer of {HIDDEN} ReLU units" if settings.model == "mlp" else "one affine layer"
    tried = ", ".join(f"{rate:g}" for rate in settings.rates)
    rate = f"best of {tried} for each pair and fold" if settings.tune else f"{settings.rate:g}"
    done = f"; {len(comparison.folds)} done, interrupted" if comparison.partial else ""
    repeats = "once" if settings.repeats == 1 else f"{settings.repeats} times"
    return {
        "Table": table.name,
        "Rows": f"{table.rows}{sampled}",
        "Features": str(table.features),
        "Target": repr(table.target) + (", the last column" if table.target_by_default else ""),
        "Classes": str(len(table.classes)),
        "Recommendation by": comparison.metric.words,
        "Model": f"{settings.model}: {hidden}",
        "Training": f"{settings.epochs} epochs, batches of {BATCH}, Adam, learning rate {rate}",
        "Learning rates": rates(comparison),
        "Folds": f"{settings.folds}, stratified, {repeats}; seed {settings.seed}{done}",
        "Date": comparison.date,
        "Versions": ", ".join(f"{name} {version}" for name, version in comparison.versions.items()),
        "Command": comparison.command,
    }


def rates(comparison: Comparison) -> str:
    """With --tune, the learning rate of each pair, as the median of those that its folds chose, and which may want another."""
    if not comparison.settings.tune:
        return ""
    chosen: dict[float, list[str]] = {rate: [] for rate in comparison.settings.rates}
    for result in comparison.results:
        if result.pair is not None:
            chosen[median_low(fold.learning_rate for fold in result.folds)].append(result.name)
    told = "; ".join(f"{rate:g} with {listed(names)}" for rate, names in chosen.items() if names)
    ends = [rate for rate in (min(chosen), max(chosen)) if chosen[rate]]
    beyond = listed([f"{'below' if rate == min(chosen) else 'above'} {rate:g}" for rate in ends], "or")
    return f"{told} (the median of the folds)." + (f" None {beyond} was tried, which may be better there." if ends else "")


def unlearnt(comparison: Comparison) -> str:
    """That no pair is known to have learnt anything; of some, each one's sentence says so."""
    told = wording.sentence(f"{_not_better_than_frequencies(comparison)}: all pairs")
    return told if len(comparison.unlearnt) == len(comparison.results) - 1 else ""


def _not_better_than_frequencies(comparison: Comparison) -> str:
    return f"not known to have a better {listed([metric.words for metric in proving(comparison.metric)], 'or')} than {BASELINE}"


def sentence(comparison: Comparison, result: Result) -> str:
    """What there is to say of a pair."""
    metric, gain = comparison.metric, comparison.gain(result)
    if result is comparison.baseline:
        return "It has not read the features."
    words = []
    if not math.isfinite(result.brier):
        words.append("its probabilities are not numbers")
    elif result is comparison.softmax:
        words.append("what the others are compared with")
    elif gain.same:
        words.append(same_in_words(metric))
    elif (gain.better or gain.worse) and metric.by_ratio:
        words.append(f"a step of training is {interval(gain, metric)} than with softmax")
    elif gain.better or gain.worse:
        words.append(f"{'better' if gain.better else 'worse'} than softmax in {metric.words} by {interval(gain, metric)}")
    else:
        difference_of = "" if metric.by_ratio else "a difference of "
        words.append(f"cannot be told from softmax in {metric.words}: {difference_of}{interval(gain, metric)}")
    if result is not comparison.softmax:
        besides = {other: comparison.gain(result, other) for other in METRICS.values() if other not in (metric, COST)}
        for how in ("better", "worse"):
            found = [other.words for other, by in besides.items() if getattr(by, how)]
            if found:
                words.append(f"{how} in {listed(found)}")
    if result in comparison.unlearnt and not unlearnt(comparison):
        words.append(_not_better_than_frequencies(comparison))
    if result.pair is not None and result.pair.params.get("k") == 1:
        words.append("keeps the highest score alone, so that its probabilities are 0 and 1 and its class is the argmax")
    elif result.support < len(comparison.facts.classes) - 0.005:
        kept = f"{result.support:.1f}" if round(result.support, 1) < len(comparison.facts.classes) else "nearly all"
        words.append(f"leaves {kept} of {len(comparison.facts.classes)} classes in the running on average")
    if result.zeros:
        words.append(f"rules the true class out in {100 * result.zeros:.2g} % of rows")
    return wording.sentence("; ".join(words))


CLAIMS = (
    "What is said of a metric allows for the number of pairs, and not for that of metrics: of all that is said here of several "
    "metrics, more than one in twenty may be chance."
)


def times(comparison: Comparison) -> str:
    """With which pairs a step takes another time than with softmax, for certain and by more than is worth a word."""
    if comparison.metric is COST:
        return ""
    return paces({result.name: comparison.gain(result, COST) for result in comparison.others})


def reservations(comparison: Comparison) -> tuple[str, ...]:
    """Why to doubt the recommendation, or to call it a first one: a table that tells too much, not all rows, or not all folds."""
    table, settings = comparison.facts, comparison.settings
    found = [wording.sentence(note) for note in table.notes if isinstance(note, Doubt)]
    if comparison.partial:
        found.append(f"Partial: interrupted after {len(comparison.folds)} of {settings.splits} folds; --resume goes on from there.")
    if settings.rows is not None:
        sampled = table.rows < table.rows_in_table
        part = f"{table.rows} of" if sampled else "all"
        repeats = "once" if settings.repeats == 1 else f"{settings.repeats} times"
        found.append(
            f"Made with --quick: {part} {table.rows_in_table} rows, {settings.epochs} epochs, folds {repeats}. It is a first look; "
            f"more {'rows, ' * sampled}epochs and repeats tell smaller differences."
        )
    return tuple(found)


# The page -----------------------------------------------------------------------------------------------------------------


def page(comparison: Comparison) -> str:
    """The page, complete in itself."""
    drawn, taken = figures(comparison), comparison.recommendation
    beside = {"classes": recall_table(comparison)}
    notes = [note for note in comparison.facts.notes if not isinstance(note, Doubt)]
    return document(
        f"softmaxima compare: {comparison.facts.name}",
        f"Which map and which loss for {comparison.facts.name}?",
        "One classifier, trained with each pair on the same folds, from the same weights, on the same batches.",
        (
            choice(taken.headline, taken.reason, reservations(comparison), taken.pair.code if taken.pair else ""),
            facts("What was trained", settings_in_words(comparison), notes),
            page_table(
                "pairs",
                "All pairs, the best first",
                columns(comparison),
                comparison.results,
                comparison.taken,
                caption(comparison),
            ),
            sentences(
                "Pair by pair",
                {result.name: sentence(comparison, result) for result in comparison.results},
                times(comparison),
                above=" ".join(filter(None, (unlearnt(comparison), CLAIMS))),
            ),
            *(figure(shown, beside.get(shown.id, "")) for shown in drawn),
        ),
        drawn,
    )


def recall_table(comparison: Comparison) -> str:
    """The recall of each class, in the figure's order: of softmax and the recommended pair, or of the best other."""
    taken = [comparison.taken] if comparison.taken else []
    best = [result for result in comparison.results if result.pair is not None]
    shown = [comparison.softmax, *[result for result in (*taken, *best) if result is not comparison.softmax][:1]]
    titles = [result.name if result in (comparison.softmax, *taken) else f"{result.name} (best of the others)" for result in shown]
    counts = comparison.softmax.classes
    return recall(
        titles,
        [
            (comparison.facts.classes[i][0], counts[i].rows, *(f"{100 * result.classes[i].recall:.1f}" for result in shown))
            for i in rarest_first(comparison)
        ],
    )


FILES = {"results.json": as_text, "results.csv": as_csv, "report.html": page}  # by size: a disk may be nearly full


# The documents ------------------------------------------------------------------------------------------------------------


def blocks(comparison: Comparison) -> list[Block | Picture]:
    """What docs/compare.md says of it; the picture of the maps is the README's."""
    taken = comparison.recommendation
    shown = markdown_table("pair", columns(comparison), comparison.results, comparison.taken)
    words = f"**{taken.headline}.** {taken.reason}"
    return [
        Picture("maps.png", in_panels(simplex_figure(comparison).plot), "Where each map places a grid of scores"),
        Block("compare", (shown, words), twins(comparison)),
    ]


ENTRY = Entry(
    "compare",
    "trains as softmaxima compare does without a table",
    blocks,
    lambda told: compare(read_table(None, None), Settings()),
    "compare.json",
    facts=partial(as_json, folds=False),
)
