"""What a run of the GPU benchmark found, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.checks import DTYPES, Check, name_of
from benchmarks.peers import LABELS, OUR_CPU, Package
from benchmarks.rows import OURS, Result, Row
from benchmarks.subjects import SUBJECTS
from softmaxima.experiments.check import TOLERANCE
from softmaxima.experiments.subjects import DIRECTIONS

LONG, LARGE = 1024, 64e6  # scores of a row, bytes of scores: what the targets are for
DENSE = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
SPARSE = ("sparsemax", "entmax15", "entmax")


@dataclass
class Report:
    """Grows while the run goes on. What was to be done and is not among `checks` and `results` was not reached."""

    date: str
    commit: str | None
    seconds: float  # the budget
    device: str
    quick: bool
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    packages: Sequence[Package]
    planned_checks: Sequence[Check]
    planned_rows: Sequence[Row]
    copies: list[float] = field(default_factory=list)  # bytes a second, before and after
    checks: list[Check] = field(default_factory=list)
    results: dict[Row, Result] = field(default_factory=dict)
    elapsed: float = 0.0

    @property
    def copy(self) -> float | None:
        """The bandwidth that the results are held against: the better of the copies."""
        return max(self.copies, default=None)

    @property
    def wrong(self) -> list[Check | Result]:
        """What of ours is not right, or failed."""
        return [check for check in self.checks if not check.right] + [r for r in self.results.values() if not r.right]

    @property
    def checks_not_reached(self) -> list[Check]:
        reached = {_key(check) for check in self.checks}
        return [check for check in self.planned_checks if _key(check) not in reached]

    @property
    def rows_not_reached(self) -> list[Row]:
        return [row for row in self.planned_rows if row not in self.results or self.results[row].awaits_timing]

    @property
    def good(self) -> bool:
        """Whether everything was right and in time."""
        return not (self.wrong or self.checks_not_reached or self.rows_not_reached)

    def share(self, result: Result) -> float | None:
        """Of the copy bandwidth."""
        return None if self.copy is None or result.bytes_a_second is None else result.bytes_a_second / self.copy


def _key(check: Check) -> tuple[Any, ...]:
    return check.title, check.dtype, check.n, check.variant


# The targets ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A figure that every row which has it should reach."""

    title: str
    least: float
    figure: Callable[[Report, Result], float | None]
    form: str  # of a figure
    names: tuple[str, ...] = ()  # of subjects; none: all
    large: bool = False  # of long rows and large tensors only


def _ratio(label: str) -> Callable[[Report, Result], float | None]:
    return lambda report, result: result.ratio(label)


TARGETS = (
    Target("softmax, log_softmax, logsumexp, cross-entropy: 85 % of the copy", 0.85, Report.share, "{:.0%}", DENSE, True),
    Target("sparsemax, entmax15, entmax: 60 % of the copy", 0.60, Report.share, "{:.0%}", SPARSE, True),
    Target("sparsemax, entmax15, entmax: 20 times the entmax package", 20.0, _ratio("entmax"), "{:.3g}x", SPARSE, True),
    Target("ahead of Liger everywhere", 1.0, _ratio("Liger"), "{:.3g}x"),
    Target("ahead of adasplash everywhere", 1.0, _ratio("adasplash"), "{:.3g}x"),
    Target("GPU 100 times our CPU path", 100.0, _ratio(OUR_CPU), "{:.3g}x"),
)


@dataclass(frozen=True)
class Outcome:
    """Of a target: None where no row has the figure."""

    target: Target
    rows: int
    below: int
    lowest: float | None
    where: Row | None

    @property
    def reached(self) -> bool | None:
        return None if self.lowest is None else self.below == 0

    def __str__(self) -> str:
        if self.lowest is None:
            return "not measured"
        lowest = f"lowest {self.target.form.format(self.lowest)} at {self.where}"
        return (
            f"reached on {self.rows} rows, {lowest}"
            if self.reached
            else f"not reached on {self.below} of {self.rows} rows, {lowest}"
        )


def outcome(target: Target, report: Report) -> Outcome:
    figures = {
        result.row: figure
        for result in report.results.values()
        if (not target.names or SUBJECTS[result.row.title].name in target.names)
        and (not target.large or (result.row.n >= LONG and result.row.scores_bytes >= LARGE))
        and (figure := target.figure(report, result)) is not None
    }
    where = min(figures, key=figures.__getitem__, default=None)
    lowest = None if where is None else figures[where]
    return Outcome(target, len(figures), sum(figure < target.least for figure in figures.values()), lowest, where)


# JSON -------------------------------------------------------------------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    """Everything, with null for a number that is not finite."""
    facts = {
        name: getattr(report, name) for name in ("date", "commit", "seconds", "elapsed", "device", "quick", "machine", "versions")
    }
    outcomes = [outcome(target, report) for target in TARGETS]
    return _finite(
        {
            **facts,
            "good": report.good,
            "packages": [dataclasses.asdict(package) for package in report.packages],
            "tolerance": {name_of(dtype): TOLERANCE[dtype] for dtype in DTYPES},
            "copy_bytes_a_second": report.copies,
            "checks": [{**dataclasses.asdict(check), "right": check.right} for check in report.checks],
            "rows": [_row_as_json(report, result) for result in report.results.values()],
            "not_reached": {
                "checks": [f"{c.title} {c.dtype} {c.rows}x{c.n} {c.variant}" for c in report.checks_not_reached],
                "rows": [str(row) for row in report.rows_not_reached],
            },
            "targets": [
                {"target": o.target.title, "reached": o.reached, "least": o.target.least, "lowest": o.lowest, "text": str(o)}
                for o in outcomes
            ],
        }
    )


def _row_as_json(report: Report, result: Result) -> dict[str, Any]:
    return {
        **dataclasses.asdict(result.row),
        "bytes": result.row.bytes,
        "right": result.right,
        "problem": result.problem,
        "seconds": result.times[OURS].seconds if OURS in result.times else None,
        "bytes_a_second": result.bytes_a_second,
        "share_of_copy": report.share(result),
        "ratios": {label: result.ratio(label) for label in LABELS if label in result.times},
        "verdicts": {label: dataclasses.asdict(verdict) for label, verdict in result.verdicts.items()},
        "times": {label: dataclasses.asdict(times) for label, times in result.times.items()},
    }


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The page ---------------------------------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    parts = (_head(report), _targets(report), _correctness(report), _speed(report), _remarks(report), _not_reached(report))
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part))) + "\n"


def _head(report: Report) -> Iterator[str]:
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items() if value is not None)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield "# Kernels on a GPU"
    yield ""
    yield f"{report.date}, commit {report.commit or 'unknown'}. {machine}. {versions}."
    yield ""
    copies = " and ".join(f"{bandwidth / 1e9:.0f}" for bandwidth in report.copies)
    yield (
        f"{report.elapsed:.0f} of {report.seconds:.0f} s. A copy moves {copies} GB/s, reads and writes counted."
        if copies
        else f"{report.elapsed:.0f} of {report.seconds:.0f} s. The copy was not measured."
    )


def _targets(report: Report) -> Iterator[str]:
    yield "## Targets"
    yield ""
    yield f"The first three are for rows of {LONG} scores and more, in tensors of {LARGE / 1e6:.0f} MB and more."
    yield ""
    yield from _table(("target", "outcome"), ((target.title, str(outcome(target, report))) for target in TARGETS))


def _correctness(report: Report) -> Iterator[str]:
    right = sum(check.right for check in report.checks)
    tolerances = ", ".join(f"{name_of(dtype)} {TOLERANCE[dtype]:.2g}" for dtype in DTYPES)
    yield "## Correctness"
    yield ""
    yield (
        f"{right} of {len(report.checks)} checks are right. Each cell: the largest absolute error of a value; in brackets the "
        "largest error of values and gradients, as a share of the row's largest, in units of the tolerance: at most 1 is right. "
        f"The tolerance of {tolerances}."
    )
    yield ""
    titles = dict.fromkeys(check.title for check in report.checks)
    names = tuple(map(name_of, DTYPES))
    yield from _table(("subject", *names), ((title, *(_worst(report.checks, title, name) for name in names)) for title in titles))
    if report.wrong:
        yield ""
        yield "What is wrong or failed:"
        yield ""
        yield from (f"- {_complaint(found)}" for found in report.wrong)


def _worst(checks: Iterable[Check], title: str, dtype: str) -> str:
    found = [check for check in checks if check.title == title and check.dtype == dtype]
    if not found:
        return ""
    errors = f"{max(check.error for check in found):.1e} ({max(check.units for check in found):.2g})"
    return errors if all(check.right for check in found) else f"**wrong** {errors}"


def _complaint(found: Check | Result) -> str:
    if isinstance(found, Result):
        return f"{found.row}: {found.problem}"
    what = found.problem or f"{found.units:.3g} times the tolerance away"
    return f"{found.title} {found.dtype} {found.rows}x{found.n} {found.variant}: {what}"


def _speed(report: Report) -> Iterator[str]:
    results = [report.results.get(row, Result(row)) for row in report.planned_rows]
    labels = tuple(label for label in LABELS if any(label in result.times for result in results))
    header = ("subject", "shape", "dtype", "ms", "GB/s", "of the copy", *(f"x {label}" for label in labels))
    for direction in DIRECTIONS:
        yield f"## Speed, {direction}"
        yield ""
        yield from _table(header, (_cells(report, result, labels) for result in results if result.row.direction == direction))
        yield ""
    yield (
        "GB/s: bytes that an ideal kernel moves / time. x: time of the peer / our time. Times are medians of replayed CUDA "
        "graphs, or by events (~) where there is none. A peer is wrong, or failed, for the reason given below."
    )


def _cells(report: Report, result: Result, labels: tuple[str, ...]) -> tuple[str, ...]:
    row, bandwidth, share = result.row, result.bytes_a_second, report.share(result)
    where = (row.title, f"{row.rows}x{row.n}", row.dtype)
    if bandwidth is None:
        return *where, "wrong or failed" if result.problem else "not reached", *[""] * (2 + len(labels))
    time = f"{1e3 * result.times[OURS].seconds:.3g}{_mark(report, result, OURS)}"
    peers = (_ratio_cell(report, result, label) for label in labels)
    return *where, time, f"{bandwidth / 1e9:.0f}", "" if share is None else f"{share:.0%}", *peers


def _ratio_cell(report: Report, result: Result, label: str) -> str:
    ratio = result.ratio(label)
    if ratio is not None:
        return f"{ratio:.3g}{_mark(report, result, label)}"
    verdict = result.verdicts.get(label)
    if verdict is None:
        return ""
    return "wrong" if math.isfinite(verdict.units) and verdict.problem else "failed"


def _mark(report: Report, result: Result, label: str) -> str:
    return "~" if report.device != "cpu" and label != OUR_CPU and result.times[label].graph is None else ""


def _remarks(report: Report) -> Iterator[str]:
    left_out = [f"- {package.name} is left out: {package.problem}" for package in report.packages if package.problem]
    peers: dict[str, list[str]] = {}
    for result in report.results.values():
        for label, verdict in result.verdicts.items():
            if label != OURS and verdict.problem:
                peers.setdefault(f"{label}, {result.row.title}: {verdict.problem}", []).append(f"{result.row.rows}x{result.row.n}")
        for label, times in result.times.items():
            if times.capture and report.device != "cpu":
                peers.setdefault(f"{label}, {result.row.title}, without a graph: {times.capture}", []).append("")
    if left_out or peers:
        yield "## Peers"
        yield ""
        yield from left_out
        yield from (f"- {remark} ({len(where)} rows)" for remark, where in peers.items())


def _not_reached(report: Report) -> Iterator[str]:
    checks: dict[str, list[str]] = {}
    for check in report.checks_not_reached:
        checks.setdefault(check.title, []).append(f"{check.dtype} {check.rows}x{check.n} {check.variant}")
    rows = len(report.rows_not_reached)
    if checks or rows:
        yield "## Not reached"
        yield ""
        yield f"{rows} rows of the tables above, and these checks:"
        yield ""
        yield from (f"- {title}: {', '.join(missing)}" for title, missing in checks.items())


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    yield from (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
