"""Workers that are processes of this machine, whom nobody but those of the run can speak to.

Connections are under TLS with a key that is made for the run and stands in memory alone, and each side shows it to the other: who
runs a task of Dask runs any program. No port is open beside those, for dashboards and other pages of Dask ask nobody who he is.
"""

from __future__ import annotations

import logging
from typing import Any

from distributed import Nanny, Scheduler, Security, SpecCluster, Worker

HERE = "127.0.0.1"


class QuietScheduler(Scheduler):
    def start_http_server(self, *_: Any, **__: Any) -> None:
        """None."""


class QuietWorker(Worker):
    def start_http_server(self, *_: Any, **__: Any) -> None:
        """None."""


def begun(workers: int) -> SpecCluster:
    """So many processes of one thread, and their scheduler in this one."""
    both: dict[str, Any] = {"host": HERE, "protocol": "tls://", "security": Security.temporary()}
    one = {"worker_class": QuietWorker, "nthreads": 1, "memory_limit": 1 / workers, "silence_logs": logging.CRITICAL}
    worker = {"cls": Nanny, "options": both | one}
    return SpecCluster(
        scheduler={"cls": QuietScheduler, "options": both | {"port": 0, "dashboard": False}},
        worker=worker,
        workers=dict.fromkeys(range(workers), worker),
        security=both["security"],
        silence_logs=logging.CRITICAL,  # pyright: ignore[reportArgumentType] - a level too
    )
