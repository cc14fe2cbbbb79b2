"""What ranks send each other, and how one waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

START = dist.batch_isend_irecv
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
ALL_REDUCE = dist.all_reduce
SENT = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8}  # by every backend


def plain(x: Tensor) -> Tensor:
    """What lies in memory as it is."""
    return x.contiguous().resolve_conj().resolve_neg()


def as_sent(x: Tensor) -> Tensor:
    """Its numbers in a row, as bytes where a backend may not know their dtype."""
    return x.view(-1) if x.dtype in SENT else x.view(-1).view(torch.uint8)


def of_all(work: Any, message: Tensor) -> Callable[[timedelta], bool]:
    """What waits some time for a collective, and says whether that is done."""

    def is_done(pause: timedelta) -> bool:
        try:
            work.wait(pause) if message.is_cpu else work.wait()
        except RuntimeError:
            if not message.is_cpu or work.is_completed():
                raise
            return False
        return True

    return is_done


def of_some(works: Sequence[dist.Work], message: Tensor) -> Callable[[timedelta], bool]:
    """The same of messages to and from some ranks; in another thread, since a wait for them that is given up ends the group."""
    ended: Future[None] = Future()

    def wait() -> None:
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    if message.is_cpu:
        threading.Thread(target=wait, daemon=True).start()
    else:
        wait()

    def is_done(pause: timedelta) -> bool:
        if not wait_for([ended], pause.total_seconds()).done:
            return False
        ended.result()
        return True

    return is_done
