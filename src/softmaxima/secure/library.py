"""mpyc as this room uses it."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any


def runtime() -> Any:
    """mpyc's runtime of this process, of which there is one. A program of several parties imports `mpyc.runtime` before it."""
    if "mpyc.runtime" not in sys.modules:
        arguments, sys.argv = sys.argv, [*sys.argv[:1], "--no-log"]  # it reads the command line, and would take ours for its own
        try:
            loaded()
        finally:
            sys.argv = arguments
    return loaded()


def loaded() -> Any:
    """The same, with the command line for mpyc."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its own, of NumPy's names
        return importlib.import_module("mpyc.runtime").mpc
