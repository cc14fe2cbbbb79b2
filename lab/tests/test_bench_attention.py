"""`softmaxima bench-attention` on a small length."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from softmaxima_lab.bench import attention
from softmaxima_lab.bench.memory import peak_memory
from softmaxima_lab.commands import main
from softmaxima_lab.pages.attention import cells, made_with, markdown
from softmaxima_lab.pages.attention_figures import picture


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
    assert f"{benchmark.date}, {benchmark.machine['processor']}, " in made_with(replace(benchmark, commit=None))


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
        (("--lengths", "100000000"), "--lengths: 100000000x100000000 does not fit in memory; take smaller lengths"),
        (("--lengths", ""), "--lengths: no name is given"),
        (("--maps", "softmx"), "--maps: unknown map 'softmx'; did you mean 'softmax'?"),
        (("--maps", "softmax,log_softmax"), "--maps: log_softmax is left out, for it gives logarithms of probabilities"),
        (("--threads", "0"), "threads must be"),
    ],
)
def test_errors_come_before_any_work(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture) -> None:
    assert run(*arguments) != 0
    assert words in capsys.readouterr().err


@pytest.mark.exhaustive
def test_memory_is_less_than_the_scores_take() -> None:
    peak = peak_memory(attention._both_passes, attention.OURS, 1024)
    assert 0 < peak < 4 * attention.HEADS * 1024**2


def test_a_gpu_has_long_lengths_wide_heads_and_every_map_causal() -> None:
    planned = attention.cases(attention.GPU_LENGTHS, attention.MAPS, None, (), attention.GPU_SIZES, "cuda")
    assert len(planned) == len({str(case) for case in planned}) == 4 * 2 * 4 * 2 * 2
    assert {case.size for case in planned} == {64, 128}
    assert sum(case.causal for case in planned) == len(planned) // 2


def test_others_are_checked_before_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that is pretended: one is right, one is wrong, one raises, one is not installed, and one has another map."""
    right = attention.scaled_dot_product_attention

    def raises(length: int) -> Callable[..., Tensor]:
        raise RuntimeError("no kernel\nfor this")

    others = {
        "right": ("softmax", "torch", lambda length: right),
        "wrong": ("softmax", "torch", lambda length: lambda *x, is_causal: 1.01 * right(*x, is_causal=is_causal)),
        "raises": ("softmax", "torch", raises),
        "absent": ("softmax", "no_such_package", raises),
        "sparse": ("entmax15", "torch", raises),
    }
    monkeypatch.setattr(attention, "OTHERS", others)
    case = attention.Case("softmax", 16, 16, True, "forward+backward", 8)
    found, reasons = attention._others(case, torch.float32, "cpu")
    assert not found
    assert not reasons
    with monkeypatch.context() as patch:
        check = attention._check
        patch.setattr(attention, "_check", lambda case, dtype, device, of_length: check(case, dtype, "cpu", of_length))
        chosen = attention._others(case, torch.float32, "cuda")
    assert chosen[0] == {"right": right}
    assert chosen[1].keys() == {"wrong", "raises"}
    assert chosen[1]["raises"] == "RuntimeError: no kernel for this"
    monkeypatch.setattr(attention, "_others", lambda *arguments: chosen)
    benchmark = attention.bench([case], torch.float32, "cpu", 0.0, lambda title: None, ())
    (result,) = benchmark.results
    assert not result.problem
    assert isinstance(result.others["right"], float)
    shown = markdown(benchmark)
    assert all(f"| {name}, ms" in shown for name in ("right", "wrong", "raises"))
    assert "16x16, heads of 8" in shown
    assert "times the tolerance away" in shown
