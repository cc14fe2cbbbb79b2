"""`softmaxima bench-heads` on few classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from softmaxima.core.numbers import InputError
from softmaxima_lab.bench import heads
from softmaxima_lab.commands import main
from softmaxima_lab.pages.heads import cells, headings, markdown, memory

SMALL = ("--classes", "700", "--rows", "20", "--features", "8", "--quick")


def run(*arguments: str) -> int:
    try:
        main(["bench-heads", *arguments])
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


@pytest.fixture(scope="module")
def benchmark_of_few(tmp_path_factory: pytest.TempPathFactory) -> heads.Benchmark:
    path = tmp_path_factory.mktemp("bench") / "heads.json"
    assert run(*SMALL, "--json", str(path)) == 0
    return heads.read(path)


def test_every_loss_is_measured_in_both_states_beside_every_peer(benchmark_of_few: heads.Benchmark):
    found = benchmark_of_few
    assert [(result.case.loss, result.case.state) for result in found.results] == [
        (a, b) for a in heads.LOSSES for b in heads.STATES
    ]
    for result in found.results:
        assert result.seconds is not None
        assert result.seconds > 0
        assert result.deviation is not None
        assert result.deviation <= 1
        assert result.ratios.keys() == found.peers[0].seconds.keys() == {heads.TORCH, heads.PARTS, heads.COMPILED}
        for name, ratio in result.ratios.items():
            seconds = found.peers[0].seconds[name]
            assert isinstance(seconds, float)
            assert ratio.low <= ratio.median <= ratio.high
    assert [result.support for result in found.results][:2] == [700, 700]
    assert all(result.support < 700 for result in found.results[2:])  # type: ignore[operator]


def test_a_result_comes_back_from_its_file_and_goes_to_a_page(benchmark_of_few: heads.Benchmark, tmp_path: Path):
    path = tmp_path / "again.json"
    heads.write(benchmark_of_few, path)
    assert heads.read(path) == benchmark_of_few
    assert json.loads(path.read_text())["dtype"] == "float32"
    page = markdown(replace(benchmark_of_few, memory={"sparsemax": 2.0**26}))
    assert page.count("\n| ") == len(benchmark_of_few.results) + len(benchmark_of_few.peers[0].seconds)
    assert "of 700 classes: sparsemax 64 MiB" in page
    assert memory(benchmark_of_few) == ""


def test_a_share_of_the_peak_is_that_of_the_products_that_must_be_made(benchmark_of_few: heads.Benchmark):
    first = benchmark_of_few.results[0]
    result = replace(first, seconds=6 * 20 * 8 * 700 / benchmark_of_few.peers[0].flops)
    assert cells(benchmark_of_few, result)[-1] == "100 %"
    sparse = replace(result, case=replace(first.case, loss="sparsemax"))
    assert cells(benchmark_of_few, sparse)[-1] == "33 %"
    assert len(cells(benchmark_of_few, result)) == len(headings(benchmark_of_few)) + 1


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    right: Callable[..., Any] = heads._ours

    def wrong(loss: str, target: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        return (lambda hidden, weight: 1.01 * right(loss, target)(hidden, weight)) if loss == "entmax15" else right(loss, target)

    monkeypatch.setattr(heads, "_ours", wrong)
    assert run(*SMALL, "--losses", "sparsemax,entmax15") != 0
    said = capsys.readouterr()
    assert "2 of 4 results are wrong" in said.err
    assert "times the tolerance away from float64" in said.err


@pytest.mark.exhaustive
def test_memory_is_less_than_the_scores_take():
    peak = heads.peak_memory(heads._both_passes, "sparsemax", 512, 8, 60_000, torch.float32)
    assert 0 < peak < 4 * 512 * 60_000


def test_a_process_that_is_ended_is_told_in_one_line_before_anything_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def ended(*arguments: Any) -> float:
        raise InputError("the process was ended")

    monkeypatch.setattr(heads, "peak_memory", ended)
    monkeypatch.setattr(heads, "_measure", pytest.fail)
    assert run(*SMALL[:-1]) == 2
    assert capsys.readouterr().err == "softmaxima: the process was ended\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--classes", "1"), "classes must be an int of at least 2, got 1"),
        (("--classes", "many"), "classes must be"),
        (("--classes", ""), "--classes: no name is given"),
        (("--losses", "sparsemx"), "did you mean 'sparsemax'?"),
        (("--rows", "0"), "rows must be an int of at least 1, got 0"),
        (("--threads", "0"), "threads must be"),
    ],
)
def test_errors_come_before_any_work(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture):
    assert run(*arguments) != 0
    assert words in capsys.readouterr().err
