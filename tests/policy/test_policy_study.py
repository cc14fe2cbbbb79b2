"""The study of temperatures of policies: its tasks, its learner against a literal one, its statistics and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softmaxima.experiments import policies
from softmaxima.experiments.policies import Method, Trained
from softmaxima.report import policies as report


def test_the_cliff_is_gymnasiums():
    gymnasium = pytest.importorskip("gymnasium")
    one: Any = gymnasium.make("CliffWalking-v1").unwrapped
    many = policies.CliffWalking(2)
    many.reset(seed=0)
    one.reset(seed=0)
    rng = np.random.default_rng(0)
    over = False
    for _ in range(300):
        actions = rng.integers(4, size=2)
        x, reward, ended, cut = many.step(actions)
        if over:
            state, expected = one.reset()[0], None
            over = False
        else:
            state, expected, over, *_ = one.step(int(actions[0]))
            assert reward[0] == expected
            assert ended[0] == over
        assert x[0].argmax() == state
        over = over or bool(cut[0])


def test_the_table_is_learnt_the_same_each_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policies, "EPISODES", 60)
    monkeypatch.setattr(policies, "WINDOW", 5)
    told: list[int] = []
    found = policies.learn("CliffWalking", (Method("cold", "fixed", 0.1), Method("held", "adaptive", 0.1)), 2, told.append)
    assert sum(told) == 4
    assert [each.kind for each in found] == ["fixed", "adaptive"]
    assert all(any(each.solved) for each in found)
    assert all(1 <= n <= policies.EPISODES for each in found for n in each.episodes)
    again = policies.learn("CliffWalking", (Method("cold", "fixed", 0.1), Method("held", "adaptive", 0.1)), 2)
    assert again == found


def test_cartpole_is_solved_at_a_temperature_of_its_rewards(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policies, "EPISODES", 20)
    monkeypatch.setattr(policies, "WINDOW", 3)
    warm, cold = policies.learn("CartPole", (Method("warm", "fixed", 10.0), Method("cold", "fixed", 0.01)), 2)
    assert all(warm.solved)
    assert max(warm.episodes) < 20
    assert not any(cold.solved)
    assert cold.episodes == (20, 20)


def test_a_temperature_that_is_held_raises_tau_where_the_policy_is_surer_than_its_share():
    learnt = policies.Temperatures((Method("held", "adaptive", 0.5, 2.0), Method("fixed", "fixed", 3.0)), 2)
    before = learnt.tau.copy()
    assert before.tolist() == [[2.0], [3.0]]
    for _ in range(policies.EVERY):
        learnt.step(np.array([[50.0, 0.0], [50.0, 0.0]], np.float32))
    assert learnt.tau[0, 0] > 2.0
    assert learnt.tau[1, 0] == 3.0


def made(task: str, method: str, kind: str, tuned: float, tested: list[int]) -> Trained:
    episodes = (*[int(tuned)] * policies.TUNED_ON, *tested)
    return Trained(task, method, kind, episodes, tuple(n < policies.EPISODES for n in episodes))


def test_ratios_are_of_restricted_means_on_seeds_that_did_not_choose(tmp_path: Path):
    rng = np.random.default_rng(0)
    around = lambda n: rng.integers(n - 3, n + 4, policies.TESTED_ON).tolist()
    found = [
        made("T", "slow", "fixed", 90, around(90)),
        made("T", "middle", "fixed", 50, around(50)),
        made("T", "lucky", "fixed", 10, [policies.EPISODES] * policies.TESTED_ON),
        made("T", "falls", "falling", 30, around(30)),
        made("T", "held", "adaptive", 20, around(20)),
    ]
    assert [each.method for each in policies.ranked(found, "T", "fixed")] == ["lucky", "middle", "slow"]
    r = policies.ratio(found[0], found[4])
    assert r.value == pytest.approx(
        np.mean(found[0].episodes[policies.TUNED_ON :]) / np.mean(found[4].episodes[policies.TUNED_ON :])
    )
    assert 4 < r.low < r.value < r.high < 5
    assert "2.5" in policies.verdict(found, "T")
    assert "at least twice as fast" in policies.verdict(found, "T")
    late = [*found[:4], made("T", "held", "adaptive", 20, around(170))]
    assert "0.29 times (0.29 to 0.30) on the median fixed one, middle: slower" in policies.verdict(late, "T")
    policies.write(found, {"date": "today"}, tmp_path / "found.json")
    assert policies.read(tmp_path / "found.json") == found
    assert report.markdown_table(found).count("\n") == 6
    assert f"{policies.EPISODES}.0 ({policies.TESTED_ON} not)" in report.markdown_table(found)
    assert len(report.picture(found).data) == 5
