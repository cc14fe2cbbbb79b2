"""matrix_logsumexp: log tr exp(X), the log partition function of a quantum system, of matrices and of operators."""
# ruff: noqa: N803 (matrices are capitals)

from __future__ import annotations

import inspect
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_tensor, check_temperature, like_input
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public, unknown_argument
from softmaxima.base.randomness import Randomness
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.lse.matrix.density import log_trace_exp
from softmaxima.lse.matrix.lanczos import TraceEstimate, estimate_log_trace

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
# The dtype of the eigenvalues: their error, eps·‖X‖, is absolute in the exponent, so narrower dtypes are solved in double.
WIDE = {
    torch.float64: torch.float64,
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex128: torch.complex128,
    torch.complex64: torch.complex128,
}


@overload
def matrix_logsumexp(X: Array, *, temperature: float | Array = 1.0) -> Array: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def matrix_logsumexp(
    X: Any,
    *,
    temperature: float | Tensor = 1.0,
    size: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    method: str = "auto",
    tolerance: float = 0.01,
    confidence: float = 0.95,
    deflation: int = 16,
    max_probes: int = 1000,
    max_steps: int = 500,
    generator: Randomness = None,
) -> TraceEstimate: ...
@public
def matrix_logsumexp(X: Any, *, temperature: Any = 1.0, **options: Any) -> Any:
    """The logarithm of the trace of a matrix exponential, `log tr exp(X/τ)`, in nats: a log partition function.

    It is convex, `λ_max ≤ log tr exp(X) ≤ λ_max + log d`, and 1-Lipschitz in the spectral norm.

    **Matrices.** X [..., d, d], a tensor or an array, symmetric or Hermitian: exact, by `torch.linalg.eigh` in double.
    Returns X's array kind and real dtype, [...]. The gradient is the density matrix exp(X)/tr exp(X), right for
    degenerate eigenvalues too; second derivatives and forward mode as well, third derivatives raise. −∞ on the diagonal leaves
    a state out, with its couplings: the gradient there is 0. +∞ on the diagonal gives +∞, with a gradient of NaN. Any
    other infinity and NaN make that matrix NaN. Cost: O(d³) a matrix.

    **Operators.** X is a SciPy LinearOperator or sparse matrix, a torch sparse tensor, or any callable (a `torch.nn.Module`, say)
    that takes V [size, b] and returns XV. Returns a `TraceEstimate`: exact by eigh if that is cheaper, and otherwise by
    deflated stochastic Lanczos quadrature, with an interval. Gradients of `.value` go to whatever the operator is made of that
    requires grad; of the estimate, first derivatives only.

    Args:
        temperature: τ > 0; for matrices a number or a tensor that broadcasts against X with size 1 along its last two
            axes, for operators a number or a tensor of one element.
        size, dtype, device: of the space that a callable works on; other operators know theirs.
        method: "eigh", "lanczos", or "auto" for the cheaper by a count of operations.
        tolerance: half the width, in nats, that the interval shall have, about; a pilot says how many probes, at most
            `max_probes`, it takes.
        confidence: that the interval holds the truth.
        deflation: how many directions of the largest eigenvalues are summed without sampling.
        max_steps: the most Lanczos steps a vector; if they do not suffice, the certificate is "none".
        generator: of the random probes: torch's, NumPy's or a seed; None: torch's default one.

    Raises:
        TypeError or ValueError, before any work, for anything else; ValueError for a matrix or operator that is not Hermitian.

    Cost of an estimate: `products` times X·v, and O(size·m²) for each probe of m steps. Source: Ubaru, Chen & Saad (2017) for the
    quadrature; Meyer, Musco, Musco & Woodruff (2021), arXiv:2010.09649, for the deflation; Epperly, Tropp & Webber (2024),
    arXiv:2301.07825, for vectors of one length.

    >>> import numpy as np, softmaxima as sm
    >>> sm.matrix_logsumexp(np.array([[0.0, 1.0], [1.0, 0.0]])).round(4)  # log(e + 1/e)
    np.float64(1.1269)
    """
    name = "matrix_logsumexp"
    known = list(inspect.signature(estimate_log_trace).parameters)[3:]
    for option in options:
        if option not in known:
            raise unknown_argument(name, option, known, "an operator")
    if isinstance(X, np.ndarray) or (isinstance(X, Tensor) and X.layout not in SPARSE):
        if options:
            raise TypeError(
                f"{name}: {', '.join(options)} is for operators, and X is a matrix; for an estimate pass the operator "
                "`lambda V: X @ V` and its size"
            )
        return _of_matrix(name, X, temperature)
    return estimate_log_trace(name, X, temperature, **options)


def _of_matrix(name: str, X: Any, temperature: Any) -> Any:
    matrix = as_tensor(name, "X", X)
    refuse_export(name, "eigenvalues")
    if matrix.dtype not in WIDE:
        raise TypeError(f"{name}: X must be real or complex floating point, got {matrix.dtype}; call X.double() first")
    if matrix.ndim < 2 or sizes(matrix)[-1] != sizes(matrix)[-2]:
        raise ValueError(f"{name}: X must be square, [..., d, d], got shape {tuple(matrix.shape)}")
    tau = check_temperature(name, temperature, matrix, matrix.ndim - 1)
    if isinstance(tau, Tensor) and tau.shape[-2] != 1:
        raise ValueError(f"{name}: temperature must have size 1 along X's last two axes, got shape {tuple(tau.shape)}")
    _check_hermitian(name, matrix)
    wide = matrix.to(WIDE[matrix.dtype])
    hermitian = torch.where(wide.mH == wide, wide, (wide + wide.mH) / 2)  # equal infinities stay as they are
    if isinstance(tau, Tensor) or tau != 1.0:
        infinite = hermitian.isinf()
        hermitian = torch.where(infinite, hermitian, hermitian.masked_fill(infinite, 0.0) / tau)
    value = log_trace_exp(hermitian)
    return like_input(value.to(matrix.real.dtype if matrix.is_complex() else matrix.dtype), X)


def _check_hermitian(name: str, X: Tensor) -> None:
    if not is_concrete(X) or X.numel() == 0:
        return
    with torch.no_grad():
        skew = torch.where(X.mH == X, 0.0, (X - X.mH).abs().double())
        # An X that was computed as a product is Hermitian up to the rounding of d terms.
        allowed = (X.shape[-1] + 10) * torch.finfo(X.dtype).eps * X.abs().double().nan_to_num(0.0, 0.0).amax((-2, -1), keepdim=True)
        if bool((skew > allowed).any()):
            raise ValueError(
                f"{name}: X must be symmetric or Hermitian, but |X − Xᴴ| reaches {float(skew.nan_to_num(0.0).max()):.3g}; "
                "pass (X + X.mH) / 2 if that is meant"
            )
