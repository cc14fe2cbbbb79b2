"""The examples of the README and of every page in docs/ run as they stand, one after the other, and print what they show."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
import torch

from softmaxima_lab.commands import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IN_TEXT = re.compile(r"^```(python|pycon|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def rounded(text: str) -> str:
    """Numbers of all digits with 14 of them: the order of a sum, and its last digits, depend on the processor."""
    return re.sub(r"\d+\.\d{12,}", lambda number: f"{float(number[0]):.14g}", text)


def run_examples(page: Path, capsys: pytest.CaptureFixture) -> dict[str, object]:
    """The names that a page's examples leave: python runs, pycon is a doctest, console calls softmaxima."""
    names: dict[str, object] = {}
    for kind, code in IN_TEXT.findall(page.read_text()):
        if kind == "python":
            exec(code, names)
        elif kind == "pycon":
            example = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), 0)
            report: list[str] = []
            doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=report.append, clear_globs=False)
            assert not report, "".join(report)
            names |= example.globs
        else:
            command, shown = code.split("\n", 1)
            capsys.readouterr()
            with pytest.raises(SystemExit) as end:
                main(shlex.split(command.removeprefix("$ softmaxima ")))
            assert not end.value.code
            assert rounded(capsys.readouterr().out) == rounded(shown)
    return names


@every_page
def test_examples_run(page: Path, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = run_examples(page, capsys)
    if page.name == "README.md":
        weights = names["weights"]
        assert isinstance(weights, torch.Tensor)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 8, 10))


def test_a_page_whose_example_prints_something_else_fails(capsys: pytest.CaptureFixture, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        run_examples(page, capsys)


@every_page
def test_links_lead_somewhere(page: Path):
    for path in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text()):
        assert (page.parent / path).exists(), path
