"""Cosines of vectors of any length: norms in the dtype that computes, and products that no autocast rounds."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.tracing import is_concrete


def unit(x: Tensor) -> Tensor:
    """x/‖x‖ along the last axis, of any length but 0, which stays 0 with the slope of x itself."""
    numbers, norm = torch.finfo(x.dtype), torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    least = numbers.tiny**0.5 / numbers.eps**0.5  # whose square has all of its digits
    if is_concrete(norm) and bool(((norm > least) & (norm < 1 / least)).all()):
        return x / norm
    largest = x.detach().abs().amax(-1, keepdim=True)
    has_length = largest > 0
    near_one = x / largest.where(has_length, 1.0)
    norm = torch.linalg.vector_norm(near_one.where(has_length, 1.0), dim=-1, keepdim=True)  # which has no slope at 0
    return torch.where(has_length, near_one / norm, near_one)


def cosines(x: Tensor, vectors: Tensor) -> Tensor:
    """[…, classes] of x […, features] and vectors [classes, features], in the dtype that computes x."""
    dtype = COMPUTE_DTYPE[x.dtype]
    with unrounded(x):
        return torch.matmul(unit(x.to(dtype)), unit(vectors.to(COMPUTE_DTYPE[vectors.dtype])).to(dtype).T)


def unrounded(x: Tensor) -> AbstractContextManager[Any]:
    """Products of the dtype that x has, also under autocast: log Q is larger than what bfloat16 tells apart, and x may be −∞."""
    return contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
