"""Processes that stay, each a rank, and do the same function of a test."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 120.0  # seconds for an answer


def _serve(rank: int, size: int, path: str, seconds: float, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=seconds)
    )
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(rank, *arguments), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class Processes:
    """So many ranks of a gloo group, whose calls end after `seconds`."""

    def __init__(self, size: int, path: Any, seconds: float = 60.0) -> None:
        context = multiprocessing.get_context("spawn")
        self.size, self.pipes, self.processes = size, [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, str(path), seconds, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def outcomes(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[Any, str | None]]:
        """(what it gives on each rank, None) or (None, what it raises there); a rank that is gone gives (None, "gone")."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        found = []
        for pipe in self.pipes:
            try:
                assert pipe.poll(PATIENCE), "a rank does not answer"
                found.append(pipe.recv())
            except EOFError:
                found.append((None, "gone"))
        return found

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What it gives on each rank."""
        found = self.outcomes(function, *arguments)
        assert not any(error for _, error in found), found
        return [value for value, _ in found]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
