"""Affine scores z = W x̃ + a of least log loss, by Newton's steps that are solved by conjugate gradients.

With y the shares that a label gives to classes and s those of rows, θ holds W and a of x̃ over its root mean square, and minimises

    f(θ) = Σ_r s_r (log Σ_c exp z_c − ⟨y, z⟩) + ½ Σ_i k_i θ_i².

Its second derivative is applied by two products with x̃: H v = pull(s p (u − ⟨p, u⟩)) + k v, u = scores(v), where pull is the
transpose of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softmaxima.base.numbers import SMALLEST_TEMPERATURE, InputError
from softmaxima.temperature._one_number import best_temperature
from softmaxima.temperature._rows import NoOptimumError, Rows

STEPS = 60  # of Newton
MOST_PRODUCTS = 300  # with H, of one of these steps
OFF_DIAGONAL = 0.1  # deviation of the prior of W beside its diagonal, over 1/τ
SURE = 1 - 1e-8  # of every row: more than a finite optimum makes of a free diagonal
STIFFEST = 1e100  # k that holds a number at 0
NOISE = 1e-13  # of a mean log loss, below which a step is taken as it is
STILL, ENDLESS = 1e-4, 0.3  # moves of scores by the last step; and by a step where e^{−s} falls without end, which is of 1 in s


@dataclass(frozen=True)
class Method:
    """What of W and a is fitted."""

    words: str  # that name it in a sentence
    is_one_number: bool = False  # W = 1/τ
    is_matrix: bool = False  # all of W, or else its diagonal
    has_bias: bool = False

    @property
    def has_penalty(self) -> bool:
        return self.is_matrix or self.has_bias


METHODS = {
    "temperature": Method("temperature", is_one_number=True),
    "per_class": Method("a temperature a class"),
    "vector": Method("vector scaling", has_bias=True),
    "matrix": Method("matrix scaling", is_matrix=True, has_bias=True),
}


def centred(x: Tensor, allowed: Tensor | None) -> Tensor:
    """x less the mean of its row, 0 where a class is left out. Differences come first: Σ x̃ is 0 to the rounding of these."""
    if allowed is None:
        d = x - x.amax(-1, keepdim=True).detach()
        return d - d.mean(-1, keepdim=True)
    d = (x - x.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True).detach()).masked_fill(~allowed, 0.0)
    return (d - d.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp_min(1)).masked_fill(~allowed, 0.0)


def affine(x: Tensor, factors: Tensor, bias: Tensor | None) -> Tensor:
    """W x + a [..., classes], of a matrix W or its diagonal."""
    z = x * factors if factors.ndim == 1 else x @ factors.mT
    return z if bias is None else z + bias


@dataclass(frozen=True, eq=False)
class Objective:
    """f, at θ [numbers]."""

    method: Method
    x: Tensor  # [rows, n] float64, x̃ over its root mean square
    y: Tensor  # [rows, n]
    share: Tensor  # [rows]
    allowed: Tensor | None  # [rows, n]
    stiffness: Tensor  # k ≥ 0 [numbers]

    @property
    def is_free(self) -> bool:
        return not bool(self.stiffness.any())

    def parts(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """W and a."""
        shape = self.x.shape[-1:] * (2 if self.method.is_matrix else 1)
        size = math.prod(shape)
        return theta[:size].view(shape), theta[size:] if self.method.has_bias else None

    def scores(self, theta: Tensor) -> Tensor:
        return affine(self.x, *self.parts(theta))

    def pull(self, g: Tensor, x: Tensor | None = None) -> Tensor:
        x = self.x if x is None else x
        return joined(g.mT @ x if self.method.is_matrix else (g * x).sum(0), g.sum(0) if self.method.has_bias else None)

    def least(self, theta: Tensor) -> Tensor:
        """The least of all θ that give the same probabilities, as Σ x̃ = 0, and cost the same.

        Free are what is the same for all classes in a, in a column of W and in a row of it, where no penalty holds them, and the
        difference of the factors of two classes.
        """
        factors, bias = self.parts(theta)
        if self.is_free and self.method.is_matrix:
            factors = factors - factors.mean(0)
            factors = factors - factors.mean(1, keepdim=True)
        if len(factors) == 2:
            factors = factors.clone()
            own = factors.diagonal() if self.method.is_matrix else factors
            own.fill_(own.mean())
        return joined(factors, bias - bias.mean() if self.is_free and bias is not None else bias)

    def loss(self, theta: Tensor) -> tuple[float, Tensor]:
        """f and p."""
        z = self.scores(theta)
        z = z if self.allowed is None else z.masked_fill(~self.allowed, -math.inf)
        log_mass = z.logsumexp(-1)
        own = torch.where(self.y > 0, self.y * z, 0.0).sum(-1)
        penalty = (self.stiffness * theta.square()).sum() / 2
        return float(torch.dot(self.share, log_mass - own) + penalty), (z - log_mass[:, None]).exp()

    def step(self, theta: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient, and Newton's step, to a share of its length that falls with the gradient."""
        gradient = self.least(self.pull((p - self.y) * self.share[:, None]) + self.stiffness * theta)
        weighted = self.share[:, None] * p

        def curvature(v: Tensor) -> Tensor:
            u = self.scores(v)
            return self.pull(weighted * (u - torch.linalg.vecdot(p, u)[:, None])) + self.stiffness * v

        diagonal = self.pull(weighted * (1 - p), self.x.square()) + self.stiffness
        tolerance = min(0.1, math.sqrt(float(gradient.abs().max())))
        return gradient, solved(curvature, -gradient, diagonal, tolerance, self.least)


def joined(factors: Tensor, bias: Tensor | None) -> Tensor:
    """θ of W and a."""
    return factors.flatten() if bias is None else torch.cat((factors.flatten(), bias))


def best_scaling(name: str, rows: Rows, method: Method, penalty: float | None) -> tuple[Tensor, Tensor | None, int]:
    """W, a and the number of steps."""
    objective, theta, unit = stated(name, rows, method, penalty)
    value, p = objective.loss(theta)
    for number in range(1, STEPS + 1):
        sure = float(p.gather(-1, rows.labels[:, None]).min())
        if not rows.smoothing and sure > (0.5 if objective.is_free else SURE):
            raise NoOptimumError(  # c z with c → ∞ has a log loss of 0
                "separable",
                f"{name}: such scores tell every row's class, so that the log loss falls "
                f"{'without end' if objective.is_free else 'further than numbers reach'} as they grow; give rows on which the "
                f"model errs, {'or' if objective.is_free else 'more `penalty` or'} `label_smoothing`",
            )
        gradient, step = objective.step(theta, p)
        if float(gradient.abs().max()) <= 1e-12:
            move = float(centred(objective.scores(step), rows.allowed)[rows.shares > 0].abs().max())
            if move <= STILL:
                factors, bias = objective.parts(theta)
                return factors / unit, bias, number
            if move > ENDLESS:
                break
        slope = float(torch.dot(gradient, step))
        length, before = 1.0, value
        value, p = objective.loss(theta + step)
        while value > before + 1e-4 * length * slope + NOISE * (1 + abs(before)) and length > 1e-10:
            length /= 2
            value, p = objective.loss(theta + length * step)
        theta = theta + length * step
    raise NoOptimumError(
        "unreached",
        f"{name}: there is no least log loss at numbers that {STEPS} steps reach, as where a class has no rows or can be told "
        "without fault; give more rows, more `penalty` or `label_smoothing`",
    )


def stated(name: str, rows: Rows, method: Method, penalty: float | None) -> tuple[Objective, Tensor, float]:
    """f, the θ to begin with, which is that of one temperature, and the unit of x̃."""
    if rows.exponent > 1023:
        raise InputError(f"{name}: logits must be below 8.9e307 in size, so that their differences are numbers; divide all by 2")
    x = centred(rows.x.double() * 2.0**-rows.exponent, rows.allowed)  # [rows, n]
    scale = float(x.square().mean().sqrt())
    unit = math.ldexp(scale, rows.exponent)
    if unit < SMALLEST_TEMPERATURE:
        raise NoOptimumError(
            "equal",
            f"{name}: the scores of each row are equal, to 2.3e-308, which no factors change; give scores that differ",
        )
    x = x / scale
    n = x.shape[-1]
    try:
        start = unit / max(best_temperature(name, rows)[0], SMALLEST_TEMPERATURE)
    except NoOptimumError:
        start = 1.0
    one, zeros = torch.eye(n, dtype=x.dtype, device=x.device), x.new_zeros(n)
    prior = 1 / (len(x) if rows.weight is None else float(rows.weight.sum()))
    off = prior / (OFF_DIAGONAL * start) ** 2 if penalty is None else 2 * penalty / (n * (n - 1)) / unit / unit
    off = min(off, STIFFEST)
    bias = zeros if method.has_bias else None
    y = torch.zeros_like(x).scatter_(-1, rows.labels[:, None], 1.0)
    if rows.smoothing:
        even = torch.ones_like(x) if rows.allowed is None else rows.allowed.to(x.dtype)
        y = (1 - rows.smoothing) * y + rows.smoothing * even / even.sum(-1, keepdim=True)
    stiffness = joined(
        off * (1 - one) if method.is_matrix else zeros,
        None if bias is None else bias + (prior if penalty is None else 2 * penalty / n),
    )
    objective = Objective(method, x, y, rows.shares, rows.allowed, stiffness)
    return objective, objective.least(joined(start * (one if method.is_matrix else one.diagonal()), bias)), unit


def solved(
    apply: Callable[[Tensor], Tensor], target: Tensor, diagonal: Tensor, tolerance: float, least: Callable[[Tensor], Tensor]
) -> Tensor:
    """v with apply(v) ≈ target, by conjugate gradients with the diagonal for a preconditioner, in the subspace of `least`."""
    scale = diagonal.clamp_min(1e-30 * float(diagonal.max()) + 1e-300)

    def eased(rest: Tensor) -> Tensor:
        return least(least(rest) / scale)

    v, rest = torch.zeros_like(target), target
    direction = towards = eased(rest)
    product = float(torch.dot(rest, towards))
    enough = tolerance**2 * product
    for _ in range(min(2 * len(target) + 20, MOST_PRODUCTS)):
        image = apply(direction)
        bend = float(torch.dot(direction, image))
        if product <= enough or not bend > 0:
            break
        v = v + product / bend * direction
        rest = rest - product / bend * image
        towards = eased(rest)
        before, product = product, float(torch.dot(rest, towards))
        direction = towards + product / before * direction
    return v if bool(v.any()) else eased(target)
