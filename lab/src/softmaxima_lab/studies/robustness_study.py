"""What maps, temperatures and detectors are worth against attacks: the experiment, its verdicts on four claims, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

import softmaxima as sm
from softmaxima.robust import worst_logsumexp
from softmaxima.robust.detector import STATISTICS
from softmaxima_lab.compare.differences import Difference, Spread, interval_of, of_mean
from softmaxima_lab.compare.measures import METRICS
from softmaxima_lab.studies.robustness import (
    EPOCHS,
    EPS,
    LOSSES,
    TEMPERATURES,
    Split,
    Way,
    attacked_once,
    certified,
    has_gradient,
    split,
    through_probabilities,
    train,
    ways,
)  # fmt: skip
from softmaxima_lab.studies.robustness_detectors import ATTACKERS as KNOWING
from softmaxima_lab.studies.robustness_detectors import Detection, detections, milliseconds
from softmaxima_lab.studies.robustness_masking import is_masked, withstood
from softmaxima_lab.studies.robustness_peers import ATTACKERS, Attacker, measured

SEEDS, PEER_SEEDS = 6, 3
AT_TEST = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0)
CLAIMED_GAIN = 0.30
ACCURACY = METRICS["accuracy"]
COMPARED = tuple(Way("softmax", 1.0, training) for training in ("plain", "adversarial"))  # by ART, and at test time


@dataclass(frozen=True)
class Trained:
    """What networks that were trained in one way reach, one number a seed for each attack, and the rows that withstand all."""

    loss: str
    temperature: float
    training: str
    accuracies: Mapping[str, tuple[float, ...]]
    blind: tuple[float, ...]  # the share of rows without a gradient
    rows: tuple[int, ...]  # of how many seeds the network withstands all attacks, one number a picture

    @property
    def name(self) -> str:
        return self.loss if self.temperature == 1.0 else f"{self.loss}, τ = {self.temperature:g}"

    @property
    def masked(self) -> bool:
        return is_masked(self.accuracies["gradients"], self.accuracies["black box"], self.blind)


@dataclass(frozen=True)
class AtTest:
    """What one attack leaves where the decision is that of probabilities over a test-time temperature, one number a seed.

    The attacks are alike, on −log p_t, but one sees the probabilities over that temperature and the other scores.
    """

    training: str
    temperature: float
    through_probabilities: tuple[float, ...]
    on_logits: tuple[float, ...]
    decided_otherwise: tuple[float, ...]  # the share of pictures whose decision is not that of the scores
    blind: tuple[float, ...]  # the share of pictures where the gradient through the probabilities is exactly 0


@dataclass(frozen=True)
class Gain:
    """How much more accurate one way is than another under all attacks, with an interval that holds together with the others."""

    training: str
    what: str
    over: str
    difference: Difference
    masked: bool  # whether what is accurate under attacks only hides its gradients


@dataclass(frozen=True)
class Study:
    """All that was found."""

    trained: Sequence[Trained]
    at_test: Sequence[AtTest]
    attackers: Sequence[Attacker]
    detections: Sequence[Detection]
    milliseconds: Mapping[str, float]
    pictures: int  # that are tested
    gained: float  # by the attack on logsumexp that is claimed to be the worst, of each ε that the worst gains


def run(seeds: int = SEEDS, epochs: int = EPOCHS, starting: Callable[[str], None] = lambda what: None) -> Study:
    """Train in every way with so many seeds, the same first weights and order for all, and attack."""
    data = split()
    trained, kept = [], {}
    for way in ways():
        starting(f"{way.training}, {way.loss}, τ = {way.temperature:g}")
        models = [train(way, data, seed, epochs) for seed in range(seeds)]
        trained.append(_trained(way, models, data))
        if way in COMPARED:
            kept[way.training] = models
    starting("temperatures at test time")
    at_test = list(_at_test(kept, data))
    starting("attackers of ART")
    attackers = list(_attackers(kept, data, min(seeds, PEER_SEEDS)))
    starting("detectors")
    seen = detections(kept["plain"], data.test_x, data.test_y)
    with torch.no_grad():
        gained = _claimed_gain(kept["plain"][0](data.test_x))
    return Study(trained, at_test, attackers, seen, {name: milliseconds(name) for name in STATISTICS}, len(data.test_y), gained)


def steps() -> int:
    """How often `starting` is called."""
    return len(ways()) + 3


def _trained(way: Way, models: Sequence[Any], data: Split) -> Trained:
    x, y = data.test_x, data.test_y
    found = [withstood(model, x, y, seed) for seed, model in enumerate(models)]
    each = [one.accuracies() | {"certified": certified(model, x, y)} for one, model in zip(found, models, strict=True)]
    by_attack = {name: tuple(one[name] for one in each) for name in each[0]}
    blind = tuple(float((~one.has_gradient).float().mean()) for one in found)
    rows = torch.stack([one.all for one in found]).sum(0)
    return Trained(way.loss, way.temperature, way.training, by_attack, blind, tuple(rows.tolist()))


def _at_test(kept: Mapping[str, Sequence[Any]], data: Split) -> Iterator[AtTest]:
    for training, models in kept.items():
        attacked = [attacked_once(model, data.test_x, data.test_y, "cross_entropy").inputs for model in models]
        for tau in AT_TEST:
            each = [_over_a_temperature(*one, data, tau) for one in zip(models, attacked, strict=True)]
            yield AtTest(training, tau, *zip(*each, strict=True))


def _over_a_temperature(model: Any, attacked: torch.Tensor, data: Split, tau: float) -> tuple[float, float, float, float]:
    """What is left through probabilities and on logits, and the shares that are decided otherwise and that have no gradient."""
    x, y, loss = data.test_x, data.test_y, through_probabilities(tau)
    decided = lambda inputs: sm.softmax(model(inputs), temperature=tau).argmax(1)
    through = attacked_once(model, x, y, loss).inputs
    with torch.no_grad():
        left, on_logits, other = decided(through) == y, decided(attacked) == y, decided(x) != model(x).argmax(1)
    left, on_logits, other, blind = (
        float(rows.float().mean()) for rows in (left, on_logits, other, ~has_gradient(model, x, y, loss))
    )
    return left, on_logits, other, blind


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


def of(study: Study, loss: str, temperature: float, training: str) -> Trained:
    """What was reached in one way."""
    (found,) = (t for t in study.trained if (t.loss, t.temperature, t.training) == (loss, temperature, training))
    return found


def gains(study: Study) -> Iterator[Gain]:
    """Every loss against softmax's at τ = 1, and every temperature of softmax against τ = 1, for each training.

    Paired by seed and by picture: all networks are tested on the same pictures, and others would give another difference.
    """
    for training in ("plain", "adversarial"):
        base = of(study, "softmax", 1.0, training)
        others = [(loss, 1.0) for loss in LOSSES if loss != "softmax"] + [("softmax", tau) for tau in TEMPERATURES if tau != 1.0]
        for loss, tau in others:
            own = of(study, loss, tau, training)
            by_seed = [a - b for a, b in zip(own.accuracies["all"], base.accuracies["all"], strict=True)]
            by_row = [(a - b) / len(by_seed) for a, b in zip(own.rows, base.rows, strict=True)]
            same = not any(by_seed) and not any(by_row)
            found = interval_of(by_seed, [of_mean(by_seed), of_mean(by_row)], ACCURACY, 2 * len(others), len(by_row), same)
            yield Gain(training, own.name, "softmax", found, own.masked)


def at_test_difference(study: Study, values: Sequence[float], base: Sequence[float]) -> Difference:
    """How much more is left of one than of another on the same pictures, one of two for each temperature and training.

    What rows have in it is bounded: a row's share of seeds in [0, 1] with the mean a has at most the variance a (1 − a).
    """
    pairs = [a - b for a, b in zip(values, base, strict=True)]
    deviation = sum(math.sqrt(a * (1 - a)) for a in (fmean(values), fmean(base)))
    rows = Spread(deviation**2 / study.pictures, study.pictures - 1)
    return interval_of(pairs, [of_mean(pairs), rows], ACCURACY, 2 * len(study.at_test), study.pictures, not any(pairs))


def counted(found: Sequence[Gain]) -> str:
    """How many of the differences leave out 0, and to which side; masked ones have no side."""
    sure = [gain for gain in found if not gain.masked]
    sides = {"more": [g for g in sure if g.difference.better], "less": [g for g in sure if g.difference.worse]}
    said = "; ".join(f"{side}: {' and '.join(f'{g.training}, {g.what}' for g in each)}" for side, each in sides.items() if each)
    number = sum(map(len, sides.values()))
    return f"{number or 'none'} of {len(found)} differences {'leaves' if number < 2 else 'leave'} out 0" + f" ({said})" * bool(said)


def verdicts(study: Study) -> dict[str, str]:
    """What holds of four claims, and whether accuracies under attack are to be believed."""
    found = list(gains(study))
    temperatures, maps = [g for g in found if "τ" in g.what], [g for g in found if "τ" not in g.what]
    area = {attacker: max(fmean(d.areas) for d in study.detections if d.attacker == attacker) for attacker in KNOWING}
    slowest = max(study.milliseconds.values())
    return {
        "worst-attack": f"{'does not hold' if study.gained < 1 else 'holds'}: ε·sign(p − mean p) gains {100 * study.gained:.0f} % "
        "of what the worst, ε·1, gains on the scores of digits, and nothing where scores are equal",
        "temperature-defence": f"{_at_test_verdict(study)} In training, {counted(temperatures)}. In points on τ = 1, under all "
        f"attacks: {_listed(temperatures)}",
        "robust-30": f"{_thirty(study, maps)}; {counted(maps)}. In points on softmax, under all attacks: {_listed(maps)}. "
        f"Adversarial training itself, of softmax on plain training: {_by_training(study):+.1f} points",
        "masking": _masking(study),
        "detector-1ms": f"time {'holds' if slowest < 1 else 'does not hold'}: {slowest:.3f} ms at most for 128 rows, with another "
        f"temperature for those suspected; detection: area under the ROC curve at best {area[KNOWING[0]]:.2f} against an attacker "
        f"who stops when the model is misled, {area[KNOWING[1]]:.2f} against one who goes on, and {area[KNOWING[2]]:.2f} "
        "against one who raises the number that is looked at (0.5 is chance)",
    }


def _shown(difference: Difference) -> str:
    return f"{100 * difference.mean:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def _listed(found: Sequence[Gain]) -> str:
    return "; ".join(f"{g.training}, {g.what}: {_shown(g.difference)}{' masked' if g.masked else ''}" for g in found)


def _at_test_verdict(study: Study) -> str:
    """Whether a temperature at test time helps against an attack on logits, and what it hides from one through probabilities."""
    base = {each.training: each for each in study.at_test if each.temperature == 1.0}
    moved = {each: at_test_difference(study, each.on_logits, base[each.training].on_logits) for each in study.at_test}
    helps = [f"{each.training}, τ = {each.temperature:g}" for each, difference in moved.items() if difference.better]
    most = max(abs(difference.mean) for difference in moved.values())
    otherwise = max(fmean(each.decided_otherwise) for each in study.at_test)
    hidden = {each: at_test_difference(study, each.through_probabilities, each.on_logits) for each in study.at_test}
    worst = max(hidden, key=lambda each: hidden[each].mean)
    said = (
        f"at test time it {'holds for ' + '; '.join(helps) if helps else 'does not hold'}: over the {len(moved)} temperatures and "
        f"trainings {100 * otherwise:.1f} % of decisions at most are others than those of the scores, and what an attack on logits "
        f"leaves moves by {100 * most:.1f} points at most"
    )
    if not hidden[worst].better:
        return f"{said}; the same attack through probabilities leaves no more at any of them that is told from 0."
    return (
        f"{said}; the same attack through probabilities leaves {_shown(hidden[worst])} points at τ = {worst.temperature:g} "
        f"({worst.training}), where {100 * fmean(worst.blind):.1f} % of pictures have a gradient of exactly 0: masking."
    )


def _thirty(study: Study, maps: Sequence[Gain]) -> str:
    """Of softmax's accuracy, the lesser of what 30 % may mean."""
    asked = lambda g: CLAIMED_GAIN * fmean(of(study, "softmax", 1.0, g.training).accuracies["all"])
    reaching = [g for g in maps if g.difference.low >= asked(g) and not g.masked]
    possible = [g for g in maps if g.difference.high >= asked(g) and g not in reaching]
    named = lambda gains: ", ".join(f"{g.what} ({g.training})" for g in gains)
    thirty = f"holds for {named(reaching)}" if reaching else "does not hold"
    return thirty + (f", and is not excluded for {named(possible)}" if possible else "")


def _by_training(study: Study) -> float:
    """What adversarial training adds to softmax's accuracy under all attacks, in points."""
    adversarial, plain = (fmean(of(study, "softmax", 1.0, kind).accuracies["all"]) for kind in ("adversarial", "plain"))
    return 100 * (adversarial - plain)


def _masking(study: Study) -> str:
    masked = [each for each in study.trained if each.masked]
    blind = max(fmean(each.blind) for each in study.trained)
    apart = [fmean(each.accuracies["black box"]) - fmean(each.accuracies["gradients"]) for each in study.trained]
    also = max(fmean(each.accuracies["gradients"]) - fmean(each.accuracies["all"]) for each in study.trained)
    named = "; ".join(f"{each.training}, {each.name}" for each in masked)
    said = f"masked, and no sign of robustness: {named}" if masked else f"none of {len(study.trained)} ways to train is masked"
    return (
        f"{said}: an attack without gradients leaves at least {100 * min(apart):+.1f} points more than all with them, and "
        f"{100 * blind:.1f} % of pictures at most have no gradient; it misleads {100 * also:.1f} % at most that the others do not. "
        f"Masking of less than what it leaves more, up to {100 * max(apart):.1f} points, is not seen"
    )
