"""`softmaxima lse`: sums the exponentials of a file's scores, or estimates their sum from a few."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, TaskProgressColumn
from rich.progress import Task as ProgressTask
from rich.text import Text

from softmaxima.base.memory import bounded
from softmaxima.base.numbers import Problems, check_confidence, check_count, check_one_temperature, check_positive
from softmaxima.base.writing import visible
from softmaxima_lab.commands.terminal import (
    Terminal,
    check_exists,
    fail,
    progress_bar,
    say,
)
from softmaxima_lab.commands.workers import Address, Timeout, Workers, check_spread
from softmaxima_lab.interruption import heard

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Scores
    from softmaxima.io.state import LogSumExpState

UNTRUSTED = 3 * 2**30  # bytes of memory that files may take, beside four times their own size, where nobody trusts them


def lse(
    files: Annotated[
        list[str],
        Parameter(
            help="NPY, NPZ, Parquet, Arrow (files and streams), Feather, HDF5, Zarr, CSV, numbers in a .txt, raw memory with "
            "--dtype, or - for standard input: NPY, raw memory, or text. NPY, CSV, text, Arrow streams and raw memory may "
            "be compressed: .npy.gz, .csv.zst, .zip. Several are summed together, as is what a pattern in quotes matches: "
            "'part-*.parquet'. URLs of fsspec, as s3://bucket/part-*.parquet, are files too.",
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
    trusted: Annotated[
        bool,
        Parameter(
            help="Of files whose writer you trust: read what HDF5 and Zarr keep in other files, and Feather of version 1.",
            negative=(),
        ),
    ] = False,
    unended: Annotated[
        bool,
        Parameter(
            help="Text may lack its last line end, CSV rows, an Arrow stream its end mark; else that is a sign of a file cut off.",
            negative=(),
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None, Parameter(help="A file to continue from after an interruption: written as it goes, removed at the end.")
    ] = None,
    estimate: Annotated[
        float | None,
        Parameter(
            help="Draw scores until log Σ exp(x/τ) is known to within this many nats, or sum where that is faster. NPY, raw memory."
        ),
    ] = None,
    confidence: Annotated[float | None, Parameter(help="Of --estimate: how often its interval is to hold the truth; 0.95.")] = None,
    maximum: Annotated[
        float | None, Parameter(help="Of --estimate: a number that no score exceeds; it makes the interval a guarantee.")
    ] = None,
    seed: Annotated[int | None, Parameter(help="Of --estimate: the same draws for the same number.")] = None,
    workers: Workers = None,
    dask: Address = None,
    timeout: Timeout = None,
    json: Annotated[bool, Parameter(help="Print one line of JSON; infinities and NaN are strings there.", negative=())] = False,
) -> None:
    """Sum the exponentials of all scores in files, log Σ exp(x/τ), in constant memory; or estimate it from a few of them.

    Files are read once. A file that is empty or cut off, or changes while it is read, is an error. With --workers or --dask, a
    worker that dies or falls silent costs time alone.
    """
    if not all(files):
        fail("a path is empty; name a file")
    spread = check_spread("lse", workers, dask, timeout)
    from softmaxima.base.places import STANDARD_INPUT, files_in, found

    places = found("lse", files)
    file, problems = places[0], Problems()
    for place in places:
        if isinstance(place, Path) and place != STANDARD_INPUT and dask is None:
            with problems:
                check_exists(place, ", or - for standard input")
    # the library's checks, here before it is loaded
    with problems:
        check_one_temperature("lse", temperature)
    with problems:
        if estimate is not None:
            check_positive("lse", "estimate", estimate)
    with problems:
        if confidence is not None:
            check_confidence("lse", confidence)
    with problems:
        if seed is not None:
            check_count("lse", "seed", seed, 0)
    for option, value in (("--confidence", confidence), ("--maximum", maximum), ("--seed", seed)):
        if estimate is None and value is not None:
            problems.append(f"{option} is about an estimate; add --estimate NATS, such as --estimate 0.01, or leave it out")
    if estimate is not None and spread:
        problems.append("--estimate draws from a file of this machine; leave out --workers and --dask, or --estimate")
    elif estimate is not None and (len(places) > 1 or not isinstance(file, Path)):
        told = called(files, len(places))
        problems.append(f"--estimate draws from one file of this machine, got {told}; leave it out, or name one")
    whole = {"--effective-size": effective_size, "--bounds": bounds, "--checkpoint": checkpoint}
    for option, value in (whole | {"--scale": scale, "--zero-point": zero_point}).items():
        if estimate is not None and value:
            problems.append(f"{option} needs all scores; leave out --estimate, or {option}")
    for option, value in (("--bounds", bounds), ("--checkpoint", checkpoint)):
        if estimate is None and spread and value:
            problems.append(f"{option} is of scores that one process reads; leave out {option}, or --workers and --dask")
    problems.tell()
    inside = [part for place in places if isinstance(place, Path) for part in files_in(place) if part.is_file()]
    most = UNTRUSTED + 4 * sum(part.stat().st_size for part in inside)
    with contextlib.nullcontext() if trusted else bounded(most):
        if estimate is not None and isinstance(file, Path):
            confidence = 0.95 if confidence is None else confidence
            facts = estimate_file(file, column, dtype, temperature, estimate, confidence, maximum, seed)
        else:
            asked: dict[str, Any] = {
                "column": column,
                "dtype": dtype,
                "temperature": temperature,
                "scale": scale,
                "zero_point": zero_point or 0.0,
                "effective_size": effective_size,
                "trusted": trusted,
                "unended": unended,
            }
            facts = sum_by_workers(files, asked, workers, dask, timeout) if spread else sum_files(files, asked, bounds, checkpoint)
    named = {"file": str(file)} if len(places) == 1 else {"files": [str(place) for place in places]}
    show_facts(called(files, len(places)), named, facts, json)


def called(files: list[str], number: int) -> str:
    """One file by its name, several by their pattern, or the first."""
    if number == 1 and files == ["./-"]:
        return "standard input"
    return files[0] if number == 1 else f"{files[0]} ({number} files)" if len(files) == 1 else f"{files[0]} and {number - 1} more"


def sum_files(files: list[str], asked: dict[str, Any], bounds: bool, checkpoint: Path | None) -> dict[str, Any]:
    """What is known of all scores of files, read by this process."""
    from softmaxima.io.files import file_logsumexp

    summary: Any = None

    def summarise(scores: Any, counts: Any) -> None:
        nonlocal summary
        summary = begun().update(scores, counts)

    def begun() -> Any:
        from softmaxima.lse import ScoreSummary  # with torch, which the sum alone does without

        return ScoreSummary(asked["temperature"]) if summary is None else summary

    def kept(done: int) -> str:
        return "" if checkpoint is None else f"; {done} scores are in {checkpoint}: the same command continues from there"

    with shown(kept) as progress:
        observe = summarise if bounds else None
        state = file_logsumexp(files, **asked, checkpoint=checkpoint, progress=progress, observe=observe)
    return facts_of(state, asked) | ({"bounds": begun().as_dict()} if bounds else {})


def sum_by_workers(
    files: list[str], asked: dict[str, Any], workers: int | None, address: str | None, timeout: float | None
) -> dict[str, Any]:
    """The same, read by processes of Dask."""
    from softmaxima.dask.cluster import TIMEOUT
    from softmaxima.dask.files import file_logsumexp

    with shown(lambda done: "") as progress:
        given = {"client": address, "workers": workers, "timeout": TIMEOUT if timeout is None else timeout}
        state = file_logsumexp(files, **asked, **given, progress=progress)
    return facts_of(state, asked)


@contextlib.contextmanager
def shown(kept: Callable[[int], str]) -> Iterator[Callable[[int, Scores], None]]:
    """Shows how far a sum is, and where it is interrupted ends the command with what is kept of so many scores."""
    with file_progress() as progress:
        seen = 0
        task: Any = None

        def summed(done: int, scores: Scores) -> None:
            nonlocal seen, task
            read, total = scores.bytes_read(done)
            if task is None:
                task = progress.add_task(escape(os.path.basename(scores.name)), total=total, scores=0)
            seen = done
            progress.update(task, completed=read, scores=done)

        try:
            yield summed
        except KeyboardInterrupt:
            said, status = heard()
            progress.stop()
            fail(said + kept(seen), status)


def facts_of(state: LogSumExpState, asked: dict[str, Any]) -> dict[str, Any]:
    """What a state says."""
    facts: dict[str, Any] = {
        "scores": int(state.n),
        "temperature": asked["temperature"],
        "logsumexp": float(state.value),
        "maximum": float(state.maximum),
        "maxima": int(state.count),
    }
    return facts | ({"effective_size": float(state.effective_size)} if asked["effective_size"] else {})


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
    from softmaxima.io.formats.opening import open_scores
    from softmaxima.lse import estimate

    try:
        scores = open_scores(file, column, dtype)
        if scores.mapped is None:
            fail(f"{scores.name} can only be read from its beginning; leave out --estimate, or save its scores as NPY")
        with Terminal(stderr=True).status(f"drawing from {escape(scores.name)}"):
            found = estimate(scores.mapped(), target, confidence, maximum=maximum, temperature=temperature, generator=seed)
    except (TypeError, ValueError) as error:
        fail(error)
    return {
        "scores": scores.count,
        "temperature": temperature,
        "logsumexp": float(found.value),
        "lower": found.lower,
        "upper": found.upper,
        "certificate": found.certificate,
        "confidence": confidence,
        "evaluations": found.evaluations,
        "draws": found.draws,
    }


CERTIFICATES = {
    "deterministic": "the sum is inside",
    "finite-sample": "the sum is inside with {confidence:.4g} % confidence, if no score exceeds --maximum",
    "asymptotic": "the sum is inside with {confidence:.4g} % confidence unless scores rarer than {rare:.2g} in {evaluations}, or "
    "{rare:.2g} in {draws} where they stand together, have much of it; a --maximum guarantees it",
    "none": "the draws may have missed the largest scores; a known --maximum would guarantee an interval",
}
OF_NAN = "the sum is NaN whatever the other scores are"


def show_facts(name: str, files: dict[str, Any], facts: dict[str, Any], as_json: bool) -> None:
    """What is known of the scores of files, as lines or as JSON."""
    if as_json:
        import json

        shown = json.dumps(files | {fact: printable(value) for fact, value in facts.items()}, ensure_ascii=False)
        say("".join(letter if visible(letter) == letter else f"\\u{ord(letter):04x}" for letter in shown))
        return
    of = "" if facts["temperature"] == 1.0 else f" of x/{facts['temperature']}"
    read = f", {facts['evaluations']} of them read" if "evaluations" in facts else ""
    odd = "" if facts["scores"] else ", and the sum of nothing is −∞"
    if math.isnan(facts["logsumexp"]):
        odd = ", of which at least one is NaN"
    say(f"{name}: {facts['scores']} score{'s' * (facts['scores'] != 1)}{read}{odd}")
    say(f"logsumexp       {facts['logsumexp']!r} nats{of}")
    if "certificate" in facts:
        confidence = facts["confidence"]
        meaning = OF_NAN if math.isnan(facts["logsumexp"]) else CERTIFICATES[facts["certificate"]]
        meaning = meaning.format_map(facts | {"confidence": 100 * confidence, "rare": -math.log(1 - confidence)})
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
