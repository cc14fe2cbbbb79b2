"""Labels that count the classes of all ranks, where each rank needs to know on which they are."""

from __future__ import annotations

import torch
from torch import Tensor

from softmaxima.distributed.agreement import Agreement, digest
from softmaxima.distributed.ranks import RanksError


def spoken(labels: Tensor, ignored: Tensor | None) -> str:
    """Which labels there are, for ranks to agree on; where that can be read without waiting."""
    if not labels.is_cpu:
        return "labels on a device"
    seen = labels if ignored is None else labels[~ignored]
    span = f"from {int(seen.min())} to {int(seen.max())}" if seen.numel() else "that are all ignored"
    known = labels if ignored is None else labels.masked_fill(ignored, -1)  # whatever they hold
    return f"{labels.numel()} labels {span} with the checksum {digest(known.long())}"


def check_range(name: str, labels: Tensor, ignored: Tensor | None, agreement: Agreement) -> None:
    """Each is one of the classes of all ranks; they have agreed on the labels before, so that all raise."""
    if not labels.is_cpu:
        return
    wrong = (labels < 0) | (labels >= agreement.whole)
    wrong = wrong if ignored is None else wrong & ~ignored
    if bool(wrong.any()):
        raise RanksError(
            f"{name}: each target must be a label on one rank, got {int(labels[wrong][0])}, out of range for {agreement.whole} classes of "
            "all ranks"
        )


def here(labels: Tensor, ignored: Tensor | None, agreement: Agreement, rank: int) -> tuple[Tensor, Tensor]:
    """(which labels are of this rank's classes, which of these they are; 0 where they are not)."""
    place = labels - agreement.first(rank)
    own = (place >= 0) & (place < agreement.widths[rank])
    own = own if ignored is None else own & ~ignored
    return own, place.where(own, torch.zeros_like(place))
