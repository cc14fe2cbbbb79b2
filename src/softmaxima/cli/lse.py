"""`softmaxima lse`: sums the exponentials of a file's scores, or estimates their sum from a few."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, TaskProgressColumn
from rich.progress import Task as ProgressTask
from rich.text import Text

from softmaxima.cli.terminal import INTERRUPTED, TERMINATED, Terminated, check_exists, fail, progress_bar, say, terminable
from softmaxima.core.numbers import check_confidence, check_count, check_one_temperature, check_positive

if TYPE_CHECKING:
    from softmaxima.streams.formats import Scores


def lse(
    file: Annotated[
        Path,
        Parameter(
            help="NPY, NPZ, Parquet, Arrow (files and streams), Feather, HDF5, Zarr, CSV, numbers in a .txt, raw memory with "
            "--dtype, or - for standard input: NPY, raw memory, or text. NPY, CSV, text, Arrow streams and raw memory may "
            "be compressed: .npy.gz, .csv.zst.",
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
        Parameter(
            help="Draw scores until log Σ exp(x/τ) is known to within this many nats, or sum where that is faster. NPY, raw memory."
        ),
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
    if str(file) != "-":
        check_exists(file, ", or - for standard input")
    # the library's checks, here before it is loaded
    check_one_temperature("lse", temperature)
    if estimate is not None:
        check_positive("lse", "estimate", estimate)
    if confidence is not None:
        check_confidence("lse", confidence)
    if seed is not None:
        check_count("lse", "seed", seed, 0)
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
    from softmaxima.streams.files import file_logsumexp

    with file_progress() as progress, terminable():
        seen = 0
        summary: Any = None

        def summed(done: int, scores: Scores) -> None:
            nonlocal seen, summary, task
            read, total = scores.bytes_read(done)
            if task is None:
                if bounds:
                    from softmaxima.lse import ScoreSummary  # with torch, which the sum alone does without

                    summary = ScoreSummary(temperature)
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
    from softmaxima.streams.formats import open_scores

    try:
        scores = open_scores(file, column, dtype)
        if scores.mapped is None:
            fail(f"{scores.name} can only be read from its beginning; leave out --estimate, or save its scores as NPY")
        with Console(stderr=True).status(f"drawing from {escape(scores.name)}"), terminable():
            found = estimate(scores.mapped(), target, confidence, maximum=maximum, temperature=temperature, generator=seed)
    except (TypeError, ValueError) as error:
        fail(error)
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
