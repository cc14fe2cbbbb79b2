"""The options of commands whose work other processes can do: how many, where they are, and how long one may be silent."""

from __future__ import annotations

import importlib.util
from typing import Annotated

from cyclopts import Parameter

from softmaxima.base.numbers import check_count, check_positive
from softmaxima_lab.commands.terminal import fail

Workers = Annotated[int | None, Parameter(help="Work by so many processes of Dask on this machine, a part in each at a time.")]
Address = Annotated[
    str | None, Parameter(help="The same by the workers of a Dask scheduler, at an address such as tcp://host:8786.")
]
Timeout = Annotated[
    float | None,
    Parameter(help="Of --workers and --dask: seconds until a worker or scheduler that does not answer is given up; 60."),
]


def check_spread(command: str, workers: int | None, dask: str | None, timeout: float | None) -> bool:
    """Whether --workers or --dask is given; fail at once for both, and without the library."""
    if workers is not None and dask is not None:
        fail("--workers begins workers, and --dask takes those that there are; leave one of them out")
    if timeout is not None:
        check_positive(command, "timeout", timeout)
    if workers is None and dask is None:
        if timeout is not None:
            fail("--timeout is of --workers and --dask; add one of them, or leave it out")
        return False
    if workers is not None:
        check_count(command, "workers", workers)
    if importlib.util.find_spec("distributed") is None:
        fail("--workers and --dask need Dask, which is not installed: pip install 'softmaxima[dask]'")
    return True
