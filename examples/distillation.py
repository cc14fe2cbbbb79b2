r"""Distillation (Hinton et al. 2015): a small network learns from the probabilities of a large one, both over a temperature.

    L = (1 − w) CE(x, y) + w τ² KL(softmax(t/τ) ‖ softmax(x/τ)),        t the scores of the teacher, x of the student

whose gradient by x tends to that of ½‖x − t‖²/n as τ grows, and keeps its size by the factor τ². Few pictures of digits have
labels; the teacher has seen more. Means and standard errors over seeds of the student's accuracy on held-out pictures.

    python examples/distillation.py
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Annotated

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

TEMPERATURES = (None, 1.0, 2.0, 4.0, 8.0, 16.0)  # None: from labels alone


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def pictures(seed: int) -> list[Tensor]:
    """x, y: 900 to teach the teacher, of which the first 100 teach the student, and those held out."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [torch.from_numpy(x).float()[order] / 16, torch.from_numpy(y)[order]]


def teach(student: nn.Module, x: Tensor, y: Tensor, soft: Tensor | None, tau: float, steps: int) -> nn.Module:
    """Trains on labels, and on scores of a teacher where there are any."""
    optimizer = torch.optim.Adam(student.parameters(), 5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        scores = student(x)
        loss = sm.cross_entropy(scores, y)
        if soft is not None:
            learnt = sm.fenchel_young_loss(scores, sm.softmax(soft, temperature=tau), map="softmax", temperature=tau)
            loss = 0.1 * loss + 0.9 * tau**2 * learnt
        loss.backward()
        optimizer.step()
    return student.eval()


def accuracies(seed: int, steps: int = 300) -> dict[float | None, float]:
    """Of a student with each temperature."""
    x, y = pictures(seed)
    torch.manual_seed(seed)
    teacher = teach(network(128), x[:900], y[:900], None, 1.0, steps)
    with torch.no_grad():
        soft = teacher(x[:100])
    found = {}
    for tau in TEMPERATURES:
        torch.manual_seed(seed)
        student = teach(network(8), x[:100], y[:100], None if tau is None else soft, tau or 1.0, steps)
        with torch.no_grad():
            found[tau] = float((student(x[900:]).argmax(-1) == y[900:]).double().mean())
    return found


def main(seeds: Annotated[int, count("That choose pictures and weights.", least=2)] = 10) -> list[dict[float | None, float]]:
    runs = [accuracies(seed) for seed in range(seeds)]
    print(f"{'τ':>8}{'accuracy':>18}{'gain on labels':>20}")
    for tau in TEMPERATURES:
        gains = [run[tau] - run[None] for run in runs]
        cells = [f"{fmean(of):.4f} ± {stdev(of) / math.sqrt(seeds):.4f}" for of in ([run[tau] for run in runs], gains)]
        print(f"{'labels' if tau is None else tau:>8}{cells[0]:>18}{cells[1]:>20}")
    return runs


if __name__ == "__main__":
    run(main, __doc__)
