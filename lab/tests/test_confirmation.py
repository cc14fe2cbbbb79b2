"""How often other data confirm a recommendation: a rule that goes by luck is found out, and ours holds what its page says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from softmaxima.integrations.pairs import Pair
from softmaxima_lab.compare.confirmation import KNOWN, METRICS_OF_PROBABILITIES, NOISE, TABLES, Share, Trial, half_table, trials
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.table import Comparison, Settings
from softmaxima_lab.pages.confirmation import by_metric, by_table, refuted, verdict

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"
CHEAP = Settings(model="linear", folds=2, repeats=1)
SOME = ("softmax", "sparsemax", "softmax · ArcFace")


def luckiest(comparison: Comparison) -> Pair | None:
    """Whatever is better than softmax in the mean."""
    best = max(comparison.others, key=lambda result: comparison.gain(result).mean)
    return best.pair if comparison.gain(best).mean > 0 else comparison.softmax.pair


def test_a_rule_that_goes_by_luck_is_not_confirmed_on_noise_and_ours_recommends_nothing() -> None:
    noise = "normal features, 3 equal classes"
    found = [trial for seed in range(10) for trial in trials(noise, seed, CHEAP, steps=10, rule=luckiest, chosen=SOME)]
    lucky = [trial for trial in found if trial.metric == "accuracy"]
    assert sum(trial.pair is not None for trial in lucky) > 5
    assert refuted(lucky).value > 0.25
    assert all(trial.uncertain for trial in lucky if trial.refuted)
    assert not any(trial.headline.startswith("Take") for trial in found)


def test_what_is_better_is_recommended_and_confirmed() -> None:
    """After few steps sparsemax is better calibrated on the digits."""
    found = {trial.metric: trial for trial in trials("digits", 0, replace(CHEAP, folds=4), steps=4, chosen=SOME[:2])}
    assert set(found) == set(METRICS_OF_PROBABILITIES)
    assert (found["calibration"].headline, found["calibration"].pair) == ("Take sparsemax", "sparsemax")
    assert not found["calibration"].uncertain


@pytest.mark.parametrize("name", TABLES)
def test_halves_share_classes_and_no_row(name: str) -> None:
    one, other = (half_table(name, 3, half) for half in (0, 1))
    assert one.classes == other.classes
    assert np.abs(one.class_sizes() - other.class_sizes()).max() <= 1
    assert min(one.class_sizes().min(), other.class_sizes().min()) >= 5
    if name not in ("iris", "digits", "digits, labels shuffled"):  # where rows occur twice
        assert not {row.tobytes() for row in one.features} & {row.tobytes() for row in other.features}


def test_there_are_ten_known_tables_and_three_of_noise() -> None:
    assert len(KNOWN) >= 10
    assert len(NOISE) >= 3


@pytest.mark.parametrize(("count", "of"), [(0, 30), (3, 120), (30, 30)])
def test_the_interval_of_a_share_is_that_of_clopper_and_pearson(count: int, of: int) -> None:
    expected = binomtest(count, of).proportion_ci(0.95, method="exact")
    assert Share(count, of).interval == pytest.approx((expected.low, expected.high))


def planted(name: str, gain: float | None) -> list[Trial]:
    """Of a table, a recommendation by every metric, with what the other half made of it."""
    taken = None if gain is None else Difference(gain, gain - 1, gain + 1)
    headline = "Nothing to choose" if gain is None else "Take sparsemax"
    return [Trial(name, 0, metric, headline, taken and "sparsemax", taken) for metric in METRICS_OF_PROBABILITIES]


def test_the_tables_count_what_was_not_confirmed() -> None:
    gains = {"iris": 0.5, "wine": -0.5, "digits, labels shuffled": -0.1}
    found = [trial for name in TABLES for trial in planted(name, gains.get(name))]
    text = by_table(found)
    assert "| iris | 1 | 0 | 0 | 1 | 0 | 1 |" in text
    assert "| wine | 1 | 0 | 0 | 1 | 1 | 1 |" in text
    assert "| moons | 1 | 1 | 0 | 0 | 0 | 0 |" in text
    assert "| moons | 1 | 1 | 0 | 0 | 0 | 0 |" in by_table(
        [replace(trial, headline=f"{trial.headline} by accuracy") for trial in found]
    )
    assert "| **noise, together** | **4** | **3** | **0** | **1** | **1** | **1** |" in text
    assert "| brier | 2 | 1 of 10: 10.0 %" in by_metric(found)
    assert "1 of 4: 25.0 % (0.6 to 80.6)" in verdict(found)


def test_on_noise_the_page_has_at_most_five_in_a_hundred_that_were_not_confirmed() -> None:
    block = re.search(r"<!-- metrics: .*?-->\n(.*?)<!-- end", PAGE.read_text(), re.DOTALL)
    assert block is not None
    lines = [line.strip("| ").split(" | ") for line in block[1].splitlines()[2:]]
    assert {cells[0] for cells in lines if cells[0] in METRICS_OF_PROBABILITIES} == set(METRICS_OF_PROBABILITIES)
    for _, *cells in lines:
        count, of = map(int, re.findall(r"\d+", cells[-2])[:2])
        assert of >= 100
        assert count <= 0.05 * of
