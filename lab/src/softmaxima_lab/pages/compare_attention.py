"""The report of a comparison of attention: its tables, and one page with figures that needs no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from softmaxima_lab import wording
from softmaxima_lab.compare.attention import BASELINE, COST, LOOKED_AT, Finding, Result, Study
from softmaxima_lab.compare.attention_plan import EVEN, LEFT_OUT
from softmaxima_lab.compare.attention_saved import as_csv, as_text
from softmaxima_lab.compare.verdicts import interval, paces
from softmaxima_lab.pages import trainings
from softmaxima_lab.pages.columns import Column, markdown_table
from softmaxima_lab.pages.compare_attention_figures import figures
from softmaxima_lab.pages.figures import TWICE, Figure, cut_note, gain_cell, same_in_words, same_note
from softmaxima_lab.pages.page import choice, document, facts
from softmaxima_lab.wording import listed

# The table ----------------------------------------------------------------------------------------------------------------


def columns(finding: Finding) -> tuple[Column[Result], ...]:
    """Of the table of a task."""
    metric = finding.metric
    unit = metric.unit if finding.task.causal else "%"

    def number(shown: str, value: Callable[[Result], float]) -> Callable[[Result], str]:
        return lambda result: shown.format(value(result)) if math.isfinite(value(result)) else "–"

    def measured(shown: str, value: Callable[[Result], float]) -> Callable[[Result], str]:
        return lambda result: "" if result.variant is None else number(shown, value)(result)

    def quality(result: Result) -> str:
        if result.diverged:
            return "diverged"
        return f"{metric.scale * result.quality:.{metric.decimals}f}"

    def gain(result: Result) -> str:
        return "" if result is finding.softmax else gain_cell(finding.gain(result), metric)

    def faster(result: Result) -> str:
        return "" if result is finding.softmax or result.variant is None else gain_cell(finding.pace(result), COST)

    share, keys = (lambda result: 100 * result.mean("share")), (lambda result: result.mean("keys"))
    step, kept = (lambda result: 1000 * result.step_seconds), (lambda result: result.kept_bytes / 2**20)
    found: list[Column[Result]] = [
        Column("map", "map", lambda result: result.name, lambda result: result.name, best_first="ascending"),
        Column(
            f"{'loss' if finding.task.causal else metric.words}, {unit}",
            "bits" if finding.task.causal else "acc. %",
            quality,
            lambda result: result.quality,
            1,
            "ascending" if finding.task.causal else "descending",
            orders=True,
        ),
        Column(
            metric.with_unit("better than softmax by"),
            "vs softmax",
            gain,
            lambda result: 0.0 if result is finding.softmax else finding.gain(result).mean,
        ),
        Column("keys not 0, %", "keys %", measured("{:.1f}", share), share, 3, "ascending"),
        Column("keys in effect", "eff. keys", measured("{:.1f}", keys), keys, 4, "ascending"),
        Column("step, ms", "ms", measured("{:.1f}", step), step, 2, "ascending"),
        Column(f"step faster than softmax by, %{TWICE}", "faster %", faster, lambda result: finding.pace(result).mean, 7),
        Column("kept for backward, MiB", "MiB", measured("{:.2f}", kept), kept, 5, "ascending"),
    ]
    if not finding.task.causal:
        nats = lambda result: result.log_loss
        found.insert(3, Column("log loss", "log loss", measured("{:.3f}", nats), nats, 6, "ascending"))
    return tuple(found)


CAPTION = (
    "Better than softmax by (vs softmax, more is better): the mean over seeds of the difference to softmax with the same seed ± "
    "half of its interval, widened so that the intervals of all maps together hold at 95 %; ▲ better and ▼ worse, where 0 is not "
    "in it (t, Bonferroni; the variance is that over seeds and that over held-out rows, in batches of neighbours). "
    f"Keys not 0 (keys %): the share of the keys that a query may see with p > 0, on {LOOKED_AT} held-out rows, over all heads. "
    "Keys in effect (eff. keys): the mean of exp(H), H = −Σ p log p of p/Σp: as many equal keys as would be spread as widely. "
    "Step (ms): the time of a training step, in turns with the other maps, on one thread: the median of each seed, and of these "
    "the geometric mean; faster by: the ratio of these, with an interval as above. "
    "Kept for backward (MiB): what autograd saves of one step, weights and batch aside, counted and not measured at the process; "
    "what a kernel needs while it runs is not in it. "
    f"{BASELINE.capitalize()}: counted where it is trained, the same for every row. "
    f"{EVEN.name.capitalize()}: every head averages all that it sees. To be recommended, a map must be better than both, with "
    "intervals that hold for all maps and both together."
)


def reservations(study: Study, finding: Finding) -> tuple[str, ...]:
    """Why a recommendation is a first one."""
    seeds = len(finding.softmax.runs)
    found = trainings.first_look(study.settings, seeds, "where to look is learnt in hundreds of steps")
    if finding.taken not in (None, finding.softmax):
        found += trainings.unseen_failures(seeds, "map")
    return *found, *filter(None, [finding.task.doubt])


def sentence(finding: Finding, result: Result) -> str:
    """What there is to say of a map."""
    metric, gain = finding.metric, finding.gain(result)
    if result.variant is None:
        return "It reads nothing."
    if result.diverged:
        return trainings.divergence(result, "scores")
    words = []
    if result.variant is EVEN:
        words.append("averages all that it sees, so that it learns nothing of where to look")
    elif unbeaten := [name for name, own in finding.over_bars(result).items() if not own.better]:
        words.append(f"not known to be better than {listed(unbeaten, 'or')}")
    if result is finding.softmax:
        words.append("what the others are compared with")
    elif finding.softmax.diverged:
        words.append("nothing to compare with, for softmax diverged")
    elif gain.same:
        words.append(same_in_words(metric))
    elif gain.better or gain.worse:
        words.append(f"{'better' if gain.better else 'worse'} than softmax in {metric.words} by {interval(gain, metric)}")
    else:
        words.append(f"cannot be told from softmax in {metric.words}: a difference of {interval(gain, metric)}")
    share = result.mean("share")
    if share < 0.9995:
        words.append(f"looks at {100 * share:.0f} % of the keys that it may see, {result.mean('keys'):.1f} in effect")
    if (mass := result.mean("mass")) < 0.9995:
        words.append(f"the weights of a query add up to {100 * mass:.0f} % in the mean")
    if result.variant.learnt:
        what, begin = {"alpha": ("α", "1.50"), "sink": ("sinks", "0")}[result.variant.learnt]
        ends = [f"{_signed(low)} to {_signed(high)} in layer {n}" for n, (low, high) in enumerate(result.learnt, 1)]
        words.append(f"its {what}, which begin at {begin} and learn, end at {listed(ends)} over heads and seeds")
    return wording.sentence("; ".join(words))


def _signed(number: float) -> str:
    return f"{round(number, 2) + 0.0:.2f}".replace("-", "−")


def times(finding: Finding) -> str:
    """With which maps a step takes another time than with softmax, for certain and by more than is worth a word."""
    return paces({result.name: finding.pace(result) for result in finding.others})


def settings_in_words(study: Study) -> dict[str, str]:
    """What was trained, on what, and with what."""
    settings, tasks = study.settings, [finding.task for finding in study.findings]
    batches = listed([f"{task.batch} rows at a rate of up to {task.rate:g} for {task.name}" for task in tasks])
    return {
        **{task.name.capitalize(): f"{task.title}: {'; '.join(task.notes)}" for task in tasks},
        "Model": f"Transformer of {tasks[0].shape.words}, pre-norm",
        "Training": f"{settings.steps} steps of Adam, in batches of {batches}; the rate rises and falls to 0",
        **trainings.made_with(study, "maps", "; ".join(f"{name}, for {why}" for name, why in LEFT_OUT.items())),
    }


# The page -----------------------------------------------------------------------------------------------------------------


def page(study: Study) -> str:
    """The page, complete in itself."""
    choices = [
        choice(
            finding.headline,
            finding.reason,
            reservations(study, finding),
            label=f"{finding.task.name.capitalize()}: {finding.task.title}",
        )
        for finding in study.findings
    ]
    drawn = [figures(finding) for finding in study.findings]
    captions = (CAPTION, *["The columns are as in the table above."] * (len(drawn) - 1))
    tasks = zip(study.findings, drawn, captions, strict=True)
    return document(
        "softmaxima compare-attention",
        "Which map for attention?",
        "One Transformer, trained with every map in softmax's place, from the same weights, on the same batches.",
        (
            *choices,
            facts("What was trained", settings_in_words(study)),
            *(section for finding, own, caption in tasks for section in _sections(finding, own, caption)),
        ),
        [shown for own in drawn for shown in own],
    )


def note(finding: Finding) -> str:
    """On the table of a task, beside its caption."""
    gains = [finding.gain(result) for result in finding.results if result is not finding.softmax]
    same = same_note(len(finding.task.held_y), len(finding.others)) if any(gain.same for gain in gains) else ""
    return " ".join(filter(None, (cut_note(gains, finding.metric), same)))


def _sections(finding: Finding, drawn: Sequence[Figure], caption: str) -> list[str]:
    name, said = finding.task.name, {result.name: sentence(finding, result) for result in finding.results}
    table = columns(finding), finding.results, finding.taken, f"{caption} {note(finding)}".strip()
    return trainings.sections("map", name, name.capitalize(), table, said, times(finding), drawn)


def markdown(study: Study) -> str:
    """The tables and what they say, for a page."""
    parts = []
    for finding in study.findings:
        parts.append(markdown_table(finding.task.name, columns(finding), finding.results, finding.taken))
        parts.append(f"**{finding.headline}.** {finding.reason} {times(finding)}".rstrip())
    return "\n\n".join(parts)


FILES = {"results.json": as_text, "results.csv": as_csv, "report.html": page}  # by size: a disk may be nearly full
