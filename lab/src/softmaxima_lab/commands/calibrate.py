"""`softmaxima calibrate`: whether probabilities mean what they say, and the temperature that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from softmaxima_lab.commands import pieces
from softmaxima_lab.commands.terminal import (
    Output,
    check_file,
    check_named,
    keeping,
    names,
    progress_bar,
    say,
    show_table,
)

if TYPE_CHECKING:
    from softmaxima_lab.calibrate.calibration import Calibrated
    from softmaxima_lab.calibrate.calibration_scores import Scores


def calibrate(
    table: Annotated[
        Path,
        Parameter(
            help="Rows with a column of scores for each class, named as it, and the class; in any format that compare reads."
        ),
    ],
    /,
    *,
    target: Annotated[str | None, Parameter(help="The column of classes. Without it: the last column.")] = None,
    without: Annotated[
        list[str] | None, Parameter(help="Columns to leave out, such as id: names, separated by commas.", negative=())
    ] = None,
    absent: Annotated[
        list[str] | None, Parameter(help="Columns of classes that no row has: names, separated by commas.", negative=())
    ] = None,
    probabilities: Annotated[bool, Parameter(help="The columns are probabilities, not logits.", negative=())] = False,
    method: Annotated[
        Literal["temperature", "per-class", "vector", "matrix"],
        Parameter(help="One temperature, one a class, that and a bias a class, or a matrix and biases."),
    ] = "temperature",
    penalty: Annotated[
        float | None,
        Parameter(
            help="Of the squares of biases and of a matrix beside its diagonal, where there are any. Without it: normal priors."
        ),
    ] = None,
    folds: Annotated[
        int, Parameter(help="Parts that the rows are cut into; each is held out once, and the others are fitted to.")
    ] = 5,
    seed: Annotated[int, Parameter(help="Of the folds; the same seed gives the same numbers.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html and results.json.")] = Path("softmaxima-calibrate"),
    json: Annotated[bool, Parameter(help="Print the numbers as JSON in place of the table.", negative=())] = False,
) -> None:
    """Find the temperature by which the scores of a classifier are to be divided, and tell what it is worth.

    Give it rows that the classifier did not learn from. Log loss, Brier score and calibration error are measured on rows that the
    temperature was not fitted to; the one that is told is fitted to all rows.
    """
    check_named("--without", without, "to take all columns")
    check_named("--absent", absent, "where every class has rows")
    check_file(table, " of the kinds that softmaxima compare --help names")
    from softmaxima_lab.calibrate.calibration import EXPERIMENT, Settings, calibrated, check_options, check_rows
    from softmaxima_lab.calibrate.calibration_scores import read_scores
    from softmaxima_lab.pages.calibration import FILES
    from softmaxima_lab.pages.columns import write_files

    settings = Settings(method.replace("-", "_"), folds, penalty, probabilities, seed)
    check_options(settings)
    scores = read_scores(table, target, without or (), names(absent), probabilities)
    check_rows(scores, settings)
    pieces.claim(out, EXPERIMENT, resume=False, resumes=False)
    if not json:
        introduce(scores)
    with progress_bar() as progress:
        bar = progress.add_task("fitting", total=settings.folds)
        result = calibrated(scores, settings, lambda folds: progress.update(bar, advance=folds))
    with keeping("--out", out, lambda: write_files(FILES, result, out)):
        if json:
            Output().print(Text(FILES["results.json"](result).rstrip()), soft_wrap=True)
        else:
            show(result)
    if not json:
        say("")
        say("written: " + ", ".join(str(out / name) for name in FILES))


def introduce(scores: Scores) -> None:
    """What is fitted to."""
    say(f"{scores.name}: {scores.rows} rows, {len(scores.classes)} classes; target {scores.target!r}")
    for note in scores.notes:
        say(note)


def show(result: Calibrated) -> None:
    """The table, its caption, and what to do."""
    from softmaxima_lab.pages.calibration import CAPTION, columns, lines

    console = Output()
    both = lines(result)
    show_table(console, "scores", columns(result), both, [line.measured is result.after and result.changed.better for line in both])
    console.print(Text(CAPTION, style="dim"))
    console.print()
    said = " ".join((f". {result.reason}", *result.reservations))
    console.print(Text.assemble((result.headline, "bold"), said))
    if result.code:
        console.print()
        console.print(Text("    " + result.code), soft_wrap=True)
