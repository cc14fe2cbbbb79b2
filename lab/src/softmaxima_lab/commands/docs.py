"""`softmaxima docs`: runs studies, and writes what the README and docs/ show of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from softmaxima.base.numbers import InputError, nearest
from softmaxima_lab.commands.terminal import WRONG_RESULT, fail, progress_bar, say

if TYPE_CHECKING:
    from softmaxima_lab.pages.documents import Entry

    F = TypeVar("F")


def docs(
    *names: Annotated[
        str, Parameter(help="Studies, comparisons and tables, as --list tells them. Without any: all that keep their numbers.")
    ],
    run: Annotated[
        bool, Parameter(help="Run them again; without it the numbers are read that the last run saved.", negative=())
    ] = False,
    list: Annotated[bool, Parameter(help="Tell what there is, and how long a run takes.", negative=())] = False,
) -> None:
    """Write the tables, texts and pictures of README.md and docs/ in a checkout of softmaxima, the directory that it is called in.

    What a study found is saved as JSON in docs/, and what a benchmark found in benchmarks/. Pictures are drawn with Chromium.
    """
    from softmaxima_lab.bench.machine import commit
    from softmaxima_lab.pages import documents

    try:
        from softmaxima_lab.pages.registry import ENTRIES
    except ImportError as error:
        fail(f"studies need {error.name}, which is not installed: pip install 'softmaxima-lab[studies]'", WRONG_RESULT)
    for name in names:
        if name not in ENTRIES:
            raise InputError(f"docs: there is nothing called {name!r}; choose among: {', '.join(ENTRIES)}{nearest(name, ENTRIES)}")
    if list:
        for name in names or ENTRIES:
            say(f"{name:20} {ENTRIES[name].about}")
        return
    if run and not names:
        fail("--run: no study is named; name those that are to run again, as --list tells them")
    if not Path("README.md").exists() or not documents.DOCS.is_dir():
        fail(f"there are no README.md and docs/ in {Path.cwd()}; call it at the root of a checkout of softmaxima")
    now = commit()  # before anything is written, for that makes the commit a dirty one
    for name in names or [name for name, entry in ENTRIES.items() if entry.is_kept]:
        entry = ENTRIES[name]
        found, made = run_again(entry, now) if run else documents.saved(entry)
        documents.write(entry, found, made)
        say(f"{name}: written")


def run_again(entry: Entry[F], commit: str | None) -> tuple[F, dict[str, Any]]:
    """What a run finds, with how far it is where someone watches."""
    from softmaxima_lab.pages.documents import found_anew

    with progress_bar() as progress:
        bar = progress.add_task(entry.name, total=entry.steps() or None)

        def told(what: str = "", steps: int = 1) -> None:
            progress.update(bar, description=what or entry.name, advance=steps)

        return found_anew(entry, commit, told)
