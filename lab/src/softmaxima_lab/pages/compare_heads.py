"""The report of a comparison of heads: its tables, and one page with figures that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from softmaxima_lab.compare.heads import COMPARISON, PREDICT, PREDICTED, Finding, Result, Study
from softmaxima_lab.compare.heads_pictures import PIXELS, digits_task, mnist_task
from softmaxima_lab.compare.heads_plan import SAMPLES, SCALE, TASKS, Settings
from softmaxima_lab.compare.heads_tasks import Task
from softmaxima_lab.compare.heads_text import BASELINE as WORD_FREQUENCIES
from softmaxima_lab.compare.heads_text import SHARE, text_task
from softmaxima_lab.pages import comparison_columns as shared
from softmaxima_lab.pages.columns import Column
from softmaxima_lab.pages.compare_heads_figures import figures
from softmaxima_lab.pages.comparison import Report, documented, spoken, training_in_words
from softmaxima_lab.tables.texts import read_text

NUMBERS = "{:.1f}"


def columns(finding: Finding) -> tuple[Column[Result], ...]:
    """Of the table of a task."""
    return _of_text(finding) if finding.task.is_large else _of_pictures(finding)


def _of_text(finding: Finding) -> tuple[Column[Result], ...]:
    smoothed, score, named = finding.task.questions
    return (
        shared.name_column("head"),
        shared.leading_column(
            finding,
            "ε-perplexity",
            "ε-ppl",
            NUMBERS,
            f"Perplexity of (p + ε)/(1 + nε) for n classes, with nε = {SHARE:g} for every head: a hundredth part of all "
            "probability is shared out evenly, so that p = 0 costs much and not everything. A perplexity is as many equally "
            "probable words as would be as hard to guess.",
        ),
        shared.better_column(finding, smoothed, "ε-perplexity lower than softmax's by, %", "vs softmax, %", 0, shared.BETTER),
        shared.value_column(
            "perplexity", "ppl", NUMBERS, lambda result: result.exact_perplexity, 3, "Without ε: ∞ where a word came whose p was 0."
        ),
        shared.value_column(
            "words with p = 0, %",
            "p=0 %",
            NUMBERS,
            shared.percent("zeros"),
            1,
            "How many of the words that came had p = 0.",
        ),
        shared.value_column(
            "words with p > 0",
            "p>0",
            "{:.0f}",
            lambda result: result.mean("support"),
            12,
            "How many words of all had p > 0, on average.",
        ),
        shared.value_column(
            "sparsemax score",
            "score",
            "{:.3f}",
            lambda result: result.score,
            2,
            "The mean of p_t + (1 − Σp²)/2 for the word t that came: from 0 to 1, more is better, and fair to p = 0 without an ε.",
            "descending",
        ),
        shared.better_column(finding, score, "score better than softmax's by", "score vs", 9, shared.ALIKE),
        shared.value_column(
            "top-1, %", "top-1 %", NUMBERS, shared.percent("top1"), 4, "How often the most probable word came.", "descending"
        ),
        shared.better_column(finding, named, named.metric.with_unit("top-1 better than softmax's by"), "top-1 vs", 9, shared.ALIKE),
        shared.value_column(
            "top-5, %",
            "top-5 %",
            NUMBERS,
            shared.percent("top5"),
            6,
            "How often one of the five most probable came, with p > 0.",
            "descending",
        ),
        shared.value_column(
            "calibration error, %",
            "ECE %",
            NUMBERS,
            shared.percent("calibration"),
            5,
            "How far the probability of the most probable word is from how often it came.",
        ),
        *_times(finding, NUMBERS, 0),
        shared.value_column("of which loss and gradient, ms", "grad. ms", NUMBERS, _milliseconds("gradient"), 11),
        shared.value_column("of which update, ms", "upd. ms", NUMBERS, _milliseconds("update"), 10),
        shared.value_column(
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
        shared.name_column("head"),
        shared.leading_column(
            finding,
            "recall@1 of digits left out, %",
            "recall %",
            "{:.2f}",
            "The share of pictures of digits that training has not seen whose nearest one among these, by the cosine of features, "
            "shows the same digit.",
        ),
        shared.better_column(finding, unseen, unseen.metric.with_unit("better than softmax by"), "vs softmax", 0, shared.BETTER),
        shared.value_column(
            "accuracy of digits learnt, %",
            "acc. %",
            "{:.2f}",
            shared.percent("accuracy"),
            0,
            "The share of held-out pictures that are named right.",
            "descending",
        ),
        shared.better_column(
            finding, learnt, learnt.metric.with_unit("accuracy better than softmax by"), "acc. vs", 5, shared.ALIKE
        ),
        shared.value_column(
            "pairs in order, %",
            "pairs %",
            NUMBERS,
            shared.percent("pairs"),
            4,
            "Of digits left out, how often a picture of the same digit is nearer than one of another.",
            "descending",
        ),
        *_times(finding, "{:.2f}", 1),
    )


def _times(finding: Finding, shown: str, spare: int) -> tuple[Column[Result], ...]:
    return (
        *shared.step_columns(finding, "heads", shown, spare),
        shared.value_column(
            f"{PREDICTED} predictions, ms",
            "pred. ms",
            "{:.2f}",
            lambda result: 1000 * result.cost(PREDICT),
            7,
            f"The most probable class for {PREDICTED} rows, by the head alone.",
        ),
    )


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


def reservations(study: Study, finding: Finding) -> list[str]:
    passes = study.settings.steps * finding.task.batch / finding.task.rows
    if passes >= FEW:
        return []
    ahead = "heads that learn fast are ahead, and more --steps may change the order"
    return [f"Each row was learnt {passes:.1f} times on average: {ahead}."]


def last(finding: Finding, result: Result) -> list[str]:
    """What its probabilities add up to, and to how much it gives none."""
    words = []
    if (mass := result.mean("mass")) < 0.9995:
        words.append(f"its probabilities add up to {100 * mass:.1f} % in the mean, which its perplexity pays for")
    if (zeros := result.mean("zeros")) > 0:
        infinite = "so that its perplexity is infinite, and its ε-perplexity is what ε makes of it"
        words.append(f"gives p = 0 to {100 * zeros:.2g} % of the words that came, {infinite}")
        words.append(f"has p > 0 for {result.mean('support'):.0f} words on average")
    return words


def settings(study: Study) -> Mapping[str, str]:
    tasks = [finding.task for finding in study.findings]
    by_hand = ". It is one for all heads of a task, set by hand: a head whose best is another is not shown at its best"
    return {
        "Network below the head": "; ".join(f"for {spoken(task)}, {task.model}" for task in tasks),
        "Training": training_in_words(study, by_hand),
        "Draws": f"{SAMPLES} a batch, log-uniform, for sampled softmax and noise-contrastive" if tasks[0].is_large else "",
        "Scale of cosines": f"{SCALE:g}" if not tasks[-1].is_large else "",
    }


OF_PEERS = "torch's own, for its time and memory beside the others"
REPORT = Report(
    COMPARISON,
    heading="Which last layer?",
    lead="One small network for each task, trained with every last layer and its loss, from the same weights, on the same batches.",
    columns=columns,
    figures=figures,
    caption=caption,
    settings=settings,
    of_bar=lambda result: "They learn nothing." if result.name == PIXELS else "They read nothing.",
    first=lambda finding, result: [OF_PEERS] if result.candidate and result.candidate.is_peer else [],
    last=last,
    numbers="probabilities",
    reservations=reservations,
)


def tasks() -> list[Task]:
    text = text_task(read_text(None), Settings(), TASKS["text"])
    return [text, digits_task(TASKS["digits"]), mnist_task(TASKS["mnist"])]


ENTRY = documented(REPORT, "softmaxima compare heads, in 8 minutes", tasks, Settings(), "compare-heads.json")
