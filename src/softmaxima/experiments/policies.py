r"""How soon a learner with a softmax policy solves a task: temperatures that are fixed, that fall, and that hold an entropy.

The learner is soft Sarsa(λ) in expectation: actions are drawn from π = softmax(q/τ), q(s, a) = ⟨w_a, φ(s)⟩, and

    δ = r + γ V(s′) − q(s, a)        V = τ log Σ_a exp(q/τ)        e ← γλ e + ∂q(s, a)        w ← w + η δ e

so that τ decides both how it explores and what it learns. φ are the Fourier features of Konidaris, Osentoski & Thomas (2011), or
the indicators of states. All learners of a task run side by side, each with its own environment, weights and temperature.

A task is solved at episode T, the first of `WINDOW` of which the mean return is at least the task's goal. A learner that has begun
no such window after `EPISODES` is censored there: what is compared is the mean of min(T, EPISODES), the restricted mean of survival
analysis, which is defined whoever is censored. Where more of one kind are, the ratio is nearer to 1 than it would be without end.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from scipy.stats import bootstrap

import softmaxima as sm
from softmaxima.core.writing import finite, write_text
from softmaxima.policy import AdaptiveTemperature

try:
    import gymnasium
except ModuleNotFoundError:
    raise ImportError('experiments of policies need gymnasium: pip install "softmaxima[rl]"', name="gymnasium") from None

TUNED_ON, TESTED_ON = 10, 30  # seeds: those by which a temperature is chosen, and others, by which it is judged
EPISODES, WINDOW = 180, 20
DISCOUNT, TRACE, RATE, ORDER = 0.99, 0.9, 0.005, 3
TABLE_RATE = 0.1  # where one feature at a time is 1, and not all of 256
FIXED = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # in units of the reward
HELD, FROM = (0.05, 0.15, 0.3, 0.5), (1.0, 10.0)  # shares of log n, and τ at first
FALLS_FOR = 20_000  # steps
TEMPERATURE_RATE, EVERY = 0.03, 10  # of Adam, on log τ, and the steps of which it takes one
RESAMPLES = 10_000


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
    """How many times as many episodes one method takes as another, with its interval at 95 %."""

    value: float
    low: float
    high: float


# Tasks --------------------------------------------------------------------------------------------------------------------------


class Environments(Protocol):
    """Copies of an environment that step together; one that ended begins anew at the next step, whose reward counts for nothing."""

    actions: int
    goal: float  # the mean return that solves it
    rates: np.ndarray  # of learning, one a feature

    def reset(self, seed: int) -> np.ndarray:
        """Features [copies, …] of the first states."""
        ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(features, rewards, whether ended, whether cut off) [copies]."""
        ...


class CartPole:
    """gymnasium's, all copies in one array, with Fourier features of position, speed, angle and angular speed."""

    actions, goal = 2, 475.0
    limits = np.array([2.4, 3.0, 0.21, 3.0], np.float32)

    def __init__(self, copies: int) -> None:
        self.made = gymnasium.make_vec("CartPole-v1", copies, vectorization_mode="vector_entry_point")
        self.orders = np.array(list(itertools.product(range(ORDER + 1), repeat=4)), np.float32)
        # Smaller for features that vary faster, as of Konidaris et al.
        self.rates = (RATE / np.linalg.norm(self.orders, axis=1).clip(1.0)).astype(np.float32)

    def features(self, seen: np.ndarray) -> np.ndarray:
        place = (seen / self.limits).clip(-1, 1) / 2 + 0.5
        return np.cos(np.float32(np.pi) * (place @ self.orders.T))

    def reset(self, seed: int) -> np.ndarray:
        return self.features(self.made.reset(seed=seed)[0])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        seen, reward, ended, cut, _ = self.made.step(actions)
        return self.features(seen), reward, ended, cut


class CliffWalking:
    """gymnasium's table of transitions: 48 places, −1 a step and −100 in the cliff; the shortest safe way takes 13 steps."""

    actions, goal, longest = 4, -20.0, 200

    def __init__(self, copies: int) -> None:
        made: Any = gymnasium.make("CliffWalking-v1").unwrapped
        table = [[made.P[s][a][0] for a in range(4)] for s in range(made.observation_space.n)]  # it is deterministic
        self.next, self.reward, self.ended = (np.array([[row[part] for row in rows] for rows in table]) for part in (1, 2, 3))
        self.start = int(made.start_state_index)
        self.rates = np.full(len(table), TABLE_RATE, np.float32)
        self.place, self.steps, self.over = np.full(copies, self.start), np.zeros(copies, int), np.zeros(copies, bool)

    def features(self) -> np.ndarray:
        return np.eye(len(self.next), dtype=np.float32)[self.place]

    def reset(self, seed: int) -> np.ndarray:
        self.place[:] = self.start
        return self.features()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        again, before = self.over, self.place
        self.place = np.where(again, self.start, self.next[before, actions])
        self.steps = np.where(again, 0, self.steps + 1)
        ended = self.ended[before, actions] & ~again
        cut = (self.steps >= self.longest) & ~ended
        self.over = ended | cut
        return self.features(), self.reward[before, actions], ended, cut


TASKS: dict[str, Callable[[int], Environments]] = {"CartPole": CartPole, "CliffWalking": CliffWalking}


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
            self.held.loss(torch.stack(self.seen)).backward()  # [steps, learners, actions]
            self.optimiser.step()
            self.tau[self.own] = self.held().detach().numpy()
            self.seen.clear()


def learn(
    task: str,
    methods: Sequence[Method] = METHODS,
    seeds: int = TUNED_ON + TESTED_ON,
    advanced: Callable[[int], None] = lambda n: None,
) -> list[Trained]:
    """Train every method with so many seeds on a task; `advanced(n)` is told how many learners are done."""
    each = [method for method in methods for _ in range(seeds)]
    episodes, solved = _episodes(TASKS[task](len(each)), each, advanced)
    parts = (slice(k * seeds, (k + 1) * seeds) for k in range(len(methods)))
    return [
        Trained(task, method.name, method.kind, tuple(episodes[own].tolist()), tuple(solved[own].tolist()))
        for method, own in zip(methods, parts, strict=True)
    ]


def _episodes(made: Environments, methods: Sequence[Method], advanced: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """(episodes, solved) [learners]. A learner that is done is left out of all work but that of its environment."""
    count, longest, rng = len(methods), EPISODES + WINDOW - 1, np.random.default_rng(0)
    temperatures = Temperatures(methods, made.actions)
    x = made.reset(seed=0)
    returns, window = np.zeros(count), np.full((count, WINDOW), -np.inf)
    episodes, solved, begins = np.zeros(count, int), np.zeros(count, bool), np.zeros(count, bool)
    actions, values = np.zeros(count, int), np.zeros((count, made.actions), np.float32)
    active = np.arange(count)
    weights = np.zeros((count, made.actions, x.shape[1]), np.float32)  # of the active, as the traces
    traces = np.zeros_like(weights)
    q = _values(weights, x)
    while len(active):
        tau, rows = temperatures.tau[active], np.arange(len(active))
        reached = sm.softmax(q.astype(float), temperature=tau).cumsum(1)
        chosen = (reached < rng.random((len(active), 1)) * reached[:, -1:]).sum(1)
        actions[active] = chosen
        x_next, reward, ended, cut = made.step(actions)
        fresh = begins[active]
        q_next = _values(weights, x_next[active])
        value = np.where(ended[active], 0.0, tau[:, 0] * sm.logsumexp(q_next.astype(float), temperature=tau))
        wrong = np.where(fresh, 0.0, reward[active] + DISCOUNT * value - q[rows, chosen]).astype(np.float32)
        traces *= np.where(fresh, 0.0, DISCOUNT * TRACE).astype(np.float32)[:, None, None]
        traces[rows, chosen] += x[active] * ~fresh[:, None]
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
            active, weights, traces = active[going], weights[going], traces[going]
        q = _values(weights, x[active])
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


def ratio(slow: Trained, fast: Trained) -> Ratio:
    """The restricted mean of one over that of another, on the seeds that judge, with the percentile interval of the bootstrap."""
    of = lambda a, b, axis=-1: np.mean(a, axis=axis) / np.mean(b, axis=axis)
    a, b = tested(slow), tested(fast)
    if not (a.std() or b.std()):
        return Ratio(float(of(a, b)), float(of(a, b)), float(of(a, b)))
    ends = bootstrap((a, b), of, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return Ratio(float(of(a, b)), float(ends.low), float(ends.high))


def verdict(found: Sequence[Trained], task: str) -> str:
    """What holds of the claim that an adaptive temperature converges twice as fast."""
    fixed, adaptive = ranked(found, task, "fixed"), ranked(found, task, "adaptive")[0]
    parts = []
    for word, other in (("best", fixed[0]), ("median", fixed[len(fixed) // 2])):
        r = ratio(other, adaptive)
        ends = ((r.high < 1, "slower"), (r.low >= 2, "at least twice as fast"), (r.high < 2, "less than twice as fast"))
        holds = next((words for is_so, words in ends if is_so), "twice as fast is not ruled out")
        parts.append(f"{r.value:.2f} times ({r.low:.2f} to {r.high:.2f}) on the {word} fixed one, {other.method}: {holds}")
    return f"{task}, {adaptive.method}: {'; '.join(parts)}"


def write(found: Sequence[Trained], made_on: Mapping[str, Any], path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    facts = {"tuned_on": TUNED_ON, "tested_on": TESTED_ON, "cap": EPISODES, "window": WINDOW, "rate": RATE}
    record = {**made_on, "gymnasium": gymnasium.__version__, **facts, "results": [asdict(each) for each in found]}
    write_text(path, json.dumps(finite(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> list[Trained]:
    """What is in such a file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return [Trained(**{**each, **{key: tuple(each[key]) for key in ("episodes", "solved")}}) for each in record["results"]]
