"""logsumexp, softmax and argmax of scores that are shares, for programs on mpyc: what comes in and goes out is secret.

Each step is one message between all parties, or a few, for all scores at once: comparisons cost most. `fixed_point.py` has the
mathematics and what is off.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softmaxima.base.public import public
from softmaxima.base.unquoted import kind_of
from softmaxima.secure.fixed_point import FixedPoint
from softmaxima.secure.library import runtime

if TYPE_CHECKING:
    from mpyc.sectypes import SecureArray


@public
def logsumexp(x: Any, format: FixedPoint) -> SecureArray:
    """log Σ exp(x_i), in nats.

    Args:
        x: mpyc's array [..., n] of `format.numbers`, within `format.bounds`, which whoever shares it sees to.
        format: what the numbers are.

    Returns:
        mpyc's array [..., 1], off by at most `format.error` from that of the scores before they were rounded to shares.

    Raises:
        TypeError or ValueError for what is no such array.

    Cost: n comparisons in log₂ n rounds for the maximum, about 4 + k + log₂ n products of n numbers.
    Source: comparisons and rounded products of mpyc (Toft; Catrina and de Hoogh, 2010).

    >>> import numpy as np, softmaxima as sm
    >>> format = sm.secure.FixedPoint(n=3, bounds=(-4, 4))
    >>> x = format.numbers.array(np.array([1.0, 2.0, 3.0]), integral=False)
    >>> mpc = sm.secure.library.runtime()  # in a program of several parties: from mpyc.runtime import mpc
    >>> bool(abs(mpc.run(mpc.output(sm.secure.logsumexp(x, format)))[0] - 3.40760596) < 1e-7)
    True
    """
    _check("logsumexp", x, format)
    if format.n == 1:
        return x
    found = _sum_of(x, format)
    log = _series(found.scaled - 1.5, format.logarithm_series)
    return runtime().np_reshape(found.top + log + found.power * math.log(2), (*x.shape[:-1], 1))


@public
def softmax(x: Any, format: FixedPoint) -> SecureArray:
    """exp(x_i)/Σ exp(x_j), [..., n]; arguments, errors and source as of `logsumexp`, each p off by at most `format.softmax_error`.

    >>> import numpy as np, softmaxima as sm
    >>> format = sm.secure.FixedPoint(n=2, bounds=(-4, 4))
    >>> x = format.numbers.array(np.array([0.5, 0.5]), integral=False)
    >>> mpc = sm.secure.library.runtime()
    >>> mpc.run(mpc.output(sm.secure.softmax(x, format))).round(6)
    array([0.5, 0.5])
    """
    _check("softmax", x, format)
    found = _sum_of(x, format)
    s = found.scaled
    r = 24 / 17 - s * (8 / 17)
    for _ in range(format.newton_steps):
        r = r * (2 - s * r)
    return runtime().np_reshape(found.terms * (r * found.unscale), x.shape)


@public
def argmax(x: Any, format: FixedPoint) -> SecureArray:
    """The index of the largest score, [...] as mpyc's numbers, the first of equals; arguments and errors as of `logsumexp`.

    >>> import numpy as np, softmaxima as sm
    >>> format = sm.secure.FixedPoint(n=3, bounds=(-4, 4))
    >>> x = format.numbers.array(np.array([1.0, 3.0, 2.0]), integral=False)
    >>> mpc = sm.secure.library.runtime()
    >>> int(mpc.run(mpc.output(sm.secure.argmax(x, format))))
    1
    """
    _check("argmax", x, format)
    if format.n == 1:
        return format.numbers.array(np.zeros(x.shape[:-1]), integral=True)
    return runtime().np_argmax(x, axis=-1)


FUNCTIONS = {"logsumexp": logsumexp, "softmax": softmax, "argmax": argmax}


class _Sum(NamedTuple):
    """Shares of S = Σ exp(x − M), and of what is made of it, of all rows."""

    top: Any  # M [rows, 1]
    terms: Any  # exp(x − M) [rows, n]
    scaled: Any  # s = S 2^−i [rows, 1]
    unscale: Any  # 2^−i [rows, 1]
    power: Any  # i [rows, 1]


def _sum_of(x: Any, format: FixedPoint) -> _Sum:
    mpc = runtime()
    x = mpc.np_reshape(x, (math.prod(x.shape[:-1]), format.n))
    top = _largest(x, format)
    z = x - top
    if format.halvings:
        z = z * 2.0**-format.halvings
    e = _series(z + 0.5, format.exponential_series)
    for _ in range(format.halvings):
        e = e * e
    total = mpc.np_sum(e, axis=-1, keepdims=True)
    if not format.doublings:
        return _Sum(top, e, total, 1, 0)
    steps = np.arange(1, format.doublings + 1)
    reached = 1 - _is_negative(total - 2.0**steps, format)  # [rows, ⌈log₂ n⌉]
    unscale = 1 - mpc.np_sum(reached * 2.0**-steps, axis=-1, keepdims=True)
    return _Sum(top, e, total * unscale, unscale, mpc.np_sum(reached, axis=-1, keepdims=True))


def _largest(x: Any, format: FixedPoint) -> Any:
    """The largest of each row, [rows, 1], by halves."""
    while (n := x.shape[1]) > 1:
        a, b = x[:, : n // 2], x[:, n // 2 : n // 2 * 2]
        more = b - a
        larger = a + (1 - _is_negative(more, format)) * more
        x = runtime().np_concatenate((larger, x[:, n - 1 :]), axis=1) if n % 2 else larger
    return x


def _is_negative(x: Any, format: FixedPoint) -> Any:
    """1 or 0, of numbers that have no more bits than the format's."""
    return runtime().np_sgn(x, l=format.length, LT=True)


def _series(z: Any, c: np.ndarray) -> Any:
    """Σ c_j zʲ: all powers in log₂ m rounds of products, and one of their sum."""
    mpc = runtime()
    shape = (*z.shape, 1)
    first = mpc.np_reshape(z, shape)
    powers = first
    degree = len(c) - 1
    while (known := powers.shape[-1]) < degree:
        more = min(known, degree - known)
        powers = mpc.np_concatenate((powers, powers[..., :more] * powers[..., known - 1 : known]), axis=-1)
    return mpc.np_matmul(powers, c[1:]) + float(c[0])


def _check(name: str, x: Any, format: Any) -> None:
    if not isinstance(format, FixedPoint):
        raise TypeError(f"{name}: format must be a sm.secure.FixedPoint, got {kind_of(format)}; pass the one of x")
    if not isinstance(x, format.numbers.array):
        kind = type(x).__name__
        raise TypeError(f"{name}: x must be an array of format.numbers, got {kind}; call format.numbers.array(x, integral=False)")
    if not x.shape or x.shape[-1] != format.n:
        raise ValueError(f"{name}: x must have the {format.n} scores of the format along its last axis, got shape {x.shape}")
