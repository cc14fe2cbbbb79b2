"""`softmaxima bench-attention` on a small length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softmaxima.bench import attention
from softmaxima.cli import main
from softmaxima.report.attention import cells, markdown
from softmaxima.report.attention_figures import picture


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["bench-attention", *arguments])
    return int(end.value.code or 0)


def test_a_quick_look(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found = tmp_path / "found.json"
    assert run("--quick", "--lengths", "48", "--maps", "softmax,sparsemax", "--json", str(found)) == 0
    shown = capsys.readouterr().out
    assert "48x48" in shown
    benchmark = attention.read(found)
    assert len(benchmark.results) == 6  # softmax, causal too, and sparsemax, each in both directions
    assert all(result.deviation <= 1 and result.seconds > 0 for result in benchmark.results)
    assert json.loads(found.read_text())["versions"]["torch"] in shown
    assert markdown(benchmark).count("sparsemax") == 2


def test_linear_attention_is_checked_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found = tmp_path / "found.json"
    assert run("--quick", "--lengths", "16,600", "--maps", "linear_attention", "--json", str(found)) == 0
    results = attention.read(found).results
    assert [(result.case.keys, result.case.causal) for result in results] == [(16, False), (16, True), (600, False), (600, True)]
    assert all(result.deviation <= 1 and result.seconds > 0 and result.torch_seconds > 0 for result in results)
    features = 1 + 64 + 64 * 65 // 2
    assert results[2].operations == 8 * 2 * 1200 * features * 65
    assert {case.keys for case in attention.cases((), (), None, attention.LINEAR_LENGTHS)} == {1024, 4096, 16384, 65536}


def test_what_takes_minutes_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(attention, "BESIDE", 20)
    found = tmp_path / "found.json"
    assert run("--quick", "--lengths", "16,24", "--maps", "linear_attention", "--json", str(found)) == 0
    benchmark = attention.read(found)
    assert [result.torch_seconds is None for result in benchmark.results] == [False, False, True, True]
    assert [cells(result)[1:4:2] for result in benchmark.results][2][1] == ""
    lines = {line.name: list(line.x) for line in picture(benchmark).data}
    assert lines["linear attention"] == [16, 24]


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def wrong(*args: object, map: str, **options: object) -> object:
        return 1.01 * attention.scaled_dot_product_attention(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(attention.sm, "attention", wrong)
    assert run("--quick", "--lengths", "16", "--maps", "softmax") != 0
    assert "times the tolerance away from float64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lengths", "0"), "lengths must be"),
        (("--lengths", "many"), "lengths must be"),
        (("--maps", "softmx"), "unknown map"),
        (("--threads", "0"), "threads must be"),
    ],
)
def test_errors_come_before_any_work(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture) -> None:
    assert run(*arguments) != 0
    assert words in capsys.readouterr().err


def test_memory_is_less_than_the_scores_take() -> None:
    peak = attention._memory(attention.OURS, 1024)
    assert 0 < peak < 4 * attention.HEADS * 1024**2
