"""`softmaxima compare`: trains with every pair of a map and a loss, and tells which to take."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from softmaxima.cli.terminal import WIDE, Output, check_exists, fail, keeping, names, plain_table, progress_bar, say

if TYPE_CHECKING:
    from softmaxima.experiments.compare import Comparison, Pair


def compare(
    table: Annotated[
        Path | None, Parameter(help="CSV, Parquet, Feather, or NPZ with X and y. Without it: the digits of scikit-learn.")
    ] = None,
    /,
    *,
    target: Annotated[str | None, Parameter(help="The column to predict: text or ints. Without it: the last column.")] = None,
    maps: Annotated[
        list[str] | None, Parameter(help="Only these pairs, or all pairs of these maps: names, separated by commas.", negative=())
    ] = None,
    model: Annotated[Literal["linear", "mlp"], Parameter(help="One affine layer, or one hidden layer of 128 ReLU units.")] = "mlp",
    folds: Annotated[int | None, Parameter(help="Folds of the cross-validation: 5, or 3 with --quick.")] = None,
    epochs: Annotated[int | None, Parameter(help="Passes over the rows: 30, or 10 with --quick; more on a small table.")] = None,
    seed: Annotated[int, Parameter(help="Of folds, weights and batches; the same seed gives the same table, times aside.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")] = Path("softmaxima-compare"),
    quick: Annotated[bool, Parameter(help="A first look: 3 folds, few epochs, at most about 1000 rows.", negative=())] = False,
) -> None:
    """Train a classifier on a table with every pair of a map and a loss, and tell which to take.

    Folds, initial weights and batches are the same for every pair. Text and boolean features are one-hot encoded.
    """
    if table is not None:
        check_exists(table, " of the kinds that softmaxima compare --help names")
    from softmaxima.core.numbers import InputError
    from softmaxima.experiments.compare import Settings, check_classes, choose, pairs, usual_epochs
    from softmaxima.experiments.compare import compare as run
    from softmaxima.experiments.tables import read_table
    from softmaxima.report.compare import FILES, write

    try:
        settings = Settings(model, folds=(3 if quick else 5) if folds is None else folds, seed=seed, rows=1000 if quick else None)
        data = read_table(table, target)
        if epochs is None:
            epochs = usual_epochs(min(data.rows, settings.rows or data.rows), settings.folds, quick)
        settings = replace(settings, epochs=epochs)
        check_classes(data, settings)
        chosen = choose(pairs(len(data.classes)), names(maps))
    except InputError as error:
        fail(str(error))
    prepare_directory(out)

    target_words = f"target {data.target!r}" + (" (the last column; --target names another)" if data.target_by_default else "")
    say(f"{data.name}: {data.rows} rows, {data.features.shape[1]} features, {len(data.classes)} classes; {target_words}")
    if data.encoded:
        columns = ", ".join(f"{column!r} ({count})" for column, count in data.encoded)
        say(f"one-hot encoded, with so many indicator columns: {columns}")
    if settings.rows is not None and data.rows > settings.rows:
        say(f"--quick: a sample of about {settings.rows} rows, {settings.folds} folds, {settings.epochs} epochs")
    with progress_bar() as progress:
        task = progress.add_task("", total=len(chosen) * settings.folds)
        done = itertools.count()

        def starting(pair: Pair, fold: int) -> None:
            progress.update(task, completed=next(done), description=escape(f"{pair.name}, fold {fold + 1} of {settings.folds}"))

        comparison = run(data, settings, chosen, starting)
    with keeping("--out", out, lambda: write(comparison, out)):
        show(comparison)
    say("\nwritten: " + ", ".join(str(out / name) for name in FILES))


def prepare_directory(out: Path) -> None:
    """Make sure that results can be written there, before anything is computed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        fail(f"--out: cannot write to {out} ({error.strerror}); choose another directory")


def show(comparison: Comparison, console: Console | None = None) -> None:
    """The table, its caption, and the recommendation."""
    from softmaxima.report.compare import CAPTION, COLUMNS

    console = console or Output()
    wide = console.width >= WIDE
    table = plain_table([column.heading if wide else column.short for column in COLUMNS], wide)
    for result in comparison.results:
        style = "bold" if result.pair == comparison.recommendation.pair else None
        table.add_row(*(Text(column.cell(result)) for column in COLUMNS), style=style)
    taken = comparison.recommendation
    console.print()
    console.print(table)
    console.print()
    console.print(Text(CAPTION, style="dim"))
    console.print()
    console.print(Text.assemble("Take ", (taken.pair.name, "bold"), f". {taken.reason}"))
    console.print()
    for line in taken.pair.code.splitlines():
        console.print(Text("    " + line if line else ""), soft_wrap=True)
