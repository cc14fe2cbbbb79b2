"""The study of choosing a map by the data: that no way sees the rows held out, its statistics and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from softmaxima_lab.compare.confirmation import KNOWN
from softmaxima_lab.pages import mixtures as report
from softmaxima_lab.studies import mixtures
from softmaxima_lab.studies.mixtures import Chosen


def test_every_way_chooses_without_the_rows_held_out(monkeypatch: pytest.MonkeyPatch):
    """Other labels of these rows change what is reached, and no choice."""
    monkeypatch.setattr(mixtures, "settings_of", lambda table, settings, seed: mixtures.replace(settings, seed=seed, epochs=3))
    monkeypatch.setattr(mixtures, "pairs", lambda classes: [p for p in pairs(classes) if p.name in ("softmax", "sparsemax")])
    x, y = KNOWN["iris"](0)
    rows, held_out = np.arange(0, 150, 2), np.arange(1, 150, 2)
    wrong = y.copy()
    wrong[held_out] = (y[held_out] + 1) % 3
    found, other = (list(mixtures.fold("iris", x, labels, rows, held_out, 0, 60)) for labels in (y, wrong))
    assert [way for way, _, _ in found] == ["softmax", *mixtures.WAYS]
    assert [choice for _, choice, _ in found] == [choice for _, choice, _ in other]
    assert all(reached["accuracy"] > 0.8 for _, _, reached in found)
    assert all(reached["accuracy"] < 0.2 for _, _, reached in other)


pairs = mixtures.pairs


def test_a_mixture_learns_from_its_own_rows():
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    softmax: Any = lambda scores, target: torch.nn.functional.cross_entropy(scores, target)
    cooling = mixtures.sm.GeometricTemperature(1.0, 0.5, 5)
    mixture = mixtures.sm.MixtureOfMaps(["softmax", "sparsemax"], gate_temperature=cooling)  # type: ignore[arg-type]
    alone = mixtures.fit((x, y), 2, softmax, 0, 5)
    beside = mixtures.fit((x, y), 2, softmax, 0, 5, (mixture, (x[:8], y[:8]), cooling))
    for a, b in zip(alone.parameters(), beside.parameters(), strict=True):
        assert torch.equal(a, b)
    assert mixture.g.abs().sum() > 0
    assert int(cooling.steps) == 5


def made(table: str, way: str, accuracy: list[float], choice: str) -> Chosen:
    return Chosen(table, way, 100, (choice,) * len(accuracy), {m: tuple(accuracy) for m in mixtures.MEASURES})


def test_gains_are_paired_by_fold_and_tables_count_as_one(tmp_path: Path):
    found = []
    for k, name in enumerate(("one", "two", "three")):
        found.append(made(name, "softmax", [0.5, 0.6, 0.7], "softmax"))
        found.append(made(name, mixtures.WAYS[0], [0.5, 0.6, 0.7], "softmax"))
        found += [made(name, way, [0.6, 0.71 + 0.01 * k, 0.8], "sparsemax") for way in mixtures.WAYS[1:]]
    d = mixtures.gain(found, "one", mixtures.WAYS[1], "accuracy")
    assert d.mean == pytest.approx(0.31 / 3)
    assert d.low < d.mean < d.high
    assert mixtures.gain(found, "one", mixtures.WAYS[1], "log-loss").mean == pytest.approx(-0.31 / 3)
    alike = [made("one", "softmax", [0.5, 0.5], "softmax"), made("one", mixtures.WAYS[1], [0.5, 0.5], "sparsemax")]
    assert mixtures.gain(alike, "one", mixtures.WAYS[1], "accuracy").high > 0.02  # 1 − 0.05^(1/100)
    total = mixtures.overall(found, mixtures.WAYS[1], "accuracy")
    assert total.mean == pytest.approx((0.31 + 0.32 + 0.33) / 9)
    assert total.better
    said = report.sentence(found)
    assert "compare, by accuracy, beside softmax: the same accuracy; the same log loss" in said
    assert "mixture, other rows, beside softmax: +10.7 points of accuracy (" in said
    assert "better), better on 3 and worse on 0 of 3 tables" in said
    assert "mixture, other rows, beside learnt τ, other rows: the same accuracy" in said
    assert said.endswith(
        "- mixture, other rows, gains over softmax in log loss most on one, -0.103 nats, where learnt τ, other rows has -0.103 and "
        "least on three, -0.110 nats, where learnt τ, other rows has -0.110."
    )
    assert "= |" in report.markdown(found)
    drawn: Any = report.picture(found).data
    assert len(drawn) == 2 * len(mixtures.WAYS)


def noise(seed: int, bias: float = 0.0, folds: int = 5, tables: int = 10) -> list[Chosen]:
    """Ways that differ by luck alone, but for a bias of all that learn in the log loss."""
    rng = np.random.default_rng(seed)
    ways = ("softmax", *mixtures.WAYS)
    reached = lambda way: {
        "accuracy": tuple(0.8 + 0.05 * rng.standard_normal(folds)),
        "log-loss": tuple(0.5 - bias * (way in mixtures.LEARNT) + 0.05 * rng.standard_normal(folds)),
    }
    return [Chosen(f"table {k}", way, 500, (f"{way} {k}",) * folds, reached(way)) for k in range(tables) for way in ways]


def test_of_noise_nothing_is_said_to_be_better():
    """With one chance in twenty that anything at all is; and what a learnt τ has is no gain of the mixture."""
    said = [report.sentence(noise(seed)) for seed in range(20)]
    assert sum(": better)" in each or ": worse)" in each for each in said) <= 3  # of 20 at 5 %, more than 3 come in 1.6 % of cases
    shown = [line for line in report.sentence(noise(0, 0.2)).splitlines() if ": better)" in line]
    assert len(shown) == len(mixtures.LEARNT)
    assert all("beside softmax" in line and ("learnt" in line or "mixture" in line) for line in shown)
    tables = [report.markdown(noise(seed)) for seed in range(8)]
    assert sum("↑" in each or "↓" in each for each in tables) <= 2
