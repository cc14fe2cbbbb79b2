r"""oscarmax: p = argmax_{p∈Δ} ⟨p, x⟩ − ½‖p‖² − γ Σ_{i<j} max(p_i, p_j), sparsemax that makes near scores equal.

Over the simplex Σ_{i<j} max(p_i, p_j) is Σ_k (n − k) p_(k), p_(1) ≥ p_(2) ≥ …, and n counts for nothing: it is n − Σ_k k p_(k). So
p is sparsemax of u, in the order of x, u_(k) the non-increasing sequence nearest to x_(k) + γk: each of its clusters has the mean
of these. Scores nearer than γ to the next ones are equal in it, and of very many scores nearly all are.

(The proximal of the OSCAR norm, which orders by |x|, is another where scores are negative; this one does not see a shift of all x.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.public import public
from softmaxima.engine.contract import Cost, Map, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps import _clusters
from softmaxima.maps._clusters import ROUNDING, Cluster
from softmaxima.maps._module import MapModule
from softmaxima.maps.sparsemax import gini
from softmaxima.maps.sparsemax import reference as sparsemax_reference


def reference(x: Tensor, gamma: float | Tensor) -> Tensor:
    n = x.shape[-1]
    strengths = torch.as_tensor(gamma, dtype=torch.float64, device=x.device).expand(*x.shape[:-1], 1)
    ordered, order = x.double().sort(dim=-1, descending=True, stable=True)
    rows = zip(ordered.reshape(-1, n), strengths.reshape(-1).tolist(), strict=True)
    u = torch.stack([_nearest(z, gamma) for z, gamma in rows]).reshape(x.shape) if x.numel() else ordered
    return sparsemax_reference(torch.empty_like(u).scatter(-1, order, u - u[..., :1]))


def _nearest(z: Tensor, gamma: float) -> Tensor:
    """The non-increasing sequence nearest to y_k = z_k + γk: first the greatest mean of a beginning of y, and so on."""
    u, begin = z.clone(), 0
    while begin < len(z) and gamma > 0:
        count = torch.arange(1, len(z) - begin + 1, dtype=z.dtype, device=z.device)
        means = z[begin:].cumsum(-1) / count + gamma * (begin + (count - 1) / 2)
        end = begin + int(means.argmax()) + 1
        u[begin:end] = means.max()
        begin = end
    return u


def solve(z: list[float], gamma: float) -> tuple[Sequence[int], list[Cluster]]:
    """The clusters of a row, by pooling neighbours in order that are equal or out of order."""
    order = sorted(range(len(z)), key=lambda i: -z[i])
    if gamma == 0:  # equal scores are clusters by themselves, which move together
        places = [[*group] for _, group in itertools.groupby(range(len(z)), key=lambda k: z[order[k]])]
        return order, [(k, k + 1, z[order[k]], (group[0] + group[-1]) / 2) for group in places for k in group]
    found: list[tuple[int, int, float, float]] = []  # (begin, end, Σz, u)
    for k, place in enumerate(order):
        begin, total, level = k, z[place], z[place] + gamma * k
        while found and level >= found[-1][3] - ROUNDING * (1 + abs(level)):
            begin, _, more, _ = found.pop()
            total += more
            level = total / (k + 1 - begin) + gamma * (begin + k) / 2
        found.append((begin, k + 1, total, level))
    return order, [(begin, end, level, (begin + end - 1) / 2) for begin, end, _, level in found]


clusters = _clusters.operation("oscarmax", solve)
forward, sensitivity, gamma_gradient = _clusters.functions("oscarmax", clusters)


def evenness(p: Tensor) -> Tensor:
    """Σ_k (k − 1) p_(k) [...], p in descending order: 0 of one score."""
    ordered = p.sort(dim=-1, descending=True).values
    return (ordered * torch.arange(p.shape[-1], dtype=p.dtype, device=p.device)).sum(-1)


def regulariser(p: Tensor, gamma: float | Tensor) -> Tensor:
    """Ω(p) = ½ (‖p‖² − 1) − γ Σ_k (k − 1) p_(k): the penalty less what it is where one p is 1."""
    return gini(p) - _clusters.one_per_row(gamma, p) * evenness(p)


def gamma_regulariser_gradient(p: Tensor, gamma: float | Tensor) -> Tensor:
    return -evenness(p).unsqueeze(-1)


OSCARMAX = register(
    Map(
        name="oscarmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=regulariser,
        params=(_clusters.strength(0.05, (0.05, 0.4, 0.0), gamma_gradient, gamma_regulariser_gradient),),
        properties=Properties(sparse=True, monotone=False, additive_regulariser=False),
        cost=Cost(reads=2),
        uses_scores=True,
        kernel=Kernel("oscarmax", "oscarmax_backward"),
        formula="relu(u_i − λ), u nearest to x with γ for the larger of each pair",
        source="Niculae & Blondel (2017), arXiv:1705.07704",
    )
)


@public
def oscarmax(
    x: Array,
    *,
    gamma: float | Array = 0.05,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Oscarmax, `p = argmax_p ⟨p, x/τ⟩ − ½‖p‖² − γ Σ_{i<j} max(p_i, p_j)`: sparsemax that makes near scores equal.

    It chooses a few groups of scores, each with one probability, wherever they stand. Two scores that follow one another in size
    are equal where they differ by less than γ; so a γ that does for ten scores makes ten thousand equal.

    Args:
        gamma: γ ≥ 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad. 0 is
            sparsemax, and a large γ gives equal shares. It is not divided by τ.
        x, dim, temperature, where, dtype: as for `softmax`.

    Errors as for `softmax`. Its Jacobian averages over each group, and takes off the mean of all. Cost: a sort of the row, and
    O(n) by pooling neighbours, on one thread; on other devices than the CPU rows are solved there, one after the other.

    Source: Niculae & Blondel (2017), arXiv:1705.07704, as it is defined there; where scores are negative its code, by the proximal
    of the OSCAR norm, gives something else.

    >>> import numpy as np, softmaxima as sm
    >>> sm.oscarmax(np.array([1.0, -1.0, 0.9, 0.5]), gamma=0.2).round(3)
    array([0.383, 0.   , 0.383, 0.233])
    """
    return evaluate(OSCARMAX, x, dim, temperature, where, {"gamma": gamma}, dtype)


@public
class Oscarmax(MapModule):
    """`oscarmax` as a module; give `sm.Positive(0.05)` as γ to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.Oscarmax(gamma=0.5)(torch.tensor([2.0, 0.0, 1.9]))
    tensor([0.5000, 0.0000, 0.5000])
    """

    def __init__(
        self,
        gamma: float | Tensor | nn.Module = 0.05,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(OSCARMAX, dim, temperature=temperature, gamma=gamma)
