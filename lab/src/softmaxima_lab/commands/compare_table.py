"""`softmaxima compare table`: trains with every pair of a map and a loss, and tells which to take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from softmaxima.base.numbers import nearest
from softmaxima_lab.commands import pieces
from softmaxima_lab.commands.terminal import (
    NOT_WRITTEN,
    WRONG_RESULT,
    Output,
    check_file,
    check_named,
    check_writable,
    fail,
    names,
    say,
    show_table,
)
from softmaxima_lab.commands.workers import Address, Timeout, Workers, check_spread

if TYPE_CHECKING:
    from softmaxima_lab.compare.table import Comparison, Settings
    from softmaxima_lab.tables.tables import Table

OTHERS = ("attention", "heads", "estimators")  # that a name of no file may mean
TABLE_HELP = (
    "CSV, TSV or text, best with a line of names, also as .gz or .zip; Parquet, Feather, or NPZ with X and y. "
    "Separators, decimal commas, dates, words for missing values and columns that look odd are recognised and named. "
    "Without it: the digits of scikit-learn."
)


def table(
    table: Annotated[Path | None, Parameter(help=TABLE_HELP)] = None,
    /,
    *,
    target: Annotated[str | None, Parameter(help="The column to predict: text or ints. Without it: the last column.")] = None,
    without: Annotated[
        list[str] | None, Parameter(help="Columns to leave out, such as id,name: names, separated by commas.", negative=())
    ] = None,
    missing: Annotated[
        Literal["refuse", "impute"],
        Parameter(help="Missing values: impute puts the median of the rows trained on, and of texts a category of their own."),
    ] = "refuse",
    missing_words: Annotated[
        list[str] | None,
        Parameter(help="Texts that stand for a missing value too, such as unknown,none: separated by commas.", negative=()),
    ] = None,
    categories: Annotated[
        list[str] | None,
        Parameter(help="Columns of codes to take as texts, such as postcode,id: names, separated by commas.", negative=()),
    ] = None,
    maps: Annotated[
        list[str] | None, Parameter(help="Only these pairs, or all pairs of these maps: names, separated by commas.", negative=())
    ] = None,
    metric: Annotated[
        Literal["accuracy", "macro-f1", "log-loss", "brier", "calibration", "cost"],
        Parameter(help="What the recommendation goes by; cost: the time of a step, of what is at most a point less accurate."),
    ] = "accuracy",
    model: Annotated[Literal["linear", "mlp"], Parameter(help="One affine layer, or one hidden layer of 128 ReLU units.")] = "mlp",
    tune: Annotated[
        bool, Parameter(help="Choose a learning rate for each pair inside each fold, of four: four times the time.", negative=())
    ] = False,
    folds: Annotated[int, Parameter(help="Folds of the cross-validation.")] = 5,
    repeats: Annotated[
        int | None, Parameter(help="Folds anew, so many times: 2, or 1 with --quick. More tell smaller differences.")
    ] = None,
    epochs: Annotated[int | None, Parameter(help="Passes over the rows: 30, or 10 with --quick; more on a small table.")] = None,
    seed: Annotated[int, Parameter(help="Of folds, weights and batches; the same seed gives the same table, times aside.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")] = Path("softmaxima-compare"),
    resume: Annotated[
        bool, Parameter(help="Go on with what was interrupted in --out, or show what is done there.", negative=())
    ] = False,
    save: Annotated[
        Path | None,
        Parameter(help="A .skops or .pt for the recommended pair, trained on all rows; softmaxima predict reads it."),
    ] = None,
    quick: Annotated[bool, Parameter(help="A first look: folds once, few epochs, at most about 1000 rows.", negative=())] = False,
    workers: Workers = None,
    dask: Address = None,
    timeout: Timeout = None,
) -> None:
    """Train a classifier on a table with every pair of a map and a loss, and tell which to take.

    Folds, initial weights and batches are the same for every pair. A pair is recommended where its difference to softmax is more
    than chance explains, given how many pairs are tried. Ctrl-C keeps the folds that are done. --workers and --dask find the same,
    times aside.
    """
    spread = check_spread("compare", workers, dask, timeout)
    check_named("--maps", maps, "to train all pairs")
    check_named("--without", without, "to train on all columns")
    check_named("--missing-words", missing_words, "for the usual words")
    check_named("--categories", categories, "to take numbers as numbers")
    if table is not None:
        check_file(table, f" of the kinds that softmaxima compare --help names{nearest(str(table), OTHERS)}")
    from softmaxima.base.numbers import InputError, Problems
    from softmaxima.integrations.pairs import choose, pairs
    from softmaxima_lab.compare.model import check_format
    from softmaxima_lab.compare.table import Settings, epochs_for, sampled
    from softmaxima_lab.compare.table_saved import read_folds
    from softmaxima_lab.tables.tables import read_table

    if not resume:
        pieces.check_free(out, "compare table")
    if save is not None:
        try:
            check_format(save)
        except InputError as error:
            fail(f"--save: {error}")
        check_writable("--save", save)
    settings = Settings(
        model,
        folds=folds,
        repeats=(1 if quick else 2) if repeats is None else repeats,
        metric=metric,
        tune=tune,
        missing=missing,
        seed=seed,
        rows=1000 if quick else None,
    )
    problems = Problems()
    with problems:
        choose(list({pair.name: pair for classes in (4, 3, 2) for pair in pairs(classes)}.values()), names(maps))
    try:
        data = read_table(table, target, without or (), missing, names(missing_words), categories or (), folds)
    except InputError as error:
        problems.fail(error, of=f"{'digits' if table is None else table.name}: ")
    problems.tell()
    part = sampled(data, settings)
    settings = replace(settings, epochs=epochs_for(part.rows, settings.folds, quick) if epochs is None else epochs)
    chosen = choose(pairs(len(data.classes)), names(maps))
    done = read_folds(out / pieces.NUMBERS, part, settings, chosen) if resume else []
    if spread and len(done) < settings.splits:
        from softmaxima.dask.cluster import TIMEOUT, connected

        patience = TIMEOUT if timeout is None else timeout
        with connected("compare", dask, workers, patience) as client:
            comparison = run(part, settings, chosen, done, out, client, patience)
    else:
        comparison = run(part, settings, chosen, done, out)
    if save is not None:
        save_model(data, comparison, save)


def run(
    data: Table, settings: Settings, chosen: tuple, done: list, out: Path, client: Any = None, timeout: float = 0.0
) -> Comparison:
    """Train fold after fold, or on the workers of a client, and after each write what is known; then show it."""
    from softmaxima_lab.compare.table import seconds_a_step, summary, total_steps, trained_folds
    from softmaxima_lab.pages.compare_table import FILES

    if client is None:
        trained, at_once = (lambda start, advanced: trained_folds(data, settings, chosen, start, advanced)), 1
        steps = lambda start: total_steps(data, settings, chosen, start)
    else:
        from softmaxima_lab.compare.spreading import Spread

        spread = Spread(client, data, settings, chosen, len(done), timeout)
        trained, at_once = (lambda start, advanced: spread.folds(advanced)), spread.parts
        steps = lambda start: spread.steps()

    def seconds(start: int) -> float:
        return steps(start) * seconds_a_step(data, settings, chosen) / at_once

    pieces.claim(out, "compare table", resume=bool(done))
    introduce(data, settings)
    folds = pieces.Pieces(
        wanted=settings.splits,
        one="fold",
        many="folds",
        trained=trained,
        steps=steps,
        seconds=seconds,
        place=lambda number: f"fold {number + 1} of {settings.splits}",
        summary=lambda folds: summary(data, settings, folds, chosen, pieces.command_given()),
        files=FILES,
    )
    return pieces.run(folds, done, out, show)


def save_model(data: Table, comparison: Comparison, path: Path) -> None:
    """Train the recommended pair on all rows and write it. A table that teaches nothing gives no model, which is an error."""
    from softmaxima_lab.compare.model import Model, save
    from softmaxima_lab.compare.table import trained

    taken = comparison.recommendation
    if taken.pair is None:
        fail(f"--save: nothing is saved to {path}. {taken.headline}. {taken.reason}", WRONG_RESULT)
    if data.encoder is None:
        raise TypeError("a table that is read has an encoder")
    classifier = trained(data, comparison.settings, taken.pair, comparison.folds)
    try:
        save(path, Model(classifier, data.encoder, data.digest))
    except OSError as error:
        fail(f"--save: cannot write to {path} ({error.strerror}); the comparison is kept, and --resume saves from it", NOT_WRITTEN)
    say(f"saved: {path}, {taken.pair.name} trained on all {data.rows} rows; softmaxima predict {path} TABLE uses it")


def introduce(data: Table, settings: Settings) -> None:
    """What is trained on, and what was done to it."""
    target_words = f"target {data.target!r}" + (" (the last column; --target names another)" if data.target_by_default else "")
    rows = data.sample_of or data.rows
    say(f"{data.name}: {rows} rows, {data.features.shape[1]} features, {len(data.classes)} classes; {target_words}")
    for note in data.notes:
        say(note)
    if data.sample_of is not None:
        say(f"--quick: a sample of {data.rows} rows, {settings.folds} folds, {settings.epochs} epochs")


def show(comparison: Comparison, console: Console | None = None) -> None:
    """The table, its caption, and the recommendation."""
    from softmaxima_lab.pages.compare_table import caption, columns, rates, reservations

    console = console or Output()
    taken = comparison.recommendation
    bold = [result is comparison.taken for result in comparison.results]
    show_table(console, "pair", columns(comparison), comparison.results, bold)
    console.print(Text(caption(comparison), style="dim"))
    if told := rates(comparison):
        console.print(Text(f"Learning rates: {told}", style="dim"))
    console.print()
    console.print(Text.assemble((taken.headline, "bold"), " ".join((f". {taken.reason}", *reservations(comparison)))))
    if taken.pair is not None:
        console.print()
        for line in taken.pair.code.splitlines():
            console.print(Text("    " + line if line else ""), soft_wrap=True)
