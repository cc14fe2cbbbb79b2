"""The report of a comparison of attention: what its tables and sentences have of their own."""

from __future__ import annotations

from collections.abc import Mapping

from softmaxima_lab.compare.attention import COMPARISON, KEPT, LOOKED_AT, Finding, Result, Study, compared, offered
from softmaxima_lab.compare.attention_plan import EVEN, USUAL
from softmaxima_lab.compare.attention_tasks import BASELINE, Task, digits_task, text_task
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.pages import comparison_columns as shared
from softmaxima_lab.pages.columns import Column
from softmaxima_lab.pages.compare_attention_figures import figures, weights_figure
from softmaxima_lab.pages.comparison import Report, documented, training_in_words
from softmaxima_lab.pages.documents import Picture
from softmaxima_lab.pages.figures import in_panels
from softmaxima_lab.tables.texts import read_text
from softmaxima_lab.wording import listed


def columns(finding: Finding) -> tuple[Column[Result], ...]:
    """Of the table of a task."""
    (question,) = finding.task.questions
    metric, causal = question.metric, finding.task.causal
    nats = shared.value_column("log loss", "log loss", "{:.3f}", lambda result: result.mean("log loss"), 6, "In nats a picture.")
    return (
        shared.name_column("map"),
        shared.leading_column(
            finding,
            f"{'loss' if causal else metric.words}, {metric.unit if causal else '%'}",
            "bits" if causal else "acc. %",
            f"{{:.{metric.decimals}f}}",
        ),
        shared.better_column(finding, question, metric.with_unit("better than softmax by"), "vs softmax", 0, shared.BETTER),
        *([] if causal else [nats]),
        shared.value_column(
            "keys not 0, %",
            "keys %",
            "{:.1f}",
            shared.percent("share"),
            3,
            f"The share of the keys that a query may see with p > 0, on {LOOKED_AT} held-out rows, over all heads.",
        ),
        shared.value_column(
            "keys in effect",
            "eff. keys",
            "{:.1f}",
            lambda result: result.mean("keys"),
            4,
            "The mean of exp(H), H = −Σ p log p of p/Σp: as many equal keys as would be spread as widely.",
        ),
        *shared.step_columns(finding, "maps", "{:.1f}", 2),
        shared.value_column(
            "kept for backward, MiB",
            "MiB",
            "{:.2f}",
            lambda result: result.cost(KEPT) / 2**20,
            5,
            "What autograd saves of one step, weights and batch aside, counted and not measured at the process; what a kernel "
            "needs while it runs is not in it.",
        ),
    )


CAPTION = (
    f"{BASELINE.capitalize()}: counted where it is trained, the same for every row. "
    f"{EVEN.name.capitalize()}: every head averages all that it sees. To be recommended, a map must be better than both, with "
    "intervals that hold for all maps and both together."
)


def first(finding: Finding, result: Result) -> list[str]:
    return ["averages all that it sees, so that it learns nothing of where to look"] if result.is_bar else []


def last(finding: Finding, result: Result) -> list[str]:
    """How many keys it looks at, and what it has learnt."""
    words, variant = [], result.candidate
    if (share := result.mean("share")) < 0.9995:
        words.append(f"looks at {100 * share:.0f} % of the keys that it may see, {result.mean('keys'):.1f} in effect")
    if (mass := result.mean("mass")) < 0.9995:
        words.append(f"the weights of a query add up to {100 * mass:.0f} % in the mean")
    if variant is not None and variant.learnt:
        what, begin = {"alpha": ("α", "1.50"), "sink": ("sinks", "0")}[variant.learnt]
        ends = [f"{_signed(low)} to {_signed(high)} in layer {n}" for n, (low, high) in enumerate(result.learnt, 1)]
        words.append(f"its {what}, which begin at {begin} and learn, end at {listed(ends)} over heads and seeds")
    return words


def _signed(number: float) -> str:
    return f"{round(number, 2) + 0.0:.2f}".replace("-", "−")


def settings(study: Study) -> Mapping[str, str]:
    return {"Model": study.findings[0].task.model, "Training": training_in_words(study)}


REPORT = Report(
    COMPARISON,
    heading="Which map for attention?",
    lead="One Transformer, trained with every map in softmax's place, from the same weights, on the same batches.",
    columns=columns,
    figures=figures,
    caption=lambda finding: CAPTION,
    settings=settings,
    of_bar=lambda result: "It reads nothing.",
    first=first,
    last=last,
    few_steps="where to look is learnt in hundreds of steps",
)


def pictures(finding: Finding) -> list[str | Picture]:
    """What a head looks at, by map, and how to read it."""
    shown = weights_figure(finding)
    if shown is None:
        return []
    drawn = in_panels(shown.plot).update_xaxes(visible=False).update_yaxes(visible=False)
    return [Picture(f"attention-{finding.task.name}.png", drawn, f"{shown.title}, by map"), f"*{shown.reading}*"]


def tasks() -> list[Task]:
    chosen = compared(offered())
    return [text_task(read_text(None), chosen), digits_task(chosen)]


ENTRY = documented(REPORT, "softmaxima compare attention, in 5 minutes", tasks, Settings(*USUAL), "attention.json", pictures)
