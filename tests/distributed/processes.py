"""Processes that stay, of which some are the ranks of a group at a time, and do the same function of a test."""

from __future__ import annotations

import datetime
import functools
import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hypothesis
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from conftest import is_thorough

PATIENCE = 120.0  # seconds for an answer
SECONDS = 60.0  # after which a call of a group ends


@functools.cache
def square() -> DeviceMesh:
    """Four ranks."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))


def _join(rank: int, size: int, path: str, seconds: float) -> None:
    """Leaves the group of this process, for another."""
    if dist.is_initialized():
        dist.destroy_process_group()
        square.cache_clear()
        _clear_sharding_prop_cache()  # which knows meshes of groups that were
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=seconds)
    )


def _is_there(rank: int) -> None:
    """A process has imported torch."""


def _serve(pipe: Connection, profile: str) -> None:
    hypothesis.settings.load_profile(profile)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(*arguments), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class Process:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, "thorough" if is_thorough() else "default"), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self) -> tuple[Any, str | None]:
        try:
            assert self.pipe.poll(PATIENCE), "a rank does not answer"
            return self.pipe.recv()
        except EOFError:
            return None, "gone"


class Processes:
    """The ranks of a gloo group."""

    def __init__(self, members: Sequence[Process]) -> None:
        self.members = members

    def outcomes(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[Any, str | None]]:
        """(what it gives on each rank, None) or (None, what it raises there); a rank that is gone gives (None, "gone")."""
        for rank, member in enumerate(self.members):
            member.pipe.send((function, (rank, *arguments)))
        return [member.answer() for member in self.members]

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What it gives on each rank."""
        found = self.outcomes(function, *arguments)
        assert not any(error for _, error in found), found
        return [value for value, _ in found]


class Pool:
    """Processes that are begun when they are first needed: each imports torch once, in whichever groups it is later."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.formed = folder, 0
        self.processes: dict[int, Process] = {}
        self.groups: dict[tuple[int, ...], tuple[float, Processes]] = {}

    def group(self, members: Sequence[int], seconds: float = SECONDS) -> Processes:
        """The group of these processes, whose calls end after `seconds`; formed anew where one was elsewhere since, or is gone."""
        members = tuple(members)
        gone = [number for number in members if number not in self.processes or not self.processes[number].process.is_alive()]
        if self.groups.get(members, (None,))[0] != seconds or gone:
            self.groups = {others: kept for others, kept in self.groups.items() if not set(others) & set(members)}
            self.processes |= {number: Process() for number in gone}
            self.formed += 1
            found = Processes([self.processes[number] for number in members])
            found.run(_is_there)  # before the timeout counts
            found.run(_join, len(members), str(self.folder / f"store{self.formed}"), seconds)
            self.groups[members] = seconds, found
        return self.groups[members][1]

    def close(self) -> None:
        for each in self.processes.values():
            each.process.kill()
            each.process.join()
