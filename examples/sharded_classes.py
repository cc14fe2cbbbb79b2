"""A last layer whose classes are shared among processes, and that goes on from a checkpoint on fewer of them.

Each rank has the weights of its own classes, and scores these alone, some rows at a time. `sm.distributed.LinearLoss` is the loss
of whole rows by one message, and its gradient by the weights needs none. Hidden states are noisy copies of what belongs to their
class, so that the layer has something to find. After half of the steps torch.distributed.checkpoint saves the layer, whose weight
is a DTensor, and fewer processes read it.

    python examples/sharded_classes.py
    python examples/sharded_classes.py --classes 20000 --ranks 2 --then 1
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import Tensor

import softmaxima as sm
from softmaxima_lab.commands.example import count, processes, run

FEATURES, BATCH, RATE = 32, 64, 2.0


def batch(step: int, classes: int) -> tuple[Tensor, Tensor]:
    """(hidden states, labels), the same on every rank; of the frequent classes, so that few steps show something."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(min(classes, 256), (BATCH,), generator=generator) * (classes // min(classes, 256))
    of_class = torch.stack([torch.randn(FEATURES, generator=torch.Generator().manual_seed(int(label))) for label in labels])
    return of_class + 0.3 * torch.randn(BATCH, FEATURES, generator=generator), labels


def train(head: sm.distributed.LinearLoss, steps: range, classes: int) -> list[float]:
    """Losses; the weights of this rank's classes learn."""
    optimiser, losses = torch.optim.SGD(head.parameters(), lr=RATE), []
    for step in steps:
        optimiser.zero_grad()
        loss = head(*batch(step, classes))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def work(rank: int, ranks: int, classes: int, steps: range, folder: str, store: str) -> None:
    """What a process does: make the layer or read it, train, and save."""
    warnings.filterwarnings("ignore", module="torch")  # its own, of checkpoints
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks, timeout=datetime.timedelta(minutes=2))
    head = sm.distributed.LinearLoss(FEATURES, classes)
    if steps.start:
        checkpoint.load(head.state_dict(), checkpoint_id=folder)
    begun = time.perf_counter()
    losses = train(head, steps, classes)
    seconds = (time.perf_counter() - begun) / len(steps)
    checkpoint.save(head.state_dict(), storage_writer=checkpoint.FileSystemWriter(folder, overwrite=True))
    if rank == 0:
        on = f"{ranks} rank{'s' * (ranks > 1)}, {len(head.own_classes)} of {classes} classes on the first"
        told = f"{losses[0]:.4f} at first, {losses[-1]:.4f} at last, {seconds:.2f} s a step"
        print(f"{on}: loss {told}", flush=True)
    dist.destroy_process_group()


def main(
    classes: Annotated[int, count("Classes of the layer.", least=2)] = 1_000_000,
    ranks: Annotated[int, count("Processes that share the layer in the first half.")] = 4,
    then: Annotated[int, count("Processes that share it in the second half, from its checkpoint.")] = 2,
    steps: Annotated[int, count("Steps of training, in both halves together.", least=2)] = 20,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        half = steps // 2
        for size, part in ((ranks, range(half)), (then, range(half, steps))):
            store = Path(folder, f"store of {size} from {part.start}")
            processes(work, (size, classes, part, str(Path(folder, "checkpoint")), str(store)), size)


if __name__ == "__main__":
    run(main, __doc__)
