"""Whether attacked pictures are seen by the margin, the entropy or the energy of their scores, also by an attacker who knows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import softmaxima as sm
from softmaxima.robust import Detector, attack, fit_detector, worst_margin
from softmaxima.robust.detector import STATISTICS
from softmaxima_lab.studies.robustness import EPS, STEPS, Loss

FALSE_ALARMS = 0.05
TURNS, ROWS = 200, 128  # of which the time is a median, and of a batch
# Who stops at the boundary; who goes on to the greatest margin; and who raises the very number that is looked at.
ATTACKERS = ("stops when misled", "greatest margin", "knows the detector")


@dataclass(frozen=True)
class Detection:
    """How well attacked rows that mislead the model are told from clean ones, one number a seed."""

    statistic: str
    attacker: str
    areas: tuple[float, ...]  # under the ROC curve
    caught: tuple[float, ...]  # the share that is suspected where that share of clean rows is
    misled: tuple[float, ...]  # the share of rows that the attacker misleads


def ordinary(detector: Detector) -> Loss:
    """Raises the detector's own number once the model is misled, and the margin until then."""

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        margin = -worst_margin(scores, target, 0.0)
        return torch.where(margin > 0, detector.values(scores), margin - 1e3)

    return loss


def attacked(model: nn.Sequential, x: Tensor, y: Tensor, attacker: str, detector: Detector) -> tuple[Tensor, Tensor]:
    """(scores of what an attacker made, whether it misleads)."""
    loss: str | Callable[[Tensor, Tensor], Tensor] = ordinary(detector) if attacker == ATTACKERS[2] else "margin"
    inputs, misled = attack(model, x, y, EPS, loss=loss, steps=2 * STEPS, stop=attacker == ATTACKERS[0])
    with torch.no_grad():
        return model(inputs), misled


def detection(model: nn.Sequential, x: Tensor, y: Tensor, statistic: str, attacker: str) -> tuple[float, float, float]:
    """(area, share that is caught, share that is misled); the threshold is fitted to one half of the clean rows."""
    with torch.no_grad():
        clean = model(x)
    half = len(x) // 2
    detector = fit_detector(clean[:half], statistic, FALSE_ALARMS)
    scores, misled = attacked(model, x[half:], y[half:], attacker, detector)
    wrong = scores[misled]
    values = torch.cat([detector.values(clean[half:]), detector.values(wrong)])
    is_attacked = torch.cat([torch.zeros(len(clean) - half), torch.ones(len(wrong))])
    area = float(roc_auc_score(is_attacked.numpy(), -values.numpy()))
    return area, float(detector(wrong).float().mean()), float(misled.float().mean())


def detections(models: list[nn.Sequential], x: Tensor, y: Tensor) -> list[Detection]:
    """Every statistic against every attacker."""
    found = []
    for statistic in STATISTICS:
        for attacker in ATTACKERS:
            areas, caught, misled = zip(*(detection(model, x, y, statistic, attacker) for model in models), strict=True)
            found.append(Detection(statistic, attacker, areas, caught, misled))
    return found


def milliseconds(statistic: str) -> float:
    """Of a detector on a batch of scores, and of probabilities over another temperature for it."""
    scores, detector = torch.randn(ROWS, 10), Detector(statistic, 1.0)
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        suspected = detector(scores)
        sm.softmax(scores, temperature=torch.where(suspected, 2.0, 1.0).unsqueeze(1))
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)
