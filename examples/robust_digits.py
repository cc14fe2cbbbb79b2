"""Which digits are certain: a network trained through intervals, and what attacks make of one that was not.

Two networks learn scikit-learn's digits. The one sees pictures as they are; the other minimises the most that its cross-entropy can
be where every pixel may be off by ε. The truth is known for neither picture nor network, but bounds are: no attack may succeed on
a picture that is certified, and what an attack leaves is never below what is certified.

    python examples/robust_digits.py
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

EPS = 0.05  # of pixels from 0 to 1


def digits() -> tuple[Tensor, Tensor]:
    """Pictures [rows, 64], in no order, and what they show."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(pictures / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]


def learn(x: Tensor, y: Tensor, eps: float, steps: int = 400) -> nn.Sequential:
    """A network that minimises its cross-entropy, or the most that this can be."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(steps):
        rows = torch.randint(len(y), (128,))
        reach = eps * min(1.0, 2 * step / steps)
        ends = sm.robust.interval_bound_propagation(model, x[rows] - reach, x[rows] + reach)
        log_p = sm.robust.interval("log_softmax", *ends).lower  # log p itself where ε is 0
        optimiser.zero_grad()
        (-log_p.gather(1, y[rows].unsqueeze(1)).mean()).backward()
        optimiser.step()
    return model


def measured(model: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, float | bool]:
    """Accuracies, and whether any certified picture was attacked with success."""
    misled = sm.robust.attack(model, x, y, EPS, steps=30, restarts=2, limits=None, generator=0).misled
    certified = sm.robust.is_certified(*sm.robust.interval_bound_propagation(model, x - EPS, x + EPS), y)
    share = lambda rows: float(rows.float().mean())
    return {
        "clean": share(model(x).argmax(1) == y),
        "under attack": share(~misled),
        "certified": share(certified),
        "broken": bool((certified & misled).any()),
    }


def main(steps: Annotated[int, count("How many steps of training.")] = 400) -> dict[str, dict[str, float | bool]]:
    """Prints what was found of both networks, and returns it."""
    x, y = digits()
    train, test = (x[:1200], y[:1200]), (x[1200:], y[1200:])
    results = {}
    for name, eps in (("plain", 0.0), ("through intervals", EPS)):
        results[name] = measured(learn(*train, eps, steps), *test)
        print(f"{name:18}", ", ".join(f"{what} {value:.3f}" for what, value in results[name].items()))
    return results


if __name__ == "__main__":
    run(main, __doc__)
