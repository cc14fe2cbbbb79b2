r"""perturb-max: p_i = P[argmax(x + σε) = i], ε_j independent with CDF F and density f. With u = x/σ and L(z) = Σ_j log F(z − u_j)

    p_i = ∫ f(z − u_i) Π_{j≠i} F(z − u_j) dz = ∫ a_i e^L dz,    a_i(z) = (f/F)(z − u_i),    Σ_i a_i e^L = (e^L)′

    −∂p_i/∂u_j = ∫ a_i a_j e^L dz  (i ≠ j),    J g = ∫ a ⊙ (A g − ⟨a, g⟩) e^L dz,    A = Σ_j a_j

on one grid of m nodes z for all scores, O(n·m). A constant added to u changes nothing, so that the rows of J add up to 0, from
which its diagonal is taken: no derivative of f is needed, and f may jump. J is symmetric, for p is the gradient of E max(u + ε).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import Form, narrowed
from softmaxima.base.numbers import as_number
from softmaxima.base.onnx import expm1, refuse_export
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum, total, without_mask
from softmaxima.base.temperature import over
from softmaxima.base.tracing import is_concrete, is_keeping, operation, sizes
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.envelope import with_slope
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps._noises import (
    GAUSS,
    LARGEST_ORDER,
    LEAST_ORDER,
    NAMED,
    Noise,
    at_nodes,
    in_blocks,
    known_family,
    of_distribution,
    student_t,
)

NoiseLike = str | tuple[str, float] | Distribution

_KNOWN: WeakKeyDictionary[Distribution, Noise] = WeakKeyDictionary()


ERROR = 1e-6  # of the sum of the probabilities, beyond which the rule is not fine enough for a distribution


def find_noise(noise: NoiseLike) -> Noise:
    """The noise of that name, of ("student_t", ν), or of a distribution."""
    if isinstance(noise, str):
        return NAMED[noise]
    if isinstance(noise, tuple):
        return student_t(float(noise[1]))
    if noise not in _KNOWN:
        _KNOWN[noise] = of_distribution(noise)
    return _KNOWN[noise]


def is_noise(noise: Any) -> bool:
    """Whether there is such a noise. Of a distribution that will not do it is said why."""
    if isinstance(noise, str):
        return noise in NAMED
    if isinstance(noise, tuple):
        number = as_number(noise[1]) if len(noise) == 2 and noise[0] == "student_t" else None
        return number is not None and LEAST_ORDER <= number <= LARGEST_ORDER
    if not isinstance(noise, Distribution):
        return False
    if noise in _KNOWN:
        return True
    what = type(noise).__name__
    if tuple(noise.batch_shape) + tuple(noise.event_shape):
        raise ValueError(
            f"perturb_max: noise must be one distribution of a number for all scores, got a {what} of shape "
            f"{tuple(noise.batch_shape) + tuple(noise.event_shape)}; give its parameters as numbers"
        )
    if getattr(noise.support, "is_discrete", False):
        raise ValueError(f"perturb_max: noise must have a density, got the discrete {what}; take a continuous distribution")
    if known_family(noise) is not None:
        return True
    try:
        noise.cdf(noise.sample())
        noise.log_prob(noise.sample())
    except NotImplementedError:
        raise ValueError(
            f"perturb_max: noise must have a CDF and a density, and torch has none for {what}; take one of {', '.join(NAMED)}, "
            "('student_t', ν), or a distribution with cdf and log_prob"
        ) from None
    return True


def theta(noise: NoiseLike, scale: float | Tensor) -> tuple[float, float | Tensor, float | Tensor] | None:
    """(the number of the noise, σ, what is added to all scores); None for one that kernels do not know."""
    found = find_noise(noise)
    return (float(list(NAMED).index(found.name)), scale * found.unit, scale * found.start) if found.name in NAMED else None


def reference(x: Tensor, noise: NoiseLike, scale: float | Tensor) -> Tensor:
    """∫ f(z − u_i) Π_{j≠i} F(z − u_j) dz of each row, by many narrow panels."""
    found = find_noise(noise)
    named = found.name if found.name in NAMED else noise
    u = x.double() / scale / found.unit
    u = u - row_maximum(u)
    if 0 in sizes(u):
        return u
    return torch.stack([_literal(row, named) for row in u.reshape(-1, sizes(u)[-1])]).reshape(u.shape)


def _literal(u: Tensor, noise: NoiseLike) -> Tensor:
    allowed = u > -math.inf
    if not bool(allowed.all()):
        return torch.zeros_like(u).masked_scatter(allowed, _literal(u[allowed], noise)) if bool(allowed.any()) else u.exp()
    cdf, density, z, weights = literal_parts(u, noise, find_noise(noise))
    p = torch.zeros_like(u)
    for some in z.split(1 + (1 << 17) // len(u)):
        t = some[:, None] - u
        each = cdf(t)
        if len(u) <= 16:
            others = torch.stack([each[:, torch.arange(len(u)) != i].prod(-1) for i in range(len(u))], -1)
        else:
            others = each.clamp_min(1e-300).log()
            others = (others.sum(-1, keepdim=True) - others).exp()
        p += (weights[: len(some), None] * density(t) * others).sum(0)
        weights = weights[len(some) :]
    return p


# F, f, and the least and largest t that matter.
LITERAL: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], float, float]] = {
    "normal": (torch.special.ndtr, lambda t: (-t * t / 2).exp() / math.sqrt(2 * math.pi), -9.0, 9.5),
    "gumbel": (lambda t: (-(-t).exp()).exp(), lambda t: (-t - (-t).exp()).exp(), -5.0, 45.0),
    "logistic": (torch.sigmoid, lambda t: torch.sigmoid(t) * torch.sigmoid(-t), -40.0, 45.0),
    "laplace": (
        lambda t: torch.where(t < 0, t.clamp_max(0.0).exp() / 2, 1 - (-t.abs()).exp() / 2),
        lambda t: (-t.abs()).exp() / 2,
        -40.0,
        45.0,
    ),
    "uniform": (lambda t: t.clamp(0.0, 1.0), lambda t: ((t > 0) & (t < 1)).to(t.dtype), 0.0, 1.0),
    "exponential": (lambda t: -expm1(-t.clamp_min(0.0)), lambda t: torch.where(t > 0, (-t.abs()).exp(), 0.0), 0.0, 45.0),
}


def literal_parts(u: Tensor, noise: NoiseLike, found: Noise) -> tuple[Any, Any, Tensor, Tensor]:
    """(F, f, nodes, weights) of a row."""
    if not isinstance(noise, str):  # which has no narrow range: as the map has it, with panels beside every score
        cdf, density = lambda t: found.at(t)[0].exp(), lambda t: found.at(t)[1] * found.at(t)[0].exp()
        if len(u) > 64:
            nodes, weights, _ = found.rule(u)
            return cdf, density, nodes.flatten(), weights.flatten()
        steps = 0.2 * 1.5 ** torch.arange(100, dtype=u.dtype)
        edges = (u[:, None] + torch.cat((-steps, steps.new_zeros(1), steps))).flatten()
    else:
        cdf, density, low, high = LITERAL[noise]
        step = 0.25 if noise == "normal" else 0.75
        edges = torch.arange(low, high + math.log(len(u)) + step, step, dtype=u.dtype)
        kinks = u.sort(descending=True).values
        if noise in ("laplace", "exponential"):
            edges = torch.cat((edges, kinks[:60])).clamp_min(low)
        if noise == "uniform":  # Π F ≤ e^{−45} at the kinks left out
            count = torch.arange(1, len(u) + 1, dtype=u.dtype)
            kinks = kinks[kinks.cumsum(0) - count * kinks <= 45]
            edges = torch.cat((edges, 1 - 0.5 ** torch.arange(20, dtype=u.dtype), kinks + 1)).clamp(low, high)
    edges = edges.unique()
    x, w = GAUSS[12]
    width = edges.diff()[:, None]
    return cdf, density, (edges[:-1, None] + width * x).flatten(), (width * w).flatten()


def relative(z: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """(u = z/σ less its largest, 0 in a row that has NaN or +∞; that row's NaN, 0 for the others) in float64."""
    wide = z.double()
    wrong = (wide.isnan() | (wide == math.inf)).any(-1, keepdim=True)
    wide = wide.masked_fill(wrong, 0.0)
    u = (wide - row_maximum(wide)) / scale
    return u, torch.where(wrong, math.nan, 0.0)


def halved_sum(terms: Tensor) -> Tensor:
    """Σ over the first axis, in the same order for every place: equal scores get equal probabilities."""
    if is_keeping():  # of nodes whose number depends on that of the scores
        return terms.sum(0)
    while (count := sizes(terms)[0]) > 1:
        half = count // 2
        sums = terms[:half] + terms[half : 2 * half]
        terms = sums if count % 2 == 0 else torch.cat((sums, terms[2 * half :]))
    return terms[0]


def forward(z: Tensor, noise: NoiseLike, scale: float | Tensor) -> Tensor:
    if 0 in sizes(z):
        return z
    u, nothing = relative(z, scale)
    found = find_noise(noise)
    p = probabilities(found, u)
    mass = total(p)
    if found.name not in NAMED and is_concrete(mass):
        error = float(torch.where((u > -math.inf).any(-1, keepdim=True), mass.detach() - 1, 0.0).abs().max())
        if error > ERROR:
            raise ValueError(
                f"perturb_max: the probabilities of {noise!r} add up to 1 with an error of {error:.1g}, more than {ERROR:g}, as "
                "where its density is infinite, or much narrower in one place than its quartiles are apart; take a smoother noise"
            )
    return (p / mass + nothing).to(z.dtype)


def probabilities(noise: Noise, u: Tensor) -> Tensor:
    """∫ a e^L dz, which adds up to 1 but for rounding and the error of the rule."""
    nodes, weights, _ = noise.rule(u)
    p = torch.zeros_like(u)
    for block in in_blocks(nodes, u):
        level, rate = at_nodes(noise.at, nodes[block], u)
        p = p + halved_sum(weights[block] * level.exp() * rate)
    return p


@dataclass(frozen=True)
class Mixture(Form):
    r"""J = (1/σ) ∫ (A diag(a) − a aᵀ) e^L dz: a mixture of what the Jacobian of softmax is, A² (diag(r) − r rᵀ) with r = a/A.

    γ = g − g_k, k the largest score, stands for g: where F(z − u_k) = 0, a_k is infinite, and a_k γ_k is 0.
    """

    u: Tensor
    p: Tensor
    noise: Noise
    scale: float | Tensor
    nothing: Tensor

    def sums(self, g: Tensor) -> tuple[Tensor, ...]:
        """(g_k,)."""
        top = self.u.detach().argmax(-1, keepdim=True)
        return (torch.take_along_dim(g, top, -1),)

    @staticmethod
    def merge(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        raise NotImplementedError("perturb_max: its Jacobian is of whole rows")

    @property
    def s(self) -> Tensor:
        """The diagonal, (1/σ) ∫ a_i Σ_{j≠i} a_j e^L dz."""
        if 0 in sizes(self.u):
            return self.p
        is_top = torch.zeros_like(self.u, dtype=torch.bool).scatter(-1, self.u.detach().argmax(-1, keepdim=True), True)
        nodes, weights, _ = self.noise.rule(self.u)
        v = torch.zeros_like(self.u)
        for block in in_blocks(nodes, self.u):
            level, rate = at_nodes(self.noise.at, nodes[block], self.u)
            lower = rate.masked_fill(is_top, 0.0)  # the sum of these has the digits that that of all may not have
            others = lower.sum(-1, keepdim=True) - lower + torch.where(is_top, 0.0, (rate - lower).sum(-1, keepdim=True))
            v = v + halved_sum(weights[block] * level.exp() * rate * others)
        return narrowed(v / self.scale + self.nothing, self.p.dtype)

    @property
    def q(self) -> Tensor:
        return self.p

    @property
    def r(self) -> Tensor:
        return self.s

    def pull(self, g: Tensor, sums: tuple[Tensor, ...] | None = None) -> Tensor:
        if 0 in sizes(g):
            return g
        empty = self.p == 0
        wide = torch.where(empty & ~g.isfinite(), 0.0, g).double()
        gaps = wide - self.sums(wide)[0]
        nodes, weights, _ = self.noise.rule(self.u)
        v = torch.zeros_like(gaps + self.u)
        for block in in_blocks(nodes, self.u):
            level, rate = at_nodes(self.noise.at, nodes[block], self.u)
            moved = rate.sum(-1, keepdim=True) * gaps - (rate * gaps).sum(-1, keepdim=True)
            v = v + halved_sum(weights[block] * level.exp() * rate * moved)
        return narrowed((v / self.scale + self.nothing).masked_fill(empty, 0.0), g.dtype)

    def matrix(self, tau: float | Tensor) -> Tensor:
        if 0 in sizes(self.u):
            return self.u.new_zeros((*self.u.shape, sizes(self.u)[-1])).to(self.p.dtype)
        whole = moments(self.noise, self.u)[1]
        scale = self.scale.unsqueeze(-1) if isinstance(self.scale, Tensor) else self.scale
        return over((whole / scale + self.nothing.unsqueeze(-1)).to(self.p.dtype), tau)


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


def sensitivity(p: Tensor, z: Tensor, noise: NoiseLike, scale: float | Tensor) -> Mixture:
    u, nothing = relative(z, scale)
    return Mixture(u, p, find_noise(noise), scale, nothing)


def scale_gradient(p: Tensor, z: Tensor, noise: NoiseLike, scale: float | Tensor) -> Tensor:
    """∂p/∂σ = −J z/σ."""
    moved = without_mask((z - row_maximum(z)).double())
    return (-sensitivity(p, z, noise, scale).push(moved) / scale).to(p.dtype)


# The conjugate Ω*(x) = E max(x + σε) = σ E max(u + ε), and Ω(y) = σ sup_u ⟨u, y⟩ − E max(u + ε).


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


PERTURB_MAX = register(
    Map(
        name="perturb_max",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,  # type: ignore[arg-type]
        regulariser=regulariser,
        conjugate=conjugate,
        params=(
            Parameter(
                name="noise",
                default="normal",
                examples=("normal", "uniform"),
                others=("gumbel", "logistic", "laplace", "exponential"),
                valid=is_noise,
                domain=f"one of {', '.join(map(repr, NAMED))}, ('student_t', ν) with ν from 0.5 to 100, or a continuous "
                "distribution of torch.distributions with cdf and log_prob",
                kind=object,
            ),
            Parameter(
                name="scale",
                default=1.0,
                examples=(0.5,),
                valid=lambda scale: (scale > 0) & (scale < math.inf),
                domain="positive and finite",
                gradient=scale_gradient,
            ),
        ),
        # Zeros are those of uniform noise, and what is below the least number: of normal noise 38 below the largest score.
        properties=Properties(sparse=True, additive_regulariser=False),
        cost=Cost(reads=2),
        uses_scores=True,
        kernel=Kernel("perturb_max", "perturb_max_backward", "perturb_max_loss", labels_only=True, theta=theta),
        formula="P[argmax_j (x_j + σ ε_j) = i]",
        source="Berthet et al. (2020), arXiv:2002.08676",
    )
)


@public
def perturb_max(
    x: Array,
    *,
    noise: NoiseLike = "normal",
    scale: float | Array = 1.0,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Perturb-max, `p_i = P[argmax_j (x_j/τ + σ ε_j) = i]` for independent ε of one distribution, by quadrature, without sampling.

    Args:
        noise: the distribution of ε: "normal" N(0, 1), "gumbel", "logistic", "laplace" or "exponential", all standard, "uniform"
            on [0, 1], ("student_t", ν) with ν from 0.5 to 100, or one continuous distribution of torch.distributions with a
            `cdf` and a `log_prob`, of a single number; its parameters do not learn. Its place does not matter.
        scale: σ > 0, in units of x/τ, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may
            require grad. σ and τ do the same.
        x, dim, temperature, where, dtype: as for `softmax`.

    Gumbel noise gives softmax. The order of the scores is kept, and a constant added to them changes nothing. Uniform noise gives
    exactly zero to scores σ or more below the largest one; the others give every score a probability, which may be too small
    for the dtype.

    Float64 p and ∂p/∂x are within 1e-13 of the integral for all of these noises, others are that, rounded. That is an absolute
    error: in the tails p loses digits, of normal noise from 10σ below the largest score on. Of a distribution the error is that of
    its `cdf` and of a rule for densities that are smooth but for the ends of their support and their median, about as much as the
    probabilities lack of 1 before they are divided by their sum: 1e-14 for half-normal noise, 1e-9 for Weibull noise of shape 1.5,
    7e-13 for Gamma noise of shape 2.5 and 2e-4 for that of 0.5. What lacks more than 1e-6 is refused, where values can be read. A
    distribution is looked at once: its parameters must not change. All is computed in float64.

    With Laplace noise second derivatives are not those of the integral at a row whose largest scores are all equal.

    Its loss is `perturb_max_loss`. Raises as `softmax`, and ValueError for a noise without a CDF, a discrete one and one of several
    numbers. torch.compile, torch.export and other recorders take the noises that have a name of one word. Cost: O(n·m) on a grid of
    m values that all scores share, a block of it in memory at a time: m = 48 for exponential noise, 128 to 192 for normal and
    logistic noise, 48 to some 800 for Laplace noise and some thousand for others; for uniform noise 6 or 12 for each score that can
    be the largest, which are all of them where they are nearly equal. The gradient costs the same again.
    Source: Berthet et al. (2020), arXiv:2002.08676.

    >>> import numpy as np, softmaxima as sm
    >>> sm.perturb_max(np.array([1.0, 0.0, -1.0])).round(4)
    array([0.7288, 0.2241, 0.0472])
    >>> sm.perturb_max(np.array([0.5, 0.0, -1.0]), noise="uniform")
    array([0.875, 0.125, 0.   ])
    """
    return evaluate(PERTURB_MAX, x, dim, temperature, where, {"noise": noise, "scale": scale}, dtype)


@public
class PerturbMax(MapModule):
    """`perturb_max` as a module; give `Positive(1.0)` as the scale to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.PerturbMax("gumbel")(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        noise: NoiseLike = "normal",
        scale: float | Tensor | nn.Module = 1.0,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(PERTURB_MAX, dim, temperature=temperature, noise=noise, scale=scale)
