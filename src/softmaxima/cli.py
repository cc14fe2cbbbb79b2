"""The command line: `softmaxima compare` trains with every pair of a map and a loss, and tells which to take; `softmaxima bench`
measures them all beside torch, entmax and scipy; `softmaxima lse` sums the exponentials of a file's scores.

torch and the experiments are imported inside the commands, so that help and version answer at once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.table import Table as RichTable
from rich.text import Text

import softmaxima

if TYPE_CHECKING:
    from softmaxima.experiments.bench import Benchmark
    from softmaxima.experiments.compare import Comparison, Pair
    from softmaxima.lse.formats import Scores

WRONG_RESULT, NOT_WRITTEN, WRONG_USE, INTERRUPTED, TERMINATED = 1, 1, 2, 130, 143
REPORT_EXTRA = {"sklearn": "scikit-learn", "polars": "polars", "plotly": "plotly"}  # module and package
WIDE = 116  # columns of a terminal that fit the table with its full headings


class OutputError(Exception):
    """Standard output cannot be written."""


class Output(Console):
    """Standard output, where a full disk and a pipe that nobody reads any more are an OutputError."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints."""
        try:
            super().print(*objects, **options)
        except OSError as error:
            with contextlib.suppress(OSError):
                sys.stdout.close()  # or Python writes the rest at its end, and fails again
            raise OutputError(error.strerror) from None

    def on_broken_pipe(self) -> NoReturn:
        """Where rich would end the process, and what was measured would be lost."""
        raise


app = App(
    name="softmaxima",
    console=Output(),
    help="Scores into probabilities: softmax, its alternatives, and their losses.",
    version=softmaxima.__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)


@app.command
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
    from softmaxima.experiments import InputError
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


@app.command
def bench(
    *,
    maps: Annotated[
        list[str] | None, Parameter(help="Only these maps, losses and sums: names, separated by commas.", negative=())
    ] = None,
    shapes: Annotated[
        list[str] | None,
        Parameter(
            help="Sizes joined by x, and @axis for another axis than the last: 256x32000,32000x4096@0. Without it: 4096x64, "
            "1024x1024, 256x32000 and 64x128256, or two small ones with --quick.",
            negative=(),
        ),
    ] = None,
    peers: Annotated[
        list[str] | None, Parameter(help="Only these packages: torch, entmax, scipy. Without it: those installed.", negative=())
    ] = None,
    dtype: Annotated[Literal["float32", "float64", "bfloat16", "float16"], Parameter(help="Of the scores.")] = "float32",
    threads: Annotated[int | None, Parameter(help="Threads of torch and softmaxima. Without it: torch's own choice.")] = None,
    json: Annotated[Path | None, Parameter(help="A file for everything that was measured, with machine and versions.")] = None,
    quick: Annotated[bool, Parameter(help="A first look: small shapes and few repetitions.", negative=())] = False,
) -> None:
    """Measure maps, losses and sums of exponentials beside torch, the entmax package and scipy, in the same run.

    Nothing is timed before it agrees with its float64 definition; a result that does not is called wrong, and the exit code is 1.
    """
    from softmaxima.experiments import InputError
    from softmaxima.experiments.bench import QUICK_SECONDS, QUICK_SHAPES, SECONDS, SHAPES, Settings, plan, steps
    from softmaxima.experiments.bench import bench as run
    from softmaxima.experiments.peers import PACKAGES
    from softmaxima.experiments.subjects import choose, read_shape
    from softmaxima.report.bench import write

    try:
        settings = Settings(
            shapes=tuple(dict.fromkeys(read_shape(text) for text in names(shapes) or (QUICK_SHAPES if quick else SHAPES))),
            peers=names(peers) or PACKAGES,
            dtype=dtype,
            threads=threads,
            seconds=QUICK_SECONDS if quick else SECONDS,
        )
        chosen = choose(names(maps))
        planned = plan(settings, chosen)
    except InputError as error:
        fail(str(error))
    if json is not None:
        check_writable(json)

    left_out = [name for name in settings.peers if name not in settings.installed_peers]
    if left_out:
        say(f"left out, for {'they are' if len(left_out) > 1 else 'it is'} not installed: {', '.join(left_out)}")
    without_losses = [str(shape) for shape in settings.shapes if len(planned.get(shape, ())) < len(chosen)]
    if without_losses:
        say(f"losses are measured on rows x classes, so not on {', '.join(without_losses)}")
    with progress_bar() as progress:
        task = progress.add_task("", total=steps(settings, chosen))
        done = itertools.count()

        def starting(what: str) -> None:
            progress.update(task, completed=next(done), description=escape(what))

        try:
            benchmark = run(settings, chosen, starting)
        except InputError as error:
            progress.stop()
            fail(str(error))
    if json is None:
        show_benchmark(benchmark)
    else:
        with keeping("--json", json, lambda: write(benchmark, json)):
            show_benchmark(benchmark)
        say(f"\nwritten: {json}")
    if benchmark.wrong:
        what = "; ".join(f"{row.title} on {row.shape}, {row.direction}: {row.problem}" for row in benchmark.wrong)
        fail(f"{len(benchmark.wrong)} of {len(benchmark.rows)} results are wrong: {what}", WRONG_RESULT)


@app.command
def lse(
    file: Annotated[
        Path,
        Parameter(
            help="NPY, NPZ, Parquet, Arrow (files and streams), Feather, HDF5, Zarr, CSV, numbers in a .txt, raw memory with "
            "--dtype, or - for standard input: NPY, raw memory, or text. NPY, CSV, text, Arrow streams and raw memory may "
            "be compressed: .npy.gz, .csv.zst.",
            allow_leading_hyphen=True,
        ),
    ],
    /,
    *,
    column: Annotated[
        str | None, Parameter(help="The array, column, dataset or field that holds the scores, where there are several.")
    ] = None,
    dtype: Annotated[
        str | None, Parameter(help="Of raw memory: float32, bfloat16, int8 and so on, in this machine's order.")
    ] = None,
    temperature: Annotated[float, Parameter(help="Divides every score.")] = 1.0,
    scale: Annotated[float | None, Parameter(help="Of int8 and uint8: the scores are scale · (q − zero point).")] = None,
    zero_point: Annotated[float | None, Parameter(help="Of int8 and uint8: the q whose score is 0; 0 by default.")] = None,
    effective_size: Annotated[bool, Parameter(help="Also 1/Σp², which takes several times as long.", negative=())] = False,
    bounds: Annotated[
        bool, Parameter(help="Also the interval that each bound gives, which takes several times as long.", negative=())
    ] = False,
    checkpoint: Annotated[
        Path | None, Parameter(help="A file to continue from after an interruption: written as it goes, removed at the end.")
    ] = None,
    estimate: Annotated[
        float | None,
        Parameter(help="Do not sum: draw scores until log Σ exp(x/τ) is known to within this many nats. NPY and raw memory only."),
    ] = None,
    confidence: Annotated[float | None, Parameter(help="Of --estimate: how often its interval is to hold the truth; 0.95.")] = None,
    maximum: Annotated[
        float | None, Parameter(help="Of --estimate: a number that no score exceeds; it makes the interval a guarantee.")
    ] = None,
    seed: Annotated[int | None, Parameter(help="Of --estimate: the same draws for the same number.")] = None,
    json: Annotated[bool, Parameter(help="Print one line of JSON; infinities and NaN are strings there.", negative=())] = False,
) -> None:
    """Sum the exponentials of all scores in a file, log Σ exp(x/τ), in constant memory; or estimate it from a few of them.

    The file is read once. A file that is cut off, or changes while it is read, is an error.
    """
    if str(file).startswith("-") and str(file) != "-" and not file.exists():
        fail(f"Unknown option: {file}; see softmaxima lse --help")
    if not sys.float_info.min <= temperature < float("inf"):
        fail(f"--temperature must be positive and finite, at least 2.3e-308, got {temperature}")
    if scale is not None and not 0 < scale < float("inf"):
        fail(f"--scale must be a positive finite number, got {scale}")
    if zero_point is not None and not abs(zero_point) < float("inf"):
        fail(f"--zero-point must be a finite number, got {zero_point}")
    if estimate is None:
        for option, value in (("--confidence", confidence), ("--maximum", maximum), ("--seed", seed)):
            if value is not None:
                fail(f"{option} is about an estimate; add --estimate NATS, such as --estimate 0.01, or leave it out")
        facts = sum_file(file, column, dtype, temperature, scale, zero_point or 0.0, effective_size, bounds, checkpoint)
    else:
        whole = {"--effective-size": effective_size, "--bounds": bounds, "--checkpoint": checkpoint}
        for option, value in (whole | {"--scale": scale, "--zero-point": zero_point}).items():
            if value:
                fail(f"{option} needs all scores; leave out --estimate, or {option}")
        facts = estimate_file(file, column, dtype, temperature, estimate, 0.95 if confidence is None else confidence, maximum, seed)
    show_facts(file, facts, json)


def sum_file(
    file: Path,
    column: str | None,
    dtype: str | None,
    temperature: float,
    scale: float | None,
    zero_point: float,
    effective_size: bool,
    bounds: bool,
    checkpoint: Path | None,
) -> dict[str, Any]:
    """What is known of all scores of a file."""
    from softmaxima.lse import ScoreSummary
    from softmaxima.lse.files import file_logsumexp
    from softmaxima.lse.formats import FileError

    with file_progress() as progress, terminable():
        seen = 0
        summary = ScoreSummary(temperature)

        def summed(done: int, scores: Scores) -> None:
            nonlocal seen, task
            read, total = scores.bytes_read(done)
            if task is None:
                task = progress.add_task(escape(scores.name), total=total, scores=0)
            seen = done
            progress.update(task, completed=read, scores=done)

        def summarise(block: Any) -> None:
            nonlocal summary
            summary = summary.update(block)

        task: Any = None
        try:
            state = file_logsumexp(
                file,
                column=column,
                dtype=dtype,
                temperature=temperature,
                scale=scale,
                zero_point=zero_point,
                effective_size=effective_size,
                checkpoint=checkpoint,
                progress=summed,
                observe=summarise if bounds else None,
            )
        except FileError as error:
            progress.stop()
            fail(str(error))
        except KeyboardInterrupt as interruption:
            progress.stop()
            kept = f"; {seen} scores are in {checkpoint}: the same command continues from there" if checkpoint is not None else ""
            terminated = isinstance(interruption, Terminated)
            fail(("terminated" if terminated else "interrupted") + kept, TERMINATED if terminated else INTERRUPTED)
    facts: dict[str, Any] = {
        "scores": int(state.n),
        "temperature": temperature,
        "logsumexp": float(state.value),
        "maximum": float(state.maximum),
        "maxima": int(state.count),
    }
    if effective_size:
        facts["effective_size"] = float(state.effective_size)
    if bounds:
        facts["bounds"] = summary.as_dict()
    return facts


def estimate_file(
    file: Path,
    column: str | None,
    dtype: str | None,
    temperature: float,
    target: float,
    confidence: float,
    maximum: float | None,
    seed: int | None,
) -> dict[str, Any]:
    """What is known of a file after a few of its scores."""
    from softmaxima.lse import estimate
    from softmaxima.lse.formats import FileError, open_scores

    try:
        scores = open_scores(file, column, dtype)
        if scores.mapped is None:
            fail(f"{scores.name} can only be read from its beginning; leave out --estimate, or save its scores as NPY")
        with Console(stderr=True).status(f"drawing from {escape(scores.name)}"), terminable():
            found = estimate(scores.mapped(), target, confidence, maximum=maximum, temperature=temperature, seed=seed)
    except (FileError, TypeError, ValueError) as error:
        message = str(error).replace("estimate: target_nats ", "--estimate ")
        for option in ("confidence", "maximum", "seed"):
            message = message.replace(f"estimate: {option} ", f"--{option} ")
        fail(message)
    except KeyboardInterrupt as interruption:
        terminated = isinstance(interruption, Terminated)
        fail("terminated" if terminated else "interrupted", TERMINATED if terminated else INTERRUPTED)
    return {
        "scores": scores.count,
        "temperature": temperature,
        "logsumexp": float(found.value),
        "lower": found.lower,
        "upper": found.upper,
        "certificate": found.certificate,
        "confidence": confidence,
        "evaluations": found.evaluations,
    }


CERTIFICATES = {
    "deterministic": "the sum is inside",
    "finite-sample": "the sum is inside with {confidence:.4g} % confidence, if no score exceeds --maximum",
    "asymptotic": "the sum is inside with {confidence:.4g} % confidence unless large scores are rare; a --maximum guarantees it",
    "none": "the draws may have missed the largest scores; a known --maximum would guarantee an interval",
}


def show_facts(file: Path, facts: dict[str, Any], as_json: bool) -> None:
    """What is known of a file's scores, as lines or as JSON."""
    if as_json:
        import json

        say(json.dumps({"file": str(file)} | {name: printable(value) for name, value in facts.items()}, ensure_ascii=False))
        return
    of = "" if facts["temperature"] == 1.0 else f" of x/{facts['temperature']}"
    read = f", {facts['evaluations']} of them read" if "evaluations" in facts else ""
    odd = "" if facts["scores"] else ", and the sum of nothing is −∞"
    if math.isnan(facts["logsumexp"]):
        odd = ", of which at least one is NaN"
    say(f"{'standard input' if str(file) == '-' else file}: {facts['scores']} scores{read}{odd}")
    say(f"logsumexp       {facts['logsumexp']!r} nats{of}")
    if "certificate" in facts:
        meaning = CERTIFICATES[facts["certificate"]].format(confidence=100 * facts["confidence"])
        say(f"interval        {facts['lower']!r} to {facts['upper']!r}")
        say(f"certificate     {facts['certificate']}: {meaning}")
        return
    say(f"maximum         {facts['maximum']!r}{of}, {facts['maxima']} of them")
    if "effective_size" in facts:
        say(f"effective size  {facts['effective_size']!r}")
    for bound, (lower, upper) in facts.get("bounds", {}).items():
        say(f"{bound:<15} {lower!r} to {upper!r}")


def printable(value: Any) -> Any:
    """JSON has no infinities and no NaN."""
    if isinstance(value, dict):
        return {key: printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(item) for item in value]
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is to end a command as Ctrl-C does."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raises `Terminated` on SIGTERM, for what has something to save."""

    def terminate(number: int, frame: Any) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def names(given: Sequence[str] | None) -> tuple[str, ...]:
    """The names in an option that takes several, separated by commas."""
    return tuple(name.strip() for part in given or () for name in part.split(",") if name.strip())


def progress_bar(*columns: ProgressColumn) -> Progress:
    """On stderr, and only where someone watches."""
    console = Console(stderr=True)
    left = TimeRemainingColumn(), TextColumn("left")
    columns = (TextColumn("{task.description}"), BarColumn(18), *(columns or (MofNCompleteColumn(),)), *left)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class ScoresColumn(ProgressColumn):
    """How many scores of a file are done, and how many a second."""

    def render(self, task: ProgressTask) -> Text:
        """`1.2e+08 scores, 1.5e+09/s`."""
        done = task.fields["scores"]
        rate = "" if not task.speed or not task.completed else f", {task.speed * done / task.completed:.1e}/s"
        return Text(f"{done:.1e} scores{rate}")


def file_progress() -> Progress:
    """For a file, with its rate."""
    return progress_bar(TaskProgressColumn(), ScoresColumn())


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


def show_benchmark(benchmark: Benchmark, console: Console | None = None) -> None:
    """A table for each shape, the overheads, and the caption."""
    from softmaxima.report.bench import CAPTION, OVERHEAD_COLUMNS, columns, made_with, of_ground

    console = console or Output()
    wide = console.width >= WIDE
    for ground in benchmark.grounds:
        shown = [column for column in columns(benchmark, ground) if wide or column.short is not None]
        table = plain_table([column.heading if wide else column.short or "" for column in shown], wide)
        for row in benchmark.rows:
            if row.shape == ground.shape:
                style = "bold red" if row.verdict == "wrong" else None
                table.add_row(*(Text(column.cell(row)) for column in shown), style=style)
        console.print()
        console.print(table)
        console.print(Text(of_ground(ground), style="dim"))
    if benchmark.overheads:
        table = plain_table([column.heading for column in OVERHEAD_COLUMNS], wide)
        for overhead in benchmark.overheads:
            table.add_row(*(Text(column.cell(overhead)) for column in OVERHEAD_COLUMNS))
        console.print()
        console.print(table)
    console.print()
    console.print(Text(CAPTION, style="dim"))
    console.print(Text(f"{made_with(benchmark)}.", style="dim"))


def plain_table(headings: Sequence[str], wide: bool) -> RichTable:
    """A table without lines, its first column flush left and the others flush right."""
    table = RichTable(box=None, padding=(0, 2 if wide else 1, 0, 0), pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", vertical="bottom", overflow="fold")
    return table


def prepare_directory(out: Path) -> None:
    """Make sure that results can be written there, before anything is computed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        fail(f"--out: cannot write to {out} ({error.strerror}); choose another directory")


def check_writable(json: Path) -> None:
    """Make sure that the file can be written, before anything is measured; a device or a pipe need only be open to us."""
    try:
        if json.is_dir():
            fail(f"--json: {json} is a directory; give a file")
        if json.is_file() or not json.exists():
            with tempfile.TemporaryFile(dir=Path(os.path.realpath(json)).parent):
                pass
        elif not os.access(json, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        fail(f"--json: cannot write {json} ({error.strerror}); choose another path")


@contextlib.contextmanager
def keeping(option: str, path: Path, write: Callable[[], Any]) -> Iterator[None]:
    """What is shown is written after it, so that neither a full disk nor a closed pipe loses both."""
    try:
        yield
    finally:
        try:
            write()
        except OSError as error:
            fail(f"{option}: cannot write to {path} ({error.strerror}); what was measured is in the table alone", NOT_WRITTEN)


def say(line: str) -> None:
    """A line on stdout, as it is."""
    Output().print(Text(line), soft_wrap=True)


def fail(message: str, code: int = WRONG_USE) -> NoReturn:
    """One line on stderr, and the exit code."""
    printed = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(message.split()))
    Console(stderr=True).print(Text(f"softmaxima: {printed}"), soft_wrap=True)
    raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    try:
        app(arguments, print_error=False, exit_on_error=False)
    except UnusedCliTokensError as error:
        besides = ", ".join(map(repr, error.unused_tokens or ()))
        fail(f"lse and compare take one file, and bench none; got {besides} besides: leave that out, or see softmaxima --help")
    except CycloptsError as error:
        fail(f"{str(error).rstrip('.')}; see softmaxima --help")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in REPORT_EXTRA:
            raise
        fail(f'compare needs {REPORT_EXTRA[missing]}, which is not installed: pip install ".[report]"')
    except OutputError as error:
        fail(f"standard output cannot be written ({error}); free its disk, or write elsewhere", NOT_WRITTEN)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
