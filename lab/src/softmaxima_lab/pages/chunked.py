"""The table of logsumexp on Dask beside plain Dask."""

from __future__ import annotations

from collections.abc import Sequence

from softmaxima_lab.bench.chunked import Found
from softmaxima_lab.pages.markdown import table

HEAD = (
    "scores",
    "in chunks of",
    "from",
    "plain Dask, ms",
    "sm.dask, ms",
    "times as fast",
    "chunks held by plain Dask",
    "by sm.dask",
)

HELD = (
    "Scores are normal numbers times 3; one + 30: with 30 added to one of each row. Chunks held are the most in memory at a "
    "time, where each is read when it is needed, as from files; of all chunks of the array."
)


def markdown(found: Sequence[Found]) -> str:
    """A line a case, and what the claim of twice the speed comes to."""
    rows = [
        (
            f"{each.case.dtype} {list(each.case.shape)}, axis {each.case.axis}"
            + (f", one + {each.case.peak:g}" if each.case.peak else ""),
            str(list(each.case.chunks)),
            each.case.place,
            f"{1e3 * each.plain:.0f}",
            f"{1e3 * each.ours:.0f}",
            f"{each.plain / each.ours:.1f}",
            f"{each.plain_held} of {each.chunks}",
            str(each.ours_held),
        )
        for each in found
    ]
    slower = [each for each in found if each.plain < 2 * each.ours]
    verdict = "logsumexp twice as fast as plain Dask: on all rows" if not slower else (
        f"logsumexp twice as fast as plain Dask: not on {len(slower)} of {len(found)} rows, lowest "
        f"{min(each.plain / each.ours for each in slower):.1f}"
    )  # fmt: skip
    return f"{table(HEAD, rows, left=range(3))}\n\n{verdict}. {HELD}"
