"""Workers of this machine hear nobody else; who falls silent is named, and what he had begins anew elsewhere or is given up."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_pieces import stuck_at_first

from softmaxima.base.numbers import InputError
from softmaxima.dask import cluster
from softmaxima.dask.cluster import connected
from softmaxima.dask.tasks import Shared, Tasks

distributed = pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")

TIMEOUT = 3.0  # seconds, of which silence is told after half

ELSEWHERE = """
import sys, time
from distributed import LocalCluster
with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.readline()
    cluster.sync(cluster.workers[0].close)
    sys.stdin.readline()
"""


def listening(*pids: int) -> set[tuple[str, int]]:
    """Where these processes take connections."""
    found = (one for pid in pids for one in psutil.Process(pid).net_connections("inet") if one.status == psutil.CONN_LISTEN)
    return {(one.laddr.ip, one.laddr.port) for one in found}


@pytest.fixture(scope="module")
def before() -> set[tuple[str, int]]:
    """Where other tests left this process listening."""
    return listening(os.getpid())


@pytest.fixture(scope="module")
def two_workers(before: set[tuple[str, int]]) -> Iterator[Any]:
    with connected("test", None, 2) as client:
        yield client


@pytest.fixture
def workers(two_workers: Any) -> Iterator[dict[str, int]]:
    """The process of each, by its address; all run in the end."""
    two_workers.wait_for_workers(2)
    found = two_workers.run(os.getpid)
    yield found
    for process in found.values():
        os.kill(process, signal.SIGCONT)


@pytest.fixture
def elsewhere() -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A process with a scheduler and a worker, and a client of it."""
    process = subprocess.Popen([sys.executable, "-c", ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, connected("test", process.stdout.readline().strip(), None) as client:
        yield process, client
        process.kill()


def test_what_a_stranger_left_in_the_temporary_folder_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (victim := tmp_path / "victim").write_text("kept")
    (folder := tmp_path / "shared" / "dask-scratch-space").mkdir(parents=True)
    (folder / "global.lock").symlink_to(victim)
    os.mkfifo(folder / "purge.lock")
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    with connected("test", None, 1) as client:
        places = [client.cluster.scheduler.local_directory, *client.run(lambda dask_worker: dask_worker.local_directory).values()]
        owners = {stat.S_IMODE(os.stat(Path(place).parents[-len(folder.parent.parts) - 1]).st_mode) for place in places}
    assert (victim.read_text(), owners) == ("kept", {0o700})
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]


def stopped(processes: Any) -> None:
    for process in processes:
        os.kill(process, signal.SIGSTOP)


def test_strangers_are_refused_at_every_port(two_workers: Any, workers: dict[str, int], before: set[tuple[str, int]]) -> None:
    """Those of the scheduler, of workers and of who begins them; there are no others, and none that answers HTTP."""
    known = two_workers.scheduler_info()["workers"]
    addresses = {two_workers.scheduler.address, *known, *(worker["nanny"] for worker in known.values())}
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    found = listening(os.getpid(), *workers.values()) - before
    assert {port for _, port in found} == ports
    assert {host for host, _ in found} == {"127.0.0.1"}
    for address in addresses:
        assert address.startswith("tls://")
        for scheme, security in (("tcp", None), ("tls", distributed.Security.temporary())):
            arguments = {} if security is None else security.get_connection_args("client")
            with pytest.raises((OSError, TimeoutError)):
                two_workers.sync(spoken, f"{scheme}://{address[6:]}", arguments)


async def spoken(address: str, arguments: dict[str, Any]) -> Any:
    """What a stranger is answered."""
    comm = await distributed.comm.connect(address, timeout=2, **arguments)
    await comm.write({"op": "identity", "reply": True})
    return await comm.read()


def test_what_a_silent_worker_had_begins_anew_elsewhere(two_workers: Any, workers: dict[str, int]) -> None:
    """What is begun, what waits, what it has done, and what it alone was sent."""
    silent = min(workers)
    table = Shared(list(range(1000)))
    with Tasks(two_workers, TIMEOUT) as tasks:
        for number in range(4):
            tasks.submit(f"length {number}", len, table)
            tasks.submit(f"sleep {number}", time.sleep, 0.3)
        stopped([workers[silent]])
        begun = time.monotonic()
        with pytest.warns(
            RuntimeWarning, match=rf": the worker at {re.escape(silent)} .*not answered for \d+ s; it begins anew"
        ) as said:
            found = dict(tasks)
    assert len(said) == 1
    assert found == {f"length {n}": 1000 for n in range(4)} | {f"sleep {n}": None for n in range(4)}
    assert time.monotonic() - begun < 3 * TIMEOUT


@pytest.mark.exhaustive
def test_where_all_of_our_own_workers_fall_silent_others_are_begun_in_their_place() -> None:
    with warnings.catch_warnings(record=True) as said, connected("test", None, 2, 24.0) as client:
        warnings.simplefilter("always")
        client.wait_for_workers(2)
        with Tasks(client, 24.0) as tasks:
            for number in range(4):
                tasks.submit(f"sleep {number}", time.sleep, 1.0)
            stopped(client.run(os.getpid).values())
            assert len(dict(tasks)) == 4
    assert said
    assert not any("dask worker" in str(one.message) for one in said)


def test_what_one_worker_has_far_longer_than_others_begins_anew_elsewhere(
    two_workers: Any, workers: dict[str, int], tmp_path: Path
) -> None:
    with Tasks(two_workers, TIMEOUT) as tasks:
        for number in range(4):
            tasks.submit(f"quick {number}", time.sleep, 0.01)
        tasks.submit("stuck", stuck_at_first, str(tmp_path / "begun"), 8.0)
        with pytest.warns(RuntimeWarning, match=r"^stuck: the worker at .* has had it for \d+ s, and others took at most"):
            assert dict(tasks)["stuck"] == "the second"


def test_what_is_stuck_everywhere_is_given_up(two_workers: Any, workers: dict[str, int]) -> None:
    with Tasks(two_workers, 1.0) as tasks, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tasks.submit("quick", time.sleep, 0.01)
        tasks.submit("stuck", time.sleep, 60.0)
        with pytest.raises(InputError, match=r"^stuck: the worker at .* has had it for .*, and is given up; see what holds it"):
            list(tasks)
    assert all(str(one.message).startswith("stuck: the worker at ") for one in said)


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (lambda process: process.send_signal(signal.SIGSTOP), "has not answered for"),
        (lambda process: process.kill(), "is gone; start it and this again"),
        (lambda process: print(file=process.stdin, flush=True), "has had no worker for"),
    ],
)
def test_a_scheduler_that_is_silent_or_alone_is_named(elsewhere: Any, fault: Callable[[Any], Any], word: str) -> None:
    process, client = elsewhere
    address = client.scheduler.address
    threading.Timer(0.5, fault, (process,)).start()
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as said, Tasks(client, TIMEOUT) as tasks:
        warnings.simplefilter("always")
        for number in range(200):
            tasks.submit(f"innocent {number}", time.sleep, 0.1)
        with pytest.raises(InputError) as raised:
            list(tasks)
    told = [str(raised.value), *(str(one.message) for one in said)]
    assert f"the scheduler at {address} {word}" in told[0]
    assert all(f"the scheduler at {address} " in each for each in told), told  # on a busy machine one may seem silent before
    assert len(told) >= 2 - ("gone" in word)
    assert "gone" not in word or "innocent" not in told[0]
    assert time.monotonic() - begun < 3 * TIMEOUT


def test_a_scheduler_that_is_silent_from_the_beginning_is_named(elsewhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process, client = elsewhere
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(cluster, "SECONDS", 1)
    begun = time.monotonic()
    with pytest.raises(InputError, match="no scheduler of Dask answers at"), connected("test", client.scheduler.address, None):
        pass
    assert time.monotonic() - begun < 5


def test_workers_of_our_own_that_do_not_come_back_are_told_of_as_such(two_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler says that there are none, as after the last one is ended. The last test, for its task goes on."""
    two_workers.wait_for_workers(2)
    with Tasks(two_workers, 2.0) as tasks, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tasks.submit("sleep", time.sleep, 8.0)
        look, gone = tasks.watch.look, time.monotonic()

        def found(sizes: dict[str, float]) -> bool:
            answers = look(sizes)
            tasks.watch.ages, tasks.watch.peopled = {}, gone
            return answers

        monkeypatch.setattr(tasks.watch, "look", found)
        with pytest.raises(InputError, match=r"^sleep: every worker begun here has been gone for \d s, and is given up; see what"):
            list(tasks)
    assert all("every worker begun here" in str(one.message) for one in said)
