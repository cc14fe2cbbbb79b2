"""The study of attacks: it measures what it says, repeats, and its verdicts follow from its numbers."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from statistics import fmean

import pytest
import scipy.stats
import torch
from torch import nn

import softmaxima as sm
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.pages import robustness as report
from softmaxima_lab.studies import robustness, robustness_masking, robustness_peers, robustness_study
from softmaxima_lab.studies.robustness import Way
from softmaxima_lab.studies.robustness_masking import withstood
from softmaxima_lab.studies.robustness_peers import BLACK_BOX, of_art
from softmaxima_lab.studies.robustness_study import Study, Trained

WAYS = robustness.ways()
SPARSEMAX = Way("sparsemax", 1.0, "plain")
SHORT = of_art("SquareAttack", max_iter=10, nb_restarts=1)


@pytest.fixture(scope="module")
def study() -> Study:
    """Every way for an epoch, on 200 pictures, and of ART's attackers one."""
    whole = robustness.split()
    small = robustness.Split(whole.x[:256], whole.y[:256], whole.test_x[:80], whole.test_y[:80])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robustness_study, "split", lambda: small)
        patch.setattr(robustness_study, "AT_TEST", (0.001, 1.0))
        patch.setattr(robustness_masking, "STEPS", 10)
        patch.setitem(robustness_peers.ATTACKERS, BLACK_BOX, SHORT)
        few = {name: robustness_peers.ATTACKERS[name] for name in ("ours, margin", "ART, PGD on cross-entropy")}
        patch.setattr(robustness_study, "ATTACKERS", few)
        return robustness_study.run(seeds=2, epochs=8)


def test_attacks_leave_less_and_certificates_still_less(study: Study):
    for each in study.trained:
        for seed in range(2):
            found = {name: values[seed] for name, values in each.accuracies.items()}
            assert found["certified"] <= found["all"] <= min(found["gradients"], found["black box"])
            assert found["gradients"] <= min(found[attack] for attack in robustness.ATTACKS)
            assert found["black box"] <= found["clean"]
        assert fmean(each.rows) / 2 == pytest.approx(fmean(each.accuracies["all"]))
        assert each.blind == (0.0, 0.0)
        assert not each.masked


def test_numbers_are_shown(study: Study):
    assert set(robustness_study.verdicts(study)) == {"worst-attack", "temperature-defence", "robust-30", "masking", "detector-1ms"}
    assert report.trained_table(study).count("\n") == 1 + len(WAYS)
    assert "0.001" in report.at_test_table(study)
    assert "ART" in report.peers_table(study)
    assert report.detection_table(study).count("|") > 20
    assert report.sentences(study).count("\n") == 4
    assert all(line.startswith("- **Claim: ") for line in report.sentences(study).splitlines())
    assert not any(label in report.sentences(study) for label in robustness_study.verdicts(study) if "-" in label)
    assert len(report.picture(study).data) > 8  # type: ignore[arg-type]


def test_the_claimed_attack_gains_less_than_the_worst(study: Study):
    assert study.gained < 0.9
    assert robustness_study.verdicts(study)["worst-attack"].startswith("does not hold")


def test_attacks_of_art_and_ours_find_about_the_same(study: Study):
    by = {(each.training, each.name): each.accuracies for each in study.attackers}
    for training in ("plain", "adversarial"):
        ours, theirs = by[training, "ours, margin"], by[training, "ART, PGD on cross-entropy"]
        assert all(abs(a - b) < 0.1 for a, b in zip(ours, theirs, strict=True))


def planted(sparsemax: Trained | None = None, level: float = 0.4, seeds: int = 6) -> Study:
    """A study in which all ways are alike, but that of sparsemax in plain training."""
    numbers = lambda a: tuple(a + 0.001 * seed for seed in range(seeds))
    alike = {"clean": 0.9, "gradients": level, "black box": level + 0.1, "all": level, "certified": 0.0}
    rows = tuple(seeds if row < 540 * level else 0 for row in range(540))
    trained = [
        Trained(way.loss, way.temperature, way.training, {name: numbers(a) for name, a in alike.items()}, (0.0,) * seeds, rows)
        for way in WAYS
    ]
    if sparsemax is not None:
        trained[WAYS.index(SPARSEMAX)] = sparsemax
    detections = [robustness_study.Detection("margin", attacker, (0.5,), (0.0,), (1.0,)) for attacker in robustness_study.KNOWING]
    at_test = [robustness_study.AtTest("plain", tau, numbers(0.4), numbers(0.4), (0.0,), (0.0,)) for tau in (0.5, 1.0)]
    return Study(trained, at_test, [], detections, {"margin": 2.0}, 540, 0.5)


def of_sparsemax(accuracies: dict[str, float], rows: tuple[int, ...], blind: float = 0.0) -> Trained:
    each = {"clean": 0.95, "certified": 0.0, **accuracies}
    values = {name: tuple(a + 0.001 * seed for seed in range(6)) for name, a in each.items()}
    return Trained("sparsemax", 1.0, "plain", values, (blind,) * 6, rows)


def test_a_verdict_follows_the_gain():
    """A loss that gains 40 points with all seeds alike holds; one that gains none does not."""
    rows = tuple(6 if row < 540 * 0.8 else 0 for row in range(540))
    said = robustness_study.verdicts(planted(of_sparsemax({"gradients": 0.8, "black box": 0.85, "all": 0.8}, rows)))
    assert said["robust-30"].startswith("holds for sparsemax (plain);")
    assert "1 of 8 differences leaves out 0 (more: plain, sparsemax)." in said["robust-30"]
    assert said["detector-1ms"].startswith("time does not hold")
    none = robustness_study.verdicts(planted())
    assert none["robust-30"].startswith(
        "does not hold; none of 8 differences leaves out 0. In points on softmax, under all attacks:"
    )
    assert none["temperature-defence"].startswith("at test time it does not hold")
    assert "leaves no more at any of them" in none["temperature-defence"]


def test_the_verdict_of_thirty_percent_turns_where_the_end_of_the_interval_does_and_not_its_mean():
    """Sparsemax wins so many pictures more that the lower end of the interval is at 30 % of what softmax reaches."""
    pictures, comparisons = 540, len(list(robustness_study.gains(planted())))
    quantile = scipy.stats.t.isf(0.05 / 2 / comparisons, pictures - 1)
    low = lambda won: won / pictures - quantile * math.sqrt(won / pictures * (1 - won / pictures) / (pictures - 1))
    high = lambda won: 2 * won / pictures - low(won)
    base = fmean(planted().trained[WAYS.index(SPARSEMAX)].accuracies["all"])
    enough = next(won for won in range(pictures) if low(won) >= 0.3 * base)
    possible = next(won for won in range(pictures) if high(won) >= 0.3 * base)
    assert possible < 0.3 * base * pictures < enough - 10

    def verdict(won: int) -> str:
        rows = tuple(6 if row < 216 + won else 0 for row in range(pictures))  # softmax has the first 216
        level = 0.4 + won / pictures
        study = planted(of_sparsemax({"gradients": level, "black box": level + 0.1, "all": level}, rows))
        return robustness_study.verdicts(study)["robust-30"].partition(";")[0]

    assert verdict(enough) == "holds for sparsemax (plain)"
    assert verdict(enough - 1) == verdict(possible) == "does not hold, and is not excluded for sparsemax (plain)"
    assert verdict(possible - 1) == "does not hold"


def test_only_what_leaves_out_0_and_hides_no_gradient_is_counted():
    def gain(low: float, high: float, masked: bool = False) -> robustness_study.Gain:
        return robustness_study.Gain("plain", f"{low:g}", "softmax", Difference((low + high) / 2, low, high), masked)

    told = robustness_study.counted([gain(0.001, 0.1), gain(-0.1, -0.001), gain(0.001, 0.1, masked=True)])
    assert told == "2 of 3 differences leave out 0 (more: plain, 0.001; less: plain, -0.1)"
    assert robustness_study.counted([gain(-0.001, 0.1), gain(-0.1, 0.001)]) == "none of 2 differences leaves out 0"


@pytest.mark.parametrize("hides", [False, True])
def test_a_temperature_at_test_time_helps_or_hides_where_the_end_of_the_interval_is_above_0(hides: bool):
    base, tell = (0.4,) * 4, lambda value: (value,) * 4

    def found(more: int) -> tuple[bool, Study]:
        """(whether 0 is left out, the study) of so many thousandths more, through probabilities or on logits."""
        left = (tell(0.4 + more / 1000), base) if hides else (base, tell(0.4 + more / 1000))
        of_tau = [robustness_study.AtTest("plain", tau, *both, (0.0,), (0.0,)) for tau, both in ((1.0, (base, base)), (0.5, left))]
        study = replace(planted(), at_test=of_tau)
        difference = robustness_study.at_test_difference(study, *(left if hides else left[::-1]))
        return difference.better, study

    shown = next(more for more in range(1, 300) if found(more)[0])
    before, after = (robustness_study.verdicts(found(more)[1])["temperature-defence"] for more in (shown - 1, shown))
    if hides:
        assert "leaves no more at any of them" in before
        assert "points at τ = 0.5 (plain)" in after
    else:
        assert before.startswith("at test time it does not hold")
        assert after.startswith("at test time it holds for plain, τ = 0.5:")


def test_what_other_pictures_would_give_is_in_the_interval():
    """Two points more with every seed, by pictures that are others: seeds alone would call it certain."""
    rows = tuple(6 if 100 <= row < 100 + 540 * 0.42 else 0 for row in range(540))
    study = planted(of_sparsemax({"gradients": 0.42, "black box": 0.5, "all": 0.42}, rows))
    (gain,) = (g for g in robustness_study.gains(study) if (g.training, g.what) == ("plain", "sparsemax"))
    assert gain.difference.mean == pytest.approx(0.02)
    assert gain.difference.low < -0.03
    assert report.error((0.5, 0.5), 100) == pytest.approx(0.05)


class Rounded(nn.Module):
    """Scores to 1/8, which have no gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (8 * x).round() / 8


def test_a_network_that_hides_its_gradients_is_called_masked():
    data = robustness.split()
    x, y = data.test_x[:100], data.test_y[:100]
    model = robustness.train(Way("softmax", 1.0, "plain"), data, 0, 8)
    honest, hidden = (withstood(each, x, y, 0) for each in (model, nn.Sequential(model, Rounded())))
    assert not hidden.has_gradient.any()
    assert honest.has_gradient.all()
    assert hidden.accuracies()["gradients"] > 0.8  # it seems robust
    assert hidden.accuracies()["all"] < hidden.accuracies()["gradients"] - 0.15
    trained = of_sparsemax({"gradients": 0.9, "black box": 0.55, "all": 0.55}, tuple(6 if row < 297 else 0 for row in range(540)))
    study = planted(trained)
    said = robustness_study.verdicts(study)
    assert said["masking"].startswith("masked, and no sign of robustness: plain, sparsemax:")
    assert said["robust-30"].startswith("does not hold")
    assert " masked" in said["robust-30"]
    assert " masked |" in report.trained_table(study)
    assert robustness_study.is_masked([0.5], [0.6], [0.2])
    assert not robustness_study.is_masked([0.5], [0.6], [0.0])


def test_training_repeats():
    data = robustness.split()
    first, again = (robustness.train(Way("sparsemax", 1.0, "plain"), data, 3, 1) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_certified_cross_entropy_is_above_that_of_any_attack():
    data = robustness.split()
    model = robustness.train(Way("softmax", 1.0, "plain"), data, 0, 1)
    x, y = data.test_x[:50], data.test_y[:50]
    worst = float(robustness.certified_cross_entropy(model, x, y, 0.02, 1.0).detach())
    found = sm.robust.attack(model, x, y, 0.02, loss="cross_entropy", steps=10).inputs
    before, after = (float(sm.cross_entropy(model(each), y).detach()) for each in (x, found))
    assert before < after <= worst


def test_without_art_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    data = robustness.split()
    with pytest.raises(ImportError, match=r'pip install "softmaxima-lab\[robust\]"'):
        robustness_peers.measured("ART, APGD on DLR", torch.nn.Sequential(), data.x[:1], data.y[:1], 0)
