"""Files summed by the workers of a Dask cluster: one sum, the same to the last bit, whatever happens to the workers."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_pieces import Small, begin

import softmaxima as sm
from conftest import is_gone
from score_files import of_all, scores
from softmaxima.base.numbers import InputError
from softmaxima.dask import cluster as cluster_room
from softmaxima.dask.tasks import Tasks
from softmaxima.io import pieces
from softmaxima.io.formats import source

distributed = pytest.importorskip("distributed")
files = importlib.import_module("softmaxima.dask.files")
processes = importlib.import_module("softmaxima.dask.processes")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SOFTMAXIMA = """
import signal, softmaxima.dask.files as files
from softmaxima_lab.commands import main
files.BEGINS = -1  # processes are begun, however little there is to read
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
main()
"""


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    with cluster_room.connected("test", None, 2) as client:
        yield client


@pytest.fixture
def client(two_workers: Any) -> Any:
    two_workers.wait_for_workers(2)
    two_workers.run(begin)
    return two_workers


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A thread of this process, with pieces as the others have."""
    for module, name in ((source, "CACHED"), (source, "PIECE"), (pieces, "LEAST"), (pieces.Piece, "state")):
        monkeypatch.setattr(module, name, getattr(module, name))  # which puts them back at the end
    begin()
    with distributed.Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0", set_as_default=False
    ) as client:
        yield client


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of one that asks nobody who he is, with a worker that reads pieces as it finds them."""
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
    ) as cluster:
        yield cluster.scheduler_address


def write_mixed(folder: Path, x: np.ndarray) -> str:
    """Scores [7, n] in files of seven kinds, and the pattern of these."""
    np.save(folder / "part-0.npy", x[0])
    table = pyarrow.table({"score": x[1]})
    parquet.write_table(table, folder / "part-1.parquet", row_group_size=300)
    with pyarrow.ipc.new_file(str(folder / "part-2.arrow"), table.schema) as file:
        file.write_table(pyarrow.table({"score": x[2]}), max_chunksize=300)
    pytest.importorskip("zarr").create_array(str(folder / "part-3.zarr"), data=x[3], chunks=(300,))
    with pytest.importorskip("h5py").File(folder / "part-4.h5", "w") as file:
        file.create_dataset("score", data=x[4], chunks=(300,))
    (folder / "part-5.txt.gz").write_bytes(gzip.compress(b"".join(b"%r\n" % score for score in x[5].tolist())))
    np.savez(folder / "part-6.npz", score=x[6])
    return f"{folder}/part-*"


def bits(state: sm.LogSumExpState) -> list[Any]:
    """All that a state holds."""
    squares = () if state.squares is None else state.squares.scaled
    return [np.asarray(number).tobytes() for number in (state.maximum, state.count, state.n, *state.rest.scaled, *squares)]


def test_files_of_every_kind_are_one_sum_to_the_last_bit(client: Any, one_worker: Any, tmp_path: Path) -> None:
    x = scores(7, 5000)
    pattern = write_mixed(tmp_path, x)
    told: list[tuple[int, tuple[int, int | None]]] = []
    tell = lambda done, scores: told.append((done, scores.bytes_read(done)))
    for options in ({}, {"effective_size": True, "temperature": 0.7}):
        truth = of_all(x.astype(np.float64) / options.get("temperature", 1.0))
        told.clear()
        state = sm.dask.file_logsumexp(pattern, client=client, progress=tell, **options)
        assert int(state.n) == x.size
        assert float(state.value) == pytest.approx(truth, abs=1e-9)
        assert len(told) > 5 * 2
        assert told == sorted(told)
        assert told[0][0] == 0
        assert told[-1][0] == x.size
        assert told[-1][1][0] == told[-1][1][1]
        whole = sm.file_logsumexp(pattern, **options)
        np.testing.assert_array_max_ulp(np.asarray(state.value), np.asarray(whole.value), 1)
        for other in (one_worker, client):
            assert bits(sm.dask.file_logsumexp(pattern, client=other, **options)) == bits(state)
    if state.squares is not None:
        p = np.exp(x.astype(np.float64) / 0.7 - truth)
        assert float(state.effective_size) == pytest.approx(1 / float((p**2).sum()), rel=1e-9)


def test_urls_are_read_by_every_worker_and_eight_bits_counted(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q = np.random.default_rng(0).integers(-128, 128, (2, 30_000)).astype(np.int8)
    for i in range(2):
        q[i].tofile(tmp_path / f"q-{i}.bin")
    with zipfile.ZipFile(tmp_path / "q.zip", "w") as archive:
        archive.write(tmp_path / "q-0.bin", "q-0.bin")
    monkeypatch.chdir(tmp_path)  # where the workers are not
    for given in ("q-*.bin", [f"zip://q-*.bin::{tmp_path}/q.zip", "q-1.bin", f"local://{tmp_path}/q-1.bin"]):
        state = sm.dask.file_logsumexp(given, client=client, dtype="int8", scale=0.1, zero_point=3)
        assert float(state.value) == pytest.approx(of_all(0.1 * (q.astype(np.float64) - 3)), rel=1e-14)
        assert int(state.n) == q.size


def test_a_worker_that_is_killed_loses_nothing(client: Any, tmp_path: Path) -> None:
    x = scores(2, 50_000)
    for i in range(2):
        np.save(tmp_path / f"part-{i}.npy", x[i])
    expected = bits(sm.dask.file_logsumexp(f"{tmp_path}/part-*.npy", client=client))
    client.register_plugin(Small(0.05), name="small")
    pids = client.run(os.getpid)
    killed: list[int] = []

    def kill(done: int, _: Any) -> None:
        if done and not killed:
            killed.append(min(pids.values()))
            os.kill(killed[0], signal.SIGKILL)

    state = sm.dask.file_logsumexp(f"{tmp_path}/part-*.npy", client=client, progress=kill)
    assert bits(state) == expected
    assert float(state.value) == pytest.approx(of_all(x), abs=1e-9)
    client.wait_for_workers(2)
    client.unregister_worker_plugin("small")
    assert killed[0] not in client.run(os.getpid).values()


def test_what_kills_every_worker_is_named(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 0)
    with Tasks(client) as tasks:
        tasks.submit("rows of x", os._exit, 1)
        with pytest.raises(InputError, match="rows of x: every worker that took it died; give workers more memory"):
            list(tasks)


def test_a_piece_that_cannot_be_read_is_named(client: Any, tmp_path: Path) -> None:
    for i in range(2):
        parquet.write_table(pyarrow.table({"score": scores(20_000)}), tmp_path / f"part-{i}.parquet", row_group_size=4000)
    spoil(tmp_path / "part-1.parquet")
    with pytest.raises(InputError, match=r"/part-1.parquet, scores \d+ to \d+ of 20000, cannot be read \(") as raised:
        sm.dask.file_logsumexp(f"{tmp_path}/part-*.parquet", client=client)
    assert "\n" not in str(raised.value)
    (tmp_path / "part-2.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"part-2.npy cannot be read \(the magic string is not correct"):
        sm.dask.file_logsumexp([*tmp_path.glob("part-*")], client=client)


def test_files_are_named_as_they_were_given(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the workers are not
    parquet.write_table(pyarrow.table({"score": scores(20_000)}), "spoilt.parquet", row_group_size=4000)
    spoil(Path("spoilt.parquet"))
    Path("no.npy").write_bytes(b"nothing of the kind")
    np.save("x.npy", scores(20_000))
    times = itertools.count(9)
    touch: Callable[..., None] = lambda done, _: os.utime("x.npy", (9, next(times)))
    for given, message in (
        ("spoilt.parquet", r"spoilt.parquet, scores \d+ to \d+ of 20000, cannot be read \("),
        (["x.npy", "no.npy"], "no.npy cannot be read \\(the magic string"),
        ("./none.npy", "there is no file none.npy; give a path"),
        (str(tmp_path / "none.npy"), f"there is no file {tmp_path}/none.npy; give a path"),
        ("x.npy", "x.npy was written to while it was read"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            sm.dask.file_logsumexp(given, client=client, progress=touch)


def spoil(path: Path) -> None:
    """The middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 5000] = bytes(5000)
    path.write_bytes(data)


def test_a_file_that_changes_while_it_is_read_is_told(client: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", scores(20_000))
    with pytest.raises(InputError, match=r"x.npy was written to while it was read, and the sum may be of neither"):
        sm.dask.file_logsumexp(tmp_path / "x.npy", client=client, progress=lambda done, _: os.utime(tmp_path / "x.npy", (9, 9)))


def test_who_reads_is_said(client: Any, scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", scores(10))
    sum_of = lambda **given: sm.dask.file_logsumexp(tmp_path / "x.npy", **given)
    assert sum_of(client=scheduler).n == 10
    with client.as_current():
        assert sum_of().n == 10
    for given, message in (
        ({}, "dask.file_logsumexp: there is no client of Dask; give workers=4, or client= with an address"),
        ({"client": client, "workers": 2}, "dask.file_logsumexp: client and workers are two ways to the same"),
        ({"workers": 0}, "dask.file_logsumexp: workers must be an int of at least 1, got 0"),
        ({"client": "foo://h:1"}, "no scheduler of Dask answers at 'foo://h:1' (unknown address scheme"),
        ({"client": "127.0.0.1:1"}, "no scheduler of Dask answers at '127.0.0.1:1' ("),
    ):
        with monkeypatch.context() as hasty:
            hasty.setattr(cluster_room, "SECONDS", 0.3)
            with pytest.raises(InputError) as raised:
                sum_of(**given)
        assert str(raised.value).startswith(message)
    with pytest.raises(TypeError, match=r"dask.file_logsumexp: client must be a client of Dask, got 3; pass a distributed.Client"):
        sum_of(client=3)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0", protocol="tcp") as empty,
        pytest.raises(InputError, match=r"the scheduler at tcp://.* has no workers; start some with: dask worker tcp://"),
    ):
        sum_of(client=empty.scheduler_address)


def test_a_worker_with_another_softmaxima_is_told(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, has in (("9.9", "softmaxima 9.9"), (ModuleNotFoundError("softmaxima"), "no softmaxima")):
        with monkeypatch.context() as patch:

            async def run(*_: Any, workers: list[str], answer: Any = answer, **__: Any) -> dict[str, Any]:
                return dict.fromkeys(workers, answer)

            patch.setattr(client, "run", run)
            with pytest.raises(
                InputError, match=rf"the worker at tls://127.0.0.1:\d+ has {has}, and here is {sm.__version__}; install"
            ):
                sm.dask.file_logsumexp("x.npy", client=client)


def test_the_command_reads_by_the_workers_of_a_scheduler(scheduler: str, softmaxima_lse: Callable, tmp_path: Path) -> None:
    x = scores(7, 2000)
    pattern = write_mixed(tmp_path, x)
    code, out, err = softmaxima_lse(pattern, f"--dask={scheduler}", "--effective-size", "--json")
    found = json.loads(out)
    assert (code, err, found["scores"], len(found["files"])) == (0, "", x.size, 7)
    assert found["logsumexp"] == pytest.approx(of_all(x), abs=1e-9)
    spoil(tmp_path / "part-1.parquet")
    code, out, err = softmaxima_lse(pattern, f"--dask={scheduler}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "part-1.parquet" in err


def test_the_command_begins_workers_and_prints_nothing_of_them(tmp_path: Path) -> None:
    for i in range(2):
        parquet.write_table(pyarrow.table({"score": scores(20_000)}), tmp_path / f"part-{i}.parquet", row_group_size=4000)
    spoil(tmp_path / "part-1.parquet")
    command = [sys.executable, "-c", SOFTMAXIMA, "lse", f"{tmp_path}/part-*.parquet", "--workers=1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    told = [line for line in ended.stderr.splitlines() if "has not answered" not in line]  # as where a machine is busy
    assert (ended.returncode, ended.stdout, len(told)) == (2, "", 1)
    assert f"softmaxima: {tmp_path}/part-1.parquet cannot be read (" in told[0]


GUARD = "if __name__ == '__main__':"
NO_FILE = "workers run the script anew that begins them, and '<stdin>' is no file; give Python a file and not its text"


@pytest.mark.parametrize(
    ("guard", "by", "told"),
    [
        ("if True:", "file", cluster_room.UNGUARDED),
        (GUARD, "file", "10"),
        ("if True:", "exec", cluster_room.UNGUARDED),
        (GUARD, "stdin", NO_FILE),
        pytest.param(
            "if __name__ != '':", "file", f"or the script is the cause: {cluster_room.UNGUARDED}", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_script_that_every_worker_would_run_is_told_how_to_guard_itself(guard: str, by: str, told: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", scores(10))
    script = (
        "import softmaxima as sm, softmaxima.dask.files as files\nfiles.BEGINS = -1\ndef total():\n"
        f"    return sm.dask.file_logsumexp('x.npy', workers=1)\n{guard}\n    print(int(total().n))\n"
    )
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "exec.py").write_text("exec(open('script.py').read())\n")
    command = [sys.executable, *{"file": ["script.py"], "exec": ["exec.py"], "stdin": []}[by]]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, input=script if by == "stdin" else "")
    last = (ended.stdout + ended.stderr).strip().splitlines()[-1]
    assert (ended.returncode, last[-len(told) :]) == (int(told != "10"), told)


@pytest.mark.exhaustive
def test_workers_that_are_killed_as_they_begin_are_told_in_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", scores(1000))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'spawn_main' in ' '.join(sys.orig_argv):\n    os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", SOFTMAXIMA, "lse", str(tmp_path / "x.npy"), "--workers=1"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("softmaxima: the workers could not be begun (")


def test_no_more_workers_are_begun_than_there_are_batches(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    @contextlib.contextmanager
    def connected(name: str, given: Any, workers: int, timeout: float) -> Iterator[Any]:
        begun.append(workers)
        yield client

    monkeypatch.setattr(files, "connected", connected)
    monkeypatch.setattr(files, "BEGINS", -1)
    monkeypatch.setattr(pieces, "LEAST", 8000)
    np.save(tmp_path / "x.npy", scores(100_000))
    for number in range(3):
        np.save(tmp_path / f"part-{number}.npy", scores(10))
    told: list[int] = []  # how many are done, at the beginning and after each piece
    for workers in (1000, 2):
        begun.clear()
        told.clear()
        sm.dask.file_logsumexp(
            [tmp_path / "x.npy", f"{tmp_path}/part-*.npy"], workers=workers, progress=lambda done, scores: told.append(done)
        )
        assert begun == [min(workers, len(told) - 1)]


def test_workers_that_cannot_begin_are_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", scores(10))

    def dies(workers: int) -> Any:
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(processes, "begun", dies)
    monkeypatch.setattr(files, "BEGINS", -1)
    with pytest.raises(InputError, match=r"^the workers could not be begun \(Nanny failed to start\); call again, with fewer"):
        sm.dask.file_logsumexp(tmp_path / "x.npy", workers=1)


@pytest.mark.exhaustive
def test_the_command_survives_the_death_of_its_only_worker(tmp_path: Path) -> None:
    """The first time that the worker reads a piece, it is gone."""
    np.save(tmp_path / "x.npy", scores(100_000))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "from softmaxima.io import pieces\n"
        "def state(self, old=pieces.Piece.state):\n"
        f"    if os.path.exists({str(tmp_path / 'died')!r}):\n        return old(self)\n"
        f"    open({str(tmp_path / 'died')!r}, 'w').close()\n    os.kill(os.getpid(), 9)\n"
        "pieces.Piece.state = state\n"
    )
    command = [sys.executable, "-c", SOFTMAXIMA, "lse", str(tmp_path / "x.npy"), "--workers=1", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stderr, (tmp_path / "died").exists()) == (0, "", True)
    assert json.loads(ended.stdout)["logsumexp"] == pytest.approx(of_all(scores(100_000)), abs=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seconds", [3, 12])  # while they begin, and while they read
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "its terminal was closed")],
)
def test_a_signal_ends_the_workers_too(number: int, code: int, word: str, seconds: int, tmp_path: Path) -> None:
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(2**36)
    command = [sys.executable, "-c", SOFTMAXIMA, "lse", str(tmp_path / "x.bin"), "--dtype=float32", "--workers=2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(seconds)
    process.send_signal(number) if number == signal.SIGTERM else os.killpg(process.pid, number)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", f"softmaxima: {word}\n")
    deadline = time.monotonic() + 20
    while not is_gone(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert is_gone(process.pid)
