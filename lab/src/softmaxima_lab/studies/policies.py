r"""How soon a learner with a softmax policy solves a task: temperatures that are fixed, that fall, and that hold an entropy.

The learner is soft Sarsa(λ) in expectation: actions are drawn from π = softmax(q/τ), q(s, a) = ⟨w_a, φ(s)⟩, and

    δ = r + γ V(s′) − q(s, a)        V = τ log Σ_a exp(q/τ)        e ← γλ e + ∂q(s, a)        w ← w + η δ e

so that τ decides both how it explores and what it learns. φ are the Fourier features of Konidaris, Osentoski & Thomas (2011), or
the indicators of states. All learners of a task run side by side, each with its own environment, weights, temperature and random
numbers, so that it learns the same alone.

A task is solved at episode T, the first of `WINDOW` of which the mean return is at least the task's goal. A learner that has begun
no such window after `EPISODES` is censored there: what is compared is the mean of min(T, EPISODES), the restricted mean of survival
analysis, which is defined whoever is censored. Where more of one kind are, the ratio is nearer to 1 than it would be without end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from scipy.stats import bootstrap

import softmaxima as sm
from softmaxima.policy import AdaptiveTemperature

try:
    import gymnasium
except ModuleNotFoundError:
    raise ImportError('experiments of policies need gymnasium: pip install "softmaxima-lab[rl]"', name="gymnasium") from None

TUNED_ON, TESTED_ON = 10, 30  # seeds: those by which a temperature is chosen, and others, by which it is judged
EPISODES, WINDOW = 180, 20
DISCOUNT, TRACE, RATE, ORDER = 0.99, 0.9, 0.005, 3
TABLE_RATE = 0.1  # where one feature at a time is 1, and not all of 256
FIXED = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # in units of the reward
HELD, FROM = (0.05, 0.15, 0.3, 0.5), (1.0, 10.0)  # shares of log n, and τ at first
FALLS_FOR = 20_000  # steps
TEMPERATURE_RATE, EVERY = 0.03, 10  # of Adam, on log τ, and the steps of which it takes one
RESAMPLES, LEVEL = 10_000, 0.05  # the chance that any interval that is told misses
DRAWN = 1000  # random numbers of a learner at a time


@dataclass(frozen=True)
class Method:
    """A temperature: fixed, falling, or holding a share of the largest entropy."""

    name: str
    kind: str
    value: float
    start: float = 1.0  # of a τ that holds an entropy


METHODS = (
    *(Method(f"τ = {tau:g}", "fixed", tau) for tau in FIXED),
    Method("τ from 10 to 0.1", "falling", 10.0),
    *(Method(f"entropy {100 * share:g} %, from τ = {tau:g}", "adaptive", share, tau) for tau in FROM for share in HELD),
)


@dataclass(frozen=True)
class Trained:
    """The episode at which each seed solved the task, or was censored."""

    task: str
    method: str
    kind: str
    episodes: tuple[int, ...]
    solved: tuple[bool, ...]


@dataclass(frozen=True)
class Ratio:
    """How many times as many episodes one method takes as another, with its interval."""

    value: float
    low: float
    high: float


# Tasks --------------------------------------------------------------------------------------------------------------------------


class Environments(Protocol):
    """Copies of an environment that step together; one that ended begins anew at the next step, whose reward counts for nothing."""

    actions: int
    goal: float  # the mean return that solves it
    rates: np.ndarray  # of learning, one a feature

    def features(self, which: np.ndarray) -> np.ndarray:
        """Features [len(which), …] of the states of these copies."""
        ...

    def reset(self) -> None:
        """Begin an episode in each."""
        ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rewards, whether ended, whether cut off) [copies]."""
        ...


class CartPole:
    """gymnasium's, all copies in one array, with Fourier features of position, speed, angle and angular speed."""

    actions, goal = 2, 475.0
    limits = np.array([2.4, 3.0, 0.21, 3.0], np.float32)

    def __init__(self, rngs: Sequence[np.random.Generator]) -> None:
        self.rngs = rngs
        made: Any = gymnasium.make_vec("CartPole-v1", len(rngs), vectorization_mode="vector_entry_point")
        self.made = made.unwrapped
        self.orders = np.array(list(itertools.product(range(ORDER + 1), repeat=4)), np.float32)
        # Smaller for features that vary faster, as of Konidaris et al.
        self.rates = (RATE / np.linalg.norm(self.orders, axis=1).clip(1.0)).astype(np.float32)

    def features(self, which: np.ndarray) -> np.ndarray:
        place = (self.made.state.T[which].astype(np.float32) / self.limits).clip(-1, 1) / 2 + 0.5
        # One axis after the other, which rounds alike for however many rows; a product of matrices does not.
        return np.cos(np.float32(np.pi) * sum(place[:, k, None] * self.orders[:, k] for k in range(4)))

    def begin(self, which: np.ndarray) -> None:
        """The first states of these copies, each by its own numbers."""
        for i in np.flatnonzero(which).tolist():
            self.made.state[:, i] = self.rngs[i].uniform(self.made.low, self.made.high, 4)

    def reset(self) -> None:
        self.made.reset(seed=0)
        self.begin(np.ones(len(self.rngs), bool))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        over = self.made.prev_done
        _, reward, ended, cut, _ = self.made.step(actions)
        self.begin(over)
        return reward, ended, cut


class CliffWalking:
    """gymnasium's table of transitions: 48 places, −1 a step and −100 in the cliff; the shortest safe way takes 13 steps."""

    actions, goal, longest = 4, -20.0, 200

    def __init__(self, rngs: Sequence[np.random.Generator]) -> None:
        copies, made = len(rngs), cast(Any, gymnasium.make("CliffWalking-v1").unwrapped)
        table = [[made.P[s][a][0] for a in range(4)] for s in range(made.observation_space.n)]  # it is deterministic
        self.next, self.reward, self.ended = (np.array([[row[part] for row in rows] for rows in table]) for part in (1, 2, 3))
        self.start = int(made.start_state_index)
        self.rates = np.full(len(table), TABLE_RATE, np.float32)
        self.place, self.steps, self.over = np.full(copies, self.start), np.zeros(copies, int), np.zeros(copies, bool)

    def features(self, which: np.ndarray) -> np.ndarray:
        return np.eye(len(self.next), dtype=np.float32)[self.place[which]]

    def reset(self) -> None:
        self.place[:] = self.start

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        again, before = self.over, self.place
        self.place = np.where(again, self.start, self.next[before, actions])
        self.steps = np.where(again, 0, self.steps + 1)
        ended = self.ended[before, actions] & ~again
        cut = (self.steps >= self.longest) & ~ended
        self.over = ended | cut
        return self.reward[before, actions], ended, cut


TASKS: dict[str, Callable[[Sequence[np.random.Generator]], Environments]] = {"CartPole": CartPole, "CliffWalking": CliffWalking}


# Learning -----------------------------------------------------------------------------------------------------------------------


class Temperatures:
    """τ of each learner [learners, 1], those that hold an entropy by `AdaptiveTemperature`, together."""

    def __init__(self, methods: Sequence[Method], actions: int) -> None:
        kinds = np.array([method.kind for method in methods])
        self.tau = np.array([[method.value if method.kind == "fixed" else method.start] for method in methods])
        self.falls, self.own, self.adapts = kinds == "falling", kinds == "adaptive", bool((kinds == "adaptive").any())
        self.falling = sm.GeometricTemperature(10.0, 0.1, FALLS_FOR)
        self.steps, self.seen = 0, []
        if self.adapts:
            shares, starts = torch.tensor([(method.value, method.start) for method in methods if method.kind == "adaptive"]).T
            tau = sm.Temperature(starts[:, None], 1e-4, 1e4)
            self.held = AdaptiveTemperature(shares[:, None] * math.log(actions), tau)
            self.optimiser = torch.optim.Adam(self.held.parameters(), TEMPERATURE_RATE)

    def step(self, q: np.ndarray) -> None:
        """A step of each, by the values [learners, actions] that are seen; those that hold an entropy take some steps at a time."""
        self.steps += 1
        self.falling.step()
        self.tau[self.falls] = float(self.falling())
        if not self.adapts:
            return
        self.seen.append(torch.from_numpy(q[self.own]))
        if self.steps % EVERY == 0:
            self.optimiser.zero_grad()
            seen = torch.stack(self.seen)  # [steps, learners, actions]
            (self.held.loss(seen) * seen[..., 0].numel()).backward()  # a sum, so that a learner's slope is of its own steps alone
            self.optimiser.step()
            self.tau[self.own] = self.held().detach().numpy()
            self.seen.clear()


def learn(
    task: str,
    methods: Sequence[Method] = METHODS,
    seeds: int = TUNED_ON + TESTED_ON,
    advanced: Callable[[int], None] = lambda n: None,
) -> list[Trained]:
    """Train every method with so many seeds on a task; `advanced(n)` is told how many learners are done. What a method and a seed
    reach does not depend on what is trained beside them."""
    each = [(method, seed) for method in methods for seed in range(seeds)]
    ofs = (np.random.SeedSequence([seed, *f"{task}, {method.name}".encode()]).spawn(2) for method, seed in each)
    worlds, draws = zip(*((np.random.default_rng(world), np.random.default_rng(own)) for world, own in ofs), strict=True)
    episodes, solved = _episodes(TASKS[task](worlds), [method for method, _ in each], draws, advanced)
    parts = (slice(k * seeds, (k + 1) * seeds) for k in range(len(methods)))
    return [
        Trained(task, method.name, method.kind, tuple(episodes[own].tolist()), tuple(solved[own].tolist()))
        for method, own in zip(methods, parts, strict=True)
    ]


def _episodes(
    made: Environments, methods: Sequence[Method], rngs: Sequence[np.random.Generator], advanced: Callable[[int], None]
) -> tuple[np.ndarray, np.ndarray]:
    """(episodes, solved) [learners]. A learner that is done is left out of all work but that of its environment."""
    count, longest = len(methods), EPISODES + WINDOW - 1
    temperatures = Temperatures(methods, made.actions)
    made.reset()
    returns, window = np.zeros(count), np.full((count, WINDOW), -np.inf)
    episodes, solved, begins = np.zeros(count, int), np.zeros(count, bool), np.zeros(count, bool)
    actions, values = np.zeros(count, int), np.zeros((count, made.actions), np.float32)
    active = np.arange(count)
    x = made.features(active)  # of the active, as weights and traces
    weights = np.zeros((count, made.actions, x.shape[1]), np.float32)
    traces = np.zeros_like(weights)
    q = _values(weights, x)
    shares = np.empty((0, count))  # random numbers of each, drawn some steps at a time
    while len(active):
        if not len(shares):
            shares = np.stack([rng.random(DRAWN) for rng in rngs], 1)
        drawn, shares = shares[0, active, None], shares[1:]
        tau, rows = temperatures.tau[active], np.arange(len(active))
        reached = sm.softmax(q.astype(float), temperature=tau).cumsum(1)
        chosen = (reached < drawn * reached[:, -1:]).sum(1)
        actions[active] = chosen
        reward, ended, cut = made.step(actions)
        x_next = made.features(active)
        fresh = begins[active]
        q_next = _values(weights, x_next)
        value = np.where(ended[active], 0.0, tau[:, 0] * sm.logsumexp(q_next.astype(float), temperature=tau))
        wrong = np.where(fresh, 0.0, reward[active] + DISCOUNT * value - q[rows, chosen]).astype(np.float32)
        traces *= np.where(fresh, 0.0, DISCOUNT * TRACE).astype(np.float32)[:, None, None]
        traces[rows, chosen] += x * ~fresh[:, None]
        weights += (wrong[:, None, None] * made.rates) * traces
        values[active] = q
        temperatures.step(values)
        returns += np.where(begins, 0.0, reward)
        over, begins = (ended | cut) & ~begins, ended | cut
        for i in np.flatnonzero(over & ~solved & (episodes < longest)):
            window[i, episodes[i] % WINDOW] = returns[i]
            episodes[i] += 1
            solved[i] = window[i].mean() >= made.goal
        returns[over] = 0.0
        x = x_next
        going = ~solved[active] & (episodes[active] < longest)
        if not going.all():
            advanced(int((~going).sum()))
            active, weights, traces, x = active[going], weights[going], traces[going], x[going]
        q = _values(weights, x)
    return episodes - WINDOW + 1, solved  # the first of the window


def _values(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """q [learners, actions] of features [learners, …]."""
    return (weights @ x[:, :, None])[:, :, 0]


# What it says -------------------------------------------------------------------------------------------------------------------


def tested(each: Trained) -> np.ndarray:
    """Episodes of the seeds that judge."""
    return np.asarray(each.episodes[TUNED_ON:], float)


def ranked(found: Sequence[Trained], task: str, kind: str) -> list[Trained]:
    """The methods of a kind from the fastest to the slowest on the seeds that choose."""
    own = [each for each in found if each.task == task and each.kind == kind]
    return sorted(own, key=lambda each: float(np.mean(each.episodes[:TUNED_ON])))


def ratio(slow: Trained, fast: Trained, comparisons: int = 1) -> Ratio:
    """The restricted mean of one over that of another, on the seeds that judge, with the percentile interval of the bootstrap.

    It holds at once with those of so many `comparisons` (Bonferroni). Of seeds all alike, which show no spread, it has no ends.
    """
    of = lambda a, b, axis=-1: np.mean(a, axis=axis) / np.mean(b, axis=axis)
    a, b = tested(slow), tested(fast)
    if not (a.std() or b.std()):
        return Ratio(float(of(a, b)), 0.0, math.inf)
    how: Any = {"n_resamples": RESAMPLES, "method": "percentile", "confidence_level": 1 - LEVEL / comparisons}
    ends = bootstrap((a, b), of, rng=np.random.default_rng(0), **how).confidence_interval
    return Ratio(float(of(a, b)), float(ends.low), float(ends.high))


def unsolved(each: Trained) -> int:
    """How many of the seeds that judge did not solve the task."""
    return TESTED_ON - sum(each.solved[TUNED_ON:])


def middle(ordered: Sequence[Trained]) -> list[Trained]:
    """The one in the middle, or of an even number the two."""
    return list(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1])


def pairs(found: Sequence[Trained], task: str) -> dict[str, list[tuple[Trained, Trained]]]:
    """(fixed, adaptive), the best of each kind and those in the middle, on the seeds that choose."""
    fixed, adaptive = ranked(found, task, "fixed"), ranked(found, task, "adaptive")
    return {"best": [(fixed[0], adaptive[0])], "median": list(itertools.product(middle(fixed), middle(adaptive)))}


def verdict(found: Sequence[Trained], task: str) -> str:
    """What holds of the claim that an adaptive temperature converges twice as fast: of the best and of the median setting of each
    kind, both on the seeds that choose. Where two are in the middle, what is said holds of both."""
    comparisons = sum(len(each) for other in {each.task for each in found} for each in pairs(found, other).values())
    parts = []
    for word, compared in pairs(found, task).items():
        slow, fast = (list(dict.fromkeys(kind)) for kind in zip(*compared, strict=True))
        kinds = [
            f"the {word} {kind} setting {own[0].method}"
            if len(own) == 1
            else f"the {word} {kind} settings, of an even number both in the middle, {' and '.join(each.method for each in own)}"
            for kind, own in (("adaptive", fast), ("fixed", slow))
        ]
        said = f"{kinds[0]}, beside {kinds[1]}"
        if all(unsolved(each) == TESTED_ON for each in (*slow, *fast)):
            parts.append(f"{said}: no seed of any solves it, and nothing can be told")
            continue
        ratios = [ratio(*pair, comparisons) for pair in compared]
        low, high = min(r.low for r in ratios), max(r.high for r in ratios)
        held = ((high < 1, "slower"), (low >= 2, "at least twice as fast"), (low > 1, "faster"), (True, "no difference is shown"))
        holds = next(words for is_so, words in held if is_so)
        twice = "" if low >= 2 or high < 1 else ", twice as fast is ruled out" if high < 2 else ", twice as fast is not ruled out"
        left = [str(unsolved(each)) for each in (*fast, *slow)]
        capped = (
            f", with {', '.join(left[:-1])} and {left[-1]} of {TESTED_ON} seeds that do not solve it" if {*left} != {"0"} else ""
        )
        values = " and ".join(f"{r.value:.2f}" for r in ratios)
        over = " over both" if len(ratios) > 1 else ""
        parts.append(f"{said}: {values} times as fast ({low:.2f} to {high:.2f}{over}), {holds}{twice}{capped}")
    return f"{task}: {'; '.join(parts)}"
