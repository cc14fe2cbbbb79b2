"""A language model's step by tensor and data parallelism, with a sparse loss of classes that no rank has all of.

Two processes share the classes of the last layer and the hidden units before it, by torch's tensor parallelism, and two such pairs
have texts of their own and share the parameters, by its FSDP. The scores come as a DTensor whose classes are sharded, and
`sm.entmax15_loss` takes it: one message a step instead of all scores. At last one process does the same steps alone.

    python examples/tensor_parallel.py
    python examples/tensor_parallel.py --loss cross_entropy --steps 50
"""

from __future__ import annotations

import datetime
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import softmaxima as sm
from softmaxima_lab.commands.example import checked, count, processes, run

WORDS, WIDTH, TEXTS, RATE = 50, 16, 32, 0.01
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel(), "3": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}


def text(step: int) -> tuple[Tensor, Tensor]:
    """(words, as what an embedding has of them; the next words), which follow them by a rule."""
    words = torch.randint(WORDS, (TEXTS,), generator=torch.Generator().manual_seed(step))
    embedding = torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return embedding[words], (7 * words + 3) % WORDS


def train(mesh: DeviceMesh | None, loss: Callable[[Any, Tensor], Any], steps: int) -> list[float]:
    """The loss of all texts at each step; on a mesh of the axes "data" and "tensor" that of a layer that is shared along both."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)).double()
    own = slice(None)
    if mesh is not None:
        parallelize_module(model, mesh["tensor"], PLAN)
        fully_shard(model, mesh=mesh["data"])
        own = slice(mesh["data"].get_local_rank(), None, mesh["data"].size())
    optimiser, losses = torch.optim.Adam(model.parameters(), RATE), []
    for step in range(steps):
        states, words = text(step)
        value = loss(model(states[own]), words[own])
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        mean = value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()
        if mesh is not None:  # of the texts of each pair
            dist.all_reduce(mean, group=mesh["data"].get_group())
            mean /= mesh["data"].size()
        losses.append(float(mean))
    return losses


def work(rank: int, loss: str, steps: int, store: str) -> None:
    """What a process does."""
    warnings.filterwarnings("ignore", module="torch")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=4, timeout=datetime.timedelta(minutes=2))
    found = train(init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")), getattr(sm, loss), steps)
    if rank == 0:
        apart = max(abs(a - b) for a, b in zip(found, train(None, getattr(sm, loss), steps), strict=True))
        print(f"{loss} on 2 × 2 ranks: {found[0]:.4f} at first, {found[-1]:.4f} at last, {apart:.1e} from one process", flush=True)
    dist.destroy_process_group()


def check_loss(name: str) -> None:
    try:
        found = getattr(sm, name)(torch.full((2, 3), 2.0), torch.tensor([0, 2]))  # which are no cosines
    except (AttributeError, TypeError, ValueError):
        found = None
    if not isinstance(found, Tensor) or found.ndim:
        raise ValueError(f"must be a loss of scores and labels, got {name!r}; take cross_entropy or entmax15_loss")


def main(
    loss: Annotated[str, checked("Loss of the scores, by its name.", check_loss)] = "entmax15_loss",
    steps: Annotated[int, count("Steps of training.")] = 100,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        processes(work, (loss, steps, str(Path(folder, "store"))), 4)


if __name__ == "__main__":
    run(main, __doc__)
