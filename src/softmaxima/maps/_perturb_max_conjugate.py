"""The conjugate of perturb-max, Ω*(x) = E max(x + σε) = σ E max(u + ε), and Ω(y) = σ sup_u ⟨u, y⟩ − E max(u + ε)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.onnx import expm1, refuse_export
from softmaxima.base.rows import row_maximum, total, without_mask
from softmaxima.base.tracing import is_concrete, operation, sizes
from softmaxima.engine.envelope import with_slope
from softmaxima.maps._noises import NAMED, Noise, NoiseLike, find_noise
from softmaxima.maps._quadrature import at_nodes, halved_sum, in_blocks, relative


def moments(noise: Noise, u: Tensor) -> tuple[Tensor, Tensor]:
    """(p [..., n], ∂p/∂u [..., n, n])."""
    n = sizes(u)[-1]
    nodes, weights, _ = noise.rule(u)
    p, products = torch.zeros_like(u), u.new_zeros((*u.shape, n))
    for block in in_blocks(nodes, u):
        level, rate = at_nodes(noise.at, nodes[block], u)
        shares = weights[block] * level.exp() * rate
        p = p + halved_sum(shares)
        products = products - torch.einsum("k...i,k...j->...ij", shares, rate)
    own = torch.eye(n, dtype=torch.bool, device=u.device)
    products = products.masked_fill(own, 0.0)
    return p, torch.where(own, -products.sum(-1, keepdim=True), products)


def with_loss(noise: NoiseLike) -> Noise:
    """The noise, which must be one of those whose tails end by the last node: E max(x + ε) is a sum over all of them."""
    found = find_noise(noise)
    if found.name not in NAMED:
        raise ValueError(
            f"perturb_max_loss: noise must be one of {', '.join(map(repr, NAMED))}, got {noise!r}; take surrogate_loss for others, "
            "which has the same gradient"
        )
    return found


def expected_maximum(noise: Noise, u: Tensor) -> Tensor:
    """E max(u + ε) = b + ∫_b^∞ (1 − e^L) dz [..., 1], e^L being 0 below b; of a score alone E ε."""
    nodes, weights, value = noise.rule(u)
    for block in in_blocks(nodes, u):
        value = value - (weights[block] * expm1(at_nodes(noise.at, nodes[block], u)[0])).sum(0)
    return torch.where((u > -math.inf).sum(-1, keepdim=True) <= 1, noise.mean, value)  # type: ignore[arg-type]


def conjugate(z: Tensor, p: Tensor, slope: Tensor, noise: NoiseLike, scale: float | Tensor) -> Tensor:
    found = with_loss(noise)
    if 0 in sizes(z):
        return z.sum(-1)
    with torch.no_grad():
        fixed = scale.detach() if isinstance(scale, Tensor) else scale  # or forward mode would count it twice
        u, nothing = relative(z.detach(), fixed)
        top = row_maximum(z.detach()) / fixed
        value = expected_maximum(found, u) + found.start + top.masked_fill(nothing.isnan(), 0.0) + nothing
    value = scale * with_slope(value, without_mask(z) / scale, p)  # by the scale too
    return with_slope(value, z, slope - p).squeeze(-1)


STEPS = 60  # of Newton's method at most
FARTHEST = 2.0  # that one of them goes, in units of the noise


def regulariser(y: Tensor, noise: NoiseLike, scale: float | Tensor) -> Tensor:
    """σ ⟨u, y⟩ with the u of p(u) = y and E max(u + ε) = 0, which is its slope; over the classes with y > 0."""
    found = with_loss(noise)
    if 0 in sizes(y):
        return y.sum(-1)
    wide = y.double()
    with torch.no_grad():
        fixed = wide.detach()
        allowed = fixed > 0
        labels = is_concrete(fixed) and bool((allowed.sum(-1) <= 1).all())
        u = torch.zeros_like(fixed).masked_fill(~allowed, -math.inf) if labels else found.unit * scores_of(fixed, found.name)
        slope = u - found.start - (found.mean if labels else expected_maximum(found, u))  # type: ignore[operator]
        least = slope.amax(-1, keepdim=True) - found.width if found.width < math.inf else torch.zeros_like(slope[..., :1])
        slope = torch.where(allowed, slope, least)
        value = (slope * fixed).sum(-1, keepdim=True)
    if not labels and y.requires_grad:  # Ω″ is J⁻¹
        p, matrix = moments(found, u)
        inverse = _inverse(matrix, p, allowed)
        slope = slope + (inverse @ (wide - fixed).unsqueeze(-1)).squeeze(-1)
    return (scale * with_slope(value, wide, slope)).squeeze(-1).to(y.dtype)


def _relative(u: Tensor, allowed: Tensor) -> Tensor:
    """Less its largest, −∞ where not allowed."""
    u = u.masked_fill(~allowed, -math.inf)
    return u - row_maximum(u)


def _inverse(matrix: Tensor, p: Tensor, allowed: Tensor) -> Tensor:
    """Of ∂p/∂u where p > 0, and 0 elsewhere: about it √p, for p may be of any size, and 1 for a constant, which moves no p."""
    counted = allowed & (p > 0)
    root = torch.where(counted, p, 1.0).sqrt()
    outside = ~(counted.unsqueeze(-1) & counted.unsqueeze(-2))
    scaled = (matrix / root.unsqueeze(-1) / root.unsqueeze(-2)).masked_fill(outside, 0.0)
    along = root * counted
    own = torch.diag_embed((~counted).to(p.dtype))
    inverse = torch.linalg.inv_ex(scaled + along.unsqueeze(-1) * along.unsqueeze(-2) + own).inverse
    return (inverse / root.unsqueeze(-1) / root.unsqueeze(-2)).masked_fill(outside, 0.0)


HELD = 1 << 17  # scores at once, each with some hundred rates
PRODUCTS, SMALLER = 100, 1e-9  # products with J of one step at most, and by how much they make its error smaller


class Curvature:
    """J = ∂p/∂u = Σ_k c_k (A_k diag(a_k) − a_k a_kᵀ) at all nodes k, without the row and the column of the largest score.

    Without these it is the matrix of a weighted graph of which one place is held: positive definite, and close to its diagonal.
    """

    def __init__(self, noise: Noise, u: Tensor) -> None:
        nodes, weights, value = noise.rule(u)
        top = u.argmax(-1, keepdim=True)
        p, full, own = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(u)
        shares, rates = [], []
        for block in in_blocks(nodes, u):
            level, rate = at_nodes(noise.at, nodes[block], u)
            share = weights[block] * level.exp()
            p = p + halved_sum(share * rate)
            value = value - (weights[block] * expm1(level)).sum(0)
            all_rates = rate.sum(-1, keepdim=True)
            rate = rate.scatter(-1, top.expand(len(rate), *top.shape), 0.0)
            full = full + (share * all_rates * rate).sum(0)
            own = own + (share * rate * (all_rates - rate)).sum(0)
            shares.append(share)
            rates.append(rate)
        self.p, self.expected, self.full = p, value, full
        self.share, self.rate = (torch.cat(each).movedim(0, 1) for each in (shares, rates))  # [rows, nodes, 1 and n]
        self.counts = own > 0
        self.own = torch.where(self.counts, own, 1.0)

    def __matmul__(self, v: Tensor) -> Tensor:
        along = self.share * (self.rate @ v.unsqueeze(-1))
        return torch.where(self.counts, self.full * v - (along.mT @ self.rate).squeeze(-2), 0.0)

    def solve(self, target: Tensor) -> Tensor:
        """v with J v = target [rows, n], 0 at the largest score, by conjugate gradients with the diagonal for a preconditioner."""
        rest = torch.where(self.counts, target, 0.0)
        v = torch.zeros_like(rest)
        direction = towards = rest / self.own
        product = (rest * towards).sum(-1, keepdim=True)
        enough = SMALLER**2 * product
        for _ in range(PRODUCTS):
            image = self @ direction
            bend = (direction * image).sum(-1, keepdim=True)
            going = (product > enough) & (bend > 0)
            if not bool(going.any()):
                break
            length = torch.where(going, product / torch.where(going, bend, 1.0), 0.0)
            v, rest = v + length * direction, rest - length * image
            towards = rest / self.own
            before, product = product, (rest * towards).sum(-1, keepdim=True)
            direction = towards + product / torch.where(before > 0, before, 1.0) * direction
        return v + rest / self.own  # of the smallest p a step of Jacobi's has all digits


def scores_of(y: Tensor, name: str) -> Tensor:
    """u with p(u) = y and maximum 0, by Newton's method on ⟨u, y⟩ − E max(u + ε), which is concave; y may sum to 1 by its dtype."""
    if is_concrete(y):
        return _scores_now(y, name)
    refuse_export("perturb_max_loss", "solver of its regulariser")
    with torch.autograd.forward_ad._set_fwd_grad_enabled(False):  # of a constant
        return _scores_of(y, name)


def _scores_now(y: Tensor, name: str) -> Tensor:
    rows = (y / total(y)).reshape(-1, sizes(y)[-1])
    some_rows = rows.split(max(1, HELD // sizes(y)[-1]))
    return torch.cat([_scores_of_rows(some, NAMED[name]) for some in some_rows]).reshape(y.shape)


def _scores_of_rows(y: Tensor, noise: Noise) -> Tensor:
    allowed = y > 0
    u = torch.zeros_like(y).masked_fill(~allowed, -math.inf)
    length = torch.ones_like(y[:, :1])
    value, move = None, torch.zeros_like(y)
    for _ in range(STEPS):
        ahead = _relative(u + length * move, allowed)
        here = Curvature(noise, ahead)
        reached = (without_mask(ahead) * y).sum(-1, keepdim=True) - here.expected
        if value is not None:  # a step that lost is a quarter as long
            better = reached >= value - 1e-14 * (1 + value.abs())
            length = torch.where(better, 1.0, length / 4)
            if not bool(better.all()):
                ahead, reached = torch.where(better, ahead, u), torch.where(better, reached, value)
                here = Curvature(noise, ahead)
        u, p, value = ahead, here.p, reached
        whole = here.solve(y - p)
        if bool(((y - p).abs() <= 1e-7 * y + 1e-15).all()):  # the last step leaves the square of that
            return _relative(u + whole, allowed)
        move = whole * (FARTHEST / whole.abs().amax(-1, keepdim=True).clamp_min(FARTHEST))
    return u


@operation("perturb_max_scores")
def _scores_of(y: Tensor, name: str) -> Tensor:
    """The same where values cannot be read."""
    return _scores_now(y, name)


@_scores_of.register_fake
def _(y: Tensor, name: str) -> Tensor:
    return y.new_empty(y.shape)


@_scores_of.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], y: Tensor, name: str) -> tuple[Tensor, int]:
    return _scores_of(y.movedim(in_dims[0], 0), name), 0
