r"""A mixture of maps of which everything is learnt: p = Σ_k w_k map_k(x/τ_k; θ_k), w = gate(g/τ_g).

    ∂p/∂x = Σ_k w_k J_k/τ_k        ∂p/∂g = Σ_k p_k ∂w_k/∂g        ∂p/∂τ_k, ∂p/∂θ_k as of each map

A mixture has no Fenchel–Young loss that could choose among its maps: with w, τ and θ fixed, Σ_k w_k τ_k L_k(x/τ_k; y) is convex in
x with the slope p − y, but each L_k is in units of its own regulariser, so that the smallest would win. So its loss has two parts:

    value  ℓ = −Σ_c y_c log((p_c + ε)/(1 + nε))        ∂/∂x  p − y        ∂/∂(g, τ, θ)  ∂ℓ

The scores learn by the slope of the Fenchel–Young loss, which no exact zero stops; weights, temperatures and parameters by the log
score of the probabilities that come out, one scale for all maps, to which ε gives an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import as_scores, check_dim, check_scores, check_tensor
from softmaxima.base.modules import held_value
from softmaxima.base.numbers import TEMPERATURE, check_axis, check_choice, check_number, described
from softmaxima.base.public import listing, public
from softmaxima.base.rows import without_mask
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import REGISTRY as MAPS
from softmaxima.engine.contract import AnyMap, find_map
from softmaxima.losses.arguments import check_labels, check_shared, check_target
from softmaxima.losses.eps_cross_entropy import log_share
from softmaxima.maps import MapModule
from softmaxima.maps.softmax import softmax
from softmaxima.maps.sparsemax import sparsemax
from softmaxima.temperature import Positive, Temperature

__all__ = ["MixtureOfMaps"]
__dir__ = listing(globals())

GATES = {"softmax": softmax, "sparsemax": sparsemax}
COLDEST, HOTTEST = 0.05, 20.0  # temperatures of maps that are given by name
MOST_ALPHA = 3.0


@public
class MixtureOfMaps(nn.Module):
    """A layer p = Σ_k w_k map_k(x/τ_k; θ_k) that learns which map suits the data: weights w, temperatures τ and parameters θ.

    Args:
        maps: names or functions of maps, or modules. One that is given by its name learns its temperature, within 0.05 and 20, and
            entmax its α, within 1 and 3; a module has what it was given: `sm.Sparsemax()` learns nothing.
        dim: the axis of the scores.
        gate: the map from g to the weights, "softmax" or "sparsemax", by which weights become exactly 0, and then learn no more.
        gate_temperature: τ_g > 0, a number, a tensor or a module that says it: with `sm.GeometricTemperature(1.0, 0.01, steps)`,
            and its `step()` at each step of training, the weights become one-hot, so that `prune()` changes nothing.

    `module(x)` are the probabilities, differentiable in all, twice too; `weights` are w [K]; `loss(x, target)` trains a classifier,
    `prune()` gives the map of the largest weight as its module, with what it has learnt.

    Raises:
        TypeError or ValueError for anything else, also for maps that give logarithms or whose mass may exceed 1.

    Cost: that of all maps. Source: mixtures of experts of Jacobs et al. (1991), Neural Computation 3, whose experts are here maps.

    >>> import torch, softmaxima as sm
    >>> mixture = sm.MixtureOfMaps(["softmax", "sparsemax"])
    >>> mixture(torch.tensor([2.0, 1.0, -1.0])).detach()
    tensor([0.8527, 0.1297, 0.0176])
    >>> mixture.weights.detach(), type(mixture.prune()).__name__
    (tensor([0.5000, 0.5000]), 'MapModule')
    """

    def __init__(
        self,
        maps: Sequence[AnyMap | MapModule] = ("softmax", "entmax", "sparsemax"),
        dim: int = -1,
        *,
        gate: str = "softmax",
        gate_temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if isinstance(maps, str) or not isinstance(maps, Sequence) or not maps:
            what = "a sequence of maps"
            got = f"{maps!r}" if isinstance(maps, (str, Sequence)) else described(maps, what)
            raise TypeError(f'{name}: maps must be {what}, got {got}; give ["softmax", "sparsemax"] for instance')
        self.dim = check_axis(name, dim)
        if isinstance(gate, str) and gate not in GATES and gate in MAPS:
            raise ValueError(f"{name}: gate must be one of {', '.join(GATES)}, got the map {gate!r}; it is for `maps`")
        self.gate = check_choice(name, "gate", gate, tuple(GATES))
        held = held_value(name, "gate_temperature", gate_temperature, *TEMPERATURE)
        if isinstance(held, Tensor) and held.numel() != 1:
            raise ValueError(f"{name}: gate_temperature must be one number, got shape {tuple(held.shape)}; it is of all weights")
        if isinstance(held, Tensor) and not isinstance(held, nn.Parameter):
            self.register_buffer("gate_temperature", held)
        else:
            self.gate_temperature = held
        self.maps = nn.ModuleList([self._module(name, map) for map in maps])
        self.g = nn.Parameter(torch.zeros(len(self.maps)))

    def _module(self, name: str, map: AnyMap | MapModule) -> MapModule:
        if isinstance(map, MapModule):
            made = map
            if made.dim != self.dim:
                raise ValueError(f"{name}: maps must be along dim {self.dim}, got {made}; give dim={self.dim} to it")
        else:
            found = find_map(map, name)
            learnt: dict[str, Any] = {"alpha": Positive(1.5, 1.0, MOST_ALPHA, "sigmoid")} if found.name == "entmax" else {}
            tau: Any = Temperature(1.0, COLDEST, HOTTEST)
            made = MapModule(found, self.dim, temperature=tau, **learnt)
        if made.map.properties.logarithmic or not made.map.properties.of_one_class:
            raise ValueError(f"{name}: maps must give probabilities of one class, got {made.map.name!r}; leave it out")
        return made

    @property
    def weights(self) -> Tensor:
        """w [K], in the order of `maps`."""
        return self._weights(self.g.dtype)

    def _weights(self, dtype: torch.dtype) -> Tensor:
        tau: Any = self.gate_temperature
        g = self.g.to(torch.promote_types(self.g.dtype, dtype))
        return GATES[self.gate](g, temperature=tau() if isinstance(tau, nn.Module) else tau)

    def forward(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        check_scores(type(self).__name__, check_tensor(type(self).__name__, "scores", x))
        return self._mixed([map(x, where=where) for map in self.maps])

    def _mixed(self, p: Sequence[Tensor]) -> Tensor:
        """Σ w p in p's dtype, added up in no less than the weights have."""
        weights = self._weights(p[0].dtype)
        mixed = sum(w * each.to(weights.dtype) for w, each in zip(weights, p, strict=True))
        return mixed.to(p[0].dtype)  # type: ignore[union-attr]

    def loss(self, x: Tensor, target: Tensor, *, eps: float = 1e-6, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
        """−log((p_t + ε)/(1 + nε)) in nats, whose gradient is p − y by the scores, and its own by all that the mixture learns.

        Args:
            x: scores with the classes along `dim`.
            target: classes, integers of x's shape without `dim`, or probabilities of x's shape.
            eps: ε from 0 to 1, without 0: a target whose probability is exactly 0 costs log(1/ε + n).
            ignore_index: a class whose rows count for nothing.
            reduction: "mean" over the rows that count, "sum" or "none".

        Raises TypeError or ValueError for anything else, IndexError for a class that there is not. Its second derivative by x is
        that of no function, as p − y is given, and not derived. Cost: that of all maps once, and a read.
        """
        name = f"{type(self).__name__}.loss"
        scores = as_scores(name, check_tensor(name, "scores", x))
        if not scores.ndim:
            raise ValueError(f"{name}: scores must have an axis of classes, got a tensor of shape (); give scores [..., classes]")
        dim = check_dim(name, self.dim, scores.ndim)
        eps = check_number(name, "eps", eps, lambda eps: 0 < eps <= 1, "a number above 0, and at most 1")
        ignored, reduction, _ = check_shared(name, ignore_index, reduction, 0.0)
        y, counts = _targets(name, scores, target, dim, ignored)
        # What is left out is not read, be it NaN; and rounding comes last, for log p of a p that was rounded is of another p.
        wide = torch.where(counts.unsqueeze(dim), scores, 0.0).to(torch.promote_types(scores.dtype, torch.float32))
        p, y, n = self(wide.detach()), y.to(wide.dtype), scores.shape[dim]
        value = -(y * log_share(p, n, eps)).sum(dim)
        pull = ((p.detach() - y) * without_mask(wide)).sum(dim)
        rows = torch.where(counts, value + (pull - pull.detach()), 0.0)
        if reduction == "mean":
            rows = rows.sum() / counts.sum()
        return (rows.sum() if reduction == "sum" else rows).to(scores.dtype)

    def prune(self) -> MapModule:
        """The module of the map with the largest weight, of equal ones the first."""
        weights = self.weights
        if not bool(weights.isfinite().all()):
            raise ValueError(f"{type(self).__name__}.prune: weights must be numbers, got {weights.tolist()}; training has diverged")
        found: Any = self.maps[int(weights.argmax())]
        return found

    def extra_repr(self) -> str:
        own = ", ".join(f"{m.map.name} {w:.3f}" for m, w in zip(self.maps, self.weights.tolist(), strict=True))  # type: ignore[union-attr]
        return f"weights={own}, dim={self.dim}, gate={self.gate}"


def _targets(name: str, x: Tensor, target: Any, dim: int, ignored: int) -> tuple[Tensor, Tensor]:
    """(y of x's shape, which rows count)."""
    given = check_target(name, x, target, dim, ignored)
    every = torch.ones((*x.shape[:dim], *x.shape[dim + 1 :]), dtype=torch.bool, device=x.device)
    if given.is_floating_point():
        if is_concrete(given) and bool((wrong := ~given.isfinite()).any()):
            raise ValueError(f"{name}: target probabilities must be finite, got {float(given[wrong][0])}; give 0 where none is")
        return given, every
    labels, left_out = check_labels(name, given.long(), x.shape[dim], ignored)
    y = torch.zeros_like(x).scatter(dim, labels.unsqueeze(dim), 1.0)
    return y, every if left_out is None else ~left_out
