"""The page of a comparison: sections of words, tables and figures, complete in itself."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from softmaxima.base.writing import finite, visible, visible_lines
from softmaxima_lab.pages.figures import Figure

LONG = 70  # characters of a fact that has a line of its own


def document(title: str, heading: str, lead: str, sections: Iterable[str], figures: Iterable[Figure]) -> str:
    """The whole page."""
    plots = {figure.id: figure.plot.to_plotly_json() for figure in figures}
    head = f'<header>\n<h1>{html.escape(heading)}</h1>\n<p class="lead">{html.escape(lead)}</p>\n</header>'
    return Template(files("softmaxima_lab.pages").joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(visible(title)),
        body=visible_lines("\n".join((head, *sections))),
        figures=visible(_script_json(finite(plots))),
        plotly=get_plotlyjs(),
    )


def choice(headline: str, reason: str, reservations: Iterable[str], code: str = "", label: str = "Recommendation") -> str:
    """What to take, and what speaks against taking it for certain."""
    lines = [f"<p class='reservation'>{whole(words)}</p>" for words in reservations]
    shown = f"<pre><code>{html.escape(code)}</code></pre>" if code else ""
    return (
        f'<section class="choice">\n<p class="label">{html.escape(label)}</p>\n<h2>{html.escape(headline)}</h2>\n'
        f"{''.join(lines)}\n<p>{whole(reason)}</p>\n{shown}\n</section>"
    )


def facts(title: str, words: Mapping[str, str], notes: Iterable[str] = ()) -> str:
    """What was done, with what."""
    entries = "".join(
        f"<div{' class=long' * (name == 'Command' or len(value) > LONG)}><dt>{html.escape(name)}</dt><dd>{whole(value)}</dd></div>"
        for name, value in words.items()
        if value
    )
    listed = "".join(f"<li>{whole(note)}</li>" for note in notes)
    return f'<section>\n<h2>{html.escape(title)}</h2>\n<dl>{entries}</dl>\n<ul class="notes">{listed}</ul>\n</section>'


@dataclass(frozen=True)
class Heading:
    """Of a column: in which order the best come first, and whether the rows are so sorted at first."""

    words: str
    best_first: str = "descending"
    is_sorted: bool = False


@dataclass(frozen=True)
class Row:
    """A row of the table: its cells, and what each column sorts by."""

    cells: Sequence[str]
    values: Sequence[float | str]
    taken: bool = False  # it is the one that is recommended


def sorted_table(id: str, title: str, headings: Sequence[Heading], rows: Iterable[Row], caption: str) -> str:
    """A table whose headings sort it."""
    heading = "".join(
        f"<th scope='col' data-first='{each.best_first}' aria-sort='{each.best_first if each.is_sorted else 'none'}'>"
        f"<button>{html.escape(each.words)}</button></th>"
        for each in headings
    )
    kinds = ["th scope='row'", *["td"] * (len(headings) - 1)]
    lines = "".join(
        f"<tr{' class=taken' * row.taken}>"
        + "".join(
            f"<{kind} data-value='{html.escape(str(value))}'>{html.escape(cell)}</{kind.split()[0]}>"
            for kind, value, cell in zip(kinds, row.values, row.cells, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f"<section>\n<h2>{html.escape(title)}</h2>\n"
        '<p class="reading">A heading sorts by its column. On a narrow screen the table scrolls to the side.</p>\n'
        f'<div class="scroll" role="region" aria-label="{html.escape(title)}" tabindex="0"><table id="{id}">'
        f"<thead><tr>{heading}</tr></thead><tbody>{lines}</tbody></table></div>\n"
        f'<p class="caption">{html.escape(caption)}</p>\n</section>'
    )


def sentences(title: str, said: Mapping[str, str], besides: str = "", above: str = "") -> str:
    """What there is to say of each, and of all."""
    lines = "".join(f"<li><b>{html.escape(name)}:</b> {html.escape(words)}</li>" for name, words in said.items())
    first = f'<p class="reading">{html.escape(above)}</p>\n' if above else ""
    return (
        f'<section>\n<h2>{html.escape(title)}</h2>\n{first}<ul class="pairs">{lines}</ul>\n'
        f'<p class="times">{html.escape(besides)}</p>\n</section>'
    )


def figure(shown: Figure, beside: str = "") -> str:
    """A figure with how to read it; `beside` is more below it."""
    return (
        f"<section><h2 id='{shown.id}-title'>{html.escape(shown.title)}</h2>"
        f"<p class='reading' id='{shown.id}-reading'>{html.escape(shown.reading)}</p>{_legend(shown)}"
        f"<div class='figure' id='{shown.id}' role='img' aria-labelledby='{shown.id}-title' "
        f"aria-describedby='{shown.id}-reading'></div>{beside}</section>"
    )


def whole(text: str) -> str:
    """The text with options that no line breaks: a browser breaks after hyphens."""
    return re.sub(r"(?<!\S)--[a-z][a-z-]*", r"<span class='option'>\g<0></span>", html.escape(text))


def _legend(shown: Figure) -> str:
    swatches = "".join(f"<li><i style='background:{colour}'></i>{html.escape(name)}</li>" for name, colour in shown.legend.items())
    return f"<ul class='legend'>{swatches}</ul>" if swatches else ""


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
