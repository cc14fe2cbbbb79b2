r"""Gumbel noise: argmax(x + G) is drawn from softmax(x), and p = map((x + G)/τ) is a relaxation of it that has a gradient.

    P[argmax_i (x_i + G_i) = i] = exp(x_i) / Σ exp(x_j)        p → one-hot as τ → 0

x + G is made in float64, less the largest x, and its largest is found there: neither the dtype of the scores, nor their offset or
τ moves which class is drawn.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array, as_scores, like_input
from softmaxima.base.modules import OptionsModule, held_value
from softmaxima.base.numbers import TEMPERATURE, check_axis, check_flag
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.rows import row_maximum
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.maps.softmax import SOFTMAX
from softmaxima.sampling.rows import Rows, as_rows, index_of, largest, map_params, straight


@public
def gumbel_max(
    x: Array,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
) -> Array:
    """A class drawn from softmax(x/τ), as its index, `argmax_i (x_i/τ + G_i)` with standard Gumbel noise G.

    Args:
        x: scores of any shape, float64, float32, bfloat16 or float16.
        dim: the axis of the classes.
        temperature: τ > 0 of the distribution, a number or a tensor that broadcasts against x with size 1 along `dim`.
        where: boolean, broadcasts to x; False (like a score of −∞) is never drawn.
        samples: None for a draw a row, or how many, along a new first axis.
        generator: a torch.Generator, a NumPy one or a seed; None for torch's default generator.

    Returns:
        Indices, int64, of x's shape without `dim`; −1 for a row with nothing allowed, which `gather` and `one_hot` refuse, but
        a[index] takes for the last: mask such rows first, and give losses ignore_index=−1. They are the same for every number of
        threads, and of τ = 1 those of `gumbel_softmax` of the same generator.

    Raises:
        TypeError, ValueError or IndexError, before any work; ValueError too for a NaN or +∞ among the allowed scores. Where values
        cannot be read (on a GPU, in torch.compile or torch.func) such a row gives −1.

    A class whose probability is below 2⁻⁵³ relative to the others' may never be drawn: noise is drawn in float64, and ends at 37.4.
    Under `torch.func.vmap` say randomness="different", and randomness="same" in `jacfwd`. torch.compile makes one graph of it where
    `generator` is None, with torch's own noise, of float32 by its usual backend, where the 2⁻⁵³ above is some 1e-7. Cost: a uniform
    number and two logarithms a score, 8 bytes each. Source: Gumbel (1954); Maddison, Tarlow and
    Minka (2014), arXiv:1411.0030.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([0.5, 0.3, 0.2]).log()
    >>> sm.gumbel_max(x, samples=10_000, generator=0).bincount() / 10_000
    tensor([0.4944, 0.3008, 0.2048])
    >>> sm.gumbel_max(torch.zeros(2, 3), where=torch.tensor([[False, True, False], [False, False, False]]))
    tensor([ 1, -1])
    """
    rows = as_rows("gumbel_max", x, dim, temperature, where, samples)
    check_drawable(rows)
    return like_input(index_of(rows.tempered().perturbed(generator)), x)


def check_drawable(rows: Rows) -> None:
    """Scores of which a softmax exists, or nothing is allowed."""
    if not is_concrete(rows.x) or rows.x.numel() == 0:
        return
    top = rows.x.detach().amax(-1)  # NaN of a row with NaN
    if bool((wrong := ~(top < math.inf)).any()):
        value = float(top[wrong][0])
        raise ValueError(f"{rows.name}: scores must be below +∞ and not NaN, got {value}; give finite ones, or −∞ for a mask")


@public
def gumbel_softmax(
    x: Array,
    temperature: float | Array = 1.0,
    hard: bool = False,
    *,
    dim: int = -1,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
) -> Array:
    """A relaxed draw from softmax(x), `p = softmax((x + G)/τ)` with standard Gumbel noise G: a one-hot vector as τ → 0.

    Args:
        x: scores of any shape, float64, float32, bfloat16 or float16.
        temperature: τ > 0 of the relaxation, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may
            require grad. It does not move which class is the largest: that is drawn from softmax(x) whatever τ is.
        hard: the exact one-hot vector of the largest, with the gradient of p (the straight-through Gumbel-softmax).
        dim: the axis of the classes.
        where: boolean, broadcasts to x; False (like a score of −∞) gives probability 0 and gradient 0.
        samples: None for a draw a row, or how many, along a new first axis.
        generator: a torch.Generator, a NumPy one or a seed; None for torch's default generator.

    Returns:
        Probabilities of x's shape, dtype and array kind. A row with nothing allowed is all zeros; a row that holds NaN or +∞ is
        NaN.
        Nothing else is: x + G is finite in float64 and a difference over τ has a limit for every τ.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient is that of softmax, exact, and so are second derivatives; in narrow dtypes it is the largest number of the dtype
    where 1/τ makes it larger. `gumbel_max` of the same generator draws the same classes, and says what holds of generators under
    vmap and torch.compile. Cost: that of `gumbel_max`, and of softmax in float64. Sources: Jang, Gu and Poole (2017),
    arXiv:1611.01144; Maddison, Mnih and Teh (2017), arXiv:1611.00712.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float16)
    >>> sm.gumbel_softmax(x, 0.5, generator=0)
    tensor([0.3708, 0.4082, 0.2211], dtype=torch.float16)
    >>> sm.gumbel_softmax(x, 1e-30, hard=True, generator=0)
    tensor([0., 1., 0.], dtype=torch.float16)
    """
    return _relaxed("gumbel_softmax", SOFTMAX, x, temperature, hard, dim, where, samples, generator, {})


@public
def relaxed_sample(
    x: Array,
    temperature: float | Array = 1.0,
    hard: bool = False,
    *,
    map: AnyMap = "softmax",
    dim: int = -1,
    where: Array | None = None,
    samples: int | None = None,
    generator: Randomness = None,
    **params: Any,
) -> Array:
    """A relaxed draw from softmax(x) by any map, `p = map((x + G)/τ)`: with a sparse map most of p is exactly 0 at a finite τ.

    Args:
        x, temperature, dim, where, samples, generator: as for `gumbel_softmax`.
        map: a registered name, the function of a map (`sm.sparsemax`) or a `Map`; its parameters by name.
        hard: the exact one-hot vector of the largest of x + G, with the gradient of p. Not for maps that return log p.

    Returns:
        What the map gives, of x's shape, dtype and array kind.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: that of `gumbel_max`, and of the map in float64. Source: the relaxation of Jang et al. and Maddison et al. (2017), with
    sparsemax as of Correia et al. (2020), arXiv:2007.01919.

    >>> import torch, softmaxima as sm
    >>> sm.relaxed_sample(torch.tensor([2.0, 1.0, 0.0]), map="sparsemax", generator=0)
    tensor([0.4037, 0.4515, 0.1449])
    """
    return _relaxed("relaxed_sample", map, x, temperature, hard, dim, where, samples, generator, params)


def _relaxed(
    name: str,
    map: AnyMap,
    x: Any,
    temperature: Any,
    hard: Any,
    dim: Any,
    where: Any,
    samples: Any,
    generator: Any,
    params: dict[str, Any],
) -> Any:
    found, is_hard = find_map(map, name), check_flag(name, "hard", hard)
    if is_hard:
        check_probabilities(name, found)
    rows = as_rows(name, x, dim, temperature, where, samples)
    values = map_params(name, found, params, rows)
    y = rows.perturbed(generator)
    z = y if found.properties.shift_invariant else y + row_maximum(rows.x)
    p = found(z, temperature=rows.tau, **values)
    return rows.back(straight(largest(y), p, rows.dtype) if is_hard else p)


def check_probabilities(name: str, map: Map) -> None:
    """A map that gives p, and not log p."""
    if map.properties.logarithmic:
        raise ValueError(f"{name}: map must give probabilities, got {map.name!r}, which gives their logarithms; take softmax")


@public
class GumbelSoftmax(OptionsModule):
    """`gumbel_softmax`, or `relaxed_sample` by another map, as a module: a new draw at each call.

    `temperature` may be a number, a tensor (a buffer), an `nn.Parameter` (learnt) or a module that says it, such as a `Temperature`
    that learns or an `ExponentialTemperature` that falls as training goes on; a number may be set anew.
    Parameters of the map are given by name. Raises TypeError or ValueError at once for what the function would refuse.

    >>> import torch, softmaxima as sm
    >>> module = sm.GumbelSoftmax(0.5, map="sparsemax")
    >>> module(torch.tensor([2.0, 1.0, 0.0]), generator=0)
    tensor([0.4522, 0.5478, 0.0000])
    >>> module.temperature = 0.1
    >>> module
    GumbelSoftmax(map=sparsemax, temperature=0.1, hard=False, dim=-1)
    """

    def __init__(
        self,
        temperature: float | Tensor | nn.Module = 1.0,
        hard: bool = False,
        dim: int = -1,
        *,
        map: AnyMap = "softmax",
        **params: Any,
    ) -> None:
        name = type(self).__name__
        found = find_map(map, name)
        values = found.complete(params, name)
        if hard:
            check_probabilities(name, found)
        temperature = held_value(name, "temperature", temperature, *TEMPERATURE)
        values = {p.name: p.held(name, values[p.name]) for p in found.params}
        super().__init__(temperature=temperature, hard=hard, dim=check_axis(name, dim), **values)
        self.map = found

    def forward(self, x: Tensor, where: Tensor | None = None, samples: int | None = None, generator: Randomness = None) -> Tensor:
        as_scores(type(self).__name__, x)
        return relaxed_sample(x, map=self.map, where=where, samples=samples, generator=generator, **self.options)

    def extra_repr(self) -> str:
        return f"map={self.map.name}, {super().extra_repr()}"
