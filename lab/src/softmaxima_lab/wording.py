"""How notes and messages count and list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


MOST_NAMED = 10


def named(columns: Iterable[str], limit: int = MOST_NAMED) -> str:
    """The first few, and how many more."""
    names = list(columns)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def rows(count: int, what: str = "row") -> str:
    """So many of them."""
    return f"{count} {what}{'s' * (count != 1)}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a sentence lists them: a, b and c."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
