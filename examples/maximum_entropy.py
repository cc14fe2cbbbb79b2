r"""The distribution of most entropy among those with given means: Jaynes' dice, and a log-linear model of counts.

    p_w(s) = exp⟨w, f(s)⟩ / Z          log Z = LSE_s ⟨w, f(s)⟩          w minimises D(w) = log Z − ⟨w, f̂⟩

The slope of D is expected − observed features, E_p f − f̂, and its second derivative their covariance C: both are what autograd
makes of one logsumexp. Newton's direction d = C⁻¹(f̂ − E_p f) also gives q, of sum 1 and with the means f̂ exactly, which is a
distribution once none of it is negative,

    q(s) = p_w(s) (1 + ⟨d, f(s) − E_p f⟩),          D(w) ≥ H(best) ≥ H(q)  wherever q ≥ 0

so that the duality gap D(w) − H(q) bounds what is left to gain. Of n draws, w has the standard errors √(C⁻¹/n)_ii.

The truth is known: dice of mean 4.5 (Jaynes 1963) have p_k ∝ r^k with r the root of a polynomial, and the counts are of a
table of 2⁶ cells with weights that are given.

    python examples/maximum_entropy.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

QUESTIONS = 6


@dataclass(frozen=True)
class Fit:
    """Weights [..., features], the covariance C of the features under them, and the gap before each step and after the last."""

    weights: Tensor
    covariance: Tensor
    gaps: list[Tensor]


def fit(features: Tensor, means: Tensor, steps: int = 12) -> Fit:
    """Newton's method from w = 0 for features [states, features] and their means [..., features], each row a model of its own."""
    dual = lambda w: sm.logsumexp(w @ features.T) - (w * means).sum(-1)
    w, gaps, covariance = torch.zeros_like(means), [], torch.empty(0)
    for step in range(steps + 1):
        w.requires_grad_()
        value = dual(w)
        (slope,) = torch.autograd.grad(value.sum(), w)  # E_p f − f̂
        w = w.detach()
        p = sm.softmax(w @ features.T)  # [..., states]
        centred = features - (means + slope).unsqueeze(-2)
        covariance = (p.unsqueeze(-1) * centred).mT @ centred
        direction = torch.linalg.solve(covariance, -slope)
        q = p * (1 + (centred @ direction.unsqueeze(-1)).squeeze(-1))
        gap = value.detach() + torch.special.xlogy(q, q).sum(-1)
        gaps.append(torch.where((q >= 0).all(-1), gap, math.inf))
        if step < steps:
            length = torch.ones_like(gap)  # halved where a whole step does not take D down by a quarter of what its slope says
            for _ in range(30):
                expected = length * (slope * direction).sum(-1)
                too_long = dual(w + length.unsqueeze(-1) * direction) > value + expected / 4 + 1e-14
                length = torch.where(too_long, length / 2, length)
            w = w + length.unsqueeze(-1) * direction
    return Fit(w, covariance, gaps)


def dice(mean: float) -> Tensor:
    """The probabilities of 1 … 6 with most entropy, in closed form: p_k ∝ r^k with Σ (k − mean) r^k = 0 and r > 0."""
    faces = np.arange(1, 7)
    (root,) = (z.real for z in np.roots((faces - mean)[::-1]) if z.real > 0 and abs(z.imag) < 1e-9)
    p = torch.from_numpy(root ** faces.astype(float))
    return p / p.sum()


def table() -> tuple[Tensor, list[str]]:
    """([2⁶, 21], names): the answers ±1 to six questions, and the products of each two."""
    answers = 1.0 - 2.0 * ((torch.arange(2**QUESTIONS)[:, None] >> torch.arange(QUESTIONS)) & 1).double()
    pairs = list(combinations(range(QUESTIONS), 2))
    products = torch.stack([answers[:, i] * answers[:, j] for i, j in pairs], 1)
    return torch.cat((answers, products), 1), [*"123456", *(f"{i + 1}·{j + 1}" for i, j in pairs)]


def main(
    draws: Annotated[int, count("Of the table, in each repeat.", least=100)] = 5000,
    repeats: Annotated[int, count("How often the weights are found.", least=2)] = 400,
) -> dict[str, Any]:
    """Prints both tables; returns what they show."""
    generator = torch.Generator().manual_seed(0)
    faces = torch.arange(1.0, 7.0, dtype=torch.float64).unsqueeze(-1)
    found = sm.softmax(fit(faces, torch.tensor([4.5], dtype=torch.float64)).weights @ faces.T)
    exact = dice(4.5)
    print("dice of mean 4.5  " + " ".join(f"{face:7d}" for face in range(1, 7)))
    for name, p in (("found", found), ("r^k", exact)):
        print(f"{name:17} " + " ".join(f"{each:7.4f}" for each in p.tolist()))

    features, names = table()
    truth = 0.4 * torch.randn(len(names), generator=generator, dtype=torch.float64)
    cells = torch.multinomial(sm.softmax(features @ truth), draws * repeats, replacement=True, generator=generator)
    means = features[cells].view(repeats, draws, -1).mean(1)  # of each repeat
    fitted = fit(features, means)
    errors = (torch.linalg.inv(fitted.covariance).diagonal(dim1=-2, dim2=-1) / draws).sqrt()
    within = ((fitted.weights - truth).abs() <= 1.96 * errors).double().mean(0)
    print(f"\n{draws} draws from a table of {len(features)} cells with {len(names)} weights, {repeats} times")
    print(
        "gap D − H(q) at each of Newton's steps  "
        + "  ".join(f"{gap[0]:.0e}" if gap[0] < math.inf else "–" for gap in fitted.gaps[:8])
    )
    print("weight    truth    found  standard error  scatter of the repeats  truth within ±1.96 errors")
    scatter = fitted.weights.std(0)
    for i, name in enumerate(names):
        print(f"{name:6} {truth[i]:8.4f} {fitted.weights[0, i]:8.4f} {errors[0, i]:15.4f} {scatter[i]:23.4f} {within[i]:26.3f}")
    print(f"all {within.mean():60.3f} of {len(names) * repeats}")
    return {
        "dice": {"found": found.tolist(), "exact": exact.tolist()},
        "names": names,
        "truth": truth.tolist(),
        "found": fitted.weights[0].tolist(),
        "errors": errors[0].tolist(),
        "scatter": scatter.tolist(),
        "gaps": [float(gap[0]) if gap[0] < math.inf else None for gap in fitted.gaps],
        "within": float(within.mean()),
        "draws": draws,
        "repeats": repeats,
    }


if __name__ == "__main__":
    run(main, __doc__)
