r"""Codes of classes: bits with a sigmoid each, or one score a class with a softmax.

Three classes of one probability are 01, 10 and 11 in two bits, and 00 is none of them. A network with a sigmoid for each bit,

    P(code) = Π_b σ(x_b)^{c_b} (1 − σ(x_b))^{1 − c_b}            loss = Σ_b softplus((1 − 2c_b) x_b)

says codes that no class has, and 01 is nearer to 11 than to 10, which no class is. One score for each class, with softmax, does
neither.

The truth is known for classes at the corners of a triangle, in normal noise: log P(class | x) is linear in x, and no classifier is
right more often than ∫ φ(z − d/√2) Φ(z)² dz at distance d. On scikit-learn's digits, codes of 4 bits are drawn for each seed.

As messages, though, bits are right: K symbols of three in one block take ⌈K log₂ 3⌉ bits, and so nearly log₂ 3 = 1.585 each.

    python examples/class_codes.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Annotated, Any

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

THREE = torch.tensor([[0, 1], [1, 0], [1, 1]])
Split = tuple[Tensor, Tensor, Tensor, Tensor]  # x and y to learn from, x and y held out


def encode(symbols: Sequence[int]) -> list[int]:
    """The ⌈K log₂ 3⌉ bits of a block of K symbols 0, 1, 2: the number whose digits of base 3 they are.

    A block of one has the codes 00, 01 and 10, where `THREE` leaves out 00: which of four is left out matters to neither.
    """
    number = 0
    for symbol in symbols:
        if symbol not in (0, 1, 2):
            raise ValueError(f"encode: symbols must be 0, 1 or 2, got {symbol!r}")
        number = 3 * number + symbol
    return [number >> place & 1 for place in reversed(range(bits(len(symbols))))]


def decode(code: Sequence[int], length: int) -> list[int]:
    """The block of that many symbols."""
    number, symbols = sum(bit << place for place, bit in enumerate(reversed(code))), []
    if len(code) != bits(length) or any(bit not in (0, 1) for bit in code) or number >= 3**length:
        raise ValueError(f"decode: {list(code)} is the code of no block of {length} symbols")
    for _ in range(length):
        number, symbol = divmod(number, 3)
        symbols.append(symbol)
    return symbols[::-1]


def bits(length: int) -> int:
    """⌈K log₂ 3⌉, without rounding."""
    return (3**length - 1).bit_length()


def triangle(seed: int, distance: float = 3.0, rows: int = 300, held: int = 10_000) -> Split:
    """Classes at the corners of a triangle with sides of that many standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    angles = 2 * math.pi * torch.arange(3) / 3
    corners = distance / math.sqrt(3) * torch.stack([angles.cos(), angles.sin()], 1)
    y = torch.randint(3, (rows + held,), generator=generator)
    x = corners[y] + torch.randn(rows + held, 2, generator=generator)
    return x[:rows], y[:rows], x[rows:], y[rows:]


def most(distance: float = 3.0) -> float:
    """How often the best classifier of the triangle is right."""
    import scipy.integrate

    normal = NormalDist()
    integrand = lambda z: normal.pdf(z - distance / math.sqrt(2)) * normal.cdf(z) ** 2
    return scipy.integrate.quad(integrand, -10, 15, epsabs=1e-12)[0]


def digits(seed: int) -> Split:
    from sklearn.datasets import load_digits

    pictures, names = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pictures).float() / 16, torch.from_numpy(names)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    learn, held = order[: len(y) // 2], order[len(y) // 2 :]
    return x[learn], y[learn], x[held], y[held]


def fit(network: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], steps: int = 150) -> nn.Module:
    """The network, trained on full batches, with a weight decay that all share."""
    optimizer = torch.optim.Adam(network.parameters(), 3e-2, weight_decay=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network(x)).backward()
        optimizer.step()
    return network.requires_grad_(False)


def network(inputs: int, outputs: int, hidden: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return (
        nn.Linear(inputs, outputs)
        if not hidden
        else nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    )


@dataclass(frozen=True)
class Pair:
    """A network with a score for each class, and one with a score for each bit of the classes' codes [classes, bits]."""

    soft: nn.Module
    coded: nn.Module
    codes: Tensor

    def log_p(self, x: Tensor) -> Tensor:
        """[rows, classes], log P of each class's code by its bits."""
        return -sm.softplus((1 - 2 * self.codes) * self.coded(x).unsqueeze(1)).sum(-1)

    def is_said(self, x: Tensor) -> Tensor:
        """[rows, classes], whether each bit is on the side of this class's code; of none, where it is no class's."""
        return ((self.coded(x) > 0).unsqueeze(1) == self.codes).all(-1)


def trained(x: Tensor, y: Tensor, codes: Tensor, hidden: int, seed: int) -> Pair:
    """Both with the same body, by cross-entropy and by the sum over bits."""
    classes, width = codes.shape
    signs = (1 - 2 * codes)[y]
    soft = fit(network(x.shape[1], classes, hidden, seed), x, lambda scores: sm.cross_entropy(scores, y))
    coded = fit(network(x.shape[1], width, hidden, seed), x, lambda scores: sm.softplus(signs * scores).sum(-1).mean())
    return Pair(soft, coded, codes)


def compared(data: Split, codes: Tensor, hidden: int, seed: int) -> dict[str, float]:
    """The shares of held-out rows that are right, and of the bits those that are no class's code."""
    x, y, new_x, new_y = data
    pair = trained(x, y, codes, hidden, seed)
    said, log_p = pair.is_said(new_x), pair.log_p(new_x)
    return {
        "softmax": (pair.soft(new_x).argmax(-1) == new_y).double().mean().item(),
        "bits": said.gather(1, new_y[:, None]).double().mean().item(),
        "nearest code": (log_p.argmax(-1) == new_y).double().mean().item(),
        "no class": (~said.any(-1)).double().mean().item(),
        "mass on none": (1 - sm.logsumexp(log_p).exp()).mean().item(),
    }


def regions(seed: int = 0, points: int = 81, reach: float = 4.0) -> dict[str, Any]:
    """The class that linear networks give to each point of a square, −1 for none."""
    x, y, _, _ = triangle(seed)
    pair, axis = trained(x, y, THREE, 0, seed), torch.linspace(-reach, reach, points)
    grid = torch.cartesian_prod(axis, axis)[:, [1, 0]]  # x runs first
    said = pair.is_said(grid)
    bits = torch.where(said.any(-1), said.long().argmax(-1), -1)
    soft = pair.soft(grid).argmax(-1)
    return {"axis": axis.tolist(), "softmax": soft.view(points, -1).tolist(), "bits": bits.view(points, -1).tolist()}


def random_codes(classes: int, width: int, seed: int) -> Tensor:
    """Of different numbers below 2^width, [classes, width]."""
    numbers = torch.randperm(2**width, generator=torch.Generator().manual_seed(seed))[:classes]
    return (numbers[:, None] >> torch.arange(width)) & 1


def main(seeds: Annotated[int, count("That choose data and weights.", least=2)] = 10) -> dict[str, Any]:
    """Prints the tables; returns what they show."""
    tasks = {
        "triangle, linear": lambda seed: compared(triangle(seed), THREE, 0, seed),
        "triangle, 32 hidden": lambda seed: compared(triangle(seed), THREE, 32, seed),
        "digits, linear": lambda seed: compared(digits(seed), random_codes(10, 4, seed), 0, seed),
        "digits, 64 hidden": lambda seed: compared(digits(seed), random_codes(10, 4, seed), 64, seed),
    }
    best = most()
    print(f"of the triangle at most {100 * best:.2f} % can be right; means and standard errors of {seeds} seeds, in %")
    results: dict[str, Any] = {"most": best, "seeds": seeds, "tasks": {}, "regions": regions()}
    results["bits"] = [bits(length) for length in range(1, 61)]
    for name, task in tasks.items():
        runs = [task(seed) for seed in range(seeds)]
        if not results["tasks"]:
            print(" " * 22 + "".join(f"{key:>17}" for key in runs[0]))
        columns = {key: [run[key] for run in runs] for key in runs[0]}
        results["tasks"][name] = columns
        cells = (f"{100 * fmean(values):.2f} ± {100 * stdev(values) / seeds**0.5:.2f}" for values in columns.values())
        print(f"{name:22}" + "".join(f"{cell:>17}" for cell in cells))
    print("\nsymbols in a block   bits   bits a symbol")
    for length in (1, 2, 3, 5, 12, 41, 53):
        print(f"{length:18} {bits(length):6} {bits(length) / length:15.4f}")
    print(f"log₂ 3 {math.log2(3):34.4f}")
    return results


if __name__ == "__main__":
    run(main, __doc__)
