"""Measured: losses whose classes processes share, what they send; and the model of many ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from softmaxima.bench.network import FABRICS, Network, Scheme, Straggling, by_doubling, by_ring, fitted, simulate
from softmaxima.bench.ranks import read
from softmaxima.cli import main
from softmaxima.report import ranks as report

NETWORK = Network("a wire", alpha=3.0, beta=0.5)


def test_the_command_measures_counts_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "ranks.json"
    with pytest.raises(SystemExit) as ending:
        main(["bench-ranks", "--ranks", "2", "--rows", "4", "--classes", "64", "--quick", "--json", str(path)])
    assert ending.value.code == 0
    assert "loss_parallel" in capsys.readouterr().out
    benchmark = read(path)
    assert [(r.case.task, r.case.scaling, r.case.classes) for r in benchmark.results] == [
        (task, scaling, classes)
        for task in ("cross_entropy", "sparsemax_loss", "logsumexp")
        for scaling, classes in (("strong", 64), ("weak", 32))
    ]
    for result in benchmark.results:
        assert not result.problem
        assert all(seconds > 0 for seconds in result.seconds.values())
        assert result.messages["ours"] == {"all-gather": 1}  # of both passes
        assert result.sent["gathered"] == 4 * 4 * result.case.classes // 2
    entropy = benchmark.results[0]
    assert entropy.messages["loss_parallel"] == {"all-reduce": 3}  # Megatron's count
    assert set(entropy.ratios) == {"gathered", "loss_parallel"}
    assert [message.bytes for message in benchmark.messages] == [1024, 4096]
    assert benchmark.handshakes["2"] > 0
    assert json.loads(path.read_text())["versions"]["torch"]
    assert "α =" in report.model(benchmark)


def test_classes_that_do_not_split_are_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["bench-ranks", "--classes", "4098"])
    assert "4098 are not the same number on each of 4 ranks; give a multiple of 4" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_collectives_of_ranks_that_are_ready_at_once_take_what_the_model_says(ranks: int):
    ready, log = np.zeros(ranks), math.ceil(math.log2(ranks))
    assert by_ring(ready, 10.0, NETWORK) == pytest.approx(np.full(ranks, (ranks - 1) * 8.0))
    assert by_doubling(ready, 10.0, NETWORK, grows=False) == pytest.approx(np.full(ranks, log * 8.0))
    assert by_doubling(ready, 10.0, NETWORK, grows=True) == pytest.approx(np.full(ranks, log * 3.0 + (ranks - 1) * 5.0))


@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize("late", [0, 1])
def test_no_rank_is_done_before_the_last_has_sent(ranks: int, late: int):
    ready = np.zeros(ranks)
    ready[late] = 1000.0
    for done in (by_ring(ready, 10.0, NETWORK), by_doubling(ready, 10.0, NETWORK, grows=True)):
        assert done.min() >= 1000.0
        assert 1000.0 < done.max() <= 1000.0 + (ranks - 1) * 8.0


def test_a_network_is_found_from_what_messages_take():
    points = [(ranks, size, (ranks - 1) * (2e-4 + 3e-9 * size)) for ranks in (2, 4) for size in (1024, 10**5, 10**7)]
    found = fitted("here", points)
    assert (found.alpha, found.beta) == pytest.approx((2e-4, 3e-9))
    flat = fitted("flat", [(2, 1, 1.0), (2, 1000, 0.5)])
    assert flat.beta == 0
    assert flat.alpha > 0


def test_a_simulated_step_is_work_and_messages_and_stragglers():
    one, three = Scheme("one", "all-gather", (32.0,)), Scheme("three", "all-reduce", (4.0,) * 3)
    still = Straggling(spread=0.0, odds=0.0)
    ethernet = FABRICS[0]
    calm = simulate(one, ethernet, 8, 100, 1e-3, still, steps=3)
    assert calm.median == pytest.approx(1e-3 + calm.messages)
    assert calm.messages == pytest.approx(3 * ethernet.alpha + 7 * 3200 * ethernet.beta)
    assert (calm.rounds, calm.received, calm.waiting) == (3, 7 * 3200, 0)
    assert simulate(three, ethernet, 8, 100, 1e-3, still, steps=3).rounds == 9
    late = simulate(one, ethernet, 1000, 100, 1e-3, Straggling(spread=0.0, odds=0.01, factor=3.0), steps=20)
    assert late.median == pytest.approx(3e-3 + late.messages, rel=0.2)  # in nearly each step one is late
    assert late.waiting > 0.4
