r"""log tr exp(A) of an operator A that is known only through products AV: deflated stochastic Lanczos quadrature.

    tr exp(A) = Σ_{q ∈ Q} qᴴ exp(A) q + E zᴴ exp(A) z      Q of k orthonormal vectors, z uniform on the sphere ‖z‖² = d − k, z ⊥ Q
    qᴴ exp(A) q ≈ ‖q‖² Σ_j w_j e^{θ_j}                     (θ, w) nodes and weights of Gauss, from m Lanczos steps at q

Q is a basis of exp(A)S, S random, so that it holds the directions of the largest eigenvalues; the identity, and with it the mean
of the estimate, is right for any Q. Vectors of one length have no variance where exp(A) is a multiple of the identity.
Everything is kept as logarithms, so nothing overflows. Gauss's rule for exp lies below the truth and rises with m: the sum over Q
alone is a lower bound.

A probe is a quadratic form on a sphere. Where one direction that Q does not hold has the variance, it is χ² of one degree, and no
other form is as skewed: the t statistic of few probes then falls short far more often than Student's, whose intervals of 95 % hold
the truth in 88 %. Half widths are therefore t S/√n with the t that χ² needs, or Student's where that is larger, and the number of
probes is chosen as Stein's (1945), from the variance S² of a pilot.

With w = exp(A/2)q the derivative, tr(exp(A) ∂A)/tr exp(A) = Σ wᴴ ∂A w / Σ wᴴw over the same vectors, is that of the estimate's own
density matrix Σ wwᴴ / Σ wᴴw.
"""
# ruff: noqa: N806 (matrices are capitals)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.numbers import check_choice, check_confidence, check_count, check_positive
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.lse.matrix.density import log_trace_exp
from softmaxima.lse.matrix.operators import Operator, as_operator, check_hermitian, normal, with_temperature
from softmaxima.lse.matrix.quadrature import Quadrature, in_blocks, joined
from softmaxima.lse.matrix.quantiles import PILOT, enough_probes, largest_quantile

QUADRATURE_SHARE = 0.01  # of the tolerance, that may be left as error of the quadrature


@dataclass(frozen=True)
class TraceEstimate:
    """What `matrix_logsumexp` knows of log tr exp(A), in nats.

    value: the estimate, differentiable where the operator is; a tensor for a torch operator, a number for one of SciPy.
    standard_error: of the value, from the spread of the probes; 0 where nothing was sampled.
    lower, upper: hold the truth with the confidence that was asked for.
    products: how many vectors the operator was applied to.
    certificate: "deterministic" (nothing was sampled; the interval is rounding), "asymptotic" (right where the mean of probes is no
        further from normal than that of as many squares of normal numbers) or "none" (max_steps did not suffice for the
        quadrature, or the confidence is too near 1).

    >>> import torch, softmaxima as sm
    >>> estimate = sm.matrix_logsumexp(lambda V: torch.zeros_like(V), size=8)
    >>> round(float(estimate.value), 4), estimate.certificate  # log 8
    (2.0794, 'deterministic')
    """

    value: Any
    standard_error: Any
    lower: Any
    upper: Any
    products: int
    certificate: str


def estimate_log_trace(
    name: str,
    operator: Any,
    temperature: float | Tensor = 1.0,
    *,
    size: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    method: str = "auto",
    tolerance: float = 0.01,
    confidence: float = 0.95,
    deflation: int = 16,
    max_probes: int = 1000,
    max_steps: int = 500,
    generator: Randomness = None,
) -> TraceEstimate:
    """See `matrix_logsumexp`."""
    check_choice(name, "method", method, ("auto", "eigh", "lanczos"))
    tolerance = check_positive(name, "tolerance", tolerance)
    confidence = check_confidence(name, confidence)
    deflation = check_count(name, "deflation", deflation, 0)
    max_probes = check_count(name, "max_probes", max_probes, PILOT)
    max_steps = check_count(name, "max_steps", max_steps)
    space = with_temperature(name, as_operator(name, operator, size, dtype, device), temperature)
    draws = as_torch_generator(name, generator)
    learns = check_hermitian(name, space, draws)
    deflation = min(deflation, space.size)
    if method == "eigh" or (method == "auto" and _prefers_eigenvalues(space, deflation, learns)):
        return _exact(space)
    return _estimate(space, tolerance, confidence, deflation, max_probes, max_steps, draws, learns)


def _prefers_eigenvalues(space: Operator, deflation: int, learns: bool) -> bool:
    """Counts multiplications: d products and 9d³ for eigh, 3d³ where eigenvectors are not needed; 50 steps, which are typical, for
    each vector of the estimate. Those of the estimate wait for memory; one takes about as long as 16 of eigh's. On the chain of
    examples/ising_chain.py the two meet between 2¹⁰ and 2¹¹ states.
    """
    d, steps = space.size, 50
    vectors = 2 * deflation + PILOT
    return d * ((9 if learns else 3) * d * d + space.cost) <= 16 * vectors * steps * (space.cost + 4 * steps * d)


def _exact(space: Operator) -> TraceEstimate:
    X = space.product(torch.eye(space.size, dtype=space.dtype, device=space.device))
    value = log_trace_exp((X + X.mH) / 2)
    rounding = space.size * torch.finfo(torch.float64).eps * (torch.linalg.matrix_norm(X.detach()) + 1)
    return _result(space, value, torch.zeros_like(value), rounding, rounding, space.size, "deterministic")


def _result(
    space: Operator, value: Tensor, error: Tensor, below: Tensor, above: Tensor, products: int, certificate: str
) -> TraceEstimate:
    numbers = (value, error, value.detach() - below, value.detach() + above)
    kind = (n.detach().cpu().numpy()[()] for n in numbers) if space.arrays else iter(numbers)
    return TraceEstimate(*kind, products=products, certificate=certificate)


def _estimate(
    space: Operator,
    tolerance: float,
    confidence: float,
    deflation: int,
    max_probes: int,
    max_steps: int,
    generator: torch.Generator | None,
    learns: bool,
) -> TraceEstimate:
    enough = QUADRATURE_SHARE * tolerance
    half = 0.5 if learns else None
    log_total = torch.tensor(-math.inf, dtype=torch.float64, device=space.device)
    basis = torch.zeros(space.size, 0, dtype=space.dtype, device=space.device)
    runs: list[Quadrature] = []  # whose vectors make the estimate
    products = 2  # for the check
    with torch.no_grad():
        if deflation:
            sketch = in_blocks(space.product, normal(space, deflation, generator), max_steps, enough, log_total, 1.0)
            basis = torch.linalg.qr(sketch.image / sketch.image.norm(dim=0)).Q
            runs.append(in_blocks(space.product, basis, max_steps, enough, log_total, half))
            log_total = torch.logsumexp(runs[0].log_value, 0)
            products += sketch.products
        deflated = log_total

        def probe(count: int) -> Tensor:
            """The samples' logarithms."""
            vectors = normal(space, count, generator)
            for _ in range(2):  # so that they are orthogonal to Q to rounding
                vectors = vectors - basis @ (basis.mH @ vectors)
            vectors = vectors * (math.sqrt(space.size - deflation) / vectors.norm(dim=0))
            runs.append(in_blocks(space.product, vectors, max_steps, enough, deflated, half))
            return runs[-1].log_value

        samples, half_width, error = 0, torch.zeros_like(deflated), torch.zeros_like(deflated)
        if deflation < space.size:
            pilot = probe(PILOT)
            shift = torch.maximum(deflated, pilot.max())
            known, rest = (deflated - shift).exp(), (pilot - shift).exp()
            spread = rest.std()
            widest = (known + rest.mean()) * -math.expm1(-tolerance)
            samples = enough_probes(float(spread / widest), confidence, max_probes)
            if samples > PILOT:
                rest = torch.cat([rest, (probe(samples - PILOT) - shift).exp()])
            total = known + rest.mean()
            log_total = shift + total.log()
            error = rest.std() / math.sqrt(samples) / total
            # The pilot's spread is Stein's; either may have missed the few large probes.
            half_width = largest_quantile(confidence, samples) * torch.maximum(spread, rest.std()) / math.sqrt(samples) / total
        every = joined(runs)
        slack = every.change + torch.finfo(torch.float64).eps * (64 * (every.radius + 1) + space.size)
        # What is summed without sampling, and the largest eigenvalue, lie below the truth.
        lower = torch.stack([log_total + (1 - half_width).clamp_min(0.0).log(), deflated, every.top]).max()
    sampled = "asymptotic" if samples else "deterministic"
    if samples and math.isinf(largest_quantile(confidence, samples)):
        sampled = "none"
    value = log_total
    if learns:
        weights = torch.full_like(every.log_value, 1.0 / max(samples, 1))
        weights[:deflation] = 1.0
        value = _with_gradient(space, every, weights, log_total)
    return _result(
        space,
        value,
        error,
        log_total - lower + slack,
        torch.log1p(half_width) + slack,
        products + every.products,
        sampled if every.change <= enough else "none",
    )


def _with_gradient(space: Operator, run: Quadrature, weights: Tensor, value: Tensor) -> Tensor:
    """The value with Σ weight · wᴴ ∂A w / Σ weight · wᴴw as its derivative."""
    log_mass = 2 * (run.log_scale + run.image.norm(dim=0).log()) + weights.log()
    share = torch.softmax(log_mass, 0)  # of each w in the density matrix
    vectors = run.image / run.image.norm(dim=0) * share.sqrt()
    energy = (vectors.conj() * space.product(vectors)).sum()
    return _FirstOrder.apply(value, energy.real if energy.is_complex() else energy)  # type: ignore[return-value]


class _FirstOrder(torch.autograd.Function):
    """The value, with the gradient of `energy`. Its second derivative would lack the motion of the density matrix, so it raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, energy: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError("matrix_logsumexp: an estimate has first derivatives only; method='eigh' has second ones")
        return None, grad_outputs[0]
