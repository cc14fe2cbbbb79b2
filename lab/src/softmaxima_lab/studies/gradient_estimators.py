r"""What each estimator of a gradient is worth, on a problem whose gradient is known: its bias and its variance, measured.

    E f(D),  D one-hot from softmax(x) over n classes,    ∇E f(D) = Σ_i f(i) p_i (e_i − p)

f is neither linear nor quadratic, and far from 0 on average, as a loss is: REINFORCE without a baseline pays for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.numbers import check_count
from softmaxima.sampling import Relax, expectation
from softmaxima.sampling.estimators import ESTIMATORS

N = 20_000


@dataclass(frozen=True)
class Problem:
    """Scores [n] in float64 and f, of draws [..., n]."""

    x: Tensor
    f: Callable[[Tensor], Tensor]

    def gradient(self) -> Tensor:
        """∇E f(D), by the sum over all classes."""
        x = self.x.clone().requires_grad_()
        values = self.f(torch.eye(len(x), dtype=x.dtype))
        return torch.autograd.grad(x.softmax(-1) @ values, x)[0]


def standard_problem(n: int = 6, seed: int = 0) -> Problem:
    """f(D) = 2 + |A D − t|² + sin(⟨w, D⟩), with normal A [4, n], t and w.

    >>> standard_problem().gradient().sum().abs() < 1e-12
    tensor(True)
    """
    source = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=source)
    x, a, t, w = normal(n), normal(4, n) / 2, normal(4) / 2, normal(n)
    return Problem(x, lambda draws: 2 + (draws @ a.T - t).square().sum(-1) + torch.sin(draws @ w))


@dataclass(frozen=True)
class Measured:
    """An estimator over many independent estimates of a gradient g [n].

    `bias` is |E ĝ − g|, relative to |g|; `deviation` the largest of (E ĝ − g)_i in standard errors; `variance` is E|ĝ − E ĝ|²/|g|²,
    of one estimate; `unbiased` is what it claims.
    """

    name: str
    unbiased: bool
    bias: float
    deviation: float
    variance: float


# Of each estimator its options, and as many samples as take four evaluations of f.
PLAN: dict[str, tuple[dict[str, Any], int]] = {
    "gumbel_softmax": ({"temperature": 0.5}, 4),
    "gumbel_sparsemax": ({"temperature": 0.5}, 4),
    "straight_through_gumbel": ({"temperature": 0.5}, 4),
    "rao_blackwell_gumbel": ({"temperature": 0.5, "conditionals": 10}, 4),
    "straight_through": ({}, 4),
    "reinmax": ({}, 4),
    "reinforce": ({}, 4),
    "reinforce_leave_one_out": ({}, 4),
    "sum_and_sample": ({"exact": 2, "baseline": "leave_one_out"}, 2),
    "rebar": ({"temperature": 0.5}, 2),
    "relax": ({}, 2),
}


def measure_estimators(problem: Problem | None = None, estimates: int = N, steps: int = 100, seed: int = 0) -> list[Measured]:
    """Each estimator, of four evaluations of f; the control variate of "relax" has learned for some steps, "rebar" as it begins.

    >>> found = {row.name: row for row in measure_estimators(estimates=2000, steps=5)}
    >>> found["reinforce_leave_one_out"].variance < found["reinforce"].variance
    True
    """
    check_count("measure_estimators", "estimates", estimates, 2)
    problem = problem or standard_problem()
    learned = learned_control(problem, steps, seed)
    rows = []
    for name, (options, samples) in PLAN.items():
        evaluate = learned if name == "relax" else partial(expectation, estimator=name, **options)
        gradients = estimated(problem, evaluate, samples, estimates, seed)
        rows.append(measured(name, gradients, problem.gradient()))
    return rows


def estimated(problem: Problem, evaluate: Callable[..., Tensor], samples: int, estimates: int, seed: int) -> Tensor:
    """Independent estimates of the gradient [estimates, n], each of its own draws."""
    x = problem.x.expand(estimates, -1).clone().requires_grad_()
    value = evaluate(x, problem.f, samples=samples, generator=seed)
    return torch.autograd.grad(value.sum(), x)[0]


def measured(name: str, gradients: Tensor, truth: Tensor) -> Measured:
    """What the estimates say."""
    error, size = gradients.mean(0) - truth, truth.norm()
    spread = gradients.var(0)
    deviation = (error.abs() / (spread / len(gradients)).sqrt().clamp_min(1e-12)).max()
    unbiased = ESTIMATORS[name].unbiased
    return Measured(name, unbiased, float(error.norm() / size), float(deviation), float(spread.sum() / size.square()))


def learned_control(problem: Problem, steps: int, seed: int = 0, rows: int = 256) -> Relax:
    """A control variate with a small network, after so many steps towards less variance."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(len(problem.x), 32), torch.nn.Tanh(), torch.nn.Linear(32, 1), torch.nn.Flatten(-2)
        ).double()
    control = Relax(network, temperature=0.5)
    optimiser = torch.optim.Adam(control.parameters(), lr=0.02)
    source = torch.Generator().manual_seed(seed + 1)
    for _ in range(steps):
        optimiser.zero_grad()
        x = problem.x.expand(rows, -1).clone().requires_grad_()
        control.learn(control(x, problem.f, samples=1, generator=source), x)
        optimiser.step()
    return control


TEMPERED = ("gumbel_softmax", "straight_through_gumbel", "rao_blackwell_gumbel", "rebar")  # whose temperature is drawn
TEMPERATURES = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)


def measure_temperatures(
    problem: Problem | None = None, temperatures: Sequence[float] = TEMPERATURES, estimates: int = N, seed: int = 0
) -> dict[str, list[Measured]]:
    """Each estimator that has a temperature, at each.

    >>> found = measure_temperatures(temperatures=(0.1, 5.0), estimates=2000)["gumbel_softmax"]
    >>> found[0].variance > found[1].variance, found[0].bias < found[1].bias
    (True, True)
    """
    problem = problem or standard_problem()
    found: dict[str, list[Measured]] = {}
    for name in TEMPERED:
        options, samples = PLAN[name]
        for temperature in temperatures:
            evaluate = partial(expectation, estimator=name, **(options | {"temperature": temperature}))
            gradients = estimated(problem, evaluate, samples, estimates, seed)
            found.setdefault(name, []).append(measured(name, gradients, problem.gradient()))
    return found


@dataclass(frozen=True)
class Study:
    """All that was found: each estimator as it is used, and those with a temperature at each."""

    results: Sequence[Measured]
    at_temperatures: Mapping[str, Sequence[Measured]]
