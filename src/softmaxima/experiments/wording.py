"""How notes and messages count and list."""

from __future__ import annotations

from collections.abc import Iterable


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def named(columns: Iterable[str], limit: int = 10) -> str:
    """The first few, and how many more."""
    names = list(columns)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def rows(count: int, what: str = "row") -> str:
    """So many of them."""
    return f"{count} {what}{'s' * (count != 1)}"
