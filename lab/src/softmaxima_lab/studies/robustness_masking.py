"""What networks withstand, and whether they only hide their gradients from attacks that need them.

A network without gradients, such as one whose scores are rounded, withstands every attack that climbs, and is not robust. An attack
that asks for scores alone tells it by finding more, and so do rows whose gradient is exactly 0. That attack is part of all attacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from softmaxima.robust import attack
from softmaxima.robust.attacks import ATTACK_LOSSES
from softmaxima_lab.studies import robustness_peers
from softmaxima_lab.studies.robustness import ATTACKS, EPS, RESTARTS, STEPS, has_gradient
from softmaxima_lab.studies.robustness_peers import BLACK_BOX

BLIND = 0.05  # of rows without a gradient, from which attacks that climb say nothing


@dataclass(frozen=True)
class Withstood:
    """Which rows one network has right, each bool [rows]."""

    clean: Tensor
    by_loss: dict[str, Tensor]  # under the attack on each loss
    black_box: Tensor  # under the attack without gradients
    has_gradient: Tensor  # rows that an attack can climb from, right or not

    @property
    def gradients(self) -> Tensor:
        """Under all attacks that climb."""
        return torch.stack([self.clean, *self.by_loss.values()]).all(0)

    @property
    def all(self) -> Tensor:
        return self.gradients & self.black_box

    def accuracies(self) -> dict[str, float]:
        found = {"clean": self.clean, **self.by_loss, "gradients": self.gradients, "black box": self.black_box, "all": self.all}
        return {name: float(rows.float().mean()) for name, rows in found.items()}


def withstood(model: nn.Sequential, x: Tensor, y: Tensor, seed: int) -> Withstood:
    """Attack a network on each loss, and without gradients."""
    with torch.no_grad():
        right = model(x).argmax(1) == y
    by_loss = {
        loss: ~attack(model, x, y, EPS, loss=loss, steps=STEPS, restarts=RESTARTS, generator=seed).misled for loss in ATTACKS
    }
    black_box = right & robustness_peers.withstood(BLACK_BOX, model, x, y, seed)
    return Withstood(right, by_loss, black_box, has_gradient(model, x, y, ATTACK_LOSSES["margin"]))


def is_masked(gradients: Sequence[float], black_box: Sequence[float], blind: Sequence[float]) -> bool:
    """Whether accuracies under attacks that climb, one a seed, are no sign of robustness.

    So it is where the black box leaves less, or rows are blind. A doubt is enough here: no interval is asked for.
    """
    return fmean(black_box) < fmean(gradients) or fmean(blind) > BLIND
