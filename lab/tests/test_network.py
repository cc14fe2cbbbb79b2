"""The model of many ranks, and what the page of ranks says of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from softmaxima_lab.bench.case import OURS, Case, Peer, Result
from softmaxima_lab.bench.clock import Quotient
from softmaxima_lab.bench.record import Benchmark, read
from softmaxima_lab.pages import ranks as report
from softmaxima_lab.studies.network import (
    FABRICS,
    Network,
    Scheme,
    Straggling,
    by_bruck,
    by_doubling,
    by_ring,
    first_faster,
    fitted,
    messages,
    step,
)

NETWORK = Network("a wire", alpha=3.0, beta=0.5)


MANY = (1, 2, 3, 5, 7, 8, 12, 33)


def ended(sent: list[list[tuple[int, int, float]]], ranks: int) -> tuple[float, int, float]:
    """(when all are done, rounds, most bytes received) of rounds of messages (from, to, bytes) in which all begin at once."""
    done, received = np.zeros(ranks), Counter[int]()
    for each in sent:
        before = done.copy()
        for source, sink, size in each:
            takes = NETWORK.alpha + NETWORK.beta * size
            done[sink] = max(done[sink], before[sink] + takes, before[source] + takes)
            received[sink] += size
    return float(done.max()), len(sent), max(received.values(), default=0)


@pytest.mark.parametrize("ranks", MANY)
def test_a_ring_brings_each_rank_what_all_have_in_these_rounds(ranks: int):
    rounds = [[(r, (r + 1) % ranks, 10) for r in range(ranks)] for _ in range(ranks - 1)]
    found = by_ring(ranks, 10, NETWORK)
    assert (found.seconds, found.rounds, found.received) == pytest.approx(ended(rounds, ranks))


@pytest.mark.parametrize("ranks", MANY)
def test_bruck_brings_each_rank_what_all_have_in_these_rounds(ranks: int):
    have, rounds = [1] * ranks, []
    while have[0] < ranks:
        sent = min(have[0], ranks - have[0])
        rounds.append([((r + have[0]) % ranks, r, 10 * sent) for r in range(ranks)])
        have = [each + sent for each in have]
    found = by_bruck(ranks, 10, NETWORK)
    assert (found.seconds, found.rounds, found.received) == pytest.approx(ended(rounds, ranks))


@pytest.mark.parametrize("ranks", MANY)
def test_doubling_sums_what_all_have_on_each_rank_in_these_rounds(ranks: int):
    """2ᵏ of the ranks exchange sums; the others give theirs before, and get that of all after."""
    whole = 1 << (ranks.bit_length() - 1)
    fold = [(whole + i, i, 10) for i in range(ranks - whole)]
    pairs = [[(r, r ^ (1 << k), 10) for r in range(whole)] for k in range(whole.bit_length() - 1)]
    rounds = [*([fold] if fold else []), *pairs, *([[(b, a, s) for a, b, s in fold]] if fold else [])]
    sums = [{r} for r in range(ranks)]
    for each in rounds:
        before = [set(own) for own in sums]
        for source, sink, _ in each:
            sums[sink] |= before[source]
    assert all(own == {*range(ranks)} for own in sums)
    found = by_doubling(ranks, 10, NETWORK)
    assert (found.seconds, found.rounds, found.received) == pytest.approx(ended(rounds, ranks))


def test_a_network_is_found_from_what_messages_take():
    points = [(ranks, size, (ranks - 1) * (2e-4 + 3e-9 * size)) for ranks in (2, 4) for size in (1024, 10**5, 10**7)]
    found = fitted("here", points)
    assert (found.alpha, found.beta) == pytest.approx((2e-4, 3e-9), rel=0.02)
    flat = fitted("flat", [(2, 1, 1.0), (2, 1000, 0.5)])
    assert (flat.alpha, flat.beta) == pytest.approx((0.5**0.5, 0.0))
    rough = [(4, size, seconds * factor) for (_, size, seconds), factor in zip(points, (1.5, 0.5, 2.0) * 2, strict=True)]
    of = fitted("rough", rough)
    off = [np.log(seconds / by_ring(ranks, size, of).seconds) for ranks, size, seconds in rough]
    assert np.mean(off) == pytest.approx(0, abs=1e-12)  # biased neither way


def test_a_step_is_work_and_messages():
    one, three = Scheme("one", "all-gather", (32.0,)), Scheme("three", "all-reduce", (4.0,) * 3)
    still, ethernet = Straggling(spread=1e-6, odds=0.0), FABRICS[0]
    calm = step(one, ethernet, 8, 100, 1e-3, still)
    assert calm.messages.seconds == pytest.approx(3 * ethernet.alpha + 7 * 3200 * ethernet.beta)
    assert calm.median == pytest.approx(1e-3 + calm.messages.seconds, rel=1e-3)
    assert calm.waiting == pytest.approx(0, abs=1e-3)
    assert (calm.messages.rounds, calm.messages.received) == (3, 7 * 3200)
    assert step(three, ethernet, 1000, 100, 1e-3, still).messages.rounds == 33


@pytest.mark.parametrize("ranks", [1, 8, 64, 1000])
def test_the_slowest_rank_is_as_late_as_when_factors_are_drawn(ranks: int):
    straggling, rng, steps = Straggling(odds=0.01), np.random.default_rng(ranks), 300_000 // ranks
    late = np.where(rng.random((steps, ranks)) < straggling.odds, straggling.factor, 1.0)
    drawn = (late * rng.lognormal(0.0, straggling.spread, (steps, ranks))).max(1)
    median, one_in_100, mean = straggling.of_slowest(ranks)
    assert median == pytest.approx(np.median(drawn), rel=0.02)
    assert (drawn < one_in_100).mean() == pytest.approx(0.99, abs=5 * (0.99 * 0.01 / steps) ** 0.5 + 1e-3)
    assert mean == pytest.approx(drawn.mean(), abs=5 * drawn.std() / steps**0.5 + 1e-3)
    if ranks == 1:
        assert mean == pytest.approx(straggling.mean, rel=1e-3)


def test_the_page_says_where_messages_become_the_slower_ones():
    one, other = Scheme("one", "all-gather", (32.0,)), Scheme("other", "all-reduce", (4.0, 8.0))
    for network in FABRICS:
        upto, after = first_faster(one, other, network, 4096)
        time = lambda scheme, ranks, network=network: messages(scheme, network, ranks, 4096).seconds
        slower = {ranks for ranks in range(2, 1025) if time(one, ranks) > time(other, ranks)}
        assert (min(slower), max({*range(2, 1025)} - slower)) == (upto + 1, after - 1)
    assert first_faster(one, replace(one, bytes=(31.0,)), FABRICS[0], 4096) == (1, 2)
    assert first_faster(one, one, FABRICS[0], 4096) == (1024, 1025)


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    return read(Path(__file__).parents[2] / "benchmarks" / "ranks-cpu.json")


def test_the_report_says_what_is_slower(benchmark: Benchmark):
    facts = {"messages": {OURS: {}}, "sent": {OURS: 0}}

    def measured(ranks: int, seconds: float, ratio: Quotient) -> Result:
        case = Case("ranks", "sparsemax_loss, strong", f"{ranks}x256x4096", "float32")
        return Result(case, seconds=seconds, peers={"gathered": Peer(1.0, ratio)}, facts=facts)

    slow, fine = Quotient(0.25, 0.2, 0.3), Quotient(2.0, 1.8, 2.2)
    benchmark = replace(benchmark, machine={**benchmark.machine, "cores": 3})
    said = report.slower(replace(benchmark, results=[measured(1, 1.0, slow), measured(2, 1.0, fine), measured(4, 2.0, fine)]))
    assert "ours took sparsemax_loss of 4096 classes 4 times as long" in said
    assert "4 ranks took longer than 2 for sparsemax_loss of 4096 classes, 2.00 s beside 1.00 s" in said
    assert "4 ranks are more than the 3 cores here" in said
    assert report.slower(replace(benchmark, results=[measured(1, 1.0, fine)])) == ""


def test_no_name_in_the_picture_covers_another(benchmark: Benchmark):
    names = [each for each in report.picture(benchmark).layout.annotations if each.yref != "paper"]
    for column in {each.yref for each in names}:
        of = sorted(each.y for each in names if each.yref == column)
        span = next(axis.range for axis in [report.picture(benchmark).layout[f"yaxis{column[1:]}"]])
        assert min(np.diff(of)) >= 0.99 * report.GAP * (span[1] - span[0])
