r"""The Jacobian of a row, J = ∂p/∂z, and its products: what `Map.sensitivity` says of it.

Most maps state vectors (s, q) or (s, q, r), r = s:    J = diag(s) − q rᵀ

    pull(g) = Jᵀg = s ⊙ g − r ⟨q, g⟩        push(t) = J t = s ⊙ t − q ⟨r, t⟩

Where one share, q_k or r_k, is nearly 1, the terms of its own entry cancel: that is taken by the other shares. Where probabilities
are small s may be huge, and s ⊙ g − r ⟨q, g⟩ is then a small difference of huge numbers. A map whose rows and columns add up to 0
states another form, which loses no digits: `Balanced` for q = s/Σs, `Centred` for any other q. A map that makes scores equal states
`Clustered`.

Where an entry of J is exactly 0, what it adds is 0, whatever g is: at a score without probability, g may be infinite or NaN, as the
slope −log p − 1 of an entropy is. The kernels keep to that as well.

Of a row in parts the Jacobian of each part has sums(g), which `merge`; pull(g, sums) is the part of Jᵀg.
`of_rows` is for whole rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softmaxima.base.rows import MOST_P, normalise_exp
from softmaxima.base.temperature import over


class Form(ABC):
    """A form of J: a frozen dataclass of tensors [..., n], from which its products follow.

    Each also has s, q and r: s ⊙ g and r ⟨q, g⟩ are the terms of Jᵀg that may cancel, whose size is that of its rounding.
    """

    @abstractmethod
    def sums(self, g: Tensor) -> tuple[Tensor, ...]:
        """What Jᵀg needs of the whole row, of this part [..., 1]."""

    @staticmethod
    @abstractmethod
    def merge(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The sums over both parts."""

    @abstractmethod
    def pull(self, g: Tensor, sums: tuple[Tensor, ...] | None = None) -> Tensor:
        """Jᵀg, or the part of it that this is."""

    def push(self, t: Tensor) -> Tensor:
        """J t, the same where J is symmetric."""
        return self.pull(t)

    def matrix(self, tau: float | Tensor) -> Tensor:
        """J/τ [..., n, n], whose rows are Jᵀe."""
        of_rows = {name: v.unsqueeze(-2) if isinstance(v, Tensor) else v for name, v in vars(self).items()}
        like = next(iter(of_rows.values()))
        n = like.shape[-1]
        units = torch.eye(n, dtype=like.dtype, device=like.device).expand(*like.shape[:-2], n, n)
        return over(type(self)(**of_rows).pull(units), tau)


@dataclass(frozen=True)
class DiagonalAndProduct(Form):
    """J = diag(s) − q rᵀ, of shares c = q r/s: q where r = s, r where q = s.

    Of a share c_k > ½ the terms of the own entry cancel. With what all other shares add up to, they do not:

        (Jᵀg)_k = s_k (1 − c_k) g_k − r_k Σ_{j≠k} q_j g_j,    1 − c_k = Σ_{j≠k} c_j + missing

    `missing` is what all shares lack of 1, the share of a sink; `lack` is 1 − c where that is known otherwise.
    """

    s: Tensor
    q: Tensor
    r: Tensor
    missing: Tensor | float = 0.0
    lack: Tensor | None = None

    def sums(self, g: Tensor) -> tuple[Tensor, ...]:
        """(⟨q, g⟩, the same without k, Σ_{j≠k} c_j)."""
        return self._sums(self.q, g)

    @staticmethod
    def merge(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(v + w for v, w in zip(a, b, strict=True))

    def pull(self, g: Tensor, sums: tuple[Tensor, ...] | None = None) -> Tensor:
        return self._less(g, self.r, sums or self.sums(g))

    def push(self, t: Tensor) -> Tensor:
        return self._less(t, self.q, self._sums(self.r, t))

    def shares(self) -> Tensor:
        if self.r is self.s:
            return self.q
        nothing = self.s == 0
        return torch.where(nothing, 0.0, self.q * (self.r / self.s.masked_fill(nothing, 1.0)))

    def _sums(self, weights: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        shares, products = self.shares(), product(weights, g)
        most = shares > MOST_P
        of = (products, products.masked_fill(most, 0.0), shares.masked_fill(most, 0.0))
        return tuple(v.sum(-1, keepdim=True) for v in of)

    def _less(self, g: Tensor, moves: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
        whole, others, rest = sums
        shares = self.shares()
        rest = rest + self.missing if self.lack is None else self.lack
        of_most = product(self.s * rest, g) - product(moves, others)
        return torch.where(shares > MOST_P, of_most, product(self.s, g) - product(moves, whole))


@dataclass(frozen=True)
class Centred(Form):
    r"""J = (I − q 1ᵀ) diag(s) (I − 1 qᵀ) with Σq = 1: what is left of diag(s) when q-weighted means are taken off both sides.

        J g = v − q Σv,    v = s ⊙ (γ − ⟨q, γ⟩)

    with γ = g − g_k for any k, as a constant added to g changes nothing. Where k has the largest s, nothing cancels there more than
    in g itself. s and q are in double; results beyond the dtype become its largest number.
    """

    s: Tensor
    q: Tensor

    @property
    def r(self) -> Tensor:
        return self.s

    def sums(self, g: Tensor) -> tuple[Tensor, ...]:
        """(s_k, g_k, Σq, Σqγ, Σs, Σsγ)."""
        wide = g.to(self.s.dtype)
        if wide.shape[-1] == 0:
            return (wide.new_zeros((*wide.shape[:-1], 1)),) * 6
        top, slope = (torch.take_along_dim(v, self.s.detach().argmax(-1, keepdim=True), -1) for v in (self.s, wide))
        slope = slope.masked_fill(top == 0, 0.0)  # of a part without support g may be anything
        gaps = wide - slope
        each = (self.q, product(self.q, gaps), self.s, product(self.s, gaps))
        return top, slope, *(v.sum(-1, keepdim=True) for v in each)

    @staticmethod
    def merge(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first = a[0] >= b[0]
        a, b = (tuple(torch.where(first, v, w) for v, w in zip(*pair, strict=True)) for pair in ((a, b), (b, a)))
        moved = b[1] - a[1]
        return a[0], a[1], a[2] + b[2], a[3] + b[3] + b[2] * moved, a[4] + b[4], a[5] + b[5] + b[4] * moved

    def pull(self, g: Tensor, sums: tuple[Tensor, ...] | None = None) -> Tensor:
        _, slope, _, mean, total, moved = sums or self.sums(g)
        v = product(self.s, g.to(self.s.dtype) - slope - mean)
        return narrowed(v - product(self.q, moved - total * mean), g.dtype)


# Of s and of g, with room in double for their products and sums; `of_rows` scales a larger g.
_LARGEST_LOGARITHM = 700.0
_LARGEST_SLOPE = 2.0**924


@dataclass(frozen=True)
class Balanced(Form):
    r"""J = diag(s) − s sᵀ/Σs, from log s in double, −∞ where s is 0.

    Let k have the largest s, and e^a be the second largest. A constant added to g changes nothing, so γ = g − g_k may stand for it:

        (J g)_i = s_i (γ_i − c)    (J g)_k = −e^a C    C = Σ_{j≠k} w_j γ_j / (1 + ρ Σ_{j≠k} w_j)    c = ρC = ⟨q, γ⟩

    with w_j = e^{ℓ_j − a} ≤ 1, ρ = e^{a − ℓ_k} ≤ 1 and ℓ = log s, where nothing cancels more than g itself does. Results beyond the
    dtype become its largest number.
    """

    log_s: Tensor

    @property
    def s(self) -> Tensor:
        return self.log_s.exp()

    @property
    def q(self) -> Tensor:
        return normalise_exp(self.log_s)

    @property
    def r(self) -> Tensor:
        return self.s

    def sums(self, g: Tensor) -> tuple[Tensor, ...]:
        """(ℓ_k, g_k, a, Σ_{j≠k} w_j, Σ_{j≠k} w_j γ_j); of nothing ℓ_k = a = −∞."""
        wide = self._wide(g)
        if wide.shape[-1] == 0:
            nothing = wide.new_zeros((*wide.shape[:-1], 1))
            return nothing - math.inf, nothing, nothing - math.inf, nothing, nothing
        largest, is_largest = self._largest()
        others = self.log_s.masked_fill(is_largest, -math.inf)
        second = others.detach().amax(-1, keepdim=True)
        weights = (others - _anchor(second)).exp()
        top, slope = (torch.take_along_dim(v, largest, -1) for v in (self.log_s, wide))
        slope = slope.masked_fill(top == -math.inf, 0.0)  # of a part without support g may be anything
        return top, slope, second, weights.sum(-1, keepdim=True), product(weights, wide - slope).sum(-1, keepdim=True)

    @staticmethod
    def merge(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The sums over both parts, where the k of one is among the others."""
        first = a[0] >= b[0]
        a, b = (tuple(torch.where(first, v, w) for v, w in zip(*pair, strict=True)) for pair in ((a, b), (b, a)))
        second = torch.maximum(a[2], b[0])
        weight, moved = torch.zeros_like(second), torch.zeros_like(second)
        one, none = torch.ones_like(second), torch.zeros_like(second)
        for level, slope, weights, gaps in ((a[2], a[1], a[3], a[4]), (b[0], b[1], one, none), (b[2], b[1], b[3], b[4])):
            scale = (level - _anchor(second)).exp()
            weight = weight + scale * weights
            moved = moved + scale * (gaps + weights * (slope - a[1]))
        return a[0], a[1], second, weight, moved

    def pull(self, g: Tensor, sums: tuple[Tensor, ...] | None = None) -> Tensor:
        wide = self._wide(g)
        top, slope, second, weight, gaps = sums or self.sums(g)
        second = _anchor(second)
        ratio = (second - top).clamp_max(0.0).exp()
        moved = gaps / (1 + ratio * weight)
        others = product(self.log_s.clamp_max(_LARGEST_LOGARITHM).exp(), wide - slope - ratio * moved)
        # Where k is in another part the first of these forms has the same value for whatever equals it.
        is_largest = self._largest()[1] & (self.log_s == top) & (wide == slope)
        v = torch.where(is_largest, -second.clamp_max(_LARGEST_LOGARITHM).exp() * moved, others)
        bound = torch.finfo(g.dtype).max
        return v.clamp(-bound, bound).to(g.dtype)

    def _largest(self) -> tuple[Tensor, Tensor]:
        """(the index of the largest of this part, where it is)."""
        log_s, n = self.log_s.detach(), self.log_s.shape[-1]
        largest = log_s.argmax(-1, keepdim=True) if n else log_s.new_zeros((), dtype=torch.long)
        return largest, torch.arange(n, device=log_s.device) == largest

    def _wide(self, g: Tensor) -> Tensor:
        most = min(torch.finfo(g.dtype).max, _LARGEST_SLOPE)  # of a second derivative g may have been beyond its dtype
        return g.clamp(-most, most).to(self.log_s.dtype)


@dataclass(frozen=True)
class Clustered(Form):
    r"""J = Σ_c 1_c 1_cᵀ/|c| − 1_S 1_Sᵀ/|S| over the clusters c of a support S: g is averaged over each, and less its mean over all.

        (J g)_i = mean of g over the cluster of i − mean of g over S

    on S, and 0 elsewhere. It is of whole rows, and piecewise constant.
    """

    size: Tensor  # |c| of each score; 0 outside S
    cluster: Tensor  # its number, in [0, n)

    @property
    def s(self) -> Tensor:
        return (self.size > 0).to(self.size.dtype)

    @property
    def q(self) -> Tensor:
        return self.s / self.s.sum(-1, keepdim=True).clamp_min(1.0)

    @property
    def r(self) -> Tensor:
        return self.s

    def sums(self, g: Tensor) -> tuple[Tensor, ...]:
        """(Σg over each cluster [..., n], |S|)."""
        slopes = torch.where(self.size == 0, 0.0, g.double())
        return torch.zeros_like(slopes).scatter_add(-1, self.cluster.expand(g.shape), slopes), (self.size != 0).sum(
            -1, keepdim=True
        )

    @staticmethod
    def merge(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return a[0] + b[0], a[1] + b[1]

    def pull(self, g: Tensor, sums: tuple[Tensor, ...] | None = None) -> Tensor:
        of_clusters, support = sums or self.sums(g)
        mean = of_clusters.sum(-1, keepdim=True) / support.clamp_min(1)
        v = of_clusters.gather(-1, self.cluster.expand(g.shape)) / self.size.masked_fill(self.size == 0, 1.0) - mean
        still = (self.size == 0) | (self.size == support)  # of one cluster p does not move
        return narrowed(torch.where(still, 0.0, v), g.dtype)


def _anchor(level: Tensor) -> Tensor:
    """The level, and 0 where there is none."""
    return level.masked_fill(level == -math.inf, 0.0)


Jacobian = DiagonalAndProduct | Centred | Balanced | Clustered


def jacobian_of(sensitivity: tuple[Tensor, ...] | Jacobian, whole: bool = True) -> Jacobian:
    """What a map states, as a Jacobian; `whole` tells whether the shares of a tuple add up to 1."""
    if not isinstance(sensitivity, tuple):
        return sensitivity
    s, q, *r = sensitivity
    form = DiagonalAndProduct(s, q, r[0] if r else s)
    return form if whole else replace(form, lack=1 - form.shares())


def product(entries: Tensor, g: Tensor) -> Tensor:
    """entries ⊙ g, 0 where an entry is 0, whatever g is; of a finite g it has both derivatives."""
    return entries * torch.where((entries == 0) & ~g.isfinite(), 0.0, g)


def of_rows(times: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """J g or Jᵀg of whole rows, as `times` is: by a smaller g where sums and differences of it may be beyond its dtype."""
    if g.shape[-1] == 0:
        return times(g)
    limits = torch.finfo(g.dtype)
    room = 2.0**-24 if g.dtype == torch.float32 else 2.0**-100
    most = g.abs().amax(-1, keepdim=True)
    shrink = torch.where(most > limits.max * room, room, 1.0).to(g.dtype)
    v = times(g * shrink)
    whole = v / shrink
    return torch.where(v.isinf(), v, whole.clamp(limits.min, limits.max))


def narrowed(v: Tensor, dtype: torch.dtype) -> Tensor:
    """v in a dtype that may be narrower: its largest number where only the dtype makes it infinite."""
    if v.dtype == dtype:
        return v
    largest = torch.finfo(dtype).max
    return torch.where(v.isinf(), v, v.clamp(-largest, largest)).to(dtype)
