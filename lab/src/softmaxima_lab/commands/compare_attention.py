"""`softmaxima compare attention`: trains a Transformer with every map in softmax's place, and tells which to take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from softmaxima_lab.commands import comparisons
from softmaxima_lab.commands.comparisons import FirstSeed, Json, Out, Quick, Resume, TextFile
from softmaxima_lab.commands.terminal import check_named, names


def attention(
    *,
    text: TextFile = None,
    task: Annotated[
        Literal["text", "digits", "both"],
        Parameter(help="The next byte of a text, or which digit a picture of scikit-learn's shows."),
    ] = "both",
    maps: Annotated[list[str] | None, Parameter(help="Only these maps: names, separated by commas.", negative=())] = None,
    seeds: Annotated[
        int | None, Parameter(help="Trainings of each map: 5, or 2 with --quick; more tell smaller differences.")
    ] = None,
    steps: Annotated[int | None, Parameter(help="Of each training: 500, or 30 with --quick.")] = None,
    seed: FirstSeed = 0,
    out: Out = Path("softmaxima-compare-attention"),
    resume: Resume = False,
    json: Json = False,
    quick: Quick = False,
) -> None:
    """Train a small Transformer with every map in softmax's place, on a text and on pictures, and tell which to take.

    Initial weights and batches are the same for every map. A map is recommended where its difference to softmax is more than chance
    explains, given how many maps are tried. Also how many keys each head looks at, the α and the sinks that were learnt, and time
    and memory of a step. Ctrl-C keeps the seeds that are done, and --resume goes on from there.
    """
    check_named("--maps", maps, "to train all maps")
    comparisons.check_text(text, task, ["digits"])
    from softmaxima.base.numbers import choose
    from softmaxima_lab.compare.attention_plan import QUICK, USUAL, check_names
    from softmaxima_lab.compare.settings import Settings
    from softmaxima_lab.tables.texts import read_text

    check_names(names(maps))
    settings = comparisons.settings_of(Settings, QUICK if quick else USUAL, seeds, steps, seed=seed, quick=quick)
    content = read_text(text) if task != "digits" else None
    comparisons.check_out(out, "attention", resume)
    from softmaxima_lab.compare.attention import compared, offered
    from softmaxima_lab.compare.attention_tasks import digits_task, text_task
    from softmaxima_lab.pages.compare_attention import REPORT

    chosen = compared(choose("--maps", offered(), names(maps), "map"))
    tasks = [text_task(content, chosen)] if content is not None else []
    tasks += [digits_task(chosen)] if task != "text" else []
    comparisons.run(REPORT, tasks, settings, out, resume, json, {})
