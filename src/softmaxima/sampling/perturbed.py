r"""Perturbed maximisers: the expectation of what a solver decides on noisy scores, which has a gradient though the solver has none.

    ŷ(x) = E y(x + εZ)        ∂ŷ/∂x = E[(y(x + εZ) − b) ν′(Z)ᵀ]/ε,        density of Z ∝ e^{−ν(z)}

It is the score-function estimator for u = x + εZ, of which log q(u) = −ν((u − x)/ε) − n log ε: `score_function` with values y.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_scores, as_tensor, check_dim, check_per_row, like_input
from softmaxima.base.numbers import SMALLEST_TEMPERATURE, check_choice, check_count
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.rows import without_mask
from softmaxima.base.tracing import sizes
from softmaxima.sampling.noise import DENSITIES, Density, opposite, uniform
from softmaxima.sampling.rows import widened
from softmaxima.sampling.score_function import BASELINES, constant_of, estimate


@public
def perturbed_argmax(
    x: Array,
    solver: Callable[[Any], Any],
    *,
    noise: str = "normal",
    scale: float | Array = 1.0,
    samples: int = 100,
    baseline: str = "leave_one_out",
    antithetic: bool = False,
    dim: int | Sequence[int] = -1,
    vectorized: bool = True,
    numpy: bool = False,
    generator: Randomness = None,
) -> Any:
    r"""What a solver decides on average on noisy scores, `E y(x + εZ)`, with a gradient whatever the solver is made of.

    Args:
        x: scores of any shape, float64, float32, bfloat16 or float16.
        solver: y, from scores to decisions, such as one-hot vectors, ranks, a matching or a path: it is given (samples, …,
            *problem) in float64, whatever x's dtype is, and gives (samples, …, any), where problem are the axes `dim` of x, moved
            last, and … the others, independent problems.
        noise: "normal", "gumbel" or "logistic". With standard Gumbel noise and ε = 1 the one-hot argmax gives softmax(x).
        scale: ε > 0, a number or a tensor that broadcasts against x with size 1 along `dim`, which may require grad.
        samples: how many, at least 1; the solver is called on all at once.
        baseline: b above: "leave_one_out", the mean of the other samples, or "none", 0, which has less variance where decisions
            are around 0 and the samples few.
        antithetic: whether to draw pairs of the quantiles u and 1 − u (Z and −Z), of which "leave_one_out" needs 2: it takes the
            mean of the other pairs. That lowers the variance of the value, and mostly raises that of the gradient.
        dim: the axis, or axes, of one problem.
        vectorized: False calls the solver for one problem (*problem) at a time.
        numpy: give the solver NumPy arrays though x is a tensor. What it gives back may be either.
        generator: a torch.Generator, a NumPy one or a seed.

    Returns:
        The mean decision, (…, any), of x's dtype and array kind, with any moved to `dim` where it has the problem's number of axes.
        Its derivatives, of any order, are unbiased.

    Raises:
        TypeError, ValueError or IndexError, before any work; TypeError and ValueError too for decisions that are no
        real numbers of that shape.

    A score of −∞ stays −∞ for the solver, and its gradient is 0. Cost: `samples` decisions; noise in float64. Source: Berthet,
    Blondel, Teboul, Cuturi, Vert and Bach (2020), arXiv:2002.08676, with the baseline of `score_function`.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([2.0, 1.0, 0.0], requires_grad=True)
    >>> rank = lambda x: x.argsort(-1).argsort(-1).double()
    >>> ranks = sm.perturbed_argmax(x, rank, scale=0.5, samples=10_000, generator=0)
    >>> ranks.detach(), torch.autograd.grad(ranks[0], x)[0]
    (tensor([1.9216, 0.9989, 0.0795]), tensor([ 0.2137, -0.2050, -0.0095]))
    """
    name = "perturbed_argmax"
    if not callable(solver):
        raise TypeError(f"{name}: solver must be a function of scores, got {type(solver).__name__}")
    density = DENSITIES[check_choice(name, "noise", noise, tuple(DENSITIES))]
    if noise == "normal":
        refuse_export(name, "quantiles of the normal distribution; take noise='gumbel'")
    check_choice(name, "baseline", baseline, BASELINES)
    count = _check_samples(name, samples, antithetic, baseline)
    scores = as_scores(name, x)
    rows = scores if scores.ndim else scores.reshape(1)
    axes = _axes(name, dim, rows)
    epsilon = _scale(name, scale, rows, axes)
    order = [a for a in range(rows.ndim) if a not in axes] + axes
    z_rows = widened(rows).permute(order)
    wide = epsilon.double().permute(order) if isinstance(epsilon, Tensor) else epsilon

    with torch.no_grad():
        u = uniform(name, (count // 2 if antithetic else count, *z_rows.shape), rows.device, generator)
        z = density.quantile(torch.cat((u, opposite(u))) if antithetic else u)
        noisy = z_rows + wide * z
    y = _decide(name, solver, noisy, len(axes), vectorized, numpy or not isinstance(x, Tensor))
    log_q = _log_density(density, z_rows, z, wide, len(axes))
    constant = _mean_of_others(name, y, antithetic) if baseline == "leave_one_out" else 0.0
    value = estimate(log_q.reshape(*log_q.shape, *[1] * (y.ndim - log_q.ndim)), y, constant).to(rows.dtype)
    if value.ndim == rows.ndim:
        value = value.permute([order.index(a) for a in range(rows.ndim)])
    if not scores.ndim and value.shape[:1] == (1,):
        value = value.squeeze(0)
    return like_input(value, x)


def _check_samples(name: str, samples: Any, antithetic: bool, baseline: str) -> int:
    """How many draws, in pairs where they are antithetic, and enough for the baseline."""
    count = check_count(name, "samples", samples)
    if antithetic and count % 2:
        raise ValueError(f"{name}: samples must be even with antithetic=True, got {count}; give {count + 1}")
    least = 4 if antithetic else 2
    if baseline == "leave_one_out" and count < least:
        raise ValueError(
            f"{name}: samples must be at least {least} for baseline='leave_one_out'{' in pairs' if antithetic else ''}, "
            f"got {count}; give baseline='none'"
        )
    return count


def _log_density(density: Density, x: Tensor, z: Tensor, scale: float | Tensor, problem: int) -> Tensor:
    """log q(x + εZ) of each draw [samples, …] with a slope by x and ε, a problem being the last so many axes."""
    axes = tuple(range(-problem, 0))
    n = math.prod(sizes(x)[-problem:])
    moving = without_mask(x)
    apart = moving.detach() - moving  # 0: u − x is εZ whatever x rounds of it
    same = scale.detach() if isinstance(scale, Tensor) else scale
    log_q = -density.energy((apart + same * z) / scale).sum(axes)
    return log_q - n * (scale.log().sum(axes) if isinstance(scale, Tensor) else math.log(scale))


def _mean_of_others(name: str, y: Tensor, antithetic: bool) -> Any:
    """The baseline of each draw [samples, …]: of the other draws, or of the other pairs."""
    if not antithetic:
        return constant_of(name, None, y)
    return constant_of(name, None, y.unflatten(0, (2, -1)).mean(0)).repeat(2, *[1] * (y.ndim - 1))  # type: ignore[union-attr]


def _axes(name: str, dim: Any, x: Tensor) -> list[int]:
    """Axes of one problem, in their order."""
    axes = [check_dim(name, a, x.ndim) for a in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    if not axes or len(set(axes)) < len(axes):
        raise ValueError(f"{name}: dim must name one axis or several different ones, got {dim}")
    if any(x.shape[axis] == 0 for axis in axes):
        raise ValueError(f"{name}: x must have something to choose among, got shape {tuple(x.shape)}")
    return axes


def _scale(name: str, scale: Any, x: Tensor, axes: list[int]) -> float | Tensor:
    """ε, as large along every axis of a problem."""
    valid = lambda e: (e >= SMALLEST_TEMPERATURE) & (e < math.inf)
    found: Any = scale
    for axis in axes:
        found = check_per_row(name, "scale", found, x, axis, valid, "positive and finite")
    return found


def _decide(name: str, solver: Any, noisy: Tensor, rank: int, at_once: bool, arrays: bool) -> Tensor:
    """y [samples, …, any] in float64, a constant."""
    count, batch, problem = len(noisy), sizes(noisy)[1:-rank], sizes(noisy)[-rank:]

    def call(scores: Tensor) -> Tensor:
        with torch.no_grad():
            found = solver(scores.numpy(force=True) if arrays else scores)
        if isinstance(found, (list, tuple, float, int)):
            try:
                found = np.asarray(found)
            except ValueError:
                raise ValueError(f"{name}: solver must give decisions of one shape, got a list of several; pad them") from None
        decided = as_tensor(name, "what the solver gives", found).detach()
        if decided.is_complex():
            raise TypeError(f"{name}: solver must give real decisions, got {decided.dtype}; give real and imaginary parts apart")
        return decided.to(noisy.device, torch.float64)

    if at_once:
        y = call(noisy)
    else:
        flat = noisy.reshape(-1, *problem)
        parts = [call(one) for one in flat]
        if other := {sizes(part) for part in parts} - {sizes(parts[0])}:
            shapes = f"{sizes(parts[0])} and {min(other)}"
            raise ValueError(f"{name}: solver must give decisions of one shape for every problem, got {shapes}; pad them")
        y = torch.stack(parts)
        y = y.reshape(count, *batch, *sizes(y)[1:])
    if sizes(y)[: 1 + len(batch)] != (count, *batch):
        raise ValueError(
            f"{name}: solver must give decisions of shape {(count, *batch)} and more axes of one's own, got {sizes(y)}; "
            "vectorized=False calls it for one problem at a time"
        )
    return y
