"""Tables of the documentation, in Markdown."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Container[int] = (0,)) -> str:
    """A line a row, the columns flush right but for those of these numbers.

    >>> print(table(["map", "zeros"], [["softmax", "no"]]))
    | map | zeros |
    |---|---:|
    | softmax | no |
    """
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "|".join("---" if i in left else "---:" for i in range(len(head))) + "|", *lines[1:]])
