"""Small networks on digits, trained on every loss and temperature, plainly, against attacks or through intervals, then attacked.

All attacks are on logits (`softmaxima.robust.attack`) but where it is said, for that is what the decision is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima.experiments.pixels import digits
from softmaxima.robust import attack, interval

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
    """All that are compared."""
    compared = [Way(loss, tau, kind) for kind in ("plain", "adversarial") for loss in LOSSES for tau in TEMPERATURES]
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


def scores_between(model: nn.Sequential, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What scores are at least and at most for pictures within ε of x: interval bound propagation."""
    low, high = (x - eps).clamp(0, 1), (x + eps).clamp(0, 1)
    for layer in model:
        if isinstance(layer, nn.Linear):
            centre, reach = layer((low + high) / 2), (high - low) / 2 @ layer.weight.abs().T
            low, high = centre - reach, centre + reach
        else:
            low, high = layer(low), layer(high)
    return low, high


def certified_cross_entropy(model: nn.Sequential, x: Tensor, y: Tensor, eps: float, tau: float) -> Tensor:
    """The most that cross-entropy can be."""
    log_p = interval("log_softmax", *scores_between(model, x, eps), temperature=tau).lower
    return -log_p.gather(1, y.unsqueeze(1)).mean()


@torch.no_grad()
def certified(model: nn.Sequential, x: Tensor, y: Tensor) -> float:
    """The share of rows whose lowest right score is above the highest wrong one."""
    low, high = scores_between(model, x, EPS)
    place = y.unsqueeze(1)
    return float((low.gather(1, place).squeeze(1) > high.scatter(1, place, -torch.inf).amax(1)).float().mean())


def accuracies(model: nn.Sequential, x: Tensor, y: Tensor, seed: int, eps: float = EPS) -> dict[str, float]:
    """Without an attack, with each, with all of them, and what is certified."""
    with torch.no_grad():
        right = model(x).argmax(1) == y
    found, withstood = {"clean": float(right.float().mean())}, right
    for loss in ATTACKS:
        misled = attack(model, x, y, eps, loss=loss, steps=STEPS, restarts=RESTARTS, generator=seed).misled
        found[loss] = float((~misled).float().mean())
        withstood = withstood & ~misled
    return {**found, "all": float(withstood.float().mean()), "certified": certified(model, x, y)}


# Temperature at test time -------------------------------------------------------------------------------------------------------


def through_probabilities(tau: float) -> Loss:
    """−log p_t of the probabilities over a test-time temperature, as whoever has only these would attack."""
    return lambda scores, target: -sm.softmax(scores, temperature=tau).gather(1, target.unsqueeze(1)).squeeze(1).log()


def withstands(model: nn.Sequential, x: Tensor, y: Tensor, loss: str | Loss) -> float:
    """The accuracy under one attack."""
    return float((~attack(model, x, y, EPS, loss=loss, steps=STEPS).misled).float().mean())
