"""The entmax package, version 1.3: its names, arguments and defaults over exact solvers.

    import softmaxima.compat.entmax as entmax        # instead of `import entmax`

Every function and module of its `activations`, `root_finding` and `losses` is here, with the two threshold helpers, and without the
autograd functions behind them. `k`, `n_iter` and `ensure_sum_one` steer approximations that are not made here: they are accepted,
and change nothing.

What differs from 1.3 is what its documentation promises but 1.3 does not do, and what 1.3 does not define:

- `k` with `dim=-2` or lower raised; every axis works.
- A row of −∞ alone, or with NaN, raised or gave NaN, and NaN in one row failed for all. Zeros and NaN here, in that row only.
- float16 and bfloat16 were summed in their own precision: sums of 0.98, and NaN for scores near −1000. Sums are wide here.
- Tensors of another dtype as `alpha` changed the result's dtype; it is that of X here.
- Second derivatives of entmax15, entmax_bisect and normmax_bisect were NaN where a probability is zero, those by alpha were wrong,
  and the losses had none.
- `budget_bisect` raised in its gradient where `dim` named the last axis by a positive number or the first by a negative one, and
  gave NaN with a score of −∞.
- `EntmaxBisect(nn.Parameter(...))` raised. `alpha` of normmax and of the losses, and `budget`, got no gradient, without a word.
- One alpha a row, (N, 1), turned the N losses of a batch into an N × N table.
- A masked class, X = −∞, made every loss NaN; scores of 1e5 in float32 gave losses below 0; sums over a float16 batch overflowed.
- The loss of normmax lost its norm to underflow for large alpha.
- An `ignore_index` that is no class, 255 or the default −100, raised as soon as a target had it. Such targets are ignored here, as
  torch does. An ignored row with NaN made its gradient NaN; it is zero here.
- A mean over no target at all, every row ignored, is NaN with a zero gradient, in 1.3, in torch and here.

Wrong arguments raise ValueError, TypeError or IndexError with a reason, also where 1.3 has an assertion, and where it returns
something: for α ≤ 0, α < 1 in normmax, a negative budget.

>>> import torch
>>> import softmaxima.compat.entmax as entmax
>>> entmax.sparsemax(torch.tensor([1.0, 0.8, 0.1]), dim=0)
tensor([0.6000, 0.4000, 0.0000])
>>> entmax.entmax_bisect(torch.tensor([[1.0, 0.0]]), alpha=torch.tensor([[1.5]]), n_iter=30)
tensor([[0.8307, 0.1693]])
"""

from __future__ import annotations

import sys

from softmaxima.base.public import listing
from softmaxima.compat.entmax_functions import (
    BudgetBisect,
    Entmax15,
    EntmaxBisect,
    NormmaxBisect,
    Sparsemax,
    SparsemaxBisect,
    budget_bisect,
    entmax15,
    entmax_bisect,
    normmax_bisect,
    sparsemax,
    sparsemax_bisect,
)
from softmaxima.compat.entmax_functions import _entmax_threshold_and_support as _entmax_threshold_and_support
from softmaxima.compat.entmax_functions import _sparsemax_threshold_and_support as _sparsemax_threshold_and_support
from softmaxima.compat.entmax_losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "activations",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "losses",
    "normmax_bisect",
    "normmax_bisect_loss",
    "root_finding",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]
__dir__ = listing(globals())

__version__ = "1.3"  # whose interface this is

# `entmax.losses.SparsemaxLoss` and the like are names of the package too.
activations = root_finding = losses = sys.modules[__name__]
