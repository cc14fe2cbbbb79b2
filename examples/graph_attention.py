"""Which neighbours matter: attention over the edges of a graph that gives the others exactly nothing.

Every node has 12 neighbours, of which three are marked, by a feature that all can see, and its target is the mean of what these
three say. The truth is known: a weight of 1/3 for each marked neighbour and 0 for the others. A softmax comes near that as its
scores grow, and never reaches it; sparsemax is there once the scores are far enough apart.

    python examples/graph_attention.py
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

NODES, NEIGHBOURS, MARKED = 200, 12, 3


def graph(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The node of each edge, in any order, whether the neighbour is marked for it, and what that says."""
    rng = torch.Generator().manual_seed(seed)
    to = torch.arange(NODES).repeat_interleave(NEIGHBOURS)
    marked = (torch.rand(NODES, NEIGHBOURS, generator=rng).argsort(1) < MARKED).flatten()
    order = torch.randperm(len(to), generator=rng)
    said = torch.randn(len(to), generator=rng)
    return to[order], marked[order], said[order]


def attend(map: str, seed: int = 0, steps: int = 300) -> dict[str, float]:
    """What attention with this map learns of features that are the mark in noise: its error and weights on another graph."""
    rng = torch.Generator().manual_seed(100 + seed)
    torch.manual_seed(seed)
    score = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    optimiser = torch.optim.Adam(score.parameters(), 0.01)

    def pass_over(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        to, marked, said = graph(seed)
        features = torch.stack([marked + 0.1 * torch.randn(len(to), generator=rng), torch.randn(len(to), generator=rng)], 1)
        segments = sm.Segments(to, NODES)
        p = sm.segment_map(map, score(features).squeeze(1), segments)
        mean = torch.zeros(NODES).index_add(0, to, p * said)
        truth = torch.zeros(NODES).index_add(0, to, marked * said / MARKED)
        return (mean - truth).square().mean(), p, marked

    for step in range(steps):
        optimiser.zero_grad()
        pass_over(1000 + step)[0].backward()
        optimiser.step()
    with torch.no_grad():
        error, p, marked = pass_over(seed)
    return {
        "error": float(error),
        "left out": float((p[~marked] == 0).float().mean()),
        "weight of a marked one": float(p[marked].mean()),
    }


def main(
    seed: Annotated[int, count("Of graphs and weights.", least=0)] = 0,
    steps: Annotated[int, count("Of training.")] = 300,
) -> None:
    for name in ("softmax", "entmax15", "sparsemax"):
        found = attend(name, seed, steps)
        print(f"{name:10}", ", ".join(f"{what} {value:.4f}" for what, value in found.items()))


if __name__ == "__main__":
    run(main, __doc__)
