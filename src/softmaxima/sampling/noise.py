r"""Noise: uniform and Gumbel numbers in float64, and Gumbel noise of which the argmax is known.

    U = k/2⁵³        E = −log(1 − U)        G = −log E        P[argmax(x + G) = i] = softmax(x)_i

U is drawn in float64 whatever the scores are, one number after the other: of one generator the numbers are the same with every
number of threads. A U of 0 counts as 2⁻⁵⁴, so that E is in [5.6e-17, 36.8] and G in [−3.61, 37.43]: neither is ever infinite, and
what is left of the tails has a probability of 2⁻⁵³. (torch's float32 numbers have 24 bits: with them no class is drawn right whose
probability is below 1e-7. Its exponential_ has 31 bits on a CPU with MKL, all of one sequence of 2³¹ numbers.) torch.compile makes
numbers of float32 of `torch.rand` in float64 with its backend Inductor, unless told to fall back to eager's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from softmaxima.base.onnx import logaddexp
from softmaxima.base.randomness import Randomness, as_torch_generator

LEAST = 2.0**-54


def uniform(name: str, shape: Sequence[int], device: torch.device, generator: Randomness = None) -> Tensor:
    """Numbers of [2⁻⁵⁴, 1), float64, drawn where the generator is."""
    source = as_torch_generator(name, generator)
    if source is None:
        u = torch.rand(tuple(shape), dtype=torch.float64, device=device)
    else:
        u = torch.rand(tuple(shape), dtype=torch.float64, device=source.device, generator=source).to(device)
    return u.clamp_min(LEAST)


def gumbel(u: Tensor) -> Tensor:
    """G of uniform numbers."""
    return log_exponential(u).neg_()


def log_exponential(u: Tensor) -> Tensor:
    """log E of uniform numbers."""
    return (-u).log1p_().neg_().log_()


def conditional(x: Tensor, one_hot: Tensor, u: Tensor) -> Tensor:
    r"""x + G, of which the argmax is known: `one_hot` [..., n]; −∞ where x is.

        (x + G)_i = log Z − log E_i        (x + G)_j = −log(E_j e^{−x_j} + E_i/Z)        Z = Σ e^{x_j}

    The largest of all, and of every other what is below it.
    """
    log_e, log_z = log_exponential(u), torch.logsumexp(x, -1, keepdim=True)
    bound = (log_e.masked_fill(~one_hot, 0.0)).sum(-1, keepdim=True) - log_z
    below = -logaddexp(log_e - x, bound)  # −∞ where x is
    return torch.where(one_hot, -bound, below)


# Noise with a density ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Density:
    """A noise Z: its quantile function, of uniform numbers u, and ν(z) = −log of its density, up to a constant.

    >>> import torch
    >>> from softmaxima.sampling.noise import DENSITIES
    >>> DENSITIES["logistic"].quantile(torch.tensor([0.25, 0.5, 0.75]))
    tensor([-1.0986,  0.0000,  1.0986])
    """

    quantile: Callable[[Tensor], Tensor]
    energy: Callable[[Tensor], Tensor]


DENSITIES = {
    "gumbel": Density(gumbel, lambda z: z + (-z).exp()),
    "normal": Density(torch.special.ndtri, lambda z: z * z / 2),
    "logistic": Density(torch.logit, lambda z: z + 2 * softplus(-z)),
}

LARGEST = math.nextafter(1.0, 0.0)


def opposite(u: Tensor) -> Tensor:
    """1 − u, which is as uniform, and never 1."""
    return (1 - u).clamp(LEAST, LARGEST)
