"""Small networks on digits, trained on every loss and temperature, plainly, against attacks or through intervals, then attacked.

All attacks are on logits (`softmaxima.robust.attack`) but where it is said, for that is what the decision is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima.robust import Attacked, attack, interval, interval_bound_propagation, is_certified
from softmaxima_lab.compare.pixels import digits

WIDTH, BATCH, EPOCHS, LEARNING_RATE = 64, 128, 40, 3e-3
EPS = 0.1  # of pixels from 0 to 1, under ℓ∞
TRAINING_STEPS, STEPS, RESTARTS = 5, 30, 2  # of attacks, in training and in tests
ATTACKS = ("margin", "dlr", "cross_entropy")
TEMPERATURES = (0.5, 1.0, 2.0)

Loss = Callable[[Tensor, Tensor], Tensor]


def winsorized(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy by the winsorized logsumexp; not below 0, for that has no least value."""
    gap = sm.winsorized_logsumexp(scores, 0.1) - scores.gather(1, target.unsqueeze(1)).squeeze(1)
    return gap.clamp_min(0.0).mean()


LOSSES: dict[str, Loss] = {
    "softmax": sm.cross_entropy,
    "entmax15": sm.entmax15_loss,
    "sparsemax": sm.sparsemax_loss,
    "elastic_softmax": sm.elastic_cross_entropy,
    "winsorized": winsorized,
}


@dataclass(frozen=True)
class Split:
    """Pictures to train on and pictures to test on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def split() -> Split:
    """scikit-learn's digits, three tenths of them to test on."""
    task = digits()
    held = task.is_held
    return Split(task.x[~held], task.y[~held], task.x[held], task.y[held])


@dataclass(frozen=True)
class Way:
    """A way to train."""

    loss: str
    temperature: float  # scores are divided by it in training
    training: str  # plain | adversarial | certified


def ways() -> tuple[Way, ...]:
    """All that are compared: losses at τ = 1, temperatures with softmax's, and training through intervals."""
    alone = [(loss, 1.0) for loss in LOSSES] + [("softmax", tau) for tau in TEMPERATURES if tau != 1.0]
    compared = [Way(loss, tau, kind) for kind in ("plain", "adversarial") for loss, tau in alone]
    return *compared, Way("softmax", 1.0, "certified")


def train(way: Way, data: Split, seed: int, epochs: int = EPOCHS) -> nn.Sequential:
    """A network of one hidden layer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(data.x.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    rng = torch.Generator().manual_seed(seed)
    loss, tau = LOSSES[way.loss], way.temperature
    for epoch in range(epochs):
        for rows in torch.randperm(len(data.y), generator=rng).split(BATCH):
            x, y = data.x[rows], data.y[rows]
            if way.training == "adversarial":
                x = attack(model, x, y, EPS, steps=TRAINING_STEPS).inputs
            optimiser.zero_grad()
            if way.training == "certified":
                eps = EPS * min(1.0, 2 * epoch / epochs)  # a half of the epochs to come to it
                value = (loss(model(x) / tau, y) + certified_cross_entropy(model, x, y, eps, tau)) / 2
            else:
                value = loss(model(x) / tau, y)
            value.backward()
            optimiser.step()
    return model


def pixels_between(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The ends of pixels within ε of a picture's."""
    return (x - eps).clamp(0, 1), (x + eps).clamp(0, 1)


def certified_cross_entropy(model: nn.Sequential, x: Tensor, y: Tensor, eps: float, tau: float) -> Tensor:
    """The most that cross-entropy can be."""
    ends = interval_bound_propagation(model, *pixels_between(x, eps))
    return -interval("log_softmax", *ends, temperature=tau).lower.gather(1, y.unsqueeze(1)).mean()


@torch.no_grad()
def certified(model: nn.Sequential, x: Tensor, y: Tensor) -> float:
    """The share of rows that no attack can mislead."""
    return float(is_certified(*interval_bound_propagation(model, *pixels_between(x, EPS)), y).float().mean())


# Temperature at test time -------------------------------------------------------------------------------------------------------


def through_probabilities(tau: float) -> Loss:
    """−log p_t of the probabilities over a test-time temperature, as whoever has only these would attack."""
    return lambda scores, target: -sm.softmax(scores, temperature=tau).gather(1, target.unsqueeze(1)).squeeze(1).log()


def attacked_once(model: nn.Sequential, x: Tensor, y: Tensor, loss: str | Loss) -> Attacked:
    """By one attack from the pictures themselves, so that attacks on two losses are alike in all else."""
    return attack(model, x, y, EPS, loss=loss, steps=STEPS)


def has_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Which rows have a gradient by their inputs that is not exactly 0, bool [rows]."""
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(model(at), y).sum(), at)
    return (slope != 0).flatten(1).any(1)
