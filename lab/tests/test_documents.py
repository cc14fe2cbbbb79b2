"""What the README and docs/ show is what the registry writes, of the numbers that were saved."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from softmaxima.maps import REGISTRY
from softmaxima_lab.commands import main
from softmaxima_lab.pages import documents
from softmaxima_lab.pages.documents import Block, Entry, Picture, as_text, saved, texts
from softmaxima_lab.pages.registry import ENTRIES
from softmaxima_lab.studies.estimators import Work

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def kept() -> list[str]:
    """What can be shown without a run."""
    is_saved = lambda entry: entry.kind is not None and (ROOT / "docs" / entry.data).exists()
    return [name for name, entry in ENTRIES.items() if entry.read is not None or is_saved(entry)]


@pytest.mark.parametrize("name", kept())
def test_documents_show_what_was_saved(name: str) -> None:
    entry = ENTRIES[name]
    found, made = saved(entry)
    parts = entry.shown(found)
    for path, text in texts(entry, parts, made).items():
        assert path.read_text() == text, f"run `softmaxima docs {name}`"
    for block in parts:
        for part in block.parts if isinstance(block, Block) else ():
            if isinstance(part, Picture):
                assert (ROOT / "docs" / part.file).exists()
                assert part.plot.layout.width
                assert any(len(trace.y if trace.y is not None else trace.z) for trace in part.plot.data)


@pytest.mark.parametrize("name", [name for name in kept() if ENTRIES[name].kind])
def test_what_is_saved_is_read_as_it_was(name: str) -> None:
    assert as_text(ENTRIES[name], *saved(ENTRIES[name])) == (ROOT / "docs" / ENTRIES[name].data).read_text()


def test_numbers_that_json_lacks_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work("N(0, 1)", "uniform", 0.1, None, 300.0, -math.inf, math.inf, math.nan, 1.0, 0, 0, {"none": 2})
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    entry = ENTRIES["estimators"]
    (tmp_path / "docs" / entry.data).write_text(as_text(entry, [work], {}))
    assert repr(saved(entry)[0]) == repr([work])


def test_each_block_has_one_place_and_an_entry() -> None:
    pages = "".join(path.read_text() for path in documents.documents())
    places = re.findall(r"<!-- (\S+): written by softmaxima docs (\S+) -->", pages)
    assert max(Counter(name for name, _ in places).values()) == 1
    assert sorted(name for name, _ in places) == sorted(re.findall(r"<!-- end of (\S+) -->", pages))
    assert {entry for _, entry in places} == ENTRIES.keys() - {"types"}
    assert set(re.findall(r"`softmaxima docs ([\w-]+) --run`", pages)) <= ENTRIES.keys()


def test_every_public_map_is_in_the_table() -> None:
    table = (ROOT / "docs" / "maps.md").read_text()
    assert all(f"`{name}" in table and map.formula for name, map in REGISTRY.items() if map.function is not None)


# The command --------------------------------------------------------------------------------------------------------------


def checkout(path: Path, *entries: str) -> None:
    """A folder with a README that has a place for a block of each entry."""
    places = [f"<!-- of {name}: written by softmaxima docs {name} -->\n<!-- end of of {name} -->\n" for name in entries]
    (path / "docs").mkdir()
    (path / "README.md").write_text("before\n" + "between\n".join(places) + "after\n")


def entry(name: str, found: list[float], **options: Any) -> Entry[Any]:
    shown = lambda values: [Block(f"of {name}", (f"{sum(values):g} \\1",), note="Sums.")]
    return Entry(name, "adds", shown, lambda told: found, f"{name}.json", list[float], **options)


def call(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main(["docs", *arguments])
    return end.value.code


def test_a_run_saves_what_it_found_and_a_later_call_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path, "one", "two")
    monkeypatch.chdir(tmp_path)
    asked = []
    read = lambda: (tmp_path / "README.md").read_text()
    monkeypatch.setattr("softmaxima_lab.bench.machine.commit", lambda: asked.append(read()) or "abc")
    monkeypatch.setattr(
        "softmaxima_lab.pages.registry.ENTRIES", {"one": entry("one", [1.0, 2.0]), "two": entry("two", [5.0], threads=1)}
    )
    before = read()
    assert not call("one", "two", "--run")
    assert asked == [before]  # once, and before anything is written, which would make the commit a dirty one
    shown = read()
    assert "-->\n3 \\1\n\n*Sums. `softmaxima docs one --run`, 20" in shown
    assert ", commit abc, " in shown
    assert shown.count(" 1 thread, torch ") >= 1
    assert re.sub(r"( docs \w+ -->\n).*?<!-- end", r"\1<!-- end", shown, flags=re.DOTALL) == before
    (tmp_path / "README.md").write_text(before)
    assert not call()
    assert read() == shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("sharde",), "there is nothing called 'sharde'; choose among: maps, types, "),
        (("sharde",), "; did you mean 'shared'?"),
        (("--run",), "--run: no study is named"),
        (("compare",), "compare keeps no numbers that its text could be made of; run it again with --run"),
        (("bench", "--run"), "bench is no study: it shows what softmaxima bench left in benchmarks/"),
    ],
)
def test_what_is_wrong_is_told(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments)
    assert told in capsys.readouterr().err


def test_what_studies_need_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for name in ("studies.policies", "pages.policies", "pages.registry"):
        monkeypatch.delitem(sys.modules, f"softmaxima_lab.{name}")
        monkeypatch.delattr(f"softmaxima_lab.{name}")
    assert call("--list") == 1
    assert "need gymnasium, which is not installed: pip install 'softmaxima-lab[studies]'" in capsys.readouterr().err


def test_it_writes_in_a_checkout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("maps")
    assert "call it at the root of a checkout of softmaxima" in capsys.readouterr().err
    assert not call("--list")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ENTRIES)
    checkout(tmp_path, "nothing")
    assert call("maps")
    assert "no document has the markers <!-- maps: written by softmaxima docs maps -->" in capsys.readouterr().err
