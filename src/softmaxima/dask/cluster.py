"""Workers of Dask: those of a scheduler that runs, or processes of this machine that end with the work."""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from softmaxima.core.numbers import InputError, check_count, described

if TYPE_CHECKING:
    from distributed import Client

SECONDS = 10  # that a scheduler has to answer, and workers to come
T = TypeVar("T")


def distributed() -> Any:
    """The library."""
    try:
        return importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        raise InputError(f"this needs {error.name}, which is not installed: pip install 'softmaxima[dask]'") from None


@contextlib.contextmanager
def connected(name: str, client: Client | str | None, workers: int | None) -> Iterator[Any]:
    """A client of Dask: the one given, one of the scheduler at an address, of so many processes here, or the one that is current.

    What was begun here ends here. Raises InputError where there is no such scheduler, or its workers have another softmaxima.
    """
    if client is not None and workers is not None:
        raise InputError(f"{name}: client and workers are two ways to the same; give one of them")
    if workers is not None:
        check_count(name, "workers", workers)
    with contextlib.ExitStack() as stack:
        yield _client(name, client, workers, distributed(), stack)


def _client(name: str, client: Any, workers: int | None, library: Any, stack: contextlib.ExitStack) -> Any:
    if workers is not None:
        stack.enter_context(_quiet())
        # A worker that dies is begun anew, but given up if that takes longer, as it may on a machine that is busy.
        stack.enter_context(importlib.import_module("dask").config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}))
        cluster = stack.enter_context(_begun(library, workers))
        return stack.enter_context(library.Client(cluster, set_as_default=False))
    if isinstance(client, str):
        stack.enter_context(_quiet())
        client = stack.enter_context(_joined(library, client))
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


def _begun(library: Any, workers: int) -> Any:
    """A cluster of processes. An interruption waits until it is there, for one that is half begun cannot be ended."""

    def begin() -> Any:
        if hasattr(signal, "pthread_sigmask"):  # of this thread and all that it begins: Ctrl-C is for us, who then end the workers
            resource_tracker.ensure_running()  # which would let it through again
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return library.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",  # any port, for that of a dashboard may be another cluster's
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )

    with ThreadPoolExecutor(1) as pool:
        cluster = pool.submit(begin)
        try:
            return cluster.result()
        except (RuntimeError, OSError) as error:  # as where one is killed before it is there, or the machine is too busy
            said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            repair = "call again, with fewer of them if memory is short"
            raise InputError(f"the workers could not be begun ({said}); {repair}") from error
        except KeyboardInterrupt:
            with contextlib.suppress(RuntimeError, OSError):  # of workers that could not be begun
                cluster.result().close()
            raise


def _joined(library: Any, address: str) -> Any:
    try:
        scheme, place = library.comm.parse_address(address)
        library.comm.parse_host_port(place)  # here, for a client that fails to begin does not end either
        library.comm.registry.get_backend(scheme)
        return library.Client(address, timeout=SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        start = "start one with: dask scheduler, or give an address such as tcp://host:8786"
        raise InputError(f"no scheduler of Dask answers at {address!r} ({said}); {start}") from None


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
    """Raise InputError unless there are workers that have this softmaxima."""
    address = client.scheduler.address
    try:
        client.wait_for_workers(1, timeout=SECONDS)
    except (OSError, TimeoutError):
        raise InputError(f"the scheduler at {address} has no workers; start some with: dask worker {address}") from None

    def version() -> str:  # sent as it stands, for a worker may have nothing of this
        import importlib.metadata

        return importlib.metadata.version("softmaxima")

    mine = version()
    for worker, answer in client.run(version, on_error="return").items():
        if answer != mine:
            has = f"softmaxima {answer}" if isinstance(answer, str) else "no softmaxima"
            raise InputError(f"the worker at {worker} has {has}, and here is {mine}; install the same there")


def grow(client: Any, workers: int) -> None:
    """Begin others of those that `connected` began, up to so many; work does not wait for them."""
    if workers > len(client.nthreads()):
        client.cluster.scale(workers)


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


class Tasks(Generic[T]):
    """Tasks on the workers of a client, each for something whose `str` names it. As a context it gives up what is not done.

    A worker that dies costs time alone, for what it had goes to others.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.waiting: dict[Any, T] = {}
        self.done = distributed().as_completed(loop=client.loop, with_results=True, raise_errors=False)

    def __enter__(self) -> Tasks[T]:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            self.client.cancel(list(self.waiting))

    def submit(self, what: T, function: Callable[..., Any], *arguments: Any) -> None:
        """A call for later; those that come first are begun first."""
        future = self.client.submit(function, *arguments, pure=False)
        self.waiting[future] = what
        self.done.add(future)

    def __iter__(self) -> Iterator[tuple[T, Any]]:
        """(what it is for, its result) as they are done, those too that are submitted meanwhile. Raises what a task raised."""
        for future, result in self.done:
            what = self.waiting.pop(future)
            if future.status == "error":
                raise _meant(what, result[1])
            if future.status != "finished":
                raise InputError(f"{what}: the scheduler at {self.client.scheduler.address} is gone; start it and this again")
            yield what, result


def _meant(what: Any, error: BaseException) -> BaseException:
    if isinstance(error, distributed().KilledWorker):
        return InputError(f"{what}: every worker that took it died; give workers more memory, or read their logs")
    return error
