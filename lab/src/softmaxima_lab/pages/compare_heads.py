"""The report of a comparison of heads: its tables, and one page with figures that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from softmaxima_lab import wording
from softmaxima_lab.compare.heads import PREDICTED, Finding, Result, Study
from softmaxima_lab.compare.heads_pictures import PIXELS
from softmaxima_lab.compare.heads_plan import SAMPLES, SCALE
from softmaxima_lab.compare.heads_saved import as_csv, as_text
from softmaxima_lab.compare.heads_tasks import Task
from softmaxima_lab.compare.heads_text import BASELINE as WORD_FREQUENCIES
from softmaxima_lab.compare.heads_text import SHARE
from softmaxima_lab.compare.studies import Verdict
from softmaxima_lab.pages import trainings
from softmaxima_lab.pages.columns import Column
from softmaxima_lab.pages.compare_heads_figures import figures
from softmaxima_lab.pages.figures import SAME, Figure, cut_note, same_note
from softmaxima_lab.pages.page import document, facts
from softmaxima_lab.pages.studies import (
    ALIKE,
    BETTER,
    better_column,
    choices,
    compared,
    leading_column,
    markdown_of,
    meanings,
    name_column,
    step_columns,
    times,
    value_column,
)
from softmaxima_lab.wording import listed

# The table ----------------------------------------------------------------------------------------------------------------

NUMBERS = "{:.1f}"


def columns(finding: Finding) -> tuple[Column[Result], ...]:
    """Of the table of a task."""
    return _of_text(finding) if finding.task.is_large else _of_pictures(finding)


def _of_text(finding: Finding) -> tuple[Column[Result], ...]:
    smoothed, score, named = finding.task.questions
    return (
        name_column("head"),
        leading_column(
            finding,
            "ε-perplexity",
            "ε-ppl",
            NUMBERS,
            1,
            f"Perplexity of (p + ε)/(1 + nε) for n classes, with nε = {SHARE:g} for every head: a hundredth part of all "
            "probability is shared out evenly, so that p = 0 costs much and not everything. A perplexity is as many equally "
            "probable words as would be as hard to guess.",
        ),
        better_column(finding, smoothed, "ε-perplexity lower than softmax's by, %", "vs softmax, %", 0, BETTER),
        value_column(
            "perplexity", "ppl", NUMBERS, lambda result: result.exact_perplexity, 3, "Without ε: ∞ where a word came whose p was 0."
        ),
        value_column(
            "words with p = 0, %",
            "p=0 %",
            NUMBERS,
            _percent("zeros"),
            1,
            "How many of the words that came had p = 0.",
        ),
        value_column(
            "words with p > 0",
            "p>0",
            "{:.0f}",
            lambda result: result.mean("support"),
            12,
            "How many words of all had p > 0, on average.",
        ),
        value_column(
            "sparsemax score",
            "score",
            "{:.3f}",
            lambda result: result.score,
            2,
            "The mean of p_t + (1 − Σp²)/2 for the word t that came: from 0 to 1, more is better, and fair to p = 0 without an ε.",
            "descending",
        ),
        better_column(finding, score, "score better than softmax's by", "score vs", 9, ALIKE),
        value_column("top-1, %", "top-1 %", NUMBERS, _percent("top1"), 4, "How often the most probable word came.", "descending"),
        better_column(finding, named, named.metric.with_unit("top-1 better than softmax's by"), "top-1 vs", 9, ALIKE),
        value_column(
            "top-5, %",
            "top-5 %",
            NUMBERS,
            _percent("top5"),
            6,
            "How often one of the five most probable came, with p > 0.",
            "descending",
        ),
        value_column(
            "calibration error, %",
            "ECE %",
            NUMBERS,
            _percent("calibration"),
            5,
            "How far the probability of the most probable word is from how often it came.",
        ),
        *_times(finding, NUMBERS, 0),
        value_column("of which loss and gradient, ms", "grad. ms", NUMBERS, _milliseconds("gradient"), 11),
        value_column("of which update, ms", "upd. ms", NUMBERS, _milliseconds("update"), 10),
        value_column(
            "peak memory of a step, MiB",
            "MiB",
            NUMBERS,
            lambda result: result.peak_bytes / 2**20,
            0,
            "How far the memory of a process of its own rises in a step, measured once, to about 2 MiB.",
        ),
    )


def _of_pictures(finding: Finding) -> tuple[Column[Result], ...]:
    unseen, learnt = finding.task.questions
    return (
        name_column("head"),
        leading_column(
            finding,
            "recall@1 of digits left out, %",
            "recall %",
            "{:.2f}",
            100,
            "The share of pictures of digits that training has not seen whose nearest one among these, by the cosine of features, "
            "shows the same digit.",
        ),
        better_column(finding, unseen, unseen.metric.with_unit("better than softmax by"), "vs softmax", 0, BETTER),
        value_column(
            "accuracy of digits learnt, %",
            "acc. %",
            "{:.2f}",
            _percent("accuracy"),
            0,
            "The share of held-out pictures that are named right.",
            "descending",
        ),
        better_column(finding, learnt, learnt.metric.with_unit("accuracy better than softmax by"), "acc. vs", 5, ALIKE),
        value_column(
            "pairs in order, %",
            "pairs %",
            NUMBERS,
            _percent("pairs"),
            4,
            "Of digits left out, how often a picture of the same digit is nearer than one of another.",
            "descending",
        ),
        *_times(finding, "{:.2f}", 1),
    )


def _times(finding: Finding, shown: str, spare: int) -> tuple[Column[Result], ...]:
    return (
        *step_columns(finding, "heads", shown, spare),
        value_column(
            f"{PREDICTED} predictions, ms",
            "pred. ms",
            "{:.2f}",
            _milliseconds("predict"),
            7,
            f"The most probable class for {PREDICTED} rows, by the head alone.",
        ),
    )


def _percent(measure: str) -> Callable[[Result], float]:
    return lambda result: 100 * result.mean(measure)


def _milliseconds(what: str) -> Callable[[Result], float]:
    return lambda result: 1000 * result.seconds(what)


ROWS_OF_TEXT = (
    f"{WORD_FREQUENCIES.capitalize()}: counted where the heads are trained, the same for every word. torch softmax is nn.Linear "
    "with F.cross_entropy, torch adaptive is nn.AdaptiveLogSoftmaxWithLoss: they stand beside the others and are not recommended."
)
ROWS_OF_PICTURES = (
    f"{PIXELS.capitalize()}: the pixels in the place of features, without any training. A cosine softmax has no margin: between it "
    "and softmax is what cosines and their scale do, between the others and it what margins do. Memory is not measured: a head of "
    "seven classes takes less than can be told."
)


def caption(finding: Finding) -> str:
    """What some of the rows are."""
    return ROWS_OF_TEXT if finding.task.is_large else ROWS_OF_PICTURES


FEW = 3  # times that a row is learnt on average


def _passes(study: Study, task: Task) -> float:
    """How often a row is learnt, on average."""
    return study.settings.steps * task.batch / task.rows


def reservations(study: Study, finding: Finding, verdict: Verdict[Result]) -> tuple[str, ...]:
    """Why a recommendation is a first one; of what recommends nothing, with the first question of a task alone."""
    seeds, recommends = len(finding.softmax.runs), verdict.taken not in (None, finding.softmax)
    if not recommends and verdict is not finding.verdicts[0]:
        return ()
    found = trainings.first_look(study.settings, seeds, "few steps show what is learnt fast")
    if recommends:
        found += trainings.unseen_failures(seeds, "head")
    if (passes := _passes(study, finding.task)) < FEW:
        found.append(
            f"Each row was learnt {passes:.1f} times on average: heads that learn fast are ahead, and more --steps may change the "
            "order."
        )
    return *found, *filter(None, [finding.task.doubt])


def sentence(finding: Finding, result: Result) -> str:
    """What there is to say of a head."""
    if result.entry is None:
        return "They learn nothing." if result.name == PIXELS else "They read nothing."
    if result.diverged:
        return trainings.divergence(result, "probabilities")
    words = ["torch's own, for its time and memory beside the others"] if result.entry.is_peer else []
    if result is finding.softmax:
        words.append("what the others are compared with")
    questions = finding.task.questions
    if unbeaten := [q for q in questions if finding.is_learnt(q) and not finding.above(result, q).better]:
        bars = listed(list(dict.fromkeys(question.bar for question in unbeaten)))
        words.append(f"not known to have a better {listed([q.metric.words for q in unbeaten], 'or')} than {bars}")
    if finding.softmax.diverged:
        words.append("nothing to compare with, for softmax diverged")
    elif result is not finding.softmax:
        words += compared(finding, result)
    if (mass := result.mean("mass")) < 0.9995:
        words.append(f"its probabilities add up to {100 * mass:.1f} % in the mean, which its perplexity pays for")
    if (zeros := result.mean("zeros")) > 0:
        infinite = "so that its perplexity is infinite, and its ε-perplexity is what ε makes of it"
        words.append(f"gives p = 0 to {100 * zeros:.2g} % of the words that came, {infinite}")
        words.append(f"has p > 0 for {result.mean('support'):.0f} words on average")
    return wording.sentence("; ".join(words))


def _spoken(task: Task) -> str:
    """Its name within a sentence."""
    return task.heading if task.heading.isupper() else task.name


def settings_in_words(study: Study) -> dict[str, str]:
    """What was trained, on what, and with what."""
    settings, tasks = study.settings, [finding.task for finding in study.findings]
    batches = listed([f"{task.batch} rows at a rate of up to {task.rate:g} for {_spoken(task)}" for task in tasks])
    models = "; ".join(f"for {_spoken(task)}, {task.model}" for task in tasks)
    return {
        **{task.heading: f"{task.title}: {'; '.join(task.notes)}" for task in tasks},
        "Network below the head": models,
        "Training": f"{settings.steps} steps of Adam, in batches of {batches}; the rate rises and falls to 0. It is one for all "
        "heads of a task, set by hand: a head whose best is another is not shown at its best",
        "Draws": f"{SAMPLES} a batch, log-uniform, for sampled softmax and noise-contrastive" if tasks[0].is_large else "",
        "Scale of cosines": f"{SCALE:g}" if not tasks[-1].is_large else "",
        **trainings.made_with(study, "heads", "; ".join(f"{name}: {why}" for name, why in study.left_out.items())),
    }


# The page -----------------------------------------------------------------------------------------------------------------


def page(study: Study) -> str:
    """The page, complete in itself."""
    drawn, kinds = [figures(finding) for finding in study.findings], [finding.task.is_large for finding in study.findings]
    return document(
        "softmaxima compare-heads",
        "Which last layer?",
        "One small network for each task, trained with every last layer and its loss, from the same weights, on the same batches.",
        (
            *choices(study, reservations),
            facts("What was trained", settings_in_words(study)),
            *(
                section
                for number, finding in enumerate(study.findings)
                for section in _sections(finding, drawn[number], finding.task.is_large not in kinds[:number])
            ),
        ),
        [shown for own in drawn for shown in own],
    )


def note(finding: Finding, shown: Sequence[Column[Result]]) -> str:
    """On the columns of a task that are shown, beside the caption."""
    found, shows_same = [], any(column.cell(result) == SAME for column in shown for result in finding.results)
    for question in finding.task.questions:
        gains = [finding.gain(result, question) for result in finding.results if result is not finding.softmax]
        found.append(cut_note(gains, question.metric))
        if shows_same and any(gain.same for gain in gains):
            found.append(same_note(min(run.reached.rows[question.measure] for run in finding.softmax.runs), finding.family))
    return " ".join(dict.fromkeys(filter(None, found)))


def _sections(finding: Finding, drawn: Sequence[Figure], explains: bool) -> list[str]:
    task, shown, said = finding.task, columns(finding), {result.name: sentence(finding, result) for result in finding.results}
    table = shown, finding.results, finding.taken, f"{caption(finding)} {note(finding, shown)}".strip()
    explained = [facts(f"{task.heading}: what the columns are", meanings(shown))] if explains else []
    return trainings.sections("head", task.name, task.heading, table, said, times(finding), drawn, explained)


def markdown(study: Study) -> str:
    """The tables and what they say, for a page."""
    return "\n\n".join(part for each in study.findings for part in markdown_of(study, each, columns(each), reservations))


def explanations(study: Study) -> str:
    """What the rows and columns of the tables are, each once, for a page."""
    rows = dict.fromkeys(f"{caption(finding)} {note(finding, columns(finding))}".strip() for finding in study.findings)
    headings: dict[str, dict[str, None]] = {}  # of columns, by what they are
    for column in (column for finding in study.findings for column in columns(finding) if column.meaning):
        headings.setdefault(column.meaning, {})[f"*{column.heading}*"] = None
    return "\n".join((" ".join(rows), "", *(f"- {'; '.join(same)}: {told}" for told, same in headings.items())))


FILES = {"results.json": as_text, "results.csv": as_csv, "report.html": page}  # by size: a disk may be nearly full
