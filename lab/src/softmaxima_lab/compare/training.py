"""One training of a candidate: steps of Adam that are timed, and what is measured at their end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from statistics import median

import torch
from torch import Tensor, nn

from softmaxima_lab.compare.engine import NONE, Candidate, Reached, Run, Task
from softmaxima_lab.compare.turns import BETAS, rate


class Training:
    """Steps of Adam on batches that are the same for every candidate with the same seed."""

    def __init__(self, candidate: Candidate, modules: Iterable[nn.Module], task: Task, rows: int, steps: int, seed: int) -> None:
        self.name, self.most, self.steps = candidate.name, task.rate, steps
        self.batches = torch.randint(rows, (steps, task.batch), generator=torch.Generator().manual_seed(seed))
        parameters = [parameter for module in modules for parameter in module.parameters()]
        self.optimizer = torch.optim.Adam(parameters, task.rate, betas=BETAS, fused=True)
        self.seconds: list[tuple[float, float]] = []
        self.diverged: int | None = None

    def loss(self, rows: Tensor) -> Tensor:
        """The candidate's own, of rows of these numbers."""
        raise NotImplementedError

    def marks(self) -> Reached:
        """What it reached on the rows held out."""
        raise NotImplementedError

    def costs(self) -> Mapping[str, float]:
        """What is measured at the end besides the times of steps."""
        return {}

    def advance(self, steps: int) -> int:
        """Take so many steps, or none once the loss is no number; how many were due."""
        for _ in range(steps if self.diverged is None else 0):
            number = len(self.seconds)
            self.optimizer.param_groups[0]["lr"] = rate(self.most, number, self.steps)
            start = time.perf_counter()
            with torch.enable_grad():
                self.optimizer.zero_grad()
                loss = self.loss(self.batches[number])
                loss.backward()
            between = time.perf_counter()
            self.optimizer.step()
            finite = math.isfinite(loss.item())
            self.seconds.append((between - start, time.perf_counter() - between))
            if not finite:
                self.diverged = number
                break
        return steps

    @torch.no_grad()
    def end(self) -> Run:
        """What it reached, with its times."""
        found = self.marks() if self.diverged is None else NONE
        if self.diverged is None and any(map(math.isnan, found.means.values())):
            self.diverged, found = self.steps, NONE  # the last step left weights that give no numbers
        gradient, update = (median(seconds) for seconds in zip(*self.seconds, strict=True))
        return Run(found, gradient, update, self.costs(), self.diverged)
