"""What maps, temperatures and detectors are worth against attacks: the experiment, its verdicts on four claims, and its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import softmaxima as sm
from softmaxima.core.writing import finite, write_text
from softmaxima.experiments.differences import Difference, interval_of, of_mean
from softmaxima.experiments.measures import METRICS
from softmaxima.experiments.robustness import (
    EPOCHS,
    EPS,
    LOSSES,
    TEMPERATURES,
    Split,
    Way,
    accuracies,
    split,
    through_probabilities,
    train,
    ways,
    withstands,
)  # fmt: skip
from softmaxima.experiments.robustness_detectors import ATTACKERS as KNOWING
from softmaxima.experiments.robustness_detectors import Detection, detections, milliseconds
from softmaxima.experiments.robustness_peers import ATTACKERS, Attacker, measured
from softmaxima.robust import worst_logsumexp
from softmaxima.robust.detector import STATISTICS

SEEDS, PEER_SEEDS = 6, 3
AT_TEST = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0)
CLAIMED_GAIN = 0.30
ACCURACY = METRICS["accuracy"]
COMPARED = tuple(Way("softmax", 1.0, training) for training in ("plain", "adversarial"))  # by ART, and at test time


@dataclass(frozen=True)
class Trained:
    """What networks that were trained in one way reach, one number a seed for each attack."""

    loss: str
    temperature: float
    training: str
    accuracies: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class AtTest:
    """The accuracy under an attack through the probabilities over a test-time temperature, and under all attacks on logits."""

    training: str
    temperature: float
    through_probabilities: tuple[float, ...]
    on_logits: tuple[float, ...]


@dataclass(frozen=True)
class Gain:
    """How much more accurate one way is than another under all attacks, with an interval that holds together with the others."""

    training: str
    what: str
    over: str
    difference: Difference


@dataclass(frozen=True)
class Study:
    """All that was found."""

    trained: Sequence[Trained]
    at_test: Sequence[AtTest]
    attackers: Sequence[Attacker]
    detections: Sequence[Detection]
    milliseconds: Mapping[str, float]
    gained: float  # by the attack on logsumexp that is claimed to be the worst, of each ε that the worst gains


def run(seeds: int = SEEDS, epochs: int = EPOCHS, starting: Callable[[str], None] = lambda what: None) -> Study:
    """Train in every way with so many seeds, the same first weights and order for all, and attack."""
    data = split()
    trained, kept = [], {}
    for way in ways():
        starting(f"{way.training}, {way.loss}, τ = {way.temperature:g}")
        models = [train(way, data, seed, epochs) for seed in range(seeds)]
        found = [accuracies(model, data.test_x, data.test_y, seed) for seed, model in enumerate(models)]
        trained.append(Trained(way.loss, way.temperature, way.training, {name: tuple(f[name] for f in found) for name in found[0]}))
        if way in COMPARED:
            kept[way.training] = models
    starting("temperatures at test time")
    on_logits = {way.training: t.accuracies["all"] for way, t in zip(ways(), trained, strict=True) if way in COMPARED}
    at_test = list(_at_test(kept, on_logits, data))
    starting("attackers of ART")
    attackers = list(_attackers(kept, data, min(seeds, PEER_SEEDS)))
    starting("detectors")
    seen = detections(kept["plain"], data.test_x, data.test_y)
    with torch.no_grad():
        gained = _claimed_gain(kept["plain"][0](data.test_x))
    return Study(trained, at_test, attackers, seen, {name: milliseconds(name) for name in STATISTICS}, gained)


def steps() -> int:
    """How often `starting` is called."""
    return len(ways()) + 3


def _at_test(kept: Mapping[str, Sequence[Any]], on_logits: Mapping[str, tuple[float, ...]], data: Split) -> Iterator[AtTest]:
    x, y = data.test_x, data.test_y
    for training, models in kept.items():
        for tau in AT_TEST:
            yield AtTest(training, tau, tuple(withstands(m, x, y, through_probabilities(tau)) for m in models), on_logits[training])


def _attackers(kept: Mapping[str, Sequence[Any]], data: Split, seeds: int) -> Iterator[Attacker]:
    for training, models in kept.items():
        for name in ATTACKERS:
            found = [measured(name, models[seed], data.test_x, data.test_y, seed) for seed in range(seeds)]
            yield Attacker(training, name, *(tuple(each) for each in zip(*found, strict=True)))


def _claimed_gain(scores: torch.Tensor) -> float:
    """What ε sign(p − mean p) adds to logsumexp over what the worst adds, the mean over rows."""
    p = sm.softmax(scores.double())
    before = sm.logsumexp(scores.double())
    claimed = sm.logsumexp(scores.double() + EPS * (p - p.mean(-1, keepdim=True)).sign()) - before
    return float((claimed / (worst_logsumexp(scores.double(), EPS).value - before)).mean())


# What follows -------------------------------------------------------------------------------------------------------------------


def of(study: Study, loss: str, temperature: float, training: str, attack: str = "all") -> tuple[float, ...]:
    """The accuracies of one way."""
    (found,) = (t for t in study.trained if (t.loss, t.temperature, t.training) == (loss, temperature, training))
    return found.accuracies[attack]


def gains(study: Study) -> Iterator[Gain]:
    """Every loss against softmax's at τ = 1, and every temperature of softmax against τ = 1, paired by seed, for each training."""
    for training in ("plain", "adversarial"):
        base = of(study, "softmax", 1.0, training)
        others = {loss: (loss, 1.0) for loss in LOSSES if loss != "softmax"}
        others |= {f"softmax, τ = {tau:g}": ("softmax", tau) for tau in TEMPERATURES if tau != 1.0}
        for name, (loss, tau) in others.items():
            pairs = [a - b for a, b in zip(of(study, loss, tau, training), base, strict=True)]
            yield Gain(training, name, "softmax", interval_of(pairs, [of_mean(pairs)], ACCURACY, 2 * len(others)))


def verdicts(study: Study) -> dict[str, str]:
    """What holds of four claims."""
    found = list(gains(study))
    words = lambda gain: (
        f"{gain.training}, {gain.what}: {100 * gain.difference.mean:+.1f} "
        f"({100 * gain.difference.low:+.1f} to {100 * gain.difference.high:+.1f})"
    )
    temperatures, maps = [g for g in found if "τ" in g.what], [g for g in found if "τ" not in g.what]
    moved = {a.temperature: fmean(a.through_probabilities) - fmean(a.on_logits) for a in study.at_test if a.training == "plain"}
    most = max(moved, key=lambda tau: moved[tau])
    reaching = [g for g in maps if g.difference.low >= CLAIMED_GAIN]
    possible = [g for g in maps if g.difference.high >= CLAIMED_GAIN and g not in reaching]
    named = lambda gains: ", ".join(f"{g.what} ({g.training})" for g in gains)
    thirty = f"holds for {named(reaching)}" if reaching else "does not hold"
    thirty += f", and is not excluded for {named(possible)}, whose seeds differ too much" if possible else ""
    best = max(maps, key=lambda g: g.difference.mean)
    share = best.difference.mean / fmean(of(study, "softmax", 1.0, best.training))
    area = {attacker: max(fmean(d.areas) for d in study.detections if d.attacker == attacker) for attacker in KNOWING}
    slowest = max(study.milliseconds.values())
    return {
        "worst-attack": "does not hold: ε·sign(p − mean p) gains "
        f"{100 * study.gained:.0f} % of what the worst, ε·1, gains on the scores of digits, and nothing where scores are equal",
        "temperature-defence": "at test time it does not hold: the decision, and the accuracy under an attack on logits, are the "
        f"same at every τ; an attack through probabilities leaves {100 * moved[most]:.0f} points more at τ = {most:g}, where its "
        "gradient is 0: masking. "
        f"In training, points on τ = 1: {'; '.join(map(words, temperatures))}",
        "robust-30": f"{thirty}: points on softmax, under all attacks: {'; '.join(map(words, maps))}; "
        f"the most that is gained on average is {100 * share:.0f} % of softmax's accuracy",
        "detector-1ms": f"time {'holds' if slowest < 1 else 'does not hold'}: {slowest:.3f} ms at most for 128 rows, with another "
        f"temperature for those suspected; detection: area under the ROC curve at best {area[KNOWING[0]]:.2f} against an attacker "
        f"who stops when the model is misled, {area[KNOWING[1]]:.2f} against one who goes on, and {area[KNOWING[2]]:.2f} "
        "against one who raises the number that is looked at (0.5 is chance)",
    }


def write(study: Study, made_on: Mapping[str, Any], path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    record = {**made_on, "seeds": len(study.trained[0].accuracies["all"]), "epochs": EPOCHS, "eps": EPS, **asdict(study)}
    record["verdicts"] = verdicts(study)
    write_text(path, json.dumps(finite(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> Study:
    """What is in such a file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    each = lambda kind, name: [kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}) for one in record[name]]
    trained = [
        Trained(t["loss"], t["temperature"], t["training"], {name: tuple(values) for name, values in t["accuracies"].items()})
        for t in record["trained"]
    ]
    return Study(
        trained, each(AtTest, "at_test"), each(Attacker, "attackers"), each(Detection, "detections"),
        record["milliseconds"], record["gained"],
    )  # fmt: skip
