"""Intervals of studies on tiny examples, against their formulas written out, and verdicts that turn where their ends do."""

from __future__ import annotations

import itertools
import math
from statistics import fmean, variance

import numpy as np
import pytest
import torch
from scipy.stats import beta, t

import softmaxima as sm
from softmaxima.temperature.reliability import RowMeasures
from softmaxima_lab.calibrate import calibration
from softmaxima_lab.compare.differences import Difference, widened
from softmaxima_lab.compare.measures import METRICS
from softmaxima_lab.studies import graph_study, mixtures, private_sums, robustness_study
from softmaxima_lab.studies.mixtures import Chosen
from softmaxima_lab.studies.private_sums import Sum, Votes
from softmaxima_lab.studies.robustness_study import AtTest, Study

GAINS = (0.01, 0.05, -0.02, 0.04)


def literal(gains: tuple[float, ...], comparisons: int, *parts: tuple[float, int]) -> tuple[float, float]:
    """mean ∓ √Σ t² v of parts of the variance of the mean, each (v, degrees of freedom), of so many intervals that hold at once."""
    reach = math.sqrt(sum(float(t.ppf(1 - 0.025 / comparisons, freedom)) ** 2 * v for v, freedom in parts))
    return fmean(gains) - reach, fmean(gains) + reach


def ends(found: Difference) -> tuple[float, float]:
    return pytest.approx((found.low, found.high), rel=1e-9)  # type: ignore[return-value]


def test_of_temperatures_at_test_time():
    base = (0.4,) * 4
    values = tuple(a + b for a, b in zip(base, GAINS, strict=True))
    study = Study([], [AtTest("plain", tau, values, base, (0.0,), (0.0,)) for tau in (0.5, 1.0, 2.0)], [], [], {}, 540, 0.5)
    deviation = math.sqrt(0.4 * 0.6) + math.sqrt(0.42 * 0.58)
    expected = literal(GAINS, 6, (variance(GAINS) / 4, 3), (deviation**2 / 540, 539))
    assert expected == ends(robustness_study.at_test_difference(study, values, base))


def test_of_ways_to_choose_a_map():
    base = tuple(0.8 for _ in GAINS)
    reached = lambda k: tuple(0.8 + gain * k for gain in GAINS)
    found = []
    for k in range(3):
        found.append(Chosen(f"table {k}", "softmax", 100, ("softmax",) * 4, dict.fromkeys(mixtures.MEASURES, base)))
        found += [
            Chosen(f"table {k}", way, 100, ("sparsemax",) * 4, dict.fromkeys(mixtures.MEASURES, reached(k + 1)))
            for way in mixtures.WAYS
        ]
    way, pairs = mixtures.WAYS[0], len(mixtures.PAIRS) * len(mixtures.TOLD)
    of_folds = (1 / 4 + 1 / 3) * variance(GAINS)  # test rows over training rows are 1/3
    assert literal(GAINS, 3 * pairs, (of_folds, 3)) == ends(mixtures.gain(found, "table 0", way, "accuracy"))
    of_tables = tuple(fmean(GAINS) * k for k in (1, 2, 3))
    assert literal(of_tables, pairs, (variance(of_tables) / 3, 2)) == ends(mixtures.overall(found, way, "accuracy"))


def test_of_aggregations():
    """Three for each task; where all seeds have one graph, those tested count over those learnt from."""
    drawn, split = next(task for task in graph_study.TASKS if task not in graph_study.SPLITS), next(iter(graph_study.SPLITS))
    reached = {graph_study.BASELINE: (0.5,) * 4, "sum": (0.1,) * 4, "max": (0.1,) * 4, "LSE": tuple(0.5 + each for each in GAINS)}
    found = [graph_study.Trained(task, name, values, (0.1,) * 4) for task in (drawn, split) for name, values in reached.items()]
    learnt, validated, tested = map(len, graph_study.split(0, len(graph_study.TASKS[split](0).y)))
    shares = {drawn: 1 / 4, split: 1 / 4 + tested / (learnt + validated)}
    for task, over, difference in graph_study.verdict(found):
        assert over == graph_study.BASELINE
        assert literal(GAINS, 3 * 2, (shares[task] * variance(GAINS), 3)) == ends(difference)


def test_of_a_calibration(monkeypatch: pytest.MonkeyPatch):
    """Each interval has its share of what may fail, and errors to come have half of it at each end."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    x, seen, interval_of = 4 * (rng.normal(size=(60, 3)) + np.eye(3)[labels]), [], calibration.interval_of

    def kept(gains: list[float], *more: object) -> Difference:
        seen.append((tuple(gains), interval_of(gains, *more)))  # type: ignore[arg-type]
        return seen[-1][1]

    through: dict[str, float] = {}

    def recorded(x: torch.Tensor, log_p: torch.Tensor, labels: torch.Tensor, settings: calibration.Settings) -> dict[str, float]:
        through.update(through_the_fit(x, log_p, labels, settings))
        z = log_p.clone().requires_grad_()
        tau = torch.ones(60, 1, dtype=torch.float64, requires_grad=True)  # a slope of each row by the one number that is fitted
        p = (z + (tau - 1) * x).softmax(-1)
        hit = torch.nn.functional.one_hot(labels, 3)
        of_loss, of_brier = (
            torch.autograd.grad(value.sum(), tau, retain_graph=True)[0]
            for value in (-(p.log() * hit).sum(-1), (p - hit).square().sum(-1))
        )
        assert through["log_loss"] == pytest.approx(3 / 2 / 60**2)
        assert through["brier"] == pytest.approx(3 / 2 * float(of_brier.square().sum() / of_loss.square().sum()) / 60**2)
        return through

    through_the_fit = calibration._through_the_fit
    monkeypatch.setattr(calibration, "interval_of", kept)
    monkeypatch.setattr(calibration, "_through_the_fit", recorded)
    scores = calibration.Scores("scores", "target", ("a", "b", "c"), x, labels)
    calibration.calibrated(scores, calibration.Settings(folds=3))
    number = len(calibration.CLAIMED)
    assert len(seen) == number + 1
    for (gains, found), measure in zip(seen, ("log_loss", "brier", "log_loss"), strict=True):
        assert literal(gains, number, (variance(gains) / 60 + through[measure], 59)) == ends(found)
    log_p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]).double().log()
    measures, change = RowMeasures.of_log(log_p, torch.tensor([0, 0, 1, 0])), torch.tensor([1.0, 1.0, 2.0, 5.0]).double()
    most = beta.ppf(1 - 0.05 / (2 * number), 1 + 1, 4 - 1)  # of rows that are wrong, where one of four was
    by_weight = (0.1 * 1 + 0.1 * 1 + 0.2 * 2) / 0.4
    assert calibration._by_errors_to_come(measures, change) == pytest.approx((most - 1 / 4) * by_weight)


def test_of_another_mean_that_is_as_possible():
    """The end on its side moves as far, and no further than the metric's differences do; the other stays."""
    found, accuracy = Difference(0.1, 0.05, 0.15, 0.05), METRICS["accuracy"]
    for mean, low, high in ((-0.2, -0.2, 0.15), (0.4, 0.05, 0.4), (0.12, 0.05, 0.15), (-3.0, -1.0, 0.15), (3.0, 0.05, 1.0)):
        moved = widened(found, mean, accuracy)
        assert (moved.mean, moved.low, moved.high) == (0.1, low, high)


def votes(falls: tuple[float, ...], teachers: int = 100) -> list[Votes]:
    plain = (0.9,) * len(falls)
    return [Votes(teachers, plain, {f"{eps:g}": tuple(0.9 - fall for fall in falls) for eps in private_sums.EPSILONS})]


def test_of_what_privacy_costs():
    (found,) = {*private_sums.falls([*votes(GAINS), *votes(GAINS, 30)]).values()}
    assert literal(GAINS, 2 * len(private_sums.EPSILONS), (variance(GAINS) / 4, 3)) == ends(found)


@pytest.mark.parametrize(("side", "word"), [(1, "less"), (-1, "more")])
def test_the_verdict_of_privacy_turns_where_the_end_of_the_interval_does(side: int, word: str):
    """At 2 points, whatever the mean: the higher end for less, the lower one for more."""
    added = [Sum(b, 100, 1.0, 1.0, 0.01, 1.0) for _, b in private_sums.BOUNDS]
    centred = tuple(gain - fmean(GAINS) for gain in GAINS)
    reach = literal(centred, len(private_sums.EPSILONS), (variance(GAINS) / 4, 3))[1]
    said = [
        private_sums.verdict(added, votes(tuple(private_sums.FALL - side * (reach + more) + gain for gain in centred)))
        for more in (1e-6, -1e-6)
    ]
    assert f"{word} than 2 points of accuracy are lost with 100 teachers" in said[0]
    assert "with 100 it may be more or less than 2" in said[1]


def test_of_an_audit():
    """Answers that are 1 of one input 300 times in 500, of its neighbour 100 times, each limit at half of what may fail."""
    trials, of_x, of_neighbour = 1000, 300, 100
    counts = {0: itertools.count(), 1: itertools.count()}
    often = {0: of_x, 1: of_neighbour}
    found = sm.privacy.audit(lambda x: float(next(counts[x]) % 500 < often[x]), 0, 1, trials=trials, confidence=0.9, delta=0.01)
    p, q = beta.ppf(0.05, of_x, 500 - of_x + 1), beta.ppf(0.95, of_neighbour + 1, 500 - of_neighbour)
    r, s = beta.ppf(0.05, 500 - of_neighbour, of_neighbour + 1), beta.ppf(0.95, 500 - of_x + 1, of_x)
    assert found.epsilon == pytest.approx(max(math.log((p - 0.01) / q), math.log((r - 0.01) / s)), rel=1e-9)
