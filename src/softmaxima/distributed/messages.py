"""What ranks send each other, and how one waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

START = dist.batch_isend_irecv
EXCHANGE = dist.all_to_all_single
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
ALL_REDUCE = dist.all_reduce
SENT = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8}  # by every backend
Tensors = Sequence[tuple[Tensor, int]]  # each to or from a rank, by its place in the group
NOTHING = torch.empty(0, dtype=torch.uint8)


def plain(x: Tensor) -> Tensor:
    """What lies in memory as it is."""
    return x.contiguous().resolve_conj().resolve_neg()


def as_sent(x: Tensor) -> Tensor:
    """Its numbers in a row, as bytes where a backend may not know their dtype."""
    return x.view(-1) if x.dtype in SENT else x.view(-1).view(torch.uint8)


class Message:
    """One that is on its way among all ranks of a group."""

    def __init__(self, work: Any, is_cpu: bool, fill: Callable[[], None] = lambda: None) -> None:
        self._work, self._is_cpu, self._fill = work, is_cpu, fill

    def is_there(self, pause: timedelta) -> bool:
        """Waits for it, on the CPU some time, and says whether it is there. Raises RuntimeError where it failed."""
        try:
            self._work.wait(pause) if self._is_cpu else self._work.wait()
        except RuntimeError:
            if not self._is_cpu:
                raise
            if not self._work.is_completed():
                return False
            self._work.wait()  # raises what it failed with, if it did and did not end just after the pause
        self._fill()
        return True


def exchange(sends: Tensors, receives: Tensors, size: int, group: dist.ProcessGroup) -> Message:
    """Begins to send tensors on the CPU to ranks, by their places in the group, and to fill others from them.

    By one collective, of which nothing goes between most ranks: a wait for a message between two of them cannot be given up. Every
    rank begins it, whatever it has to send.
    """
    given, taken = ([[as_bytes(x) for x, rank in each if rank == other] for other in range(size)] for each in (sends, receives))
    sizes = [[sum(map(len, of_rank)) for of_rank in each] for each in (given, taken)]
    every = [x for of_rank in taken for x in of_rank]
    message = torch.cat([NOTHING, *(x for of_rank in given for x in of_rank)])
    into = every[0] if len(every) == 1 else torch.empty(sum(sizes[1]), dtype=torch.uint8)

    def fill() -> None:
        for x, part in zip(every, into.split([len(x) for x in every]), strict=True) if len(every) > 1 else ():
            x.copy_(part)

    return Message(EXCHANGE(into, message, sizes[1], sizes[0], group=group, async_op=True), True, fill)


def as_bytes(x: Tensor) -> Tensor:
    return plain(x).view(-1).view(torch.uint8)
