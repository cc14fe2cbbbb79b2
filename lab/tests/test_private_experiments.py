"""What is measured of privacy, shares and clients: small runs give what verdicts, tables and pictures are made of."""

from __future__ import annotations

from typing import Any

import pytest

from softmaxima_lab.pages import private
from softmaxima_lab.studies import federated_top, private_sums, shared_sums


def test_more_noise_costs_more_and_the_verdict_says_where(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"ENTRIES": (10, 1000), "RELEASES": 100, "TEACHERS": (5, 60), "SEEDS": 3, "EPSILONS": (0.1, 1.0)}.items():
        monkeypatch.setattr(private_sums, name, value)
    added, voted = private_sums.sums(), private_sums.votes()
    by = {(each.bound, each.n, each.epsilon): each for each in added}
    assert by[1.0, 10, 0.1].off > 3 * by[1.0, 10, 1.0].off > 30 * by[1.0, 1000, 1.0].off
    assert all(each.held > 0.8 for each in added)
    falls = private_sums.falls(voted)
    assert falls[5, "0.1"].mean > falls[60, "1"].mean
    assert falls[5, "0.1"].low > private_sums.FALL
    said = private_sums.verdict(added, voted)
    assert "the sensitivity is 1 does not hold" in said
    assert "more than 2 points of accuracy are lost with 5" in said
    assert "| 10 in [0, 1] | 0.16 |" in private.private_tables(added, voted)


def test_intervals_of_clients_hold_and_narrow(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"EACH": 60, "SEEDS": 2, "LARGEST": (1, 30, 60), "RELEASES": 3}.items():
        monkeypatch.setattr(federated_top, name, value)
    found = federated_top.run()
    assert all(each.held == 1 for each in found)
    for source in federated_top.SOURCES:
        whole, one, half, every = (each for each in found if each.source == source)
        assert one.width > half.width > 1e-3 > 1e-12 > max(every.width, whole.width) > 0
        assert whole.numbers == 10 * 9 < every.numbers
    assert "k = 60 of 60" in federated_top.verdict(found)
    assert "| the sum | 90 |" in private.federated_tables(found, federated_top.noises())
    drawn: Any = private.federated_picture(found)
    assert len(drawn.data) == 2 * len(federated_top.SOURCES)


@pytest.mark.exhaustive
def test_shares_are_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_sums, "CASES", ((3, 3, 16), (3, 6, 16)))
    found = shared_sums.run()
    assert found[0].rounds < found[1].rounds
    assert found[0].bytes < found[1].bytes
    assert all(each.off <= each.stated for each in found)
    assert "| 3 | 6 | 16 |" in private.shared_table(found)
