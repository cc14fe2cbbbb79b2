r"""logcumsumexp: LSE(x_1, …, x_k) for every k, as a scan of the monoid (M, m, r) of logsumexp (`base/monoid.py`).

The native kernel runs along the row, with sums that do not round. Elsewhere pairs are merged first, their prefixes
found the same way, and the scores between merged with these: O(n) work in 2 log₂ n steps, with rounding that grows with log n.
Autograd follows the merges, all of whose factors are at most 1.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_tensor, check_dim, like_input
from softmaxima.base.monoid import LogSum, merge
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public
from softmaxima.base.tracing import sizes
from softmaxima.engine.envelope import with_slope
from softmaxima.engine.fused import Native, fused, is_fusible
from softmaxima.engine.routing import is_native, kernels
from softmaxima.kernels.operations import lying_like
from softmaxima.lse._complex import each_complex, or_plain, over_temperature, plain_terms, wrapped
from softmaxima.lse._weighted import with_gradient_of
from softmaxima.lse.logsumexp import prepare

PIECE = 64  # scores of which each sees those before it at once, where n is a symbol
NOTHING = -math.inf, 0.0, 0.0


@public
def logcumsumexp(x: Array, dim: int = -1, *, where: Array | None = None, temperature: float | Array = 1.0) -> Array:
    """The running logarithm of a sum of exponentials, `y_k = log Σ_{i≤k} exp(x_i/τ)`, in nats.

    Args:
        x: scores of any shape. Integers become torch's default dtype, or float64 for NumPy. Complex scores give logarithms whose
            imaginary part lies in (−π, π].
        dim: the axis that is run along.
        where: boolean, broadcasts to x; False leaves a score out.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.

    Returns:
        x's shape, array kind and dtype: −∞ before the first allowed score, +∞ from the first +∞ on, NaN from the first NaN on.
        Results near 0 keep their digits, and the last is as exact as `logsumexp`: sums are taken in float64.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient is zero for scores of −∞, and NaN up to a +∞. Cost: one read of x and one write, and as many again for the
    gradient; some tens of passes over x in float64 for second derivatives and on other devices, and some hundreds in an exported
    graph of rows of any length. That of complex scores takes rows of the length that it was exported with.
    Source: Blelloch (1990), "Prefix sums and their applications".

    >>> import numpy as np, softmaxima as sm
    >>> sm.logcumsumexp(np.array([0.0, -40.0, 1000.0, 1000.0]))
    array([0.00000000e+00, 4.24835426e-18, 1.00000000e+03, 1.00069315e+03])
    """
    name = "logcumsumexp"
    ndim = as_tensor(name, "scores", x).ndim
    dim = check_dim(name, dim, ndim)
    rows, tau, mask, _, _ = prepare(name, x, dim, True, where, temperature)
    if rows.is_complex():
        refuse_export(name, "complex numbers")
    composite = partial(_row_logcumsumexp, tau=tau, where=mask)
    by_kernel = not rows.is_complex() and is_native(rows) and is_fusible(rows, tau, mask) and rows.numel() > 0
    y = fused(_native(tau, mask), composite, rows) if by_kernel else lying_like(rows, composite(rows))
    y = y.movedim(rows.ndim - 1, dim)
    return like_input(y if ndim else y.reshape(()), x)


def _native(tau: float | Tensor, where: Tensor | None) -> Native:
    def evaluate(x: Tensor, gradient: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        value, states = kernels(x).logcumsumexp(x, tau, where, wide=gradient)
        pull = lambda g, x, states: kernels(x).logcumsumexp_backward(x, states, g, tau, where)
        return value, pull, () if states is None else (states,)

    return evaluate


def _row_logcumsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """[..., n] → [..., n] in x's dtype."""
    if x.is_complex():
        z = over_temperature(x, tau, where)
        each = each_complex(z)
        sums = _scan(each, 1.0) if sizes(x)[-1] else each
        value = sums.value(1.0)
        known = torch.complex(value.real, wrapped(value.imag)).detach()
        return with_gradient_of(value, or_plain(known, sums.top, plain_terms(z.detach()).cumsum(-1))).to(x.dtype)
    wide = x.to(torch.float64)
    wide = wide if where is None else wide.masked_fill(~where, -math.inf)
    tau = tau.to(torch.float64) if isinstance(tau, Tensor) else tau
    top = wide.detach()
    # 1, with the derivative of exp((x − M)/τ).
    slope = torch.ones_like(top).masked_fill(top == math.inf, math.nan)
    z = with_slope(torch.zeros_like(top).unsqueeze(-1), wide.unsqueeze(-1), slope.unsqueeze(-1)).squeeze(-1) / tau
    ties = z.exp().masked_fill(top == -math.inf, 0.0)
    each = LogSum(top, ties, torch.zeros_like(top))
    return (_scan(each, tau) if sizes(x)[-1] else each).value(tau).to(x.dtype)


def _scan(sums: LogSum, tau: float | Tensor) -> LogSum:
    """The sum of every prefix."""
    n = sizes(sums.top)[-1] if sums.top.is_complex() else sums.top.shape[-1]
    if not (isinstance(n, int) or sums.top.is_complex()):
        return _scan_of_any(sums, tau)
    if n == 1:
        return sums
    at_odd = _scan(merge(_every(sums, slice(0, n - n % 2, 2)), _every(sums, slice(1, n, 2)), tau), tau)
    # The prefix at an even place 2k > 0 is that at 2k − 1 and one score.
    at_even = merge(_every(at_odd, slice(0, (n - 1) // 2)), _every(sums, slice(2, n, 2)), tau)
    starts = (torch.cat((own[..., :1], later), -1) for own, later in zip(sums, at_even, strict=True))
    return LogSum(*map(_interleave, starts, at_odd))


def _scan_of_any(sums: LogSum, tau: float | Tensor) -> LogSum:
    """The same where a recorder has a symbol for n: within each piece, and over the pieces before it."""
    n = sums.top.shape[-1]
    count = n // PIECE + 2  # of pieces, never one, of which torch.export would make a graph of its own
    fields = (
        torch.nn.functional.pad(field, (0, count * PIECE - n), value=value) for field, value in zip(sums, NOTHING, strict=True)
    )
    pieces = LogSum(*(field.unflatten(-1, (count, PIECE)) for field in fields))
    own = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
    within = _prefixes(pieces, own, PIECE, 0)
    before = _prefixes(LogSum(*(field[..., -1] for field in within)), tau, count, 1)
    found = merge(LogSum(*(field.unsqueeze(-1) for field in before)), within, own)
    return LogSum(*(field.flatten(-2)[..., :n] for field in found))


def _prefixes(sums: LogSum, tau: float | Tensor, count: int, gap: int) -> LogSum:
    """The sum up to `gap` places before each of so many places, by all of them at once."""
    place = torch.arange(count, device=sums.top.device)
    later = place > place.unsqueeze(-1) - gap
    each = LogSum(*(field.unsqueeze(-2).masked_fill(later, value) for field, value in zip(sums, NOTHING, strict=True)))
    top = each.top.amax(-1, keepdim=True)
    _, ties, rest = each.at(top, tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau)
    return LogSum(top.squeeze(-1), ties.sum(-1), rest.sum(-1))


def _every(sums: LogSum, places: slice) -> LogSum:
    return LogSum(*(field[..., places] for field in sums))


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    pairs = torch.stack((even[..., : odd.shape[-1]], odd), -1).flatten(-2)
    return torch.cat((pairs, even[..., odd.shape[-1] :]), -1)
