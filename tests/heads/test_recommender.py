"""The example of a recommender, on a small catalogue."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def recommender() -> dict[str, Any]:
    """Its names, without its `main` having run."""
    return runpy.run_path(str(Path(__file__).parents[2] / "examples" / "recommender.py"))


def test_the_truth_is_a_distribution_whose_draws_and_best_items_are_its_own(recommender: dict[str, Any]):
    generator = torch.Generator().manual_seed(0)
    catalogue = recommender["make_catalogue"](6, 5, generator=generator)
    users = catalogue.users(3, generator)
    p = catalogue.probability(users, torch.arange(30).expand(3, 30))
    torch.testing.assert_close(p.sum(-1), torch.ones(3))
    torch.testing.assert_close(p.gather(-1, catalogue.best(users, 4)), p.topk(4).values)
    taken = catalogue.takes(users[:1].expand(20_000, -1), generator)
    torch.testing.assert_close(taken.bincount(minlength=30) / 20_000, p[0], atol=0.012, rtol=0)


def test_both_models_come_near_the_best_recall_and_faiss_near_exact_search(recommender: dict[str, Any]):
    sizes = {"clusters": 30, "size": 50, "features": 16, "samples": 256, "steps": 150, "batch": 256, "tests": 100, "k": 20}
    recall = recommender["main"](**sizes, lists=16, probes=8)
    best, popular = recall["truth"][0], recall["popularity"][0]
    for name in ("SampledSoftmax", "InBatchSoftmax"):
        exact, near = recall[name]
        assert popular + 0.7 * (best - popular) < exact <= best
        assert 0.8 * exact < near <= exact + 0.01
