"""softmaxima lse --bounds and --estimate: what they say holds, and what cannot be had is told before any work."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import softmaxima as sm
from softmaxima.io.formats import source
from softmaxima.lse.bounds.intervals import BOUNDS
from softmaxima.lse.estimates import opening

N = 200_000


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(N).astype(np.float32)


@pytest.fixture
def path(scores: np.ndarray, tmp_path: Path) -> Path:
    np.save(tmp_path / "scores.npy", scores)
    return tmp_path / "scores.npy"


def test_bounds_are_those_of_the_whole_file(path: Path, scores: np.ndarray, softmaxima_lse: Callable, monkeypatch):
    monkeypatch.setattr(source, "CACHED", 1 << 16)  # bytes: several blocks
    code, out, _ = softmaxima_lse(str(path), "--bounds", "--temperature", "0.5", "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["bounds"]) == [*BOUNDS, "tightest"]
    for lower, upper in found["bounds"].values():
        assert float(lower) <= found["logsumexp"] <= float(upper)
    lower, upper = found["bounds"]["basic"]
    assert lower == pytest.approx(2 * scores.max(), rel=1e-6)
    assert upper == pytest.approx(2 * scores.max() + math.log(N), rel=1e-6)
    assert found["bounds"]["mean"][1] == "inf"
    _, out, _ = softmaxima_lse(str(path), "--bounds")
    assert all(bound in out for bound in (*BOUNDS, "tightest"))


def test_an_estimate_reads_few_scores_and_says_what_it_is_worth(
    path: Path, scores: np.ndarray, softmaxima_lse: Callable, monkeypatch: pytest.MonkeyPatch
):
    truth = float(sm.logsumexp(scores.astype(np.float64)))
    _, out, _ = softmaxima_lse(str(path), "--estimate", "0.05")
    assert "deterministic: the sum is inside" in out  # reading so few takes less time than draws
    monkeypatch.setattr(opening, "SCORE", 1e4)
    monkeypatch.setattr(opening, "RUN_OF_FILE", 1)
    _, out, _ = softmaxima_lse(str(path), "--estimate", "0.05", "--seed", "1", "--json")
    found = json.loads(out)
    assert found["certificate"] == "asymptotic"
    assert abs(found["logsumexp"] - truth) < 0.1
    assert found["evaluations"] < N / 4
    _, again, _ = softmaxima_lse(str(path), "--estimate", "0.05", "--seed", "1", "--json")
    assert again == out
    _, out, _ = softmaxima_lse(str(path), "--estimate", "0.05", "--seed", "1")
    assert f"rarer than 3 in {found['evaluations']}, or 3 in {found['draws']} where they stand together, have much" in out
    highest = str(float(scores.max()))
    _, out, _ = softmaxima_lse(str(path), "--estimate", "0.1", "--maximum", highest, "--confidence", "0.99", "--seed", "1")
    assert "finite-sample: the sum is inside with 99 % confidence, if no score exceeds --maximum" in out


def test_raw_memory_can_be_estimated(scores: np.ndarray, softmaxima_lse: Callable, tmp_path: Path):
    scores.astype(np.float16).tofile(tmp_path / "scores.bin")
    _, out, _ = softmaxima_lse(str(tmp_path / "scores.bin"), "--dtype", "float16", "--estimate", "0.1", "--seed", "1", "--json")
    assert abs(json.loads(out)["logsumexp"] - math.log(N) - 0.5) < 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--estimate", "0"), "--estimate must be a positive finite number"),
        (("--estimate", "0.1", "--bounds"), "--bounds needs all scores; leave out --estimate, or --bounds"),
        (("--estimate", "0.1", "--effective-size"), "--effective-size needs all scores"),
        (("--estimate", "0.1", "--checkpoint", "c"), "--checkpoint needs all scores"),
        (("--estimate", "0.1", "--confidence", "95"), "--confidence must be a number between 0 and 1, got 95.0"),
        (("--estimate", "0.1", "--seed", "1.5"), "--seed: must be an int, got 1.5"),
        (("--estimate", "0.1", "--seed", "-1"), "--seed must be an int of at least 0, got -1"),
        (("--estimate", "0.1", "--maximum", "-9"), "maximum must be at least every score"),
        (("--maximum", "9"), "--maximum is about an estimate; add --estimate NATS"),
        (("--confidence", "0.9"), "--confidence is about an estimate"),
        (("--bounds", "--checkpoint", "c"), "--checkpoint keeps the sum alone"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_told(options: tuple[str, ...], message: str, path: Path, softmaxima_lse: Callable):
    code, out, err = softmaxima_lse(str(path), *options)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")


def test_an_estimate_that_met_nan_blames_no_draw(softmaxima_lse: Callable, tmp_path: Path):
    np.save(tmp_path / "scores.npy", np.array([1.0, math.nan]))
    _, out, _ = softmaxima_lse(str(tmp_path / "scores.npy"), "--estimate", "0.1")
    assert "certificate     none: the sum is NaN whatever the other scores are\n" in out


def test_a_file_that_is_read_in_order_is_not_estimated(softmaxima_lse: Callable, tmp_path: Path):
    (tmp_path / "scores.txt").write_text("1 2 3")
    code, _, err = softmaxima_lse(str(tmp_path / "scores.txt"), "--estimate", "0.1")
    assert code == 2
    assert "can only be read from its beginning; leave out --estimate" in err.replace("\n", " ")


@pytest.mark.parametrize("kind", [bool, np.uint16, np.uint32, np.uint64])
def test_dtypes_that_cannot_be_drawn_from_are_told(kind: type, softmaxima_lse: Callable, tmp_path: Path):
    np.save(tmp_path / "scores.npy", np.arange(10_000).astype(kind))
    code, out, err = softmaxima_lse(str(tmp_path / "scores.npy"), "--estimate", "0.1")
    assert (code, out) == (2, "")
    assert "convert them to float64" in err.replace("\n", " ")
