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
# ruff: noqa: N803, N806 (matrices are capitals)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import check_value
from softmaxima.base.numbers import TEMPERATURE, check_choice, check_confidence, check_count, check_positive
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.lse.matrix.density import log_trace_exp

Product = Callable[[Tensor], Tensor]

PILOT = 17  # probes before the variance is known: 16 degrees of freedom
CHI_SQUARES = 2**21  # drawn to find a quantile
TAIL = 64  # of the t statistics drawn are beyond it, at least
BASIS_ELEMENTS = 2**26  # of all Krylov bases held at one time: 512 MiB in double
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


@dataclass(frozen=True)
class _Operator:
    """A Hermitian operator on [size, b] tensors. `product` carries gradients where the operator has parameters that learn."""

    product: Product
    size: int
    dtype: torch.dtype  # float64 or complex128, of the vectors
    device: torch.device
    cost: float  # of one product, in multiplications
    arrays: bool  # whether results are NumPy's


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
    space = _with_temperature(name, _as_operator(name, operator, size, dtype, device), temperature)
    draws = as_torch_generator(name, generator)
    learns = _check_hermitian(name, space, draws)
    deflation = min(deflation, space.size)
    if method == "eigh" or (method == "auto" and _prefers_eigenvalues(space, deflation, learns)):
        return _exact(space)
    return _estimate(space, tolerance, confidence, deflation, max_probes, max_steps, draws, learns)


# The operator ----------------------------------------------------------------------------------------------------------------


def _as_operator(name: str, operator: Any, size: int | None, dtype: Any, device: Any) -> _Operator:
    shape = getattr(operator, "shape", None)
    if shape is not None:
        given = {"size": size, "dtype": dtype, "device": device}
        if any(value is not None for value in given.values()):
            named = ", ".join(key for key, value in given.items() if value is not None)
            raise TypeError(f"{name}: {named} is for callables; {type(operator).__name__} knows its own")
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"{name}: an operator must be square, [d, d], got shape {tuple(shape)}")
    if isinstance(operator, Tensor):
        if not operator.dtype.is_floating_point and not operator.dtype.is_complex:
            raise TypeError(f"{name}: X must be real or complex floating point, got {operator.dtype}; call X.double() first")
        wide = operator.to(torch.complex128 if operator.is_complex() else torch.float64)
        return _Operator(lambda V: wide @ V, shape[0], wide.dtype, operator.device, operator._nnz(), False)  # type: ignore[index]
    if shape is not None and hasattr(operator, "__matmul__"):
        kind = np.dtype(operator.dtype if operator.dtype is not None else np.float64).kind
        if kind not in "fciu":
            raise TypeError(f"{name}: X must be of numbers, got NumPy dtype {operator.dtype}")
        wide = torch.complex128 if kind == "c" else torch.float64
        product = lambda V: torch.from_numpy(np.ascontiguousarray(operator @ V.numpy()))
        return _Operator(product, shape[0], wide, torch.device("cpu"), getattr(operator, "nnz", 16 * shape[0]), True)
    if not callable(operator):
        kind = type(operator).__name__
        raise TypeError(f"{name}: X must be a matrix, a sparse matrix, a linear operator or a function of V [size, b], got {kind}")
    if size is None:
        raise TypeError(f"{name}: a callable needs size=, the dimension of its vectors")
    size = check_count(name, "size", size)
    dtype = torch.float64 if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"{name}: dtype must be a real or complex floating point torch.dtype, got {dtype}")
    if device is None:
        parameters = operator.parameters() if isinstance(operator, torch.nn.Module) else iter(())
        device = next((parameter.device for parameter in parameters), torch.device("cpu"))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return _Operator(lambda V: operator(V.to(dtype)), size, wide, torch.device(device), 16.0 * size, False)  # type: ignore[operator]


def _with_temperature(name: str, space: _Operator, temperature: Any) -> _Operator:
    tau = check_value(name, "temperature", temperature, *TEMPERATURE)
    if isinstance(tau, Tensor):
        if tau.numel() != 1:
            raise ValueError(f"{name}: temperature of an operator must be one number, got shape {tuple(tau.shape)}")
        tau = tau.reshape(())

    def product(V: Tensor) -> Tensor:
        image = space.product(V)
        if not isinstance(image, Tensor) or image.shape != V.shape:
            got = f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
            raise ValueError(f"{name}: the operator must map V of shape {tuple(V.shape)} to a tensor of that shape, got {got}")
        if image.is_complex() and not V.is_complex():
            raise TypeError(f"{name}: the operator gave complex values for real vectors; pass dtype=torch.complex128")
        if not bool(image.detach().isfinite().all()):
            raise ValueError(f"{name}: the operator gave values that are not finite; a state is left out by a smaller space")
        return image.to(space.dtype) / tau

    return _Operator(product, space.size, space.dtype, space.device, space.cost, space.arrays)


def _check_hermitian(name: str, space: _Operator, generator: torch.Generator | None) -> bool:
    """Whether the operator learns. Raises where ⟨u, Av⟩ ≠ ⟨Au, v⟩ for two random vectors."""
    pair = _normal(space, 2, generator)
    image = space.product(pair)
    learns = image.requires_grad
    image = image.detach()
    cross = pair.mH @ image  # [2, 2], Hermitian as A is
    allowed = 1e-5 * float(image.abs().pow(2).sum().sqrt()) * math.sqrt(space.size)
    if float((cross - cross.mH).abs().max()) > allowed:
        raise ValueError(f"{name}: the operator must be symmetric or Hermitian, but ⟨u, Av⟩ and ⟨Au, v⟩ differ; pass (A + Aᴴ)/2")
    return learns


def _normal(space: _Operator, count: int, generator: torch.Generator | None) -> Tensor:
    """[size, count], uniform in direction."""
    device = space.device if generator is None else generator.device
    return torch.randn(space.size, count, dtype=space.dtype, generator=generator, device=device).to(space.device)


# Eigenvalues -----------------------------------------------------------------------------------------------------------------


def _prefers_eigenvalues(space: _Operator, deflation: int, learns: bool) -> bool:
    """Counts multiplications: d products and 9d³ for eigh, 3d³ where eigenvectors are not needed; 50 steps, which are typical, for
    each vector of the estimate. Those of the estimate wait for memory; one takes about as long as 16 of eigh's. On the chain of
    examples/ising_chain.py the two meet between 2¹⁰ and 2¹¹ states.
    """
    d, steps = space.size, 50
    vectors = 2 * deflation + PILOT
    return d * ((9 if learns else 3) * d * d + space.cost) <= 16 * vectors * steps * (space.cost + 4 * steps * d)


def _exact(space: _Operator) -> TraceEstimate:
    X = space.product(torch.eye(space.size, dtype=space.dtype, device=space.device))
    value = log_trace_exp((X + X.mH) / 2)
    rounding = space.size * torch.finfo(torch.float64).eps * (torch.linalg.matrix_norm(X.detach()) + 1)
    return _result(space, value, torch.zeros_like(value), rounding, rounding, space.size, "deterministic")


def _result(
    space: _Operator, value: Tensor, error: Tensor, below: Tensor, above: Tensor, products: int, certificate: str
) -> TraceEstimate:
    numbers = (value, error, value.detach() - below, value.detach() + above)
    kind = (n.detach().cpu().numpy()[()] for n in numbers) if space.arrays else iter(numbers)
    return TraceEstimate(*kind, products=products, certificate=certificate)


# Lanczos quadrature ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Quadrature:
    """qᴴ exp(A) q for b columns q, and e^{−log_scale} exp(A·power) q, whose entries do not overflow."""

    log_value: Tensor  # [b]
    image: Tensor  # [d, b]; without columns if no power was asked for
    log_scale: Tensor  # [b]
    top: Tensor  # the largest θ, at most the largest eigenvalue
    radius: float  # the largest |θ|
    change: float  # nats by which the last steps moved the sum
    products: int


def _quadrature(
    product: Product, start: Tensor, max_steps: int, enough: float, floor: Tensor, power: float | None = None
) -> _Quadrature:
    """Lanczos with full orthogonalisation, on all columns of `start` [d, b] at once, until log(e^floor + Σ_q qᴴ exp(A) q) moves by
    at most `enough` nats.
    """
    d, b = start.shape
    real = torch.float64
    norm = start.norm(dim=0)
    log_norm = norm.log()
    limit = min(max_steps, d)
    basis = start.new_zeros(b, min(limit, 32), d)  # [b, m, d]
    basis[:, 0] = (start / norm.masked_fill(norm == 0, 1.0)).mT
    tridiagonal = torch.zeros(b, limit, limit, dtype=real, device=start.device)
    check, previous, scale = min(limit, 8), None, torch.zeros(b, dtype=real, device=start.device)
    ended = torch.zeros(b, dtype=torch.bool, device=start.device)
    m = 0
    while True:
        m += 1
        vector = basis[:, m - 1]
        image = product(vector.mT.contiguous()).mT.unsqueeze(-1)  # [b, d, 1]
        span = basis[:, :m]
        alpha = (vector.conj() * image.squeeze(-1)).sum(-1).real
        # A column that has ended goes on with weight 0, and with a node inside its own spectrum.
        alpha = torch.where(ended, tridiagonal[:, 0, 0], alpha)
        for _ in range(2):  # once leaves what rounding left; twice is enough (Kahan & Parlett)
            image = image - span.mT @ (span.conj() @ image)
        image = image.squeeze(-1)
        beta = image.norm(dim=-1)
        tridiagonal[:, m - 1, m - 1] = alpha
        scale = torch.maximum(scale, alpha.abs() + beta)
        ended = ended | (beta <= 16 * torch.finfo(real).eps * scale)  # the Krylov space is exhausted
        beta = beta.masked_fill(ended, 0.0)
        if m in (check, limit):
            nodes, vectors = torch.linalg.eigh(tridiagonal[:, :m, :m])
            first = vectors[:, 0]  # [b, m]: components of the starting vector
            log_value = 2 * log_norm + torch.logsumexp(nodes + 2 * first.abs().log(), -1)
            total = torch.logaddexp(floor, torch.logsumexp(log_value, 0))
            exhausted = m == d or bool(ended.all())
            change = 0.0 if exhausted else math.inf if previous is None else float((total - previous).abs())
            if m == limit or change <= enough:
                break
            previous, check = total, min(limit, m + max(4, m // 4))
        if m == basis.shape[1]:
            basis = torch.cat([basis, basis.new_zeros(b, min(m, limit - m), d)], 1)
        basis[:, m] = image / beta.masked_fill(beta == 0, math.inf).unsqueeze(-1)
        tridiagonal[:, m, m - 1] = tridiagonal[:, m - 1, m] = beta
    top = nodes.amax(-1, keepdim=True)
    columns = start[:, :0]
    if power is not None:
        coefficients = (vectors * ((power * (nodes - top)).exp() * first).unsqueeze(-2)).sum(-1)  # exp(power·(T − top)) e₁
        columns = (basis[:, :m].mT @ coefficients.to(start.dtype).unsqueeze(-1)).squeeze(-1).mT
        top_scale = log_norm + power * top.squeeze(-1)
    else:
        top_scale = log_norm[:0]
    return _Quadrature(log_value, columns, top_scale, nodes.max(), float(nodes.abs().max()), change, m * b)


def _in_blocks(
    product: Product, start: Tensor, max_steps: int, enough: float, floor: Tensor, power: float | None = None
) -> _Quadrature:
    """`_quadrature` on as many columns at a time as BASIS_ELEMENTS allow at 64 steps."""
    width = max(1, BASIS_ELEMENTS // (64 * start.shape[0]))
    parts = [_quadrature(product, block, max_steps, enough, floor, power) for block in start.split(width, 1)]
    return _joined(parts)


def _joined(parts: list[_Quadrature]) -> _Quadrature:
    return _Quadrature(
        torch.cat([part.log_value for part in parts]),
        torch.cat([part.image for part in parts], 1),
        torch.cat([part.log_scale for part in parts]),
        torch.stack([part.top for part in parts]).max(),
        max(part.radius for part in parts),
        max(part.change for part in parts),
        sum(part.products for part in parts),
    )


# The estimate ----------------------------------------------------------------------------------------------------------------


def _estimate(
    space: _Operator,
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
    runs: list[_Quadrature] = []  # whose vectors make the estimate
    products = 2  # for the check
    with torch.no_grad():
        if deflation:
            sketch = _in_blocks(space.product, _normal(space, deflation, generator), max_steps, enough, log_total, 1.0)
            basis = torch.linalg.qr(sketch.image / sketch.image.norm(dim=0)).Q
            runs.append(_in_blocks(space.product, basis, max_steps, enough, log_total, half))
            log_total = torch.logsumexp(runs[0].log_value, 0)
            products += sketch.products
        deflated = log_total

        def probe(count: int) -> Tensor:
            """The samples' logarithms."""
            vectors = _normal(space, count, generator)
            for _ in range(2):  # so that they are orthogonal to Q to rounding
                vectors = vectors - basis @ (basis.mH @ vectors)
            vectors = vectors * (math.sqrt(space.size - deflation) / vectors.norm(dim=0))
            runs.append(_in_blocks(space.product, vectors, max_steps, enough, deflated, half))
            return runs[-1].log_value

        samples, half_width, error = 0, torch.zeros_like(deflated), torch.zeros_like(deflated)
        if deflation < space.size:
            pilot = probe(PILOT)
            shift = torch.maximum(deflated, pilot.max())
            known, rest = (deflated - shift).exp(), (pilot - shift).exp()
            spread = rest.std()
            widest = (known + rest.mean()) * -math.expm1(-tolerance)
            samples = _enough_probes(float(spread / widest), confidence, max_probes)
            if samples > PILOT:
                rest = torch.cat([rest, (probe(samples - PILOT) - shift).exp()])
            total = known + rest.mean()
            log_total = shift + total.log()
            error = rest.std() / math.sqrt(samples) / total
            # The pilot's spread is Stein's; either may have missed the few large probes.
            half_width = _largest_quantile(confidence, samples) * torch.maximum(spread, rest.std()) / math.sqrt(samples) / total
        every = _joined(runs)
        slack = every.change + torch.finfo(torch.float64).eps * (64 * (every.radius + 1) + space.size)
        # What is summed without sampling, and the largest eigenvalue, lie below the truth.
        lower = torch.stack([log_total + (1 - half_width).clamp_min(0.0).log(), deflated, every.top]).max()
    sampled = "asymptotic" if samples else "deterministic"
    if samples and math.isinf(_largest_quantile(confidence, samples)):
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


def _enough_probes(spread: float, confidence: float, most: int) -> int:
    """How many make an interval of half width 1 from probes of this spread."""
    count = PILOT
    while count < most:
        needed = math.ceil(min((_largest_quantile(confidence, count) * spread) ** 2, most))
        if needed <= count:
            break
        count = min(needed, 2 * _floor_power(count))  # beyond, fewer suffice
    return count


def _floor_power(count: int) -> int:
    return 1 << (count.bit_length() - 1)


def _largest_quantile(confidence: float, count: int) -> float:
    """A t that suffices for `count` probes, Student's or that of χ²; +∞ where draws cannot tell it."""
    size = _floor_power(count)
    while size >= PILOT // 2 and (1 - confidence) * (CHI_SQUARES // size) < TAIL:
        size //= 2  # of fewer probes more means are drawn
    if size < PILOT // 2:
        return math.inf
    return max(_quantile_of_squares(confidence, size), student_quantile(confidence, PILOT - 1))


@cache
def _quantile_of_squares(confidence: float, size: int) -> float:
    """The t with P(|T| ≤ t) = confidence for the t statistic T of `size` squares of normal numbers, from draws."""
    draws = CHI_SQUARES // size
    generator = torch.Generator("cpu").manual_seed(0)
    squares = torch.randn(draws, size, dtype=torch.float64, generator=generator, device="cpu").square_()
    statistics = (squares.mean(1) - 1).abs() / squares.std(1) * math.sqrt(size)
    return float(statistics.kthvalue(math.ceil(confidence * draws)).values)


def student_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| ≤ t) = confidence for Student's T with an even number ν of degrees of freedom.

    With t = √ν tan θ that probability is sin θ Σ_{j<ν/2} c_j cos^{2j} θ, c_0 = 1, c_j = c_{j−1} (2j − 1)/(2j), which rises with θ.
    """

    def probability(theta: float) -> float:
        term, total = 1.0, 0.0
        for j in range(1, freedom // 2 + 1):
            total += term
            term *= (2 * j - 1) / (2 * j) * math.cos(theta) ** 2
        return math.sin(theta) * total

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(high)


def _with_gradient(space: _Operator, run: _Quadrature, weights: Tensor, value: Tensor) -> Tensor:
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
