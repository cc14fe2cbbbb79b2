"""softmaxima compare on the workers of a Dask cluster: the numbers of one process, times aside."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Run
from softmaxima.dask.cluster import connected
from softmaxima.integrations.pairs import choose, pairs
from softmaxima_lab.compare import spreading
from softmaxima_lab.compare import table as compare
from softmaxima_lab.compare.spreading import Spread
from softmaxima_lab.compare.table import BASELINE, REFERENCE, Settings, trained_folds
from softmaxima_lab.tables.tables import Table, read_table

distributed = pytest.importorskip("distributed")

FAST = ("--folds=2", "--repeats=1", "--epochs=2", "--maps=softmax,sparsemax,entmax15,topp_softmax")
TINY = Settings(folds=2, repeats=1, epochs=2)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Five workers, threads of this process."""
    with (
        distributed.LocalCluster(
            n_workers=5, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    rows = [f"{i % 3 + random.standard_normal()},{random.standard_normal()},{'abc'[i % 3]}" for i in range(48)]
    (tmp_path / "table.csv").write_text("\n".join(["length,width,species", *rows]))
    return tmp_path / "table.csv"


@pytest.fixture
def table(path: Path) -> Table:
    return read_table(path)


SOME = choose(pairs(3), ["sparsemax", "softmax", "entmax-1.5", "top-p softmax"])


def without_times(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: without_times(value) for key, value in record.items() if key not in ("step_seconds", "checksum")}
    return [without_times(value) for value in record] if isinstance(record, list) else record


def measured(folds: Any) -> list[Any]:
    """Names in their order, and everything but the times."""
    return [[(name, replace(fold, step_seconds=0.0)) for name, fold in found.items()] for found in folds]


def test_the_command_writes_the_same_numbers(client: Any, path: Path, tmp_path: Path, run: Run, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    address = client.scheduler.address
    records = []
    for options in ((), (f"--dask={address}",), ("--dask", address)):
        command = ["compare", str(path), *options, "--out=out", *FAST]
        monkeypatch.setattr(sys, "argv", ["softmaxima", *command])
        code, _, err = run(*command)
        assert (code, err) == (0, "")
        records.append(json.loads((tmp_path / "out" / "results.json").read_text()))
        (tmp_path / "out" / "results.json").unlink()
    first, *others = map(without_times, records)
    assert first["command"] == f"softmaxima compare {path} --out=out {' '.join(FAST)}"
    assert len(first["folds"]) == 2
    assert all(other == first for other in others)
    assert all(result["step_seconds"] > 0 for result in records[1]["results"] if result["pair"] != BASELINE)


def test_a_fold_is_the_same_in_groups_of_pairs(client: Any, table: Table) -> None:
    whole = measured(trained_folds(table, TINY, SOME))
    spread = Spread(client, table, TINY, SOME)
    assert [[pair.name for pair in group] for group in spread.groups] == [
        ["softmax", "entmax-1.5"],
        ["softmax", "sparsemax"],
        ["softmax", "top-p softmax"],
    ]
    assert spread.parts == 5
    steps: list[int] = []
    assert measured(spread.folds(steps.append)) == whole
    assert sum(steps) == spread.steps()
    rest = Spread(client, table, TINY, SOME, start=1)
    assert len(rest.groups) == 3
    assert measured(rest.folds()) == whole[1:]
    tuned = replace(TINY, tune=True, epochs=1)
    assert measured(Spread(client, table, tuned, SOME[1:3]).folds()) == measured(trained_folds(table, tuned, SOME[1:3]))
    alone = Spread(client, table, TINY, SOME[:1])
    assert measured(alone.folds()) == measured(trained_folds(table, TINY, SOME[:1]))
    many = replace(TINY, folds=4, repeats=2)
    assert Spread(client, table, many, SOME).groups == [(SOME[0], *(pair for pair in SOME if pair is not SOME[0]))]


def test_times_are_those_beside_one_softmax(table: Table) -> None:
    fold = next(trained_folds(table, TINY, SOME))
    first = {name: replace(fold[name], step_seconds=2.0) for name in (BASELINE, REFERENCE, "sparsemax")}
    second = {REFERENCE: replace(fold[REFERENCE], step_seconds=8.0), "entmax-1.5": replace(fold["entmax-1.5"], step_seconds=4.0)}
    found = spreading._together([first, second], choose(pairs(3), ["softmax", "sparsemax", "entmax-1.5"]))
    assert {name: fold.step_seconds for name, fold in found.items()} == {
        BASELINE: 2.0,
        "softmax": 2.0,
        "sparsemax": 2.0,
        "entmax-1.5": 1.0,
    }


def test_steps_go_back_where_a_training_begins_anew() -> None:
    advanced: list[int] = []
    steps = spreading._Steps(advanced.append)
    for message in ((0, 0, 5), (1, 0, 3), (0, 0, 2), (0, 0, 9)):
        steps.heard(message)
    steps.at((0, 0), 10)
    steps.heard((0, 0, 9))  # which comes late
    assert advanced == [5, 3, -3, 7, 1]


def test_what_was_interrupted_goes_on_by_workers(client: Any, path: Path, tmp_path: Path, run: Run, monkeypatch) -> None:
    command = ["compare", str(path), *FAST]
    assert run(*command, f"--out={tmp_path / 'whole'}")[0] == 0

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield next(trained_folds(*arguments, **options))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compare, "trained_folds", interrupted)
        assert run(*command, f"--out={tmp_path / 'part'}")[0] == 130
    code, out, err = run(*command, f"--out={tmp_path / 'part'}", "--resume", f"--dask={client.scheduler.address}")
    assert (code, err) == (0, "")
    assert "1 fold of" in out
    whole, part = (without_times(json.loads((tmp_path / name / "results.json").read_text())) for name in ("whole", "part"))
    assert part["folds"] == whole["folds"]
    assert part["results"] == whole["results"]
    code, out, _ = run(*command, f"--out={tmp_path / 'part'}", "--resume", "--dask=tcp://nowhere:1")  # nothing is left to train
    assert code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers=0",), "--workers must be an int of at least 1, got 0"),
        (("--workers=2", "--dask=tcp://h:1"), "--workers begins workers, and --dask takes those that there are"),
        (("--dask=foo",), "no scheduler of Dask answers at 'foo'"),
    ],
)
def test_wrong_use_is_one_line(options: tuple[str, ...], message: str, path: Path, tmp_path: Path, run: Run) -> None:
    code, out, err = run("compare", str(path), f"--out={tmp_path / 'out'}", *FAST, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("command", [("lse", "x.npy"), ("compare",)])
def test_without_dask_its_extra_is_named(command: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = run(*command, "--workers=1")
    told = "softmaxima: --workers and --dask need Dask, which is not installed: pip install 'softmaxima[dask]'\n"
    assert (code, out, err) == (2, "", told)


@pytest.mark.exhaustive
def test_a_worker_that_is_killed_loses_nothing(table: Table) -> None:
    settings = replace(TINY, epochs=200)
    with connected("test", None, 2) as client:
        killed: list[int] = []
        pids = client.run(os.getpid)

        def advanced(steps: int) -> None:
            if not killed:
                killed.append(min(pids.values()))
                os.kill(killed[0], signal.SIGKILL)

        found = measured(Spread(client, table, settings, SOME).folds(advanced))
        assert killed
    assert found == measured(trained_folds(table, settings, SOME))
