"""Randomness: everything that draws takes `generator=`, torch's or NumPy's or a seed, and uses the one that its library has.

A seed is from 0 to 2⁶⁴ − 1, whatever library draws. None is torch's default generator everywhere, so that `torch.manual_seed`
repeats all. A generator of the other library is asked for a seed, and so moves on: two calls with it differ, as they should.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from softmaxima.base.numbers import check_int

Randomness = torch.Generator | np.random.Generator | int | None

SEEDS = 2**31  # as many as every library takes


def as_torch_generator(name: str, generator: Any) -> torch.Generator | None:
    """torch's generator; None, for torch's default one, of None."""
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    return torch.Generator().manual_seed(as_seed(name, generator))


def as_numpy_generator(name: str, generator: Any) -> np.random.Generator:
    """NumPy's generator, from torch's default one of None."""
    return generator if isinstance(generator, np.random.Generator) else np.random.default_rng(as_seed(name, generator))


def as_seed(name: str, generator: Any) -> int:
    """A number that is at least 0: the seed itself, or one that is drawn."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(SEEDS))
    if generator is None or isinstance(generator, torch.Generator):
        device = "cpu" if generator is None else generator.device
        return int(torch.randint(SEEDS, (), generator=generator, device=device))
    domain = "a torch.Generator, a numpy.random.Generator, or a seed of at least 0 and below 2**64"
    return check_int(name, "generator", generator, lambda seed: 0 <= seed < 2**64, domain, 2**64)
