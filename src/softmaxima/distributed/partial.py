r"""Partial FC: each rank takes its classes that are labels of the batch, and one at least of the others, drawn without replacement.

Of n classes of a rank, b of them labels, k are taken: each other with the probability π = (k − b)/(n − b). Σ_{c taken} e^{x_c}/π_c,
π = 1 for labels, is an unbiased estimate of Σ_c e^{x_c} (Horvitz and Thompson 1952), and exact where k = n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.numbers import check_count
from softmaxima.base.randomness import as_torch_generator
from softmaxima.base.tracing import sizes
from softmaxima.distributed.agreement import Agreement
from softmaxima.distributed.labels import check_range, here
from softmaxima.heads.request import Request


@dataclass(frozen=True, eq=False)
class SomeClasses:
    """How the classes of a request are drawn; labels count those of all ranks."""

    name: str
    request: Request
    samples: int
    generator: torch.Generator | None

    def draw(self, agreement: Agreement, rank: int) -> tuple[Request, Agreement, Tensor]:
        """(the same of the classes that this rank takes, how many each rank takes, log π of those of this rank in float64)."""
        request, batch = self.request, self.request.batch
        labels: Any = batch.labels
        check_range(self.name, labels, batch.ignored, agreement)
        seen = (labels if batch.ignored is None else labels[~batch.ignored]).unique()
        firsts = [agreement.first(other) for other in range(len(agreement.widths))]
        owned = [seen[(seen >= a) & (seen < a + n)] for a, n in zip(firsts, agreement.widths, strict=True)]
        taken = Agreement(tuple(min(n, max(self.samples, len(own) + 1)) for n, own in zip(agreement.widths, owned, strict=True)))
        n, k, own = agreement.widths[rank], taken.widths[rank], owned[rank] - firsts[rank]
        source = None if self.generator is None else self.generator.device
        keys = torch.rand(n, generator=self.generator, device=source or labels.device).to(labels.device)
        keys[own] = 2.0  # before all others
        classes = keys.topk(k).indices.sort().values
        log_rate = math.log((k - len(own)) / (n - len(own))) if k > len(own) else 0.0
        log_rates = torch.full((k,), log_rate, dtype=torch.float64, device=labels.device)
        log_rates[torch.searchsorted(classes, own)] = 0.0
        vectors = (classes.unsqueeze(-1) * request.centres + torch.arange(request.centres, device=labels.device)).flatten()
        mine, place = here(labels, batch.ignored, agreement, rank)
        place = torch.searchsorted(classes, place) + taken.first(rank)
        weights = None if batch.class_weight is None else batch.class_weight[classes]
        some = replace(
            batch,
            rows=batch.rows.new_zeros(()).expand(sizes(batch.rows)[0], k),
            labels=place.where(mine, taken.whole),  # elsewhere
            class_weight=weights,
        )
        return replace(request, weight=request.weight[vectors], batch=some), taken, log_rates


def some_classes(name: str, request: Request, samples: Any, generator: Any) -> SomeClasses:
    """Checked."""
    if request.loss.name != "cross_entropy" or request.batch.smoothing:
        raise ValueError(
            f"{name}: samples are for cross_entropy without label_smoothing, whose other classes are a sum; leave them out"
        )
    return SomeClasses(name, request, check_count(name, "samples", samples), as_torch_generator(name, generator))
