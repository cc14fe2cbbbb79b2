"""Causal attention over a sequence that no process holds whole, with the same work for each.

Each place asks for what one before it has, however far: query i is a sharpness times the key of the place asked for, and the right
answer is that place's value. Each rank makes queries, keys and values of its own places alone, `sm.distributed.attention` passes
keys and values round the ring, and the sharpness is learnt. The last of R contiguous parts has 2R − 1 times the work of the first;
balanced, rank r has the chunks r and 2R − 1 − r of 2R, and all have the same.

    python examples/context_parallel.py
    python examples/context_parallel.py --places 512 --ranks 2 --map entmax15
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
from torch import Tensor

import softmaxima as sm
from softmaxima_lab.commands.example import InputError, checked, count, processes, run

SIZE, RATE = 32, 2.0


def made(places: Tensor, seed: int) -> Tensor:
    """A direction for each place, [places, SIZE], the same whoever makes it."""
    rows = [torch.randn(SIZE, generator=torch.Generator().manual_seed(2 * int(place) + seed)) for place in places]
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1) * SIZE**0.5


def asked(places: Tensor) -> Tensor:
    """The place that each asks for, none later than itself."""
    return places * 7919 % (places + 1)


def train(places: Tensor, layout: str, map: str, steps: int) -> tuple[list[float], float, float]:
    """(mean squared errors, the sharpness, the share of own places that are answered rightly)."""
    of_asked, keys, values, right = made(asked(places), 0), made(places, 0), made(places, 1), made(asked(places), 1)
    sharpness, losses, output = torch.tensor(0.5, requires_grad=True), [], values
    for _ in range(steps):
        output = sm.distributed.attention(sharpness * of_asked, keys, values, is_causal=True, layout=layout, map=map)
        error = (output - right).square().sum() / SIZE
        (slope,) = torch.autograd.grad(error, sharpness)
        told = torch.stack((slope, error.detach(), torch.tensor(float(len(places)))))
        dist.all_reduce(told)  # of the sum over all ranks
        losses.append(float(told[1] / told[2]))
        with torch.no_grad():
            sharpness -= RATE * told[0] / told[2]
    near = (output.detach() - right).square().sum(-1) < 0.5 * right.square().sum(-1)
    return losses, sharpness.item(), float(near.float().mean())


def work(rank: int, ranks: int, length: int, map: str, steps: int, store: str) -> None:
    """What a process does, in either layout."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks, timeout=datetime.timedelta(minutes=2))
    for layout in ("contiguous", "balanced"):
        places = sm.distributed.places(length, layout=layout)
        begun = time.process_time()
        losses, sharpness, recall = train(places, layout, map, steps)
        own = (int((places + 1).sum()), time.process_time() - begun, recall)
        every: list[tuple[int, float, float]] = [own] * ranks
        dist.all_gather_object(every, own)
        if rank == 0:
            pairs, seconds, recalls = zip(*every, strict=True)
            print(f"{layout}: {len(places)} of {length} places on the first of {ranks} rank{'s' * (ranks > 1)}")
            print(f"  queries with keys that they see, a rank: {', '.join(f'{count:,}' for count in pairs)}")
            print(f"  seconds of a processor, a rank: {', '.join(f'{each:.1f}' for each in seconds)}")
            print(f"  error {losses[0]:.4f} at first, {losses[-1]:.4f} at last; sharpness {sharpness:.2f}", end="; ")
            print(f"answered rightly {100 * sum(recalls) / ranks:.1f} %", flush=True)
    dist.destroy_process_group()


def check_map(name: str) -> None:
    if sm.find_map(name).blocks is None:
        raise ValueError(f"must be a map that works on parts, got {name!r}; take softmax or sparsemax")


def main(
    places: Annotated[int, count("Places of the sequence, at least two for each rank.", least=2)] = 8192,
    ranks: Annotated[int, count("Processes that share the sequence.")] = 4,
    map: Annotated[str, checked("Map of the attention, one that works on parts.", check_map)] = "softmax",
    steps: Annotated[int, count("Steps of training.")] = 10,
) -> None:
    if places < 2 * ranks:
        raise InputError(f"--places must be at least two for each of {ranks} ranks, got {places}; give more")
    with tempfile.TemporaryDirectory() as folder:
        processes(work, (ranks, places, map, steps, str(Path(folder, "store"))), ranks)


if __name__ == "__main__":
    run(main, __doc__)
