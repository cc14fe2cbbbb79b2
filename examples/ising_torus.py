r"""The Ising model on a torus, exactly: a product of transfer matrices in log space, and its derivatives.

    H = −Σ_⟨ij⟩ σ_i σ_j        Z = Σ_σ exp(−βH) = tr Tᴹ        log T(s, s′) = β (½ E(s) + ⟨s, s′⟩ + ½ E(s′))

s and s′ are rows of L spins, of which there are 2ᴸ, and E(s) = Σ_i s_i s_{i+1}. M of them follow one another on the torus, so that
log Z takes log₂ M products by logmatmulexp. Energy and heat capacity a spin are derivatives: u = −∂ log Z/∂β / LM and
C = β² ∂² log Z/∂β² / LM.

The truth is known: Onsager (1944) solved the infinite lattice, which is critical at β_c = ½ log(1 + √2). There a long torus of
width L has log Z/LM − onsager = πc/(6L²) + …, with the central charge c = ½ (Blöte, Cardy & Nightingale 1986). What else a finite
torus differs by is its size: 8 × 256 spins have a heat capacity 4 % above the infinite lattice's at β = 0.3.

    python examples/ising_torus.py
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

CRITICAL = 0.5 * math.log1p(math.sqrt(2))


def spins(count: int) -> Tensor:
    """All rows of so many spins, [2^count, count] of ±1."""
    return 1.0 - 2.0 * ((torch.arange(2**count)[:, None] >> torch.arange(count)) & 1).double()


def log_transfer(width: int, beta: Tensor) -> Tensor:
    """log T [2ᴸ, 2ᴸ] of rows on a ring of L > 2 spins."""
    rows = spins(width)
    within = (rows * rows.roll(1, -1)).sum(-1)
    return beta * ((within[:, None] + within) / 2 + rows @ rows.T)


def log_partition(width: int, doublings: int, beta: Tensor) -> Tensor:
    """log Z of a torus of `width` × 2^doublings spins."""
    log_t = log_transfer(width, beta)
    for _ in range(doublings):
        log_t = sm.logmatmulexp(log_t, log_t)
    return sm.logsumexp(log_t.diagonal())


def per_spin(width: int, doublings: int, beta: float) -> tuple[float, float, float]:
    """(log Z, energy, heat capacity), each a spin."""
    b = torch.tensor(beta, dtype=torch.float64, requires_grad=True)
    value = log_partition(width, doublings, b) / (width * 2**doublings)
    (first,) = torch.autograd.grad(value, b, create_graph=True)
    (second,) = torch.autograd.grad(first, b)
    return value.item(), -first.item(), beta**2 * second.item()


def onsager(beta: float) -> tuple[float, float, float]:
    """The same three of the infinite lattice; C is +∞ at β_c."""
    import scipy.integrate
    import scipy.special

    s, c, t = math.sinh(2 * beta), math.cosh(2 * beta), math.tanh(2 * beta)
    inner = lambda theta: math.log(c * c + math.sqrt(max(s**4 + 1 - 2 * s * s * math.cos(2 * theta), 0.0)))
    value = 0.5 * math.log(2) + scipy.integrate.quad(inner, 0, math.pi, points=[0.0, math.pi], epsabs=1e-13)[0] / (2 * math.pi)
    rest = (2 * t * t - 1) ** 2  # 1 − k², without what cancels near β_c
    first, second = scipy.special.ellipkm1(rest), scipy.special.ellipe(1 - rest)
    energy = -(1 + 2 / math.pi * (2 * t * t - 1) * first) / t if rest else -1 / t
    heat = first - second - (1 - t * t) * (math.pi / 2 + (2 * t * t - 1) * first) if rest else math.inf
    return value, energy, 4 / math.pi * (beta / t) ** 2 * heat


def main(
    widths: Annotated[tuple[int, ...], count("Of tori; may be given several times. Memory grows as 4^L.", least=2)] = (4, 6, 8),
    at: Annotated[int, count("How many temperatures the curves have that it returns.", least=2)] = 35,
) -> dict[str, Any]:
    """Prints the tables; returns what they show, and curves of energy and heat capacity."""
    print("β = 0.3, far from critical   log Z a spin   less onsager         energy   heat capacity")
    far = {f"{width} × {2**width}": per_spin(width, width, 0.3) for width in widths} | {"onsager": onsager(0.3)}
    for name, (value, energy, heat) in far.items():
        print(f"{name:27} {value:14.10f} {value - far['onsager'][0]:14.1e} {energy:14.8f} {heat:15.8f}")
    print(f"\nβ_c = {CRITICAL:.6f}    (log Z a spin − onsager) 6L²/π")
    charges = {}
    for width in (*widths, 10):
        with torch.no_grad():
            value = log_partition(width, 10, torch.tensor(CRITICAL, dtype=torch.float64)).item() / (width * 2**10)
        charges[width] = (value - onsager(CRITICAL)[0]) * 6 * width**2 / math.pi
        print(f"{width:3} × 1024 {charges[width]:24.6f}")
    print("the central charge      0.500000")
    curves: dict[str, Any] = {}  # (β, energy, heat capacity)
    for width in widths:
        curves[f"{width} × {2**width}"] = [(beta, *per_spin(width, width, beta)[1:]) for beta in np.linspace(0.2, 0.7, at).tolist()]
    curves["onsager"] = [(beta, *onsager(beta)[1:]) for beta in np.linspace(0.2, 0.7, 251).tolist()]
    return {"far": far, "charges": charges, "curves": curves}


if __name__ == "__main__":
    run(main, __doc__)
