"""Hermitian operators: what a matrix, a sparse one, a linear operator or a function is as one, checked."""
# ruff: noqa: N803 (matrices are capitals)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import check_value
from softmaxima.base.numbers import TEMPERATURE, check_count

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Operator:
    """A Hermitian operator on [size, b] tensors. `product` carries gradients where the operator has parameters that learn."""

    product: Product
    size: int
    dtype: torch.dtype  # float64 or complex128, of the vectors
    device: torch.device
    cost: float  # of one product, in multiplications
    arrays: bool  # whether results are NumPy's


def as_operator(name: str, operator: Any, size: int | None, dtype: Any, device: Any) -> Operator:
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
        return Operator(lambda V: wide @ V, shape[0], wide.dtype, operator.device, operator._nnz(), False)  # type: ignore[index]
    if shape is not None and hasattr(operator, "__matmul__"):
        kind = np.dtype(operator.dtype if operator.dtype is not None else np.float64).kind
        if kind not in "fciu":
            raise TypeError(f"{name}: X must be of numbers, got NumPy dtype {operator.dtype}")
        wide = torch.complex128 if kind == "c" else torch.float64
        product = lambda V: torch.from_numpy(np.ascontiguousarray(operator @ V.numpy()))
        return Operator(product, shape[0], wide, torch.device("cpu"), getattr(operator, "nnz", 16 * shape[0]), True)
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
    return Operator(lambda V: operator(V.to(dtype)), size, wide, torch.device(device), 16.0 * size, False)  # type: ignore[operator]


def with_temperature(name: str, space: Operator, temperature: Any) -> Operator:
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

    return Operator(product, space.size, space.dtype, space.device, space.cost, space.arrays)


def check_hermitian(name: str, space: Operator, generator: torch.Generator | None) -> bool:
    """Whether the operator learns. Raises where ⟨u, Av⟩ ≠ ⟨Au, v⟩ for two random vectors."""
    pair = normal(space, 2, generator)
    image = space.product(pair)
    learns = image.requires_grad
    image = image.detach()
    cross = pair.mH @ image  # [2, 2], Hermitian as A is
    allowed = 1e-5 * float(image.abs().pow(2).sum().sqrt()) * math.sqrt(space.size)
    if float((cross - cross.mH).abs().max()) > allowed:
        raise ValueError(f"{name}: the operator must be symmetric or Hermitian, but ⟨u, Av⟩ and ⟨Au, v⟩ differ; pass (A + Aᴴ)/2")
    return learns


def normal(space: Operator, count: int, generator: torch.Generator | None) -> Tensor:
    """[size, count], uniform in direction."""
    device = space.device if generator is None else generator.device
    return torch.randn(space.size, count, dtype=space.dtype, generator=generator, device=device).to(space.device)
