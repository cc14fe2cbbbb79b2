r"""All estimators of E f(D), D one-hot from softmax(x), in one form: `expectation(x, f, name)`, a value with the gradient of each.

Those that give draws (a relaxation, a straight-through vector) are the mean of f over these; the others are functions of f.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from softmaxima.base.numbers import check_choice, check_count
from softmaxima.base.public import public, unknown_argument
from softmaxima.base.randomness import Randomness
from softmaxima.sampling.control_variates import rebar, relax
from softmaxima.sampling.drawing import Function, check_values_of, drawn_rows
from softmaxima.sampling.gumbel import gumbel_softmax, relaxed_sample
from softmaxima.sampling.score_function import reinforce, sum_and_sample
from softmaxima.sampling.straight_through import rao_blackwell_gumbel, reinmax, straight_through


@dataclass(frozen=True)
class Estimator:
    """An estimator of E f(D) and its gradient, and what it claims. The tests hold it to every claim.

    `unbiased`: the gradient by x, for every f. `smooth`: f must be differentiable at what it is given. `relaxed`: that is not
    one-hot alone. `each_row`: f must give a value a row. `options`: those of the function that are set.

    >>> from softmaxima.sampling.estimators import ESTIMATORS
    >>> [name for name, estimator in ESTIMATORS.items() if estimator.unbiased and not estimator.smooth]
    ['reinforce', 'reinforce_leave_one_out', 'sum_and_sample', 'relax']
    """

    function: Callable[..., Any]
    source: str
    unbiased: bool = False
    smooth: bool = False
    draws: bool = False  # the function gives draws, and not a value
    relaxed: bool = False
    each_row: bool = False
    options: dict[str, Any] = field(default_factory=dict)


ESTIMATORS = {
    "gumbel_softmax": Estimator(gumbel_softmax, "arXiv:1611.01144", smooth=True, draws=True, relaxed=True),
    "gumbel_sparsemax": Estimator(
        relaxed_sample, "arXiv:2007.01919", smooth=True, draws=True, relaxed=True, options={"map": "sparsemax"}
    ),
    "straight_through_gumbel": Estimator(gumbel_softmax, "arXiv:1611.01144", smooth=True, draws=True, options={"hard": True}),
    "straight_through": Estimator(
        straight_through,
        "arXiv:1308.3432",
        smooth=True,
        draws=True,
        options={"temperature": 1.0, "map": "softmax", "draw": True},  # others draw from another distribution
    ),
    "reinmax": Estimator(reinmax, "arXiv:2304.08612", smooth=True, draws=True),
    "rao_blackwell_gumbel": Estimator(rao_blackwell_gumbel, "arXiv:2010.04838", smooth=True, draws=True),
    "reinforce": Estimator(reinforce, "Williams (1992)", unbiased=True, options={"baseline": "none"}),
    "reinforce_leave_one_out": Estimator(
        reinforce, "Kool, van Hoof and Welling (2019)", unbiased=True, options={"baseline": "leave_one_out"}
    ),
    "sum_and_sample": Estimator(sum_and_sample, "arXiv:1810.04777", unbiased=True, each_row=True),
    "rebar": Estimator(rebar, "arXiv:1703.07370", unbiased=True, smooth=True, relaxed=True),
    "relax": Estimator(relax, "arXiv:1711.00123", unbiased=True),
}


@public
def expectation(
    x: Tensor,
    f: Function,
    estimator: str = "reinforce_leave_one_out",
    *,
    samples: int = 2,
    dim: int = -1,
    where: Tensor | None = None,
    generator: Randomness = None,
    **options: Any,
) -> Tensor:
    """E f(D) of one-hot D from softmax(x), estimated by `samples` draws, with the gradient that the named estimator has.

    Args:
        x, samples, dim, where, generator: as for `reinforce`.
        f: is given draws (samples, *x.shape) and gives values (samples, …), as for `reinforce`.
        estimator: "gumbel_softmax", "gumbel_sparsemax" (whose draws are relaxed, and f of them with a bias),
            "straight_through_gumbel", "straight_through", "reinmax", "rao_blackwell_gumbel" (f of one-hot draws, differentiable
            there; a biased gradient), "reinforce", "reinforce_leave_one_out", "sum_and_sample", "rebar" or "relax" (unbiased).
        options: others of the function of that name, such as temperature=0.5, exact=4, or control=, which "relax" needs; none moves
            which classes are drawn, which are always from softmax(x).

    Returns:
        The value (…), in x's dtype: its `backward()` gives x, and what f depends on, the gradient of the estimator.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: `samples` evaluations of f; twice as many for "rebar", and `exact + samples` for "sum_and_sample". Sources: of each
    function.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    >>> f = lambda draws: (draws @ torch.tensor([0.0, 1.0, 2.0])) ** 2
    >>> for name in ("straight_through", "reinmax", "reinforce_leave_one_out"):
    ...     print(torch.autograd.grad(sm.expectation(x, f, name, samples=50_000, generator=0), x)[0])
    tensor([-0.2427,  0.1209,  0.1218])
    tensor([-0.4080,  0.0963,  0.3117])
    tensor([-0.4063,  0.0950,  0.3113])
    >>> torch.autograd.grad(x.softmax(-1) @ torch.tensor([0.0, 1.0, 4.0]), x)[0]
    tensor([-0.4024,  0.0967,  0.3057])
    """
    name = "expectation"
    chosen = ESTIMATORS[check_choice(name, "estimator", estimator, tuple(ESTIMATORS))]
    count = check_count(name, "samples", samples)
    shared = {"samples": count, "dim": dim, "where": where, "generator": generator}
    known = inspect.signature(chosen.function)
    taken = ("f", "params", *shared, *chosen.options)
    own = [option for option in list(known.parameters)[1:] if option not in taken]
    for unknown in () if "params" in known.parameters else options.keys() - {*own, *chosen.options}:
        raise unknown_argument(name, unknown, [*own, *shared], f"estimator={estimator!r}")
    try:
        if both := sorted(set(options) & set(chosen.options)):
            raise TypeError(f"{both[0]} is {chosen.options[both[0]]!r} of this name")
        known.bind(*(x,) if chosen.draws else (x, f), **shared, **chosen.options, **options)
    except TypeError as error:
        raise TypeError(f"{name}: {error}; estimator={estimator!r} has the options {', '.join([*own, *shared])}") from None
    asked = {**shared, **chosen.options, **options}
    rows = drawn_rows(name, x, f, dim, where, count)
    if not chosen.draws:
        return chosen.function(x, f, **asked)
    return check_values_of(rows, f(chosen.function(x, **asked)), count, "f").mean(0).to(rows.dtype)
