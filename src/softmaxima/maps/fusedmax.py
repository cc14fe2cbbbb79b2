r"""fusedmax: p = argmax_{p∈Δ} ⟨p, x⟩ − ½‖p‖² − γ Σ |p_{i+1} − p_i|, sparsemax that makes neighbours equal.

It is sparsemax of u = argmin ½‖u − x‖² + γ Σ |u_{i+1} − u_i|, the total variation proximal of x, whose u are the slopes of the taut
string: the shortest path to (n, Σx) within γ of the sums of x. Where the string bends at γ above the sums, u rises by it, and falls
where it bends below. A cluster of m scores between two bends has

    u = mean x + γ (e_end − e_begin)/m,    e = 1 above, −1 below, 0 at both ends of the row.

Scores that are masked are taken out of the row: their neighbours are neighbours then.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.public import public
from softmaxima.base.rows import without_mask
from softmaxima.engine.contract import Cost, Map, Properties, register
from softmaxima.engine.envelope import with_slope
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps import _clusters
from softmaxima.maps._clusters import ROUNDING, Cluster
from softmaxima.maps._module import MapModule
from softmaxima.maps.sparsemax import gini
from softmaxima.maps.sparsemax import reference as sparsemax_reference


def reference(x: Tensor, gamma: float | Tensor) -> Tensor:
    strengths = torch.as_tensor(gamma, dtype=torch.float64, device=x.device).expand(*x.shape[:-1], 1).reshape(-1)
    z = x.double().reshape(-1, x.shape[-1])
    levels = torch.full_like(z, -math.inf)
    for row, own, strength in zip(levels, z, strengths.tolist(), strict=True):
        counts = own > -math.inf
        row[counts] = torch.tensor(proximal(own[counts].tolist(), strength), dtype=torch.float64, device=x.device)
    return sparsemax_reference(levels.reshape(x.shape))


def proximal(z: list[float], gamma: float) -> list[float]:
    """u, by its definition through cuts: of all A, {u > t} has the greatest Σ_{i∈A} (z_i − t) less γ for each end in the row.

    At the mean t of a piece either no A is worth more than none, and u is t, or A and what is left of it are pieces by themselves:
    where u falls from one to the other, γ |u_{i+1} − u_i| is γ u_i − γ u_{i+1}, which moves both z.
    """
    u = [0.0] * len(z)
    pieces = [(0, list(z))] if z else []
    while pieces:
        begin, own = pieces.pop()
        level = sum(own) / len(own)
        above = _greatest([v - level for v in own], gamma)
        edges = [0, *(k for k in range(1, len(own)) if above[k] != above[k - 1]), len(own)]
        if len(edges) == 2:
            u[begin : begin + len(own)] = [level] * len(own)
            continue
        for first, last in itertools.pairwise(edges):
            part = own[first:last]
            moved = -gamma if above[first] else gamma
            part[0] += moved if first > 0 else 0.0
            part[-1] += moved if last < len(own) else 0.0
            pieces.append((begin + first, part))
    return u


def _greatest(gains: list[float], gamma: float) -> list[bool]:
    """The A with the greatest Σ_{i∈A} gain − γ·(its ends in the row), by dynamic programming; none where it gains but rounding."""
    out, into = 0.0, gains[0]  # the most by the scores so far, of which the last is out of A or in it
    stays = []
    for gain in gains[1:]:
        stays.append((out >= into - gamma, into >= out - gamma))
        out, into = max(out, into - gamma), gain + max(into, out - gamma)
    if max(out, into) <= 1e-14 * sum(map(abs, gains)):
        return [False] * len(gains)
    chosen = [into > out]
    for stay in reversed(stays):
        chosen.append(chosen[-1] if stay[chosen[-1]] else not chosen[-1])
    return chosen[::-1]


def _rates(z: list[float]) -> list[float]:
    """∂u/∂γ at γ = 0: neighbours that are equal move together."""
    rates: list[float] = []
    for _, equal in itertools.groupby(z):
        begin, count = len(rates), len(list(equal))
        end = begin + count
        rises = (z[end] > z[end - 1]) - (z[end] < z[end - 1]) if end < len(z) else 0
        rose = (z[begin] > z[begin - 1]) - (z[begin] < z[begin - 1]) if begin else 0
        rates += [(rises - rose) / count] * count
    return rates


def solve(z: list[float], gamma: float) -> tuple[Sequence[int], list[Cluster]]:
    """The clusters of a row whose largest score is 0, by the taut string, in O(n); neighbours that are equal are one cluster."""
    n = len(z)
    if gamma == 0:
        return range(n), [(k, k + 1, z[k], rate) for k, rate in enumerate(_rates(z))]
    # Nothing so low can have a probability, nor do its neighbours see how low it is.
    z = [max(v, -2 - 4 * gamma) for v in z]
    sums = [0.0, *itertools.accumulate(z)]
    clusters: list[Cluster] = []
    anchor, side = 0, 0
    paths: dict[int, deque[int]] = {1: deque(), -1: deque()}  # below the upper bound, and above the lower one

    def slope(i: int, of_i: int, j: int, of_j: int) -> float:
        return (sums[j] + (of_j * gamma if j < n else 0.0) - sums[i] - of_i * gamma) / (j - i)

    def bend(k: int, at: int) -> None:
        nonlocal anchor, side
        rate = (at - side) / (k - anchor)
        clusters.append((anchor, k, math.fsum(z[anchor:k]) / (k - anchor) + gamma * rate, rate))
        anchor, side = k, at
        if len(clusters) > 1 and abs(clusters[-1][2] - clusters[-2][2]) <= ROUNDING * (1 + gamma):
            (begin, middle, _, before), (_, end, level, _) = clusters.pop(-2), clusters.pop()
            clusters.append((begin, end, level, ((middle - begin) * before + (end - middle) * rate) / (end - begin)))

    for k in range(1, n + 1):
        for own in (1, -1):
            path, against = paths[own], paths[-own]
            while path:
                last = path[-1]
                before = slope(anchor, side, last, own) if len(path) == 1 else slope(path[-2], own, last, own)
                if own * slope(last, own, k, own) >= own * before:
                    break
                path.pop()
            while not path and against and own * slope(anchor, side, k, own) < own * slope(anchor, side, against[0], -own):
                bend(against.popleft(), -own)
            path.append(k)
    own = 1 if len(paths[1]) > 1 else -1
    for k in paths[own]:  # but for rounding the end alone
        bend(k, 0 if k == n else own)
    return range(n), clusters


clusters = _clusters.operation("fusedmax", solve)
forward, sensitivity, gamma_gradient = _clusters.functions("fusedmax", clusters)


def variation(p: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Σ |p_{i+1} − p_i| over neighbours [...] among the scores that are allowed."""
    if allowed is None:
        return p.diff(dim=-1).abs().sum(-1)
    order = (~allowed).to(torch.int8).argsort(dim=-1, stable=True)
    together = allowed.gather(-1, order)[..., 1:]
    return p.gather(-1, order).diff(dim=-1).abs().masked_fill(~together, 0.0).sum(-1)


def regulariser(p: Tensor, gamma: float | Tensor, allowed: Tensor | None = None) -> Tensor:
    """Ω(p) = ½ (‖p‖² − 1) + γ Σ |p_{i+1} − p_i|."""
    return gini(p) + _clusters.one_per_row(gamma, p) * variation(p, allowed)


def gamma_regulariser_gradient(p: Tensor, gamma: float | Tensor) -> Tensor:
    return variation(p).unsqueeze(-1)


def conjugate(z: Tensor, p: Tensor, slope: Tensor, gamma: float | Tensor) -> Tensor:
    """Ω*(z), with the neighbours that masks leave."""
    varies = variation(p, z > -math.inf).unsqueeze(-1)
    with torch.no_grad():
        value = (p * without_mask(z)).sum(-1, keepdim=True) - gini(p).unsqueeze(-1) - gamma * varies
    value = with_slope(value.detach(), z, slope)
    return (with_slope(value, gamma, -varies) if isinstance(gamma, Tensor) else value).squeeze(-1)


FUSEDMAX = register(
    Map(
        name="fusedmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=regulariser,
        conjugate=conjugate,
        params=(_clusters.strength(0.1, (0.1, 0.7, 0.0), gamma_gradient, gamma_regulariser_gradient),),
        properties=Properties(sparse=True, order_preserving=False, monotone=False, additive_regulariser=False, neighbours=True),
        cost=Cost(reads=2),
        uses_scores=True,
        kernel=Kernel("fusedmax", "fusedmax_backward"),
        formula="relu(u_i − λ), u nearest to x with γ for each step between neighbours",
        source="Niculae & Blondel (2017), arXiv:1705.07704",
    )
)


@public
def fusedmax(
    x: Array,
    *,
    gamma: float | Array = 0.1,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Fusedmax, `p = argmax_p ⟨p, x/τ⟩ − ½‖p‖² − γ Σ |p_{i+1} − p_i|`: sparsemax that makes neighbours along `dim` equal.

    It chooses a few pieces of a row, each with one probability, such as the words of a phrase. The order of scores counts, along
    `dim`, and of several axes as if they were one; one that is masked is taken out of the row, and its neighbours are neighbours
    then.

    Args:
        gamma: γ ≥ 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad. 0 is
            sparsemax, and a large γ gives equal shares. It is not divided by τ.
        x, dim, temperature, where, dtype: as for `softmax`.

    Errors as for `softmax`. Its Jacobian averages over each piece, and takes off the mean of all. Cost: O(n) a row, by the taut
    string, on one thread; on other devices than the CPU rows are solved there, one after the other.

    Source: Niculae & Blondel (2017), arXiv:1705.07704; Davies & Kovac (2001), doi:10.1214/aos/996986501, for the taut string.

    >>> import numpy as np, softmaxima as sm
    >>> sm.fusedmax(np.array([1.0, 0.8, 0.9, -1.0]), gamma=0.2).round(3)
    array([0.333, 0.333, 0.333, 0.   ])
    >>> sm.sparsemax(np.array([1.0, 0.8, 0.9, -1.0])).round(3)
    array([0.433, 0.233, 0.333, 0.   ])
    """
    return evaluate(FUSEDMAX, x, dim, temperature, where, {"gamma": gamma}, dtype)


@public
class Fusedmax(MapModule):
    """`fusedmax` as a module; give `sm.Positive(0.1)` as γ to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.Fusedmax(gamma=0.5)(torch.tensor([2.0, 1.9, 0.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """

    def __init__(
        self,
        gamma: float | Tensor | nn.Module = 0.1,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(FUSEDMAX, dim, temperature=temperature, gamma=gamma)
