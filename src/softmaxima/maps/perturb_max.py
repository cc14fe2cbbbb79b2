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

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import Form, narrowed
from softmaxima.base.onnx import expm1
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum, total, without_mask
from softmaxima.base.temperature import over
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps._noises import NAMED, Noise, NoiseLike, find_noise, is_noise
from softmaxima.maps._perturb_max_conjugate import conjugate, moments, regulariser
from softmaxima.maps._quadrature import GAUSS, at_nodes, halved_sum, in_blocks, relative

ERROR = 1e-6  # of the sum of the probabilities, beyond which the rule is not fine enough for a distribution


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


def sensitivity(p: Tensor, z: Tensor, noise: NoiseLike, scale: float | Tensor) -> Mixture:
    u, nothing = relative(z, scale)
    return Mixture(u, p, find_noise(noise), scale, nothing)


def scale_gradient(p: Tensor, z: Tensor, noise: NoiseLike, scale: float | Tensor) -> Tensor:
    """∂p/∂σ = −J z/σ."""
    moved = without_mask((z - row_maximum(z)).double())
    return (-sensitivity(p, z, noise, scale).push(moved) / scale).to(p.dtype)


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
