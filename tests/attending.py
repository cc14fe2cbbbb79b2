"""Requests of attention that learn, and how near a kernel's results must be to those of the definition."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softmaxima.attn.arguments import Request


def learning(request: Request, dtype: torch.dtype | None = None) -> tuple[Request, list[Tensor]]:
    """(the request of tensors that learn, those that a kernel has gradients of: q, k, v, and where they are tensors τ and β)."""
    own = {name: getattr(request, name) for name in ("query", "key", "value")}
    own = {name: x.detach().to(dtype or x.dtype).requires_grad_() for name, x in own.items()}
    tau, params = request.temperature, dict(request.params)
    if isinstance(tau, Tensor) and request.bias is None and request.sink is None:
        own["temperature"] = tau.detach().clone().requires_grad_()
    inputs = [*own.values()]
    if isinstance(params.get("beta"), Tensor):
        params["beta"] = params["beta"].detach().clone().requires_grad_()
        inputs.append(params["beta"])
    return replace(request, **own, params=params), inputs


def agree(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Within this much of the largest value, and infinite where that is."""
    found, expected = found.detach().double(), expected.detach().double()
    finite = expected.isfinite()
    torch.testing.assert_close(found[~finite], expected[~finite], rtol=0, atol=0, msg=what)
    size = max(1.0, float(expected[finite].abs().max())) if finite.any() else 1.0
    off = float((found - expected)[finite].abs().max()) if finite.any() else 0.0
    assert off <= tolerance * size, (what, off, size)
