"""What a worker of the tests does: a module of its own, so that workers load nothing else of them."""

from __future__ import annotations

import functools
import os
import time

from distributed import WorkerPlugin
from softmaxima.io import pieces
from softmaxima.io.formats import source
from softmaxima.io.state import LogSumExpState

_STATE = pieces.Piece.state


def begin(seconds: float = 0.0) -> int:
    """Pieces of a few scores, each of which takes so long. The process that does it."""
    source.CACHED, source.PIECE, pieces.LEAST = 4000, 1000, 8000

    @functools.wraps(_STATE)
    def state(piece: pieces.Piece) -> LogSumExpState:
        time.sleep(seconds)
        return _STATE(piece)

    pieces.Piece.state = state
    return os.getpid()


class Small(WorkerPlugin):
    """The same on every worker, those too that come later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def setup(self, worker: object) -> None:
        begin(self.seconds)


def stuck_at_first(begun: str, seconds: float) -> str:
    """What takes so long where it is begun first."""
    try:
        with open(begun, "x"):
            time.sleep(seconds)
    except FileExistsError:
        return "the second"
    return "the first"
