r"""Bounds of top-p softmax, which is not monotone: as a high score rises the nucleus loses a low one, and a third gains.

Which scores are certainly kept or certainly left out follows from the most and the least share that can stand before each;
the ratio then from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from softmaxima.base.rows import row_maximum
from softmaxima.robust.corners import is_own

DOUBT = 1e-12  # by which a share may be on the wrong side of p, by rounding


def of_a_nucleus(low: Tensor, high: Tensor, classes: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Of top-p softmax: classes whose place before p is certain, and ratios of what the others may be."""
    level = row_maximum(high)
    light, heavy = (low - level).exp(), (high - level).exp()
    everyone = torch.arange(low.shape[-1], device=low.device).expand(low.shape)
    kept, dropped = _certain(low, high, light, heavy, everyone, share)
    own = is_own(classes, low.shape[-1])
    own_low, own_high, own_light, own_heavy = (v.gather(-1, classes) for v in (low, high, light, heavy))
    of_pairs = lambda v: v.unsqueeze(-2)
    total: Callable[[Tensor, Tensor], Tensor] = lambda weights, chosen: torch.where(chosen & ~own, of_pairs(weights), 0.0).sum(-1)
    # Who is before a class that is kept is kept too.
    ahead = of_pairs(low) > own_high.unsqueeze(-1)
    least_others = total(light, of_pairs(kept) | ahead)
    most_others = total(heavy, of_pairs(~dropped))
    all_others = total(light, torch.ones_like(own))
    divide = lambda a, b: torch.where(a == 0, 0.0, a / torch.where(a == 0, 1.0, a + b))
    lower = torch.where(kept.gather(-1, classes), divide(own_light, most_others), 0.0)
    upper = torch.minimum(divide(own_heavy, least_others), divide(own_heavy, all_others) / share)
    upper = torch.where(dropped.gather(-1, classes), 0.0, upper)
    masked = own_low == -math.inf
    return lower.masked_fill(masked, 0.0), upper.masked_fill(masked, 0.0)


def _certain(low: Tensor, high: Tensor, light: Tensor, heavy: Tensor, classes: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Whether each class is kept, and whether it is left out, wherever the scores are: by the most and the least before it."""
    own = is_own(classes, low.shape[-1])
    chosen: Callable[[Tensor, Tensor], Tensor] = lambda weights, which: torch.where(which & ~own, weights.unsqueeze(-2), 0.0).sum(
        -1
    )
    may = high.unsqueeze(-2) >= low.unsqueeze(-1)
    before, behind = chosen(heavy, may), light + chosen(light, ~may)
    kept = (before < (share - DOUBT) * (before + behind)) | (before == 0)
    must = low.unsqueeze(-2) > high.unsqueeze(-1)
    before, behind = chosen(light, must), heavy + chosen(heavy, ~must)
    return kept & (high > -math.inf), (before > (share + DOUBT) * (before + behind)) | (high == -math.inf)
