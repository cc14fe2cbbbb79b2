r"""Temperatures that hold an entropy: H(softmax(x/τ)) = h, which grows with τ from log m, of m largest scores, to log n.

With z = x/τ and p = softmax(z),

    ∂H/∂log τ = Var_p(z)        ∂H/∂z_i = −p_i (log p_i + H)

and h is held where the dual τ·LSE(x/τ) − τh, which is convex in τ and has the slope H − h, is least.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.core.arguments import Array, as_scores, check_dim, check_per_row, check_where, like_input, moved_last
from softmaxima.core.numbers import check_number
from softmaxima.core.rows import row_maximum, without_mask
from softmaxima.core.tracing import is_concrete, may_differentiate
from softmaxima.lse import logsumexp
from softmaxima.temperature.learnt import Temperature
from softmaxima.temperature.positive import Range

ENTROPY = (lambda h: (h >= 0) & (h < math.inf)), "a finite number of nats of at least 0"
_STEPS = 200  # of bisections, at most: Newton's steps are few
_FAR = 2.0**30  # of a temperature in units of the largest gap, where the entropy is log n to rounding


def entropy_temperature(x: Array, entropy: float | Array, dim: int = -1, *, where: Array | None = None) -> Array:
    """The temperature of each row at which its softmax has a given entropy, H(softmax(x/τ)) = h.

    Args:
        x: scores of any shape, float64, float32, bfloat16 or float16; may require grad.
        entropy: h in nats, above log m, of the m largest scores of a row that are equal, and below log n, of its n allowed ones: a
            number, or a tensor that broadcasts against x with size 1 along `dim`; may require grad.
        dim, where: as for `softmax`.

    Returns:
        τ with the shape of x and size 1 along `dim`, as `temperature=` takes it, in x's dtype and kind of array. Its derivatives,
        the second too, are those of the implicit function, ∂τ/∂h = τ/Var_p(x/τ) and ∂τ/∂x_i = p_i (log p_i + h)/Var_p(x/τ).

    Raises:
        ValueError for an entropy that no temperature has, and as `softmax` does. Cost: some tens of reads, in float64.

    >>> import numpy as np, softmaxima as sm
    >>> x = np.array([3.0, 1.0, 0.0, -2.0])
    >>> tau = sm.entropy_temperature(x, 1.0)
    >>> p = sm.softmax(x, temperature=tau)
    >>> tau.round(4), (-(p * np.log(p)).sum()).round(6)
    (array([1.8074]), np.float64(1.0))
    """
    name = "entropy_temperature"
    scores = as_scores(name, x)
    dim = check_dim(name, dim, scores.ndim)
    rows = scores if scores.ndim else scores.reshape(1)
    mask, wanted = check_where(name, where, rows), check_per_row(name, "entropy", entropy, rows, dim, *ENTROPY)
    rows, mask, wanted = (moved_last(value, dim) for value in (rows, mask, wanted))
    wide = rows.double() if mask is None else rows.double().masked_fill(~mask, -math.inf)
    h = torch.as_tensor(wanted, dtype=torch.float64, device=wide.device).expand(*wide.shape[:-1], 1)
    _check_feasible(name, wide, h)
    if wide.is_meta:
        return like_input(torch.empty_like(h, dtype=scores.dtype).movedim(-1, dim), x)
    with torch.no_grad():
        tau = _solve(wide.detach(), h.detach(), _moments)
    if may_differentiate((wide, h)):
        for _ in range(2):  # a step at the root has the first derivative, and two have the second
            found, spread = _moments(wide, tau)
            tau = tau + (h - found) * tau / spread
    return like_input(tau.to(scores.dtype).movedim(-1, dim), x)


class EntropyTarget(nn.Module):
    """A temperature that is learnt so that the mean entropy of rows is held at a target: the dual variable of that constraint.

    Args:
        entropy: h in nats, of at least 0; it must be below log n of the rows that come.
        init, minimum, maximum, parametrization: of the `Temperature` that is learnt.

    `module()` is τ, which every map takes as `temperature=`. Minimise `loss(x)` beside whatever else is learnt: it raises τ
    where the entropy is too small and lowers it where that is too large. `fit_(x)` sets τ to what holds h for these rows.

    Raises TypeError or ValueError for anything else. Source: Haarnoja et al. (2018), arXiv:1812.05905.

    >>> import torch, softmaxima as sm
    >>> x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    >>> target = sm.EntropyTarget(1.0)
    >>> p = sm.softmax(x, temperature=target.fit_(x))
    >>> round(float(torch.special.entr(p.detach()).sum(-1).mean()), 4)
    1.0
    """

    def __init__(
        self,
        entropy: float,
        init: float = 1.0,
        minimum: float | None = None,
        maximum: float | None = None,
        parametrization: str = "exp",
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.entropy = check_number(name, "entropy", entropy, *ENTROPY)
        held = torch.get_default_dtype() if dtype is None else dtype
        Range.of(name, minimum, maximum, parametrization, held).check(name, "init", init, held)
        self.temperature = Temperature(init, minimum, maximum, parametrization, device=device, dtype=dtype)

    def forward(self) -> Tensor:
        return self.temperature()

    def loss(self, x: Array, dim: int = -1, *, where: Array | None = None) -> Tensor:
        """The mean over rows of τ·LSE(x/τ) − τh, with a gradient by the temperature alone."""
        rows = self._rows("loss", x, dim, where)
        tau = self.temperature().double()
        return (tau * logsumexp(rows, -1, temperature=tau) - tau * self.entropy).mean().to(self.temperature.rho.dtype)

    @torch.no_grad()
    def fit_(self, x: Array, dim: int = -1, *, where: Array | None = None) -> EntropyTarget:
        """Sets τ to where the mean entropy of these rows is h; raises ValueError where that is outside of the limits."""
        rows = self._rows("fit_", x, dim, where)
        h = torch.full((1, 1), self.entropy, dtype=torch.float64, device=rows.device)
        mean = lambda x, tau: tuple(moment.mean(1) for moment in _moments(x, tau.unsqueeze(-1)))
        self.temperature.set_(float(_solve(rows.reshape(1, -1, rows.shape[-1]), h, mean)))
        return self

    def extra_repr(self) -> str:
        return f"entropy={self.entropy:.6g}"

    def _rows(self, method: str, x: Array, dim: int, where: Array | None) -> Tensor:
        """Scores [..., n] in float64, −∞ where masked, of which the mean entropy can be what is wanted."""
        name = f"{type(self).__name__}.{method}"
        scores = as_scores(name, x).detach()
        dim = check_dim(name, dim, scores.ndim)
        rows = scores if scores.ndim else scores.reshape(1)
        mask = check_where(name, where, rows)
        rows = rows.double() if mask is None else rows.double().masked_fill(~mask, -math.inf)
        rows = rows.movedim(dim, -1)
        if is_concrete(rows):
            _check_finite(name, rows)
            least, most = (level.mean() for level in _range(rows))
            _check_between(name, "the mean over rows of ", torch.tensor(self.entropy), least, most)
        return rows


def _moments(x: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """(H, ∂H/∂log τ) [..., 1] of softmax(x/τ)."""
    z = (x - row_maximum(x)) / tau
    log_p = z - z.exp().sum(-1, keepdim=True).log()
    p, log_p = log_p.exp(), without_mask(log_p)
    entropy = -(p * log_p).sum(-1, keepdim=True)
    return entropy, (p * (log_p + entropy).square()).sum(-1, keepdim=True)


def _solve(x: Tensor, h: Tensor, moments: Any) -> Tensor:
    """τ at which the entropy of rows is h, by Newton's steps in log τ between bounds that close in."""
    gaps = row_maximum(x) - x
    finite = gaps.isfinite()
    largest = gaps.where(finite, 0.0).amax()
    smallest = gaps.where(finite & (gaps > 0), math.inf).amin()
    low = torch.full_like(h, float((smallest / 2000.0).log()))
    high = torch.full_like(h, float((largest * _FAR).log()))
    at = ((low.exp() + high.exp()) / 2).log().clamp(high - 30, high)
    for _ in range(_STEPS):
        found, spread = moments(x, at.exp())
        below = found < h
        low, high = torch.where(below, at, low), torch.where(below, high, at)
        step = at + (h - found) / spread.clamp_min(1e-300)
        following = torch.where((step > low) & (step < high), step, (low + high) / 2)
        if bool(((following - at).abs() <= 1e-15 * (1 + at.abs())).all()):
            break
        at = following
    return at.exp()


def _range(x: Tensor) -> tuple[Tensor, Tensor]:
    """(log m, log n) [..., 1]: between which entropies of rows are."""
    allowed = x > -math.inf
    equal = allowed & (x == row_maximum(x))
    return tuple(kept.sum(-1, keepdim=True).double().log() for kept in (equal, allowed))  # type: ignore[return-value]


def _check_feasible(name: str, x: Tensor, h: Tensor) -> None:
    if is_concrete(x) and is_concrete(h) and h.numel():
        _check_finite(name, x)
        _check_between(name, "", h.detach(), *_range(x.detach()))


def _check_finite(name: str, x: Tensor) -> None:
    if not bool((x < math.inf).all()):
        raise ValueError(f"{name}: scores must be numbers below +∞, got {float(x[~(x < math.inf)][0])}; leave them out by where=")


def _check_between(name: str, of: str, h: Tensor, least: Tensor, most: Tensor) -> None:
    wrong = ~((h > least) & (h < most))
    if bool(wrong.any()):
        got, low, high = (float(v.expand(wrong.shape)[wrong][0]) for v in (h, least, most))
        raise ValueError(
            f"{name}: entropy must be above {of}log m, of m equal largest scores, and below {of}log n, of n allowed scores, here "
            f"{low:.6g} and {high:.6g} nats; got {got:.6g}"
        )
