"""The study of temperatures of policies: its tasks, its learner against a literal one, its statistics and what is said of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from softmaxima_lab.pages import policies as report
from softmaxima_lab.studies import policies
from softmaxima_lab.studies.policies import Method, Trained


def test_the_cliff_is_gymnasiums():
    gymnasium = pytest.importorskip("gymnasium")
    one: Any = gymnasium.make("CliffWalking-v1").unwrapped
    many = policies.CliffWalking(np.random.default_rng(0).spawn(2))
    many.reset()
    one.reset(seed=0)
    rng = np.random.default_rng(0)
    over = False
    for _ in range(300):
        actions = rng.integers(4, size=2)
        reward, ended, cut = many.step(actions)
        x = many.features(np.arange(2))
        if over:
            state, expected = one.reset()[0], None
            over = False
        else:
            state, expected, over, *_ = one.step(int(actions[0]))
            assert reward[0] == expected
            assert ended[0] == over
        assert x[0].argmax() == state
        over = over or bool(cut[0])


def test_the_table_is_learnt(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policies, "EPISODES", 60)
    monkeypatch.setattr(policies, "WINDOW", 5)
    told: list[int] = []
    found = policies.learn("CliffWalking", (Method("cold", "fixed", 0.1), Method("held", "adaptive", 0.1)), 2, told.append)
    assert sum(told) == 4
    assert [each.kind for each in found] == ["fixed", "adaptive"]
    assert all(any(each.solved) for each in found)
    assert all(1 <= n <= policies.EPISODES for each in found for n in each.episodes)


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
    said = policies.verdict(found, "T")
    assert "the median adaptive setting held, beside the median fixed setting middle: 2.5" in said
    assert "at least twice as fast" in said
    assert f"with 0 and {policies.TESTED_ON} of {policies.TESTED_ON} seeds that do not solve it" in said
    late = [*found[:4], made("T", "held", "adaptive", 20, around(170))]
    assert "middle: 0.29 times as fast (0.29 to 0.30), slower" in policies.verdict(late, "T")
    never = [*found[:4], made("T", "held", "adaptive", 20, [policies.EPISODES] * policies.TESTED_ON)]
    assert "lucky: no seed of any solves it, and nothing can be told" in policies.verdict(never, "T")
    assert report.markdown_table(found).count("\n") == 6
    assert f"{policies.EPISODES}.0 ({policies.TESTED_ON} not)" in report.markdown_table(found)
    drawn: Any = report.picture(found)
    dots, lines = drawn.data[::2], drawn.data[1::2]
    assert [line.x[0] for line in lines] == [policies.tested(each).mean() for each in found]
    assert [len(dot.x) for dot in dots] == [policies.TESTED_ON - policies.unsolved(each) for each in found]
    assert len({line.y for line in lines}) == len(found)  # a row each


def test_a_difference_that_one_comparison_would_show_is_not_shown_among_many():
    """Means 2.6 standard errors apart: beyond 2.2 of two comparisons at 95 % together, within 3.1 of twenty-four."""
    shape = np.resize([-6.0, -2.0, 2.0, 6.0], policies.TESTED_ON)
    error = math.sqrt(2 * shape.var() / policies.TESTED_ON)
    slow, fast = (shape + 60 + side * 1.3 * error for side in (1, -1))

    def task(name: str) -> list[Trained]:
        return [made(name, "fixed", "fixed", 60, slow.tolist()), made(name, "held", "adaptive", 60, fast.tolist())]

    alone, among = task("T"), [each for k in range(12) for each in task(f"T{k or ''}")]
    assert ", faster, twice as fast is ruled out" in policies.verdict(alone, "T")
    assert ", no difference is shown, twice as fast is ruled out" in policies.verdict(among, "T")
    for comparisons in (1, 2, 24):
        r, quantile = policies.ratio(*alone, comparisons), scipy.stats.norm.isf(0.025 / comparisons)
        half = quantile * error / 60  # of a ratio near 1
        assert (r.high - r.low) / 2 == pytest.approx(half, rel=0.1)


def test_of_an_even_number_both_in_the_middle_are_compared_and_what_is_said_holds_of_both():
    rng = np.random.default_rng(0)
    around = lambda n: rng.integers(n - 3, n + 4, policies.TESTED_ON).tolist()
    fixed = made("T", "fixed", "fixed", 60, around(60))
    held = lambda *means: [made("T", f"held {k}", "adaptive", k, around(n)) for k, n in enumerate(means)]
    said = policies.verdict([fixed, *held(20, 20, 80, 160)], "T")
    assert "the median adaptive settings, of an even number both in the middle, held 1 and held 2, beside the median fixed" in said
    assert "over both), no difference is shown, twice as fast is not ruled out" in said
    assert "over both), at least twice as fast" in policies.verdict([fixed, *held(20, 20, 25, 160)], "T")
    swapped = policies.verdict([fixed, *held(20, 80, 20, 160)], "T")
    assert "over both), no difference is shown, twice as fast is not ruled out" in swapped
    assert [each.method for each in policies.middle(held(1, 2, 3))] == ["held 1"]


def test_a_method_learns_the_same_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policies, "EPISODES", 12)
    monkeypatch.setattr(policies, "WINDOW", 1)
    monkeypatch.setattr(policies.CartPole, "goal", 60.0)
    monkeypatch.setattr(policies.CliffWalking, "goal", -60.0)
    monkeypatch.setattr(policies.CliffWalking, "longest", 40)
    for task, places in (("CartPole", (5, 14)), ("CliffWalking", (2, 10))):
        methods = [policies.METHODS[k] for k in places]
        for method, each in zip(methods, policies.learn(task, methods, 3), strict=True):
            assert len({*each.episodes}) > 1  # of seeds that are all alike nothing could be told
            alone = policies.learn(task, (method,), 1)[0]
            assert (alone.episodes, alone.solved) == (each.episodes[:1], each.solved[:1])


def test_the_picture_is_of_the_seeds_that_judge():
    found = [made("T", "held", kind, 1, [100] * policies.TESTED_ON) for kind in ("fixed", "falling", "adaptive")]
    lines: Any = report.picture(found).data
    assert all(min(line.x[1:]) == 100 for line in lines)


def test_of_methods_that_are_alike_nothing_is_said_to_be_faster():
    """With one chance in twenty that anything is, though the best were chosen."""
    rng, claims = np.random.default_rng(0), []
    for _ in range(20):
        drawn = lambda: np.minimum(rng.geometric(0.04, policies.TUNED_ON + policies.TESTED_ON), policies.EPISODES).tolist()
        found = []
        for task in ("T", "U"):
            for method in policies.METHODS:
                n = tuple(drawn())
                found.append(Trained(task, method.name, method.kind, n, tuple(each < policies.EPISODES for each in n)))
        said = report.sentence(found)
        claims.append(any(f"), {word}" in said for word in ("slower", "faster", "at least")))
    assert sum(claims) <= 3  # of 20 at 5 %, more than 3 come in 1.6 % of cases
