r"""The partition function of a Boltzmann machine by annealed importance sampling, beside the sum over all 2¹⁶ states.

    Z = Σ_{v,h} exp(⟨b, v⟩ + ⟨c, h⟩ + ⟨v, W h⟩) = Σ_v f(v; 1)        log f(v; β) = β⟨b, v⟩ + Σ_j softplus(β(c + Wᵀv)_j)

A chain starts at a random v, where β = 0, and takes a Gibbs step at each β on the way to 1. Its weight (Neal 2001)

    log w = Σ_k log f(v_k; β_{k+1}) − log f(v_k; β_k)           E w = Z / 2^{units},  however few the steps are

so log Ẑ = units·log 2 + log_mean_exp(log w), and exp(log Ẑ) is unbiased. What suffers from few steps is the spread of w: the
effective number of chains, (Σw)²/Σw², and with it the interval log Ẑ ± 1.96 √(var w / chains) / mean w, which is asymptotic.

    python examples/partition_function.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

LOG_2 = 0.6931471805599453


@dataclass(frozen=True)
class Machine:
    """W [visible, hidden], b [visible], c [hidden]."""

    weights: Tensor
    visible: Tensor
    hidden: Tensor

    def log_f(self, v: Tensor, beta: float) -> Tensor:
        """log Σ_h exp(−β E(v, h)) of v [..., visible]."""
        return beta * (v @ self.visible) + sm.softplus(beta * (self.hidden + v @ self.weights)).sum(-1)

    def gibbs(self, v: Tensor, beta: float, generator: torch.Generator) -> Tensor:
        """Another v, given hidden units that are given v."""
        draw = lambda logits: torch.bernoulli(torch.sigmoid(beta * logits), generator=generator)
        h = draw(self.hidden + v @ self.weights)
        return draw(self.visible + h @ self.weights.T)


def machine(visible: int = 16, hidden: int = 12, scale: float = 1.0, seed: int = 0) -> Machine:
    """Normal weights of this scale over √visible/4, and biases that favour units that are off."""
    generator = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    return Machine(scale * random(visible, hidden) * 4 / visible**0.5, random(visible) - 1, random(hidden) - 1)


def exact_log_partition(model: Machine, block: int = 2**13) -> float:
    """The sum over all v, a block at a time."""
    units = len(model.visible)

    def blocks() -> Iterator[Tensor]:
        for start in range(0, 2**units, block):
            states = torch.arange(start, min(start + block, 2**units))
            yield model.log_f(((states[:, None] >> torch.arange(units)) & 1).double(), 1.0)

    return float(sm.streaming_logsumexp(blocks()))


def log_weights(model: Machine, steps: int, chains: int, generator: torch.Generator) -> Tensor:
    """log w [chains], of that many values of β above 0."""
    v = torch.randint(2, (chains, len(model.visible)), generator=generator).double()
    log_w, before = torch.zeros(chains, dtype=torch.float64), 0.0
    for beta in torch.linspace(0, 1, steps + 1).tolist()[1:]:
        v = model.gibbs(v, before, generator) if before else v
        log_w += model.log_f(v, beta) - model.log_f(v, before)
        before = beta
    return log_w


@dataclass(frozen=True)
class Found:
    """log Ẑ with its interval, and how many chains the weights are worth; an entry each run."""

    value: Tensor
    lower: Tensor
    upper: Tensor
    effective: Tensor


def estimate(model: Machine, log_w: Tensor) -> Found:
    """Of log w [..., chains]."""
    chains = log_w.shape[-1]
    if chains < 2:
        raise ValueError(f"estimate: an interval needs at least 2 chains, got {chains}; sm.log_mean_exp gives the estimate alone")
    base = (len(model.visible) + len(model.hidden)) * LOG_2
    value = base + sm.log_mean_exp(log_w)
    effective = (2 * sm.logsumexp(log_w) - sm.logsumexp(log_w, temperature=0.5)).exp()  # LSE(2 log w) is that at τ = ½
    error = 1.96 * ((chains / effective - 1) / (chains - 1)).sqrt()  # of Ẑ, as a share of it
    return Found(value, value + torch.log1p(-error.clamp_max(1)), value + torch.log1p(error), effective)


def main(
    chains: Annotated[int, count("Of a run.", least=2)] = 100,
    repeats: Annotated[int, count("How many runs.", least=2)] = 300,
) -> dict[str, Any]:
    """Prints the table; returns its rows, and log Ẑ of each run."""
    model = machine()
    exact = exact_log_partition(model)
    generator = torch.Generator().manual_seed(1)
    print(
        f"{len(model.visible)} visible and {len(model.hidden)} hidden units: log Z = {exact:.6f}; {repeats} runs of {chains} chains"
    )
    print("steps  effective chains  mean Ẑ/Z            mean log Ẑ − log Z  scatter of log Ẑ  interval holds log Z")
    rows: list[dict[str, Any]] = []
    for steps in (1, 3, 10, 30, 100):
        log_w = log_weights(model, steps, chains * repeats, generator).view(repeats, chains)
        found = estimate(model, log_w)
        ratio = (found.value - exact).exp()
        row: dict[str, Any] = {
            "steps": steps,
            "effective": float(found.effective.mean()),
            "ratio": float(ratio.mean()),
            "error": float(ratio.std()) / repeats**0.5,
            "bias": float((found.value - exact).mean()),
            "scatter": float(found.value.std()),
            "coverage": float(((found.lower <= exact) & (exact <= found.upper)).double().mean()),
        }
        rows.append(row | {"values": found.value.tolist()})
        line = f"{steps:5d} {row['effective']:17.1f} {row['ratio']:9.4f} ± {row['error']:.4f} {row['bias']:19.4f}"
        print(f"{line} {row['scatter']:17.4f} {row['coverage']:21.3f}")
    return {"exact": exact, "chains": chains, "repeats": repeats, "rows": rows}


if __name__ == "__main__":
    run(main, __doc__)
