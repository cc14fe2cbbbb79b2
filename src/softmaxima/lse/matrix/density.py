r"""log tr exp(X) = LSE(λ), λ the eigenvalues of a symmetric or Hermitian X = U diag(λ) Uᴴ, and its derivatives.

    ∇ log tr exp(X) = ρ = exp(X)/tr exp(X) = U diag(p) Uᴴ,  p = softmax(λ)                (the density matrix: ρ ⪰ 0, tr ρ = 1)
    dρ(T) = U (Φ ⊙ UᴴTU) Uᴴ − ρ tr(ρT),   Φ_ij = (p_i − p_j)/(λ_i − λ_j),  Φ_ii = p_i         (Daleckii & Krein 1965)

Neither formula divides by a gap between eigenvalues that may be zero: Φ_ij = max(p_i, p_j) · (1 − e^{−t})/t with t = |λ_i − λ_j|,
so degenerate eigenvalues, where the eigenvectors have no derivative, are no special case.
"""
# ruff: noqa: N803, N806 (matrices are capitals)

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.differentiable import batch_first, differentiable, forward_mode, primal
from softmaxima.base.rows import normalise_exp
from softmaxima.base.tracing import is_recorded, may_differentiate, sizes, transforming
from softmaxima.lse.logsumexp import logsumexp


def log_trace_exp(X: Tensor) -> Tensor:
    """log tr exp(X) of Hermitian X [..., d, d] in double → [...], differentiable twice."""
    if sizes(X)[-1] == 0:
        return X.real.sum((-2, -1)) - math.inf
    finite, side, undefined = uncouple(X.detach())
    ends = side.sort(-1).values  # which eigenvalues are −∞, finite, +∞
    infinities = (ends * math.inf).nan_to_num(0.0, math.inf, -math.inf).masked_fill(undefined.unsqueeze(-1), math.nan)
    if not (transforming() or is_recorded(X) or may_differentiate((X,))):
        return logsumexp(torch.linalg.eigvalsh(finite) + infinities)
    eigenvalues, vectors = torch.linalg.eigh(finite)
    eigenvalues = eigenvalues + infinities
    vectors = vectors.masked_fill(side.unsqueeze(-1) != ends.unsqueeze(-2), 0.0)  # exactly, not to rounding
    return _value(X, logsumexp(eigenvalues), eigenvalues, vectors)


def uncouple(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(a finite X, side [..., d], undefined [...]). A state of −∞ or +∞ on the diagonal, side −1 or +1, has no couplings any more.

    Its number is put beyond the others' by more than Gershgorin's radius, so that its eigenvalue comes first or last. Matrices with
    other infinities or NaN are undefined.
    """
    energy = X.diagonal(dim1=-2, dim2=-1).real
    side = (energy == math.inf).to(energy.dtype) - (energy == -math.inf).to(energy.dtype)
    apart = side != 0
    undefined = (~X.isfinite() & ~torch.diag_embed(apart)).flatten(-2).any(-1)
    finite = X.masked_fill(apart.unsqueeze(-1) | apart.unsqueeze(-2) | undefined[..., None, None], 0.0)
    beyond = 2 * finite.abs().sum(-1).amax(-1, keepdim=True) + 1
    return finite + torch.diag_embed(side * beyond), side, undefined


def _rotate(vectors: Tensor, inner: Tensor) -> Tensor:
    return vectors @ inner @ vectors.mH


class _LogTraceExp(torch.autograd.Function):
    """The value, with the density matrix as its gradient. λ and U are constants: they belong to X, and are not computed twice."""

    @staticmethod
    def forward(X: Tensor, value: Tensor, eigenvalues: Tensor, vectors: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def fake(X: Tensor, value: Tensor, eigenvalues: Tensor, vectors: Tensor) -> Tensor:
        return value.new_empty(value.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        X, _, eigenvalues, vectors = inputs
        ctx.save_for_backward(X, eigenvalues, vectors)
        ctx.save_for_forward(X, eigenvalues, vectors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        return g[..., None, None] * _density(*ctx.saved_tensors), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        with forward_mode():
            density: Tensor = _density(*(primal(t) for t in ctx.saved_tensors))
            return _inner(density, tangents[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return _value(*_batched(info, in_dims, args)), 0


class _Density(torch.autograd.Function):
    """ρ = U diag(p) Uᴴ."""

    @staticmethod
    def forward(X: Tensor, eigenvalues: Tensor, vectors: Tensor) -> Tensor:
        return _mixture(eigenvalues, vectors)

    @staticmethod
    def fake(X: Tensor, eigenvalues: Tensor, vectors: Tensor) -> Tensor:
        return X.new_empty(X.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _density_derivative(*grad_outputs, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        with forward_mode():
            return _density_derivative(tangents[0], *(primal(t) for t in ctx.saved_tensors))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return _density(*_batched(info, in_dims, args)), 0


class _DensityDerivative(torch.autograd.Function):
    """dρ(T), linear and self-adjoint in T. Its own derivative by X, the third of the value, raises: nobody shall get a zero."""

    @staticmethod
    def forward(T: Tensor, X: Tensor, eigenvalues: Tensor, vectors: Tensor) -> Tensor:
        p = normalise_exp(eigenvalues)
        row, column = eigenvalues.unsqueeze(-1), eigenvalues.unsqueeze(-2)
        t = torch.where(row == column, 0.0, (row - column).abs())  # also between equal infinities
        mean = torch.where(t == 0, 1.0, -torch.expm1(-t) / t)  # (1 − e^{−t})/t
        phi = torch.maximum(p.unsqueeze(-1), p.unsqueeze(-2)) * mean
        density = _mixture(eigenvalues, vectors)
        trace = (density.conj() * T).sum((-2, -1))[..., None, None]
        return _rotate(vectors, phi * (vectors.mH @ T @ vectors)) - density * trace

    @staticmethod
    def fake(T: Tensor, X: Tensor, eigenvalues: Tensor, vectors: Tensor) -> Tensor:
        return X.new_empty(X.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, X, eigenvalues, vectors = inputs
        ctx.save_for_backward(X, eigenvalues, vectors)
        ctx.save_for_forward(X, eigenvalues, vectors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if ctx.needs_input_grad[1]:
            raise NotImplementedError("matrix_logsumexp: third derivatives are not implemented; two are")
        return _density_derivative(*grad_outputs, *ctx.saved_tensors), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if tangents[1] is not None:
            raise NotImplementedError("matrix_logsumexp: third derivatives are not implemented; two are")
        with forward_mode():
            return _density_derivative(tangents[0], *(primal(t) for t in ctx.saved_tensors))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return _density_derivative(*_batched(info, in_dims, args)), 0


def _batched(info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> list[Tensor]:
    return [t.expand(info.batch_size, *t.shape[1:]) for t in batch_first(in_dims, args)]


def _mixture(eigenvalues: Tensor, vectors: Tensor) -> Tensor:
    p = normalise_exp(eigenvalues)
    return (vectors * p.unsqueeze(-2)) @ vectors.mH


def _inner(density: Tensor, tangent: Tensor) -> Tensor:
    """Re tr(ρᴴT)."""
    product = (density.conj() * tangent).sum((-2, -1))
    return product.real if product.is_complex() else product


_value = differentiable("log_trace_exp", _LogTraceExp)
_density = differentiable("density", _Density)
_density_derivative = differentiable("density_derivative", _DensityDerivative)
