"""What `softmaxima bench-attention` found, in words: the same for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence

from softmaxima_lab.bench.attention import Benchmark, Result
from softmaxima_lab.pages.markdown import table

HEADINGS = ("ms", "torch, ms", "ratio", "GFLOP/s", "not 0")
CAPTION = (
    "torch: scaled_dot_product_attention, of softmax whatever our map is. ratio: torch's time / ours, the median over turns and an "
    "interval that holds half of them. GFLOP/s: as if every product were made, which where few probabilities are not 0 it is not. "
    "not 0: the share of probabilities that are not. Nothing is timed before its first head "
    "agrees with its definition in float64, on as many as 1024 queries and keys."
)


def shapes(benchmark: Benchmark) -> list[str]:
    """Each a table."""
    return list(dict.fromkeys(result.case.shape for result in benchmark.results))


def others(benchmark: Benchmark) -> list[str]:
    """Who else was measured, each a column."""
    return list(dict.fromkeys(name for result in benchmark.results for name in result.others))


def headings(benchmark: Benchmark) -> list[str]:
    return [*HEADINGS, *(f"{name}, ms" for name in others(benchmark))]


def cells(result: Result, others: Sequence[str] = ()) -> list[str]:
    """A row of a table."""
    if result.seconds is None:
        return [result.case.title, result.problem or "not measured", *[""] * (4 + len(others))]
    beside = (result.others.get(name, "") for name in others)
    return [
        result.case.title,
        f"{1e3 * result.seconds:#.3g}".rstrip("."),
        "" if result.torch_seconds is None else f"{1e3 * result.torch_seconds:#.3g}".rstrip("."),
        "" if result.ratio is None else "{:.2f} ({:.2f}–{:.2f})".format(*result.ratio),
        f"{result.operations / result.seconds / 1e9:.0f}",
        "" if result.support is None else f"{100 * result.support:.3g} %",
        *(found if isinstance(found, str) else f"{1e3 * found:#.3g}".rstrip(".") for found in beside),
    ]


def memory(benchmark: Benchmark) -> str:
    """A sentence, empty where none was measured."""
    found = [f"{what} {size / 2**20:.0f} MiB" for what, size in benchmark.memory.items()]
    return f"Peak memory of a forward and a backward pass, beyond its inputs: {', '.join(found)}." if found else ""


def made_with(benchmark: Benchmark) -> str:
    """Date, commit, machine and versions."""
    commit = [] if benchmark.commit is None else [f"commit {benchmark.commit}"]
    device = [str(benchmark.machine["device"])] if "device" in benchmark.machine else []
    facts = [benchmark.date, *commit, *device, str(benchmark.machine["processor"])]
    return ", ".join([*facts, f"{benchmark.machine['threads']} threads", benchmark.dtype, f"torch {benchmark.versions['torch']}"])


def markdown(benchmark: Benchmark) -> str:
    """Everything, for a page."""
    rows = [(result.case.shape, cells(result, others(benchmark))) for result in benchmark.results]
    tables = [table([shape, *headings(benchmark)], [row for own, row in rows if own == shape]) for shape in shapes(benchmark)]
    return "\n\n".join([*tables, memory(benchmark), f"*{CAPTION} {made_with(benchmark)}.*"])
