r"""What the gradient of a VAE by its encoder is worth, estimated by each estimator at the same weights and on the same batches.

With g a step's gradient, of a batch drawn from the training rows and of the estimator's draws, and ĝ the unbiased one:

    SNR = |E g| / √(tr Var g)        SNR of the draws = |E g| / √(E tr Var[g | batch])        bias = |E g − E ĝ| / |E ĝ|

Every batch has two gradients of independent draws, so that their difference shows the draws' part of the variance, and a gradient
of REINFORCE of very many draws, to which the difference is taken batch by batch. Squares of norms of means of n batches have their
variance over batches taken off, |E v|² = |v̄|² − tr s²/n, so that they are unbiased. Chance may make them negative where E v is
nearly 0: then an SNR is 0, and a bias the negative root of −|E v|², so that of no bias it is as often negative as positive; and a
bias is infinite where |E ĝ|² comes out so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from softmaxima_lab.compare.estimators_plan import UNBIASED
from softmaxima_lab.compare.vae import VAE, Estimated

Gradient = Callable[[int, int], Tensor]  # of the batch of that number, by draws of that seed

BATCHES, QUICK_BATCHES = 32, 5
REFERENCE_SAMPLES = 64


def gradients(
    vae: VAE, trained: Sequence[Estimated], x: Tensor, batch: int, batches: int, seed: int
) -> dict[str, dict[str, float]]:
    """Of each estimator the measures of its gradient at the weights of `vae`, on batches of rows of x."""
    rows = torch.randint(len(x), (batches, batch), generator=torch.Generator().manual_seed(seed))

    weights = list(vae.encoder.parameters())

    def of(estimated: Estimated) -> Gradient:
        def gradient(number: int, draws: int) -> Tensor:
            generator = np.random.default_rng((seed, draws, number))
            with torch.enable_grad():
                value = estimated.negative(x[rows[number]], generator).mean()
                found = torch.autograd.grad(value, weights)
            return torch.cat([part.flatten() for part in found])

        return gradient

    precise = of(Estimated(vae, replace(UNBIASED, samples=REFERENCE_SAMPLES)))
    reference = torch.stack([precise(number, 0) for number in range(batches)])
    return {each.candidate.name: worth(of(Estimated(vae, each.candidate, each.control)), reference) for each in trained}


def worth(gradient: Gradient, reference: Tensor) -> dict[str, float]:
    """SNR and bias of a gradient, given unbiased ones [batches, weights] of the same batches."""
    numbers = range(len(reference))
    pairs = torch.stack([torch.stack([gradient(number, draws) for number in numbers]) for draws in (1, 2)]).double()
    mean = pairs.mean(0)  # [batches, weights]
    of_draws = float((pairs[0] - pairs[1]).square().sum(-1).mean()) / 2
    of_batches = spread(mean) - of_draws / 2
    signal = square_of_mean(mean)
    size, unbiased = math.sqrt(max(signal, 0.0)), square_of_mean(reference.double())
    return {
        "snr": ratio(size, of_draws + of_batches),
        "snr of draws": ratio(size, of_draws),
        "bias": signed_root(square_of_mean(mean - reference) / unbiased) if unbiased > 0 else math.inf,
    }


def spread(rows: Tensor) -> float:
    """tr s² of rows."""
    return float(rows.double().var(0).sum())


def square_of_mean(rows: Tensor) -> float:
    """|E v|² of rows v, unbiased."""
    return float(rows.double().mean(0).square().sum()) - spread(rows) / len(rows)


def ratio(size: float, variance: float) -> float:
    """Infinite where nothing varies."""
    return size / math.sqrt(variance) if variance > 0 else math.inf


def signed_root(square: float) -> float:
    """√|s| with the sign of s.

    >>> signed_root(-4.0)
    -2.0
    """
    return math.copysign(math.sqrt(abs(square)), square)
