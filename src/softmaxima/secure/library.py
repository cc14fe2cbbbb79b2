"""mpyc as this room uses it."""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
ONE_AT_A_TIME = threading.Lock()


def runtime() -> Any:
    """mpyc's runtime of this process, of which there is one. A program of several parties imports `mpyc.runtime` before it."""
    if "mpyc.runtime" not in sys.modules:
        arguments, sys.argv = sys.argv, [*sys.argv[:1], "--no-log"]  # it reads the command line, and would take ours for its own
        try:
            mpc = apart(loaded)  # it takes the event loop that it finds for good, and that of asyncio.run() is closed after
            atexit.register(mpc._loop.close)
        finally:
            sys.argv = arguments
    return loaded()


def loaded() -> Any:
    """The same, with the command line for mpyc."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its own, of NumPy's names
        return importlib.import_module("mpyc.runtime").mpc


def apart(work: Callable[[], T]) -> T:
    """work(), in a thread of its own, where no event loop runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
