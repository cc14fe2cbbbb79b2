"""The table of errors of logsumexp, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from softmaxima_lab.pages.documents import Block, Entry
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies.precision import METHODS, Result, precision

CAPTION = (
    "Error in units in the last place of the result's dtype, against mpmath with 60 digits; half is the best there is. "
    "Empty where a method cannot do it."
)


def markdown_table(results: Sequence[Result]) -> str:
    """A line for each row of the experiment, a column for each method."""
    rows = (
        [result.title, result.dtype, f"{result.exact:.6g}", *(cell(result.ulps[method]) for method in METHODS)]
        for result in results
    )
    return table(["scores", "dtype", "LSE", *METHODS], rows, left=(0, 1))


def cell(ulps: float | None) -> str:
    """An error, to two digits where it is small and as a power of ten where it is not.

    >>> cell(0.4567), cell(37.2), cell(4.2e9), cell(None), cell(float("inf"))
    ('0.46', '37', '4e+09', '', '∞')
    """
    if ulps is None:
        return ""
    if ulps == float("inf"):
        return "∞"
    return f"{ulps:.2f}" if ulps < 9.95 else f"{ulps:.0f}" if ulps < 1e4 else f"{ulps:.0e}"


ENTRY = Entry(
    "precision",
    "measures errors of logsumexp in units in the last place",
    lambda found: [Block("precision", (markdown_table(found),), CAPTION)],
    lambda told: list(precision().results),
    "precision.json",
    list[Result],
)
