"""Ctrl-C, SIGTERM and the end of a terminal end a command with one sentence and a status of their own, whatever they come into."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

AGAIN = 0.5  # seconds until a signal is raised again that something swallowed, as destructors do
# Of each signal: what is said, and the status.
ENDS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}
if hasattr(signal, "SIGHUP"):
    ENDS[signal.SIGHUP] = ("its terminal was closed", 129)
_asked: list[tuple[str, int]] = []  # by the signals that came
_commands: list[str] = []


@contextlib.contextmanager
def heeding(command: str = "softmaxima") -> Iterator[None]:
    """Inside it a signal raises KeyboardInterrupt, and the command ends with its sentence and status even where that is swallowed.

    A signal that arrives while a module is being loaded ends the process at once: there is nothing to save yet.
    """
    heeded = {number for number in ENDS if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)}
    if threading.current_thread() is not threading.main_thread() or not heeded:
        yield  # within another one, or where signals are ignored, as by nohup
        return
    before = {number: signal.signal(number, _hear) for number in heeded}
    _asked.clear()
    _commands.append(command)
    problem: BaseException | None = None
    try:
        yield
    except BaseException as error:
        problem = error
    said, status = heard()
    asked = bool(_asked) or isinstance(problem, KeyboardInterrupt)
    _asked.clear()
    for number, handler in before.items():
        signal.signal(number, handler)
    if asked and getattr(problem, "code", None) != status:  # else it has been said
        _say(command, said)
        raise SystemExit(status) from None
    if problem is not None:
        raise problem


def _say(command: str, said: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(f"{command}: {said}\n")
        sys.stderr.flush()


def _hear(number: int, frame: Any) -> None:
    if number in ENDS:
        _asked.append(ENDS[signal.Signals(number)])
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":  # C++ aborts of an exception, or takes it for its own
                _say(_commands[-1], _asked[0][0])
                os._exit(_asked[0][1])
            frame = frame.f_back
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, _hear)
            signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)
    elif _on_its_way():
        return
    raise KeyboardInterrupt


def _on_its_way() -> bool:
    """Whether the command is already ending: it saves and closes files."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        error = error.__context__
    return error is not None


def asked() -> bool:
    """Whether a signal has come, so that whatever fails may fail of that."""
    return bool(_asked)


def heard() -> tuple[str, int]:
    """What to say of the interruption, and the status; it is not raised again."""
    if _asked and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return _asked[0] if _asked else ENDS[signal.SIGINT]
