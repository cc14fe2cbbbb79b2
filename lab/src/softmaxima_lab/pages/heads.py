"""What `softmaxima bench-heads` found, in words: the same for the terminal and for the page."""

from __future__ import annotations

from softmaxima_lab.bench.heads import Benchmark, Result
from softmaxima_lab.pages.markdown import table

CAPTION = (
    "Seconds of a forward and a backward pass, and torch's time / ours: the median over turns, and their range, which is wide "
    "where something else ran beside it; then nothing can be told. torch is its cross-entropy of hidden @ weight.T, whatever "
    "our loss is; torch, in parts, its linear_cross_entropy with options. The first weights are those that nn.Linear begins "
    "with; trained ones come after 30 steps of Adam by the same loss. not 0: how many probabilities of a row are not, on "
    "average. of the peak: the operations of the products that cannot be left out (all three of cross-entropy, of the others "
    "that of the scores) a second, over those of the fastest product that torch makes of matrices in cache. Nothing is timed "
    "before its loss and gradients agree with float64 on 16 rows."
)
STATES = {"first": "first weights", "trained": "trained"}


def headings(benchmark: Benchmark) -> list[str]:
    return ["s", *(f"{name} / ours" for name in peers(benchmark)), "not 0", "of the peak"]


def peers(benchmark: Benchmark) -> list[str]:
    return list(dict.fromkeys(name for beside in benchmark.peers for name in beside.seconds))


def cells(benchmark: Benchmark, result: Result) -> list[str]:
    """A row of a table."""
    title, names = f"{result.case.loss}, {STATES[result.case.state]}", peers(benchmark)
    if result.seconds is None:
        return [title, result.problem or "not measured", *[""] * (len(names) + 2)]
    ratios = [result.ratios.get(name) for name in names]
    peak = next(beside.flops for beside in benchmark.peers if beside.classes == result.case.classes)
    return [
        title,
        seconds(result.seconds),
        *("" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})" for ratio in ratios),
        "" if result.support is None else f"{result.support:.0f}" if result.support >= 100 else f"{result.support:.2g}",
        f"{100 * benchmark.operations(result.case) / result.seconds / peak:.0f} %",
    ]


def of_peers(benchmark: Benchmark, classes: int) -> list[list[str]]:
    """Rows of a table: what torch takes."""
    beside = next(found for found in benchmark.peers if found.classes == classes)
    blank = [""] * (len(peers(benchmark)) + 2)
    return [
        [f"{name}: cross_entropy", found if isinstance(found, str) else seconds(found), *blank]
        for name, found in beside.seconds.items()
    ]


def seconds(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def memory(benchmark: Benchmark) -> str:
    """A sentence, empty where none was measured."""
    found = [f"{name} {size / 2**20:.0f} MiB" for name, size in benchmark.memory.items()]
    most = max((result.case.classes for result in benchmark.results), default=0)
    return f"Peak memory beyond the tensors and their gradients, of {most} classes: {', '.join(found)}." if found else ""


def made_with(benchmark: Benchmark) -> str:
    """Sizes, date, commit, machine and versions."""
    commit = [] if benchmark.commit is None else [f"commit {benchmark.commit}"]
    facts = [
        f"{benchmark.rows} rows of {benchmark.features} features",
        benchmark.date,
        *commit,
        str(benchmark.machine["processor"]),
    ]
    return ", ".join([*facts, f"{benchmark.machine['threads']} threads", benchmark.dtype, f"torch {benchmark.versions['torch']}"])


def tables(benchmark: Benchmark) -> dict[int, list[list[str]]]:
    """The rows of the table of each number of classes."""
    return {
        beside.classes: [
            *(cells(benchmark, result) for result in benchmark.results if result.case.classes == beside.classes),
            *of_peers(benchmark, beside.classes),
        ]
        for beside in benchmark.peers
    }


def markdown(*benchmarks: Benchmark) -> str:
    """Everything, for a page."""
    found = []
    for benchmark in benchmarks:
        found += [table([f"{classes} classes", *headings(benchmark)], rows) for classes, rows in tables(benchmark).items()]
        found += [memory(benchmark)] if benchmark.memory else []
        found.append(f"*{made_with(benchmark)}.*")
    return "\n\n".join([*found, f"*{CAPTION}*"])
