"""Workers of Dask: those of a scheduler that runs, or processes of this machine that end with the work."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import linecache
import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import process, resource_tracker
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from softmaxima.base.numbers import InputError, check_count, check_positive, described

if TYPE_CHECKING:
    from distributed import Client

SECONDS = 10  # that a scheduler has to answer, and workers to come
TIMEOUT = 60.0  # seconds of silence, after which a worker or a scheduler is given up
RENEWED = 2  # times in that, at least, a process that we began and that is silent is ended, and another is begun
UNGUARDED = 'workers run the script anew that begins them; put what it does under if __name__ == "__main__":'
GUARDS = ("__name__ == '__main__'", "'__main__' == __name__")
T = TypeVar("T")


def distributed() -> Any:
    """The library."""
    try:
        return importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        raise InputError(f"this needs {error.name}, which is not installed: pip install 'softmaxima[dask]'") from None


@contextlib.contextmanager
def connected(name: str, client: Client | str | None, workers: int | None, timeout: float = TIMEOUT) -> Iterator[Any]:
    """A client of Dask: the one given, one of the scheduler at an address, of so many processes here, or the one that is current.

    What was begun here ends here. Raises InputError where there is no such scheduler, or its workers have another softmaxima.
    """
    if client is not None and workers is not None:
        raise InputError(f"{name}: client and workers are two ways to the same; give one of them")
    if workers is not None:
        check_count(name, "workers", workers)
    check_positive(name, "timeout", timeout)
    with contextlib.ExitStack() as stack:
        yield _client(name, client, workers, timeout, distributed(), stack)


def _client(name: str, client: Any, workers: int | None, timeout: float, library: Any, stack: contextlib.ExitStack) -> Any:
    if workers is not None:
        stack.enter_context(_quiet())
        # In a folder of their own, for Dask's has a name that all know, in which anyone may lay a link or a pipe.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="softmaxima-", ignore_cleanup_errors=True))
        settings = {
            "temporary-directory": folder,
            # A worker that dies is begun anew, but given up if that takes longer, as it may on a machine that is busy.
            "distributed.deploy.lost-worker-timeout": "1 hour",
            # The scheduler looks once in this time, so that it ends who is silent after twice as long at most.
            "distributed.scheduler.worker-ttl": timeout / RENEWED / 2,
        }
        stack.enter_context(importlib.import_module("dask").config.set(settings))
        cluster = stack.enter_context(_begun(workers))
        return stack.enter_context(library.Client(cluster, set_as_default=False))
    if isinstance(client, str):
        stack.enter_context(_quiet())
        client = _joined(library, client)
        stack.callback(_left, client)
    elif client is None:
        try:
            client = library.get_client()
        except ValueError:
            raise InputError(f"{name}: there is no client of Dask; give workers=4, or client= with an address") from None
    if not isinstance(client, library.Client):
        raise TypeError(f"{name}: client must be a client of Dask, got {described(client, 'a distributed.Client or an address')}")
    if client.asynchronous:
        raise InputError(f"{name}: client is asynchronous; give one that was made without asynchronous=True")
    _check_workers(client)
    return client


def _begun(workers: int) -> Any:
    """A cluster of processes. An interruption waits until it is there, for one that is half begun cannot be ended."""
    if importlib.util.find_spec("cryptography") is None:
        raise InputError("workers speak under keys made by cryptography, which is not installed: pip install 'softmaxima[dask]'")
    guard, main = _guard(), sys.modules["__main__"]
    if guard == "none":
        raise InputError(UNGUARDED)
    file = getattr(main, "__file__", None)
    if (
        main.__spec__ is None
        and file is not None
        and not os.path.exists(os.path.join(getattr(process, "ORIGINAL_DIR", None) or "", file))
    ):
        raise InputError(
            f"workers run the script anew that begins them, and {file!r} is no file; give Python a file and not its text"
        )
    processes = importlib.import_module("softmaxima.dask.processes")

    def begin() -> Any:
        if hasattr(signal, "pthread_sigmask"):  # of this thread and all that it begins: what a terminal sends is for us, who then
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # end the workers
            resource_tracker.ensure_running()  # which lets Ctrl-C through again
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return processes.begun(workers)

    with ThreadPoolExecutor(1) as pool:
        cluster = pool.submit(begin)
        try:
            return cluster.result()
        except (RuntimeError, OSError) as error:  # as where one is killed before it is there, or the machine is too busy
            said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            repair = "call again, with fewer of them if memory is short"
            main = "" if guard == "whole" else f"; or the script is the cause: {UNGUARDED}"
            raise InputError(f"the workers could not be begun ({said}); {repair}{main}") from error
        except KeyboardInterrupt:
            with contextlib.suppress(RuntimeError, OSError):  # of workers that could not be begun
                cluster.result().close()
            raise


def _guard() -> Literal["whole", "unknown", "none"]:
    """Whether a script calls this whenever it runs ("none"), and so where a worker imports it, which may begin none."""
    main, frame = sys.modules["__main__"], inspect.currentframe()
    path = getattr(main, "__file__", None)
    while frame is not None and (
        frame.f_globals is not vars(main) or (frame.f_code.co_name, frame.f_code.co_filename) != ("<module>", path)
    ):
        frame = frame.f_back  # what a script runs by exec has its globals
    if path is None:
        return "whole"  # workers import nothing of it
    text = "".join(linecache.getlines(path)) if frame is not None else ""
    before = [statement for statement in ast.parse(text).body if frame is not None and statement.lineno <= frame.f_lineno]
    tests = [ast.unparse(each.test) for each in before if isinstance(each, ast.If)]
    if before and not any("__name__" in test for test in tests):
        return "none"
    return "whole" if before and isinstance(before[-1], ast.If) and tests[-1] in GUARDS else "unknown"


def _joined(library: Any, address: str) -> Any:
    try:
        scheme, place = library.comm.parse_address(address)
        library.comm.parse_host_port(place)  # here, for a client that fails to begin does not end either
        library.comm.registry.get_backend(scheme)
        if scheme != "inproc":  # one that does not answer is asked first, for a client would wait for it without end
            answer: Future[None] = Future()
            threading.Thread(target=_ask, args=(library, address, answer), daemon=True).start()  # its end may never come
            answer.result(SECONDS + 1)
        return library.Client(address, timeout=SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        start = "start one with: dask scheduler, or give an address such as tcp://host:8786"
        raise InputError(f"no scheduler of Dask answers at {address!r} ({said}); {start}") from None


def _ask(library: Any, address: str, answer: Future[None]) -> None:
    try:
        answer.set_result(asyncio.run(_asked(library, address)))
    except Exception as error:
        answer.set_exception(error)


async def _asked(library: Any, address: str) -> None:
    comm = await library.comm.connect(address, timeout=SECONDS, **library.Security().get_connection_args("client"))
    await comm.close()


def _left(client: Any) -> None:
    with contextlib.suppress(TimeoutError, OSError):  # of a scheduler that does not answer
        client.close(timeout=1)


def answered(client: Any, what: Callable[[], Awaitable[T]], seconds: float) -> T:
    """What a call of a client gives that is made in its loop, where it can be awaited. TimeoutError where that takes longer."""

    async def answer() -> T:
        return await asyncio.wait_for(what(), seconds)

    return client.sync(answer)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Dask's log, in which a worker that dies fills the screen: what matters of it comes as an error."""
    rooms = ("distributed", "tornado", "asyncio")  # those within them have levels of their own
    own = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in rooms]
    loggers = [logging.getLogger(name) for name in {*rooms, *own}]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _check_workers(client: Any) -> None:
    """Raise InputError unless there are workers that have this softmaxima. Of those that do not answer other things are said."""
    address = client.scheduler.address
    try:
        answered(client, lambda: client.wait_for_workers(1, timeout=SECONDS), SECONDS + 1)
    except (OSError, TimeoutError):
        raise InputError(f"the scheduler at {address} has no workers; start some with: dask worker {address}") from None

    def version() -> str:  # sent as it stands, for a worker may have nothing of this
        import importlib.metadata

        return importlib.metadata.version("softmaxima")

    async def versions() -> dict[str, Any]:
        one = lambda worker: asyncio.wait_for(client.run(version, workers=[worker], on_error="return"), SECONDS)
        workers = list(await client.scheduler.ncores())
        answers = await asyncio.gather(*map(one, workers), return_exceptions=True)
        return {
            worker: answer[worker]
            for worker, answer in zip(workers, answers, strict=True)
            if isinstance(answer, dict) and worker in answer
        }

    mine = version()
    for worker, answer in answered(client, versions, 2 * SECONDS).items():
        if answer != mine:
            has = f"softmaxima {answer}" if isinstance(answer, str) else "no softmaxima"
            raise InputError(f"the worker at {worker} has {has}, and here is {mine}; install the same there")


def processes(client: Any) -> int:
    """How many processes work."""
    return len(client.nthreads())


@contextlib.contextmanager
def heard(client: Any, handler: Callable[[Any], None]) -> Iterator[str]:
    """A topic whose reports by workers the handler is called with, in a thread of the client's."""
    topic = f"softmaxima-{uuid.uuid4()}"
    client.subscribe_topic(topic, lambda event: handler(event[1]))
    try:
        yield topic
    finally:
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            client.unsubscribe_topic(topic)


def report(topic: str, message: Any) -> None:
    """On a worker: numbers and texts for who hears that topic."""
    distributed().get_worker().log_event(topic, message)
