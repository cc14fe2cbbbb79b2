r"""Elastic softmax says "none of these": a classifier of eight digits is shown the two that it was never taught.

    p_i = exp(x_i/τ) / (Σ_j exp(x_j/τ) + exp(β)),        1 − Σp: the probability of none

τ and β are learnt with the network. τ is exp(ρ), softplus(ρ), between limits, or falls by a schedule; each is one argument. For
every one the table has the accuracy on known digits, τ in the end, and how often a picture of an unknown digit has a larger 1 − Σp
than one of a known digit (the area under the ROC curve; ½ is chance), beside 1 − max p of a plain softmax of the same scores. Means
and standard errors over seeds.

    python examples/elastic_none.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Annotated

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

KNOWN = 8  # digits 0 to 7
TEMPERATURES: dict[str, Callable[[], nn.Module]] = {
    "exp": lambda: sm.Temperature(1.0),
    "softplus": lambda: sm.Temperature(1.0, parametrization="softplus"),
    "between limits": lambda: sm.Temperature(1.0, 0.5, 2.0),
    "annealed": lambda: sm.ExponentialTemperature(2.0, 0.99, 0.5),
}


def digits(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """((pictures, digits) to learn, the same held out, pictures of digits that are not taught)."""
    from sklearn.datasets import load_digits

    pictures, names = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pictures).float() / 16, torch.from_numpy(names)
    known = (y < KNOWN).nonzero().squeeze(-1)
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    taught, held = known[: len(known) // 2], known[len(known) // 2 :]
    return (x[taught], y[taught]), (x[held], y[held]), x[y >= KNOWN]


def trained(temperature: nn.Module, seed: int, steps: int = 300) -> tuple[nn.Module, sm.ElasticSoftmax]:
    """A network and its elastic softmax, whose β and, where it can, τ have learnt with it."""
    (x, y), *_ = digits(seed)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, KNOWN))
    beta = nn.Parameter(torch.zeros(1))
    last = sm.ElasticSoftmax(beta, temperature=temperature)
    optimizer = torch.optim.Adam([*network.parameters(), *last.parameters()], 1e-2, weight_decay=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        sm.elastic_cross_entropy(network(x), y, beta=beta, temperature=temperature).backward()
        optimizer.step()
        if isinstance(temperature, sm.TemperatureSchedule):
            temperature.step()
    return network.eval(), last.eval()


def area(unknown: Tensor, known: Tensor) -> float:
    """How often a number of the first is above one of the second; a tie counts half."""
    gaps = unknown[:, None] - known
    return float(((gaps > 0).double() + 0.5 * (gaps == 0).double()).mean())


@torch.no_grad()
def measured(name: str, seed: int) -> dict[str, float]:
    """Of one temperature and one seed."""
    temperature = TEMPERATURES[name]()
    with torch.enable_grad():
        network, last = trained(temperature, seed)
    _, (x, y), strange = digits(seed)
    known, unknown = last(network(x)), last(network(strange))
    plain = [1 - torch.softmax(network(pictures) / temperature(), -1).amax(-1) for pictures in (strange, x)]
    return {
        "accuracy": float((known.argmax(-1) == y).double().mean()),
        "τ": float(temperature()),
        "none": area(1 - unknown.sum(-1), 1 - known.sum(-1)),
        "1 − max p": area(*plain),
    }


def main(seeds: Annotated[int, count("That choose pictures and weights.", least=2)] = 5) -> dict[str, dict[str, list[float]]]:
    results = {}
    print(f"{'τ':15}{'accuracy':>16}{'learnt τ':>16}{'none: area':>18}{'1 − max p: area':>18}")
    for name in TEMPERATURES:
        runs = [measured(name, seed) for seed in range(seeds)]
        results[name] = {key: [run[key] for run in runs] for key in runs[0]}
        cells = [f"{fmean(of):.3f} ± {stdev(of) / math.sqrt(seeds):.3f}" for of in results[name].values()]
        print(f"{name:15}" + "".join(f"{cell:>17}" for cell in cells))
    return results


if __name__ == "__main__":
    run(main, __doc__)
