r"""Temperatures that hold an entropy: H(softmax(x/τ)) = h, which grows with τ from log m, of m largest scores, to log n.

With the gaps d = (max x − x)/τ, p = exp(−d)/Σ exp(−d) and d̄ = Σ p d,

    H = log m + E        E = log(1 + Σ_{d>0} exp(−d)/m) + d̄        of terms that are positive, so that a small E has its digits
    ∂H/∂log τ = Var_p(d)        ∂H/∂x_i = p_i (d_i − d̄)/τ

and h is held where the dual τ·LSE(x/τ) − τh, which is convex in τ and has the slope H − h, is least.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, as_scores, check_dim, check_per_row, check_where, like_input, moved_last
from softmaxima.base.differentiable import batch_first, differentiable, forward_mode, primal
from softmaxima.base.numbers import SMALLEST_TEMPERATURE, check_number
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.base.tracing import is_concrete
from softmaxima.lse import logsumexp
from softmaxima.temperature.learnt import Temperature
from softmaxima.temperature.positive import Positive, Range

ENTROPY = (lambda h: (h >= 0) & (h < math.inf)), "a finite number of nats of at least 0"


@public
def entropy_temperature(x: Array, entropy: float | Array, dim: int = -1, *, where: Array | None = None) -> Array:
    """The temperature of each row at which its softmax has a given entropy, H(softmax(x/τ)) = h.

    Args:
        x: scores of any shape, float64, float32, bfloat16 or float16; may require grad.
        entropy: h in nats, above log m, of the m largest scores of a row that are equal, and below log n, of its n allowed ones: a
            number, or a tensor that broadcasts against x with size 1 along `dim`; may require grad.
        dim, where: as for `softmax`.

    Returns:
        τ with the shape of x and size 1 along `dim`, as `temperature=` takes it, in x's dtype and kind of array. Its derivatives
        of every kind, the second too, are those of the implicit function, ∂τ/∂h = τ/Var_p(x/τ) and
        ∂τ/∂x_i = p_i (log p_i + h)/Var_p(x/τ). A τ that is no positive number of x's dtype is held at the nearest.

    Raises:
        ValueError for an entropy that no temperature has, and as `softmax` does. Where values cannot be read first, in a compiled
        function, under `torch.func` and on a GPU, τ of such a row is NaN.

    Cost: the entropies of five to fifteen temperatures, in float64. Source: the rows of t-SNE, whose exp(h) is their perplexity,
    van der Maaten & Hinton (2008), Journal of Machine Learning Research 9.

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
    gaps, unit = _gaps(wide)
    if is_concrete(wide) and is_concrete(h) and h.numel():
        _check_finite(name, wide)
        _check_between(name, "", h.detach(), *_range(gaps))
    numbers = torch.finfo(scores.dtype)
    refuse_export(name, "solver; compute the temperature outside of the graph")
    tau = (unit * _temperature(gaps, h)).clamp(max(numbers.tiny * numbers.eps, SMALLEST_TEMPERATURE), numbers.max)
    return like_input(tau.to(scores.dtype).movedim(-1, dim), x)


@public
class EntropyTarget(nn.Module):
    """A temperature that is learnt so that the mean entropy of rows is held at a target: the dual variable of that constraint.

    Args:
        entropy: h in nats, of at least 0; it must be below log n of the rows that come.
        temperature: τ > 0 at first, a number; or the `Positive` of one number that is learnt, such as a `Temperature` with limits.

    `module()` is τ, which every map takes as `temperature=`. Minimise `loss(x)` beside whatever else is learnt: it raises τ
    where the entropy is too small and lowers it where that is too large. `fit_(x)` sets τ to what holds h for these rows.

    Raises:
        TypeError or ValueError for anything else; `loss` and `fit_` for scores without rows too, and for rows whose mean entropy
        cannot be h.

    Cost: of `loss` one logsumexp in float64, of `fit_` the entropies of five to fifteen temperatures. Source: Haarnoja et al.
    (2018), arXiv:1812.05905.

    >>> import torch, softmaxima as sm
    >>> x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    >>> target = sm.EntropyTarget(1.0, sm.Temperature(1.0, 0.01, 100.0))
    >>> p = sm.softmax(x, temperature=target.fit_(x))
    >>> round(float(torch.special.entr(p.detach()).sum(-1).mean()), 4)
    1.0
    """

    def __init__(self, entropy: float, temperature: float | Positive = 1.0) -> None:
        super().__init__()
        name = type(self).__name__
        self.entropy = check_number(name, "entropy", entropy, *ENTROPY)
        if not isinstance(temperature, Positive):
            domain = Range.of(name, None, None, "exp").domain(torch.get_default_dtype())
            temperature = Temperature(check_number(name, "temperature", temperature, *domain))
        elif temperature.rho.numel() != 1:
            shape = tuple(temperature.rho.shape)
            raise ValueError(f"{name}: temperature must be a Positive of one number, got one of shape {shape}; leave out shape=")
        self.temperature = temperature

    def forward(self) -> Tensor:
        return self.temperature()

    def loss(self, x: Array, dim: int = -1, *, where: Array | None = None) -> Tensor:
        """The mean over rows of τ·LSE(x/τ) − τh, with a gradient by the temperature alone."""
        rows = self._rows("loss", x, dim, where)
        tau = self.temperature().double().reshape(())
        return (tau * logsumexp(rows, -1, temperature=tau) - tau * self.entropy).mean().to(self.temperature.rho.dtype)

    @torch.no_grad()
    def fit_(self, x: Array, dim: int = -1, *, where: Array | None = None) -> EntropyTarget:
        """Sets τ to where the mean entropy of these rows is h; raises ValueError where that is outside of the limits."""
        rows = self._rows("fit_", x, dim, where)
        gaps, unit = _gaps(rows.reshape(-1, rows.shape[-1]))
        shared = unit.amax()
        h = torch.full((1, 1), self.entropy, dtype=torch.float64, device=rows.device)
        self.temperature.set_(float(shared * _solve(gaps * (unit / shared), h, pooled=True)))
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
        if rows.numel() == 0:
            raise ValueError(f"{name}: scores must have rows, whose mean entropy is to be held, got shape {tuple(scores.shape)}")
        if is_concrete(rows):
            _check_finite(name, rows)
            least, most = (level.mean() for level in _range(_gaps(rows)[0]))
            _check_between(name, "the mean over rows of ", torch.tensor(self.entropy, dtype=torch.float64), least, most)
        return rows


def _gaps(x: Tensor) -> tuple[Tensor, Tensor]:
    """((max x − x)/unit [..., n], ∞ where masked; unit [..., 1], 2 where the gaps of a row are beyond double, else 1).

    The maximum is a constant here: of all scores alike τ is the same, and slopes add up to 0.
    """
    top = row_maximum(x)
    beyond = ((top - x).isinf() & x.detach().isfinite()).any(-1, keepdim=True)
    unit = 1.0 + beyond.to(x.dtype)
    return top / unit - x / unit, unit


def _weights(gaps: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """exp(−d) and d [..., n]; d is 0 where masked, and no larger than 1000, where exp(−d) is 0 in double."""
    allowed = gaps.isfinite()
    d = torch.minimum(gaps.masked_fill(~allowed, 0.0), 1000.0 * tau.detach()) / tau
    return (-d).exp().masked_fill(~allowed, 0.0), d


def _moments(gaps: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """(E, ∂E/∂log τ) [..., 1]."""
    weights, d = _weights(gaps, tau)
    largest = gaps == 0
    m, rest = largest.sum(-1, keepdim=True), weights.masked_fill(largest, 0.0).sum(-1, keepdim=True)
    p = weights / (m + rest)
    mean = (p * d).sum(-1, keepdim=True)
    return (rest / m).log1p() + mean, (p * (d - mean).square()).sum(-1, keepdim=True)


def _slopes(gaps: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """(∂τ/∂gaps [..., n], ∂τ/∂h [..., 1])."""
    weights, d = _weights(gaps, tau)
    p = weights / weights.sum(-1, keepdim=True)
    centred = d - (p * d).sum(-1, keepdim=True)
    spread = (p * centred.square()).sum(-1, keepdim=True)
    return p * centred / spread, tau / spread


class _Temperature(torch.autograd.Function):
    """τ of gaps [..., n] and h [..., 1]."""

    @staticmethod
    def forward(gaps: Tensor, h: Tensor) -> Tensor:
        return _solve(gaps, h)

    @staticmethod
    def fake(gaps: Tensor, h: Tensor) -> Tensor:
        return torch.empty_like(h, memory_format=torch.contiguous_format)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        by_gaps, by_h = _slopes(*ctx.saved_tensors)
        return g * by_gaps, g * by_h

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        with forward_mode():
            gaps, h = (primal(t) for t in ctx.saved_tensors)
            slopes = _slopes(gaps, _temperature(gaps, h))
            moved = [(slope * t).sum(-1, keepdim=True) for slope, t in zip(slopes, tangents, strict=True) if t is not None]
            return torch.stack(moved).sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return _temperature(*(t.expand(info.batch_size, *t.shape[1:]) for t in batch_first(in_dims, args))), 0


_temperature = differentiable("entropy_temperature", _Temperature)


@torch.no_grad()
def _solve(gaps: Tensor, h: Tensor, pooled: bool = False) -> Tensor:
    """τ [..., 1] by Newton's steps in log τ on log(E/(R − E)), for R = log n − log m, of which E is like exp(−gap/τ) where it is
    small and R − E like 1/τ² where that is; a step out of the bounds, or to and fro, halves them instead. NaN where there is no τ.

    Pooled: one τ [1, 1] at which the mean over rows [rows, n] is h.
    """
    if h.numel() == 0:
        return torch.empty_like(h)
    pool = (lambda v: v.mean(0, keepdim=True)) if pooled else (lambda v: v)
    numbers = torch.finfo(torch.float64)
    log_m, log_n = _range(gaps)
    least, most = pool(log_m), pool(log_n)
    wanted, left = h - least, most - h
    possible = (wanted > 0) & (left > 0)
    # E ≤ n/m (1 + y)exp(−y) at a τ with gaps from yτ on, y ≥ 1; R − E ≤ (gap/τ)²/8, and h is 2⁻⁵⁴ below log n or more.
    smallest = gaps.masked_fill(gaps == 0, math.inf).amin(-1, keepdim=True)
    largest = gaps.masked_fill(~gaps.isfinite(), 0.0).amax(-1, keepdim=True)
    far = (log_n - log_m - wanted.log()).clamp_min(0.0)
    low, high = smallest / (far + far.log1p() + 1.0), largest * 2.0**27
    if pooled:
        low, high = low.amin(0, keepdim=True), high.amax(0, keepdim=True)
    low = low.clamp(numbers.tiny, numbers.max)
    high = torch.maximum(high.clamp_max(numbers.max), low)
    at, done, last = low, ~possible, torch.zeros_like(low)
    for _ in range(100):  # bounds that only close in need 11 + 53 of double, Newton's steps beside them as many at most
        found, spread = (pool(moment) for moment in _moments(gaps, at))
        below = found < wanted
        low, high = torch.where(below, at, low), torch.where(below, high, at)
        rest = (most - least - found).clamp_min(numbers.eps)
        step = (wanted.log() - found.log() + rest.log() - left.log()) * found * rest / ((most - least) * spread)
        following = at * step.exp()
        # The square of a step of 1e-9 is below rounding: it is the last.
        near = (step.abs() <= 1e-9) | ((found - wanted).abs() <= 8 * numbers.eps * wanted) | (high <= low * (1 + 4 * numbers.eps))
        swings = (step * last < 0) & (2 * step.abs() > last.abs())
        taken = (following >= low) & (following <= high) & ~swings
        following = torch.where(taken, following, torch.where(near, at, low.sqrt() * high.sqrt()))
        at, last, done = torch.where(done, at, following), torch.where(taken, step, 0.0), done | near
        if bool(done.all()):
            break
    return at.masked_fill(~possible, math.nan)


def _range(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """(log m, log n) [..., 1]: between which entropies of rows are."""
    return tuple(kept.sum(-1, keepdim=True).double().log() for kept in (gaps == 0, gaps.isfinite()))  # type: ignore[return-value]


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
