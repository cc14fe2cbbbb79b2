"""Attackers of others beside ours: those of the Adversarial Robustness Toolbox, on the same networks and pictures."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softmaxima.robust import attack
from softmaxima_lab.studies.robustness import EPS, RESTARTS, STEPS

BLACK_BOX, QUERIES = "ART, Square, without gradients", 300
SHAPE = (1, 8, 8)  # of a picture


@dataclass(frozen=True)
class Attacker:
    """What an attacker leaves of the accuracy, and how long it takes, one number a seed."""

    training: str
    name: str
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]


Found = Callable[[nn.Sequential, Tensor, Tensor, int], Tensor]


def _ours(loss: str) -> Found:
    return lambda model, x, y, seed: attack(model, x, y, EPS, loss=loss, steps=STEPS, restarts=RESTARTS, generator=seed).inputs


def of_art(name: str, **options: Any) -> Found:
    """An attack of ART's, on logits."""

    def run(model: nn.Sequential, x: Tensor, y: Tensor, seed: int) -> Tensor:
        if importlib.util.find_spec("art") is None:
            needed = 'the attackers of others need adversarial-robustness-toolbox: pip install "softmaxima-lab[robust]"'
            raise ImportError(needed, name="art")
        logging.getLogger("art").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of its import
            evasion, estimators = (
                importlib.import_module(f"art.{part}") for part in ("attacks.evasion", "estimators.classification")
            )
            np.random.seed(seed)  # noqa: NPY002 - ART draws from this one
            torch.manual_seed(seed)
            network = nn.Sequential(nn.Flatten(), model)
            classifier = estimators.PyTorchClassifier(
                network, nn.CrossEntropyLoss(), SHAPE, 10, clip_values=(0.0, 1.0), device_type="cpu"
            )
            attacker = getattr(evasion, name)(classifier, eps=EPS, norm=np.inf, batch_size=1024, verbose=False, **options)
            return torch.from_numpy(attacker.generate(x.numpy().reshape(-1, *SHAPE), y.numpy())).reshape(len(x), -1)

    return run


ATTACKERS: dict[str, Found] = {
    "ours, margin": _ours("margin"),
    "ours, cross-entropy": _ours("cross_entropy"),
    "ART, PGD on cross-entropy": of_art(
        "ProjectedGradientDescent", eps_step=2.5 * EPS / STEPS, max_iter=STEPS, num_random_init=RESTARTS
    ),
    "ART, APGD on DLR": of_art(
        "AutoProjectedGradientDescent",
        eps_step=2 * EPS,
        max_iter=STEPS,
        nb_random_init=RESTARTS,
        loss_type="difference_logits_ratio",
    ),
    BLACK_BOX: of_art("SquareAttack", max_iter=QUERIES, nb_restarts=1),
}


def withstood(name: str, model: nn.Sequential, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Which rows are still right, bool [rows], with what was found held to the ball and the limits."""
    found = ATTACKERS[name](model, x, y, seed)
    if not (float((found - x).abs().max()) <= EPS + 1e-5 and float(found.min()) >= -1e-6 and float(found.max()) <= 1 + 1e-6):
        raise RuntimeError(f"{name} left the ball")
    with torch.no_grad():
        return model(found).argmax(1) == y


def measured(name: str, model: nn.Sequential, x: Tensor, y: Tensor, seed: int) -> tuple[float, float]:
    """(accuracy that is left, seconds)."""
    start = time.perf_counter()
    left = withstood(name, model, x, y, seed)
    return float(left.float().mean()), time.perf_counter() - start
