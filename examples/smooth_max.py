r"""Minimise the largest of n functions, min_x max_i f_i(x), by an annealed logsumexp.

    max_i f_i(x) ≤ τ LSE(f(x)/τ) ≤ max_i f_i(x) + τ log n

so the minimum of the smooth function is within τ log n of the minimax value. Each temperature starts from the last one's solution,
and the weights softmax(f/τ) tend to the multipliers of the minimax problem. Two problems, beside SciPy's solutions of their
epigraph form, min t with f_i(x) ≤ t:

    Chebyshev regression        f = ±(Aw − b)            a linear programme (HiGHS)
    smallest enclosing ball     f_i = ‖c − z_i‖²         a smooth constrained one (SLSQP)

    python examples/smooth_max.py
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import softmaxima as sm
from softmaxima_lab.commands.example import run


def minimise_largest(functions: Callable[[Tensor], Tensor], start: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """(x, p): the x that makes max f(x) least, to within τ log n of the last τ, and the weights of the f_i there."""
    x = start.clone().requires_grad_()
    for tau in temperatures.tolist():
        optimizer = torch.optim.LBFGS([x], max_iter=500, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe")

        def smooth_largest(optimizer: torch.optim.LBFGS = optimizer, tau: float = tau) -> Tensor:
            optimizer.zero_grad()
            value = tau * sm.logsumexp(functions(x), temperature=tau)
            value.backward()
            return value

        optimizer.step(smooth_largest)
    return x.detach(), sm.softmax(functions(x.detach()), temperature=temperatures[-1].item())


def chebyshev_regression(rows: int = 60, columns: int = 5) -> tuple[Callable[[Tensor], Tensor], Tensor, float]:
    """(f, a start, the least largest |residual|)."""
    import scipy.optimize

    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    target = torch.randn(rows, generator=generator, dtype=torch.float64)

    def functions(w: Tensor) -> Tensor:
        residual = matrix @ w - target
        return torch.cat([residual, -residual])

    array, ones = matrix.numpy(), np.ones((rows, 1))
    solution = scipy.optimize.linprog(
        c=[0.0] * columns + [1.0],
        A_ub=np.block([[array, -ones], [-array, -ones]]),
        b_ub=np.concatenate([target, -target]),
        bounds=(None, None),
    )
    return functions, torch.zeros(columns, dtype=torch.float64), float(solution.fun)


def enclosing_ball(points: int = 40, dimensions: int = 3) -> tuple[Callable[[Tensor], Tensor], Tensor, float]:
    """(f, a start, the least squared radius)."""
    import scipy.optimize

    generator = torch.Generator().manual_seed(1)
    cloud = torch.randn(points, dimensions, generator=generator, dtype=torch.float64)

    def functions(center: Tensor) -> Tensor:
        return (center - cloud).square().sum(-1)

    array = cloud.numpy()
    solution = scipy.optimize.minimize(
        lambda v: v[-1],
        x0=np.append(array.mean(0), np.square(array).sum(1).max() + 1),
        jac=lambda v: np.append(np.zeros(dimensions), 1.0),
        constraints={
            "type": "ineq",
            "fun": lambda v: v[-1] - np.square(v[:-1] - array).sum(1),
            "jac": lambda v: np.hstack([2 * (array - v[:-1]), np.ones((points, 1))]),
        },
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return functions, cloud.mean(0), float(solution.fun)


def main() -> dict[str, tuple[float, float, float]]:
    """Prints the table; returns (ours, SciPy's, τ log n) of each problem."""
    temperatures = torch.logspace(0, -5, 16, dtype=torch.float64)
    print("problem                    ours        SciPy       difference   τ log n    active functions")
    results = {}
    for name, problem in (("Chebyshev regression", chebyshev_regression), ("enclosing ball", enclosing_ball)):
        functions, start, exact = problem()
        x, weights = minimise_largest(functions, start, temperatures)
        values = functions(x)
        allowed = temperatures[-1].item() * math.log(len(values))
        results[name] = (values.max().item(), exact, allowed)
        active = int((weights > 1e-3).sum())
        print(f"{name:22s} {values.max():11.8f} {exact:12.8f} {values.max() - exact:12.1e} {allowed:10.1e} {active:10d}")
    return results


if __name__ == "__main__":
    run(main, __doc__)
