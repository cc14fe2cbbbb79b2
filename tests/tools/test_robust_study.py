"""The study of attacks: it measures what it says, repeats, and its verdicts follow from its numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import softmaxima as sm
from softmaxima.experiments import robustness, robustness_peers, robustness_study
from softmaxima.experiments.robustness import Way
from softmaxima.experiments.robustness_study import Study
from softmaxima.report import robustness as report

FEW = (
    *(Way(loss, 1.0, training) for training in ("plain", "adversarial") for loss in robustness.LOSSES),
    *(Way("softmax", tau, training) for training in ("plain", "adversarial") for tau in (0.5, 2.0)),
    Way("softmax", 1.0, "certified"),
)


@pytest.fixture(scope="module")
def study() -> Study:
    """Every way for an epoch, on 200 pictures, and of ART's attackers one."""
    whole = robustness.split()
    small = robustness.Split(whole.x[:256], whole.y[:256], whole.test_x[:80], whole.test_y[:80])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robustness_study, "ways", lambda: FEW)
        patch.setattr(robustness_study, "split", lambda: small)
        patch.setattr(robustness_study, "AT_TEST", (0.001, 1.0))
        few = {name: robustness_peers.ATTACKERS[name] for name in ("ours, margin", "ART, PGD on cross-entropy")}
        patch.setattr(robustness_study, "ATTACKERS", few)
        return robustness_study.run(seeds=2, epochs=8)


def test_attacks_leave_less_and_certificates_still_less(study: Study):
    for each in study.trained:
        for seed in range(2):
            found = {name: values[seed] for name, values in each.accuracies.items()}
            assert found["certified"] <= found["all"] <= min(found[attack] for attack in robustness.ATTACKS)
            assert found["all"] <= found["clean"]


def test_numbers_are_kept_and_shown(study: Study, tmp_path: Path):
    robustness_study.write(study, {"commit": "abc"}, tmp_path / "study.json")
    assert robustness_study.read(tmp_path / "study.json") == study
    assert set(robustness_study.verdicts(study)) == {"worst-attack", "temperature-defence", "robust-30", "detector-1ms"}
    assert report.trained_table(study).count("\n") == 1 + len(FEW)
    assert "0.001" in report.at_test_table(study)
    assert "ART" in report.peers_table(study)
    assert report.detection_table(study).count("|") > 20
    assert report.sentences(study).count("\n") == 3
    assert len(report.picture(study).data) > 8  # type: ignore[arg-type]


def test_the_claimed_attack_gains_less_than_the_worst(study: Study):
    assert study.gained < 0.9
    assert robustness_study.verdicts(study)["worst-attack"].startswith("does not hold")


def test_attacks_of_art_and_ours_find_about_the_same(study: Study):
    by = {(each.training, each.name): each.accuracies for each in study.attackers}
    for training in ("plain", "adversarial"):
        ours, theirs = by[training, "ours, margin"], by[training, "ART, PGD on cross-entropy"]
        assert all(abs(a - b) < 0.1 for a, b in zip(ours, theirs, strict=True))


def test_a_verdict_follows_the_gain():
    """A loss that gains 40 points with all seeds alike holds; one that gains none does not."""
    accuracy = {Way("sparsemax", 1.0, "plain"): 0.8}
    trained = [
        robustness_study.Trained(
            way.loss, way.temperature, way.training, {"all": tuple(accuracy.get(way, 0.4) + 0.001 * seed for seed in range(6))}
        )
        for way in FEW
    ]
    detections = [robustness_study.Detection("margin", attacker, (0.5,), (0.0,), (1.0,)) for attacker in robustness_study.KNOWING]
    at_test = [robustness_study.AtTest("plain", 1.0, (0.4,), (0.4,))]
    study = Study(trained, at_test, [], detections, {"margin": 2.0}, 0.5)
    said = robustness_study.verdicts(study)
    assert said["robust-30"].startswith("holds for sparsemax (plain):")
    assert said["detector-1ms"].startswith("time does not hold")


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
    with pytest.raises(ImportError, match=r'pip install "softmaxima\[robust\]"'):
        robustness_peers.measured("ART, APGD on DLR", torch.nn.Sequential(), data.x[:1], data.y[:1], 0)
