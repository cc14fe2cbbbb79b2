r"""One-hot draws with a gradient: forward D, a class drawn from p, backward something that is near to ∇E f(D).

    straight_through        ∇p                                   Bengio et al. (2013)
    reinmax                 2 ∇π₁ − ½ ∇p at π₁ = (D + p_τ)/2     Liu et al. (2023): exact where f is quadratic and τ = 1
    rao_blackwell_gumbel    E[∇softmax((x + G)/τ) | D]           Paulus et al. (2021): the straight-through Gumbel-softmax, averaged

All draw D as argmax(x + G): of one generator they, `gumbel_max` and `gumbel_softmax` draw the same classes.
"""

from __future__ import annotations

from typing import Any

import torch

from softmaxima.base.arguments import Array
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.engine.contract import AnyMap, find_map
from softmaxima.maps.softmax import SOFTMAX
from softmaxima.sampling.gumbel import check_probabilities
from softmaxima.sampling.noise import conditional, gumbel, uniform
from softmaxima.sampling.rows import as_rows, largest, map_params, moving, straight


@public
def straight_through(
    x: Array,
    temperature: float | Array = 1.0,
    *,
    map: AnyMap = "softmax",
    draw: bool = True,
    dim: int = -1,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
    **params: Any,
) -> Array:
    """A one-hot vector drawn from p = map(x/τ), or that of its largest, with the gradient of p: the straight-through estimator.

    Args:
        x: scores of any shape, float64, float32, bfloat16 or float16.
        map: a registered name, the function of a map (`sm.sparsemax`) or a `Map` whose Σp ≤ 1; its parameters by name. What Σp
            lacks of 1 is the probability of a vector of zeros.
        temperature: τ > 0 of the distribution: unlike that of `gumbel_softmax` it moves which class is drawn. A number, or a tensor
            that broadcasts against x with size 1 along `dim`, which may require grad.
        draw: False for the class of the largest p, the first of several, without noise.
        dim, where, samples, generator: as for `gumbel_softmax`.

    Returns:
        Exact one-hot vectors of x's shape, dtype and array kind; zeros for a row with nothing allowed, NaN for one with NaN or +∞.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    E D = p, but ∇E f(D) is that of f's slope at D alone, exact where f is linear. Cost: the map in float64, and with draw=True
    a uniform number and three logarithms a score. Source: Bengio, Léonard and Courville (2013), arXiv:1308.3432.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([2.0, 1.0, 0.0], requires_grad=True)
    >>> d = sm.straight_through(x, generator=0)
    >>> d.detach(), torch.autograd.grad(d[0], x)[0]
    (tensor([0., 1., 0.]), tensor([ 0.2227, -0.1628, -0.0599]))
    """
    name = "straight_through"
    found = find_map(map, name)
    check_probabilities(name, found)
    if not draw and generator is not None:
        raise ValueError(f"{name}: generator is for draws, and draw=False makes none; leave it out")
    if not found.properties.of_one_class:
        raise ValueError(f"{name}: map must give probabilities of one class, Σp ≤ 1, got {found.name!r}; take softmax")
    rows = as_rows(name, x, dim, temperature, where, samples)
    values = map_params(name, found, params, rows)
    p = found(rows.x, temperature=rows.tau, **values)
    if not draw:
        one_hot = largest(p) & (p > 0)
        return rows.back(rows.expanded(straight(one_hot, p, rows.dtype)))
    log_p = p.detach().log()
    if found.properties.mass != "one":  # of no class, one more
        none = (1 - p.detach().sum(-1, keepdim=True)).clamp_min(0.0).log()
        y = torch.cat((log_p, none), -1)
        y = y + gumbel(uniform(name, (*rows.draws, *y.shape), y.device, generator))
        return rows.back(straight(largest(y)[..., :-1], p, rows.dtype))
    return rows.back(straight(largest(log_p + gumbel(rows.uniform(generator))), p, rows.dtype))


@public
def reinmax(
    x: Array,
    temperature: float | Array = 1.0,
    *,
    dim: int = -1,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
) -> Array:
    """A one-hot vector drawn from softmax(x), with ReinMax's gradient `2 ∇π₁ − ½ ∇p`, which is of second order in f.

    p = softmax(x), D is drawn from p, π₁ = (D + softmax(x/τ))/2, and ∇π is (diag π − π πᵀ) of a vector that π is the softmax of.
    Where f is quadratic and τ = 1, the expectation of the gradient is exactly ∇E f(D).

    Args:
        x, dim, where, samples, generator: as for `gumbel_softmax`.
        temperature: τ > 0 of π₁ alone, a number or a tensor that broadcasts against x with size 1 along `dim`, for which there is
            no gradient. A larger τ trades bias for variance; D is drawn from softmax(x) whatever it is.

    Returns:
        Exact one-hot vectors of x's shape, dtype and array kind; zeros for a row with nothing allowed, NaN for one with NaN or +∞.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: that of `gumbel_max`, and three softmaxes in float64. Source: Liu, Dong, Liu, Yu and Gao (2023), arXiv:2304.08612,
    algorithm 2.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([2.0, 1.0, 0.0], requires_grad=True)
    >>> d = sm.reinmax(x, generator=1)
    >>> d.detach(), torch.autograd.grad(d[0], x)[0]
    (tensor([1., 0., 0.]), tensor([ 0.1674, -0.1224, -0.0450]))
    """
    rows = as_rows("reinmax", x, dim, temperature, where, samples)
    p = SOFTMAX(rows.x)
    y = rows.perturbed(generator)
    one_hot = largest(y)
    middle = ((one_hot + SOFTMAX(rows.x, temperature=rows.tau)) / 2).detach()  # a constant, also of forward mode
    halfway = SOFTMAX(middle.log() + moving(rows.x))
    return rows.back(straight(one_hot, 2 * halfway - p / 2, rows.dtype))


@public
def rao_blackwell_gumbel(
    x: Array,
    temperature: float | Array = 1.0,
    *,
    conditionals: int = 10,
    dim: int = -1,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
) -> Array:
    r"""A one-hot vector D drawn from softmax(x), with the mean of K straight-through Gumbel-softmax gradients of that same D.

        ∇ (1/K) Σ_k softmax((x + G_k)/τ),        G_k from the Gumbel noise with argmax(x + G_k) = D, as a constant

    Its bias is that of `gumbel_softmax(hard=True)`, and its variance never more, at no more evaluations of f: noise that does not
    move D is averaged out. Liu et al. (2019) take the same step for score-function estimators: `sum_and_sample`.

    Args:
        x, temperature, dim, where, samples, generator: as for `gumbel_softmax`.
        conditionals: K, at least 1.

    Returns:
        Exact one-hot vectors of x's shape, dtype and array kind; zeros for a row with nothing allowed, NaN for one with NaN or +∞.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: that of `gumbel_max`, and K times noise and a softmax in float64. Source: Paulus, Maddison and Krause (2021),
    arXiv:2010.04838.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([2.0, 1.0, 0.0], requires_grad=True)
    >>> d = sm.rao_blackwell_gumbel(x, 0.5, conditionals=100, generator=0)
    >>> d.detach(), torch.autograd.grad(d[0], x)[0]
    (tensor([0., 1., 0.]), tensor([ 0.2386, -0.2206, -0.0180]))
    """
    name = "rao_blackwell_gumbel"
    count = check_count(name, "conditionals", conditionals)
    rows = as_rows(name, x, dim, temperature, where, samples)
    source = as_torch_generator(name, generator)
    one_hot = largest(rows.perturbed(source))
    known = rows.relative.detach()
    y = conditional(known, one_hot, rows.uniform(source, count))
    p = SOFTMAX(y + moving(rows.x), temperature=rows.tau).mean(0)
    return rows.back(straight(one_hot, p, rows.dtype))
