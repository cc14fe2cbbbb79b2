r"""Contrastive training as CLIP's: the left half of a picture of a digit must find its right half among those of all pictures.

    L = ½ mean_i [−log softmax(s_i·/τ)_i] + ½ mean_i [−log softmax(s_·i/τ)_i],        s_ij = ⟨u_i, v_j⟩ of unit vectors

Each way to choose τ is one argument, `temperature=`: fixed, learnt, and by a schedule. Recall@1 is how often the right half of a
held-out picture is the nearest of all held-out ones. Means and standard errors over seeds, which choose pictures and weights.

    python examples/two_views.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import softmaxima as sm
from softmaxima_lab.commands.example import checked, count, run

WAYS: dict[str, Callable[[int], Any]] = {
    **{f"fixed {tau}": lambda steps, tau=tau: tau for tau in (0.01, 0.05, 0.1, 0.3, 1.0)},
    "learnt from 0.07": lambda steps: sm.Temperature(0.07, 0.01, 1.0),
    "learnt from 1": lambda steps: sm.Temperature(1.0, 0.01, 1.0),
    "geometric 1 to 0.05": lambda steps: sm.GeometricTemperature(1.0, 0.05, steps),
    "cosine 0.3 to 0.05": lambda steps: sm.CosineTemperature(0.3, 0.05, steps),
}


def halves(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((left, right) to learn, (left, right) held out), [pictures, 32] each."""
    from sklearn.datasets import load_digits

    pictures = torch.from_numpy(load_digits().images).float() / 16
    pictures = pictures[torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))]
    left, right = pictures[..., :4].flatten(1), pictures[..., 4:].flatten(1)
    return (left[:1200], right[:1200]), (left[1200:], right[1200:])


def recall(way: str, seed: int, steps: int = 400) -> tuple[float, float]:
    """(recall@1 of held-out pictures, τ in the end)."""
    (left, right), held = halves(seed)
    torch.manual_seed(seed)
    encoders = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32)) for _ in range(2))
    loss = sm.InBatchSoftmax(symmetric=True, temperature=WAYS[way](steps))
    optimizer = torch.optim.Adam([*encoders.parameters(), *loss.parameters()], 2e-3)
    for _ in range(steps):
        batch = torch.randint(len(left), (256,))
        optimizer.zero_grad()
        loss(*(normalize(encode(view[batch]), dim=-1) for encode, view in zip(encoders, (left, right), strict=True))).backward()
        optimizer.step()
        if isinstance(loss.temperature, sm.TemperatureSchedule):
            loss.temperature.step()
    with torch.no_grad():
        u, v = (normalize(encode(view), dim=-1) for encode, view in zip(encoders, held, strict=True))
        found = (u @ v.T).argmax(-1) == torch.arange(len(u))
        tau = loss.temperature() if isinstance(loss.temperature, nn.Module) else loss.temperature
        return float(found.double().mean()), float(tau)


def check_way(name: str) -> None:
    if name not in WAYS:
        raise ValueError(f"must be one of {', '.join(WAYS)}, got {name!r}")


def main(
    seeds: Annotated[int, count("That choose pictures and weights.", least=2)] = 5,
    ways: Annotated[tuple[str, ...], checked("Of choosing τ, by their names in the table.", check_way)] = (*WAYS,),
) -> dict[str, list[tuple[float, float]]]:
    results = {}
    print(f"{'τ':22}{'recall@1':>18}{'τ in the end':>16}")
    for way in ways:
        results[way] = [recall(way, seed) for seed in range(seeds)]
        found, taus = zip(*results[way], strict=True)
        spread = stdev(found) / math.sqrt(seeds) if seeds > 1 else math.nan
        print(f"{way:22}{fmean(found):>10.3f} ± {spread:.3f}{fmean(taus):>16.3f}")
    return results


if __name__ == "__main__":
    run(main, __doc__)
