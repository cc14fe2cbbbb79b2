"""The page of a comparison: sections of words, tables and figures, complete in itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from softmaxima.base.writing import finite, visible, visible_lines
from softmaxima_lab.pages.figures import Figure

if TYPE_CHECKING:
    from softmaxima_lab.pages.columns import Column

R = TypeVar("R")


def whole(text: str) -> Markup:
    """The text with options that no line breaks: a browser breaks after hyphens."""
    return Markup(re.sub(r"(?<!\S)--[a-z][a-z-]*", r"<span class='option'>\g<0></span>", str(escape(text))))


TEMPLATES = Environment(
    loader=FunctionLoader(lambda name: files("softmaxima_lab.pages").joinpath(name).read_text(encoding="utf-8")),
    autoescape=True,
    trim_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters["whole"] = whole
SECTIONS: Any = TEMPLATES.get_template("sections.html").module


def document(title: str, heading: str, lead: str, sections: Iterable[str], figures: Iterable[Figure]) -> str:
    """The whole page."""
    plots = {figure.id: figure.plot.to_plotly_json() for figure in figures}
    return TEMPLATES.get_template("page.html").render(
        title=visible(title),
        heading=visible(heading),
        lead=visible(lead),
        body=Markup(visible_lines("\n".join(sections))),
        figures=Markup(visible(_script_json(finite(plots)))),
        plotly=Markup(get_plotlyjs()),
    )


def choice(headline: str, reason: str, reservations: Iterable[str], code: str = "", label: str = "Recommendation") -> str:
    """What to take, and what speaks against taking it for certain."""
    return SECTIONS.choice(headline, reason, reservations, code, label)


def facts(title: str, words: Mapping[str, str], notes: Iterable[str] = ()) -> str:
    """What was done, with what."""
    return SECTIONS.facts(title, words, notes)


def page_table(id: str, title: str, columns: Sequence[Column[R]], results: Sequence[R], taken: R | None, caption: str) -> str:
    """A table whose headings sort it, a row a result; `taken` is the one that is recommended."""
    return SECTIONS.page_table(id, title, columns, results, taken, caption)


def sentences(title: str, said: Mapping[str, str], besides: str = "", above: str = "") -> str:
    """What there is to say of each, and of all."""
    return SECTIONS.sentences(title, said, besides, above)


def figure(shown: Figure, beside: str = "") -> str:
    """A figure with how to read it; `beside` is more below it."""
    return SECTIONS.figure(shown, beside)


def recall(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The recall of each class in numbers: its name, its rows, and that of each title."""
    return SECTIONS.recall(titles, rows)


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
