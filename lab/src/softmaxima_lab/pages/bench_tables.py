"""One way to make tables of what `softmaxima bench` found, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from softmaxima_lab.bench.case import Result
from softmaxima_lab.bench.clock import Quotient
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.pages.markdown import table

# Numbers ------------------------------------------------------------------------------------------------------------------

EQUAL, UNSURE, UNRELIABLY = "≈ 1", "?", ", unreliable"


def number(value: float, digits: int = 3) -> str:
    """To so many significant digits, never with an exponent.

    >>> number(1234.5), number(0.01234), number(27.44, digits=2)
    ('1234', '0.0123', '27')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:#.3g}".rstrip(".")


def milliseconds(value: float | None) -> str:
    return "" if value is None else seconds(1e3 * value)


def interval(quotient: Quotient | None) -> str:
    return "" if quotient is None else "{:.2f} ({:.2f}–{:.2f})".format(*quotient)


def with_interval(quotient: Quotient) -> str:
    """With the digits that tell the ends apart, of the median two or three.

    >>> with_interval(Quotient(1.024, 0.966, 1.083)), with_interval(Quotient(126.3, 119.4, 130.9))
    ('≈ 1 (0.97–1.08)', '126 (119–131)')
    """
    places = -math.floor(math.log10(quotient.median))
    apart = -math.floor(math.log10(max(quotient.high - quotient.low, 1e-9) / 2))
    decimals = max(0, min(2 + places, max(1 + places, apart)))
    middle, low, high = (f"{value:.{decimals}f}" for value in quotient)
    return f"{EQUAL if quotient.is_about_one else middle} ({low}–{high})"


def short_ratio(result: Result, peer: str) -> str:
    """How many times faster than the peer we are, ≈ 1 where that is not known to be faster or slower; a word where the peer failed,
    nothing where it has no part.
    """
    its = result.peers.get(peer)
    if its is None:
        return ""
    if its.problem:
        return "fails" if its.deviation is None else "differs"
    value = result.ratio(peer)
    return "" if value is None else EQUAL if its.ratio is not None and its.ratio.is_about_one else number(value, digits=2)


def seconds_of(result: Result, peer: str) -> float | None:
    return result.peers[peer].seconds if peer in result.peers else None


def ratio_of(result: Result, peer: str) -> Quotient | None:
    return result.peers[peer].ratio if peer in result.peers else None


# Tables -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A heading, a result's cell, and a short heading for narrow terminals; "-": the column is left out there."""

    heading: str
    cell: Callable[[Result], str]
    short: str = ""
    is_left: bool = False


@dataclass(frozen=True)
class Page:
    """How the results of a group are shown: a table for each heading, a row for each title, what is said of it, and where."""

    group: str
    heading: Callable[[Benchmark, Result], str]
    title: Callable[[Result], str]
    columns: Callable[[Benchmark, Sequence[Result]], Sequence[Column]]
    caption: str
    facts: Callable[[Sequence[Result]], str] = lambda results: ""  # that all results share
    below: Callable[[Benchmark, Sequence[Result]], str] = lambda benchmark, table: ""  # a line below a table
    says: Callable[[Benchmark], str] = lambda benchmark: ""  # a paragraph after all tables
    beside: tuple[str, ...] = ()  # names of results that are no rows
    more: Callable[[Sequence[Result]], list[list[str]]] = lambda results: []  # rows of peers
    order: Callable[[Result], Any] = lambda result: 0

    def rows(self, benchmark: Benchmark) -> list[Result]:
        return sorted((r for r in benchmark.of(self.group) if not r.case.name.startswith(self.beside)), key=self.order)

    def dtypes(self, benchmark: Benchmark) -> list[str]:
        return list(dict.fromkeys(result.case.dtype for result in self.rows(benchmark)))


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    wrong: Sequence[bool]
    below: str = ""


def tables(benchmark: Benchmark, page: Page, of: Callable[[Result], bool] = lambda result: True) -> list[Table]:
    """Those of a group: rows that are not timed say why."""
    by_heading: dict[str, list[Result]] = {}
    for result in filter(of, page.rows(benchmark)):
        by_heading.setdefault(page.heading(benchmark, result), []).append(result)
    found = []
    for heading, results in by_heading.items():
        columns = [Column(heading, page.title, heading), *page.columns(benchmark, results)]
        rows = [
            [page.title(result), untimed(result), *[""] * (len(columns) - 2)]
            if result.seconds is None
            else [column.cell(result) for column in columns]
            for result in results
        ]
        more = page.more(results)
        wrong = [result.verdict == "wrong" for result in results] + [False] * len(more)
        found.append(Table(columns, rows + more, wrong, page.below(benchmark, results)))
    return found


def untimed(result: Result) -> str:
    return "not reached" if result.verdict == "right" else result.verdict


def in_markdown(found: Iterable[Table]) -> str:
    return "\n\n".join(
        table(
            [column.heading for column in each.columns],
            each.rows,
            left=[i for i, column in enumerate(each.columns) if column.is_left or not i],
        )
        for each in found
    )


def markdown(*benchmarks: Benchmark, page: Page) -> str:
    """Everything of a group, for a page; of several benchmarks, what is the same once."""
    parts = []
    for benchmark in benchmarks:
        parts += [in_markdown(tables(benchmark, page)), page.says(benchmark), f"*{made_with(benchmark, page)}.*"]
    return "\n\n".join([*filter(None, parts), f"*{page.caption}*"])


def made_with(benchmark: Benchmark, page: Page) -> str:
    """When, where and with what it was measured, in words."""
    machine, results = benchmark.machine, page.rows(benchmark)
    facts = page.facts(results) if results else ""
    threads = machine["threads"]
    told = [
        *([facts] if facts else []),
        benchmark.date,
        *([] if benchmark.commit is None else [f"commit {benchmark.commit}"]),
        *([str(machine["device"])] if "device" in machine else []),
        str(machine["processor"]),
        f"{threads} thread{'s' * (threads != 1)}",
        *([neighbours(benchmark)] if "neighbours" in machine else []),
        " and ".join(page.dtypes(benchmark)),
        *(f"{name} {version}" for name, version in benchmark.versions.items()),
    ]
    return ", ".join(told)


def neighbours(benchmark: Benchmark) -> str:
    processes = benchmark.machine["neighbours"]
    return f"beside {processes} busy process{'es' * (processes != 1)}"
