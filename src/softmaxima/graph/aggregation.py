"""What nodes make of their neighbours: logsumexp, from the sum to the largest by temperature, and means weighted by a map."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.inits import reset

from softmaxima.base.arguments import as_floating, check_dim
from softmaxima.base.modules import held_value
from softmaxima.base.numbers import TEMPERATURE
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import AnyMap
from softmaxima.graph.neighbours import (
    NotScripted,
    check_gate,
    first_numbers,
    held_map,
    over_neighbours,
    restore,
    said_map,
    scores_of,
    segments_of,
)
from softmaxima.lse.logsumexp import check_real
from softmaxima.maps import MapModule
from softmaxima.segments import segment_log_mean_exp, segment_logsumexp, segment_map
from softmaxima.segments.arguments import value_of_segments
from softmaxima.segments.ragged import largest_of


@public
class LogSumExpAggregation(NotScripted, Aggregation):
    """The logarithm of the sum of exponentials of a node's neighbours, τ log Σ_e exp(x_e/τ), channel by channel.

    As τ → 0 it is the largest, and as τ grows the mean and τ log d for d neighbours.

    Args:
        temperature: τ > 0, a number, a tensor that broadcasts to [nodes, channels], or a module that says it, such as
            `sm.Temperature`, to learn it.
        normalise: takes τ log d off, so that a node's degree has no say.
        gate: a network from x [edges, channels] to scores [edges, 1] or of x's shape: then it is τ log Σ_e w_e exp(x_e/τ), w the
            softmax of those scores over the neighbours, whose sum is 1.

    Called as any `Aggregation` of torch_geometric: (x, index) or (x, ptr=…), and as `aggr=` of its layers. A node without
    neighbours gets 0, as from those, and so does one whose neighbours are all −∞. A score of −∞ leaves a neighbour out. The
    result has x's dtype; what leads to it has float32 at least. `reset_parameters`, which layers call when
    they are made, gives τ the number it had at first, and calls the gate's own.

    Raises:
        TypeError or ValueError for a temperature that is not positive, or has other axes than nodes and channels; for a gate
        beside `normalise`, whose weights sum to 1, for one that is no module, and one that makes another shape.

    Cost: as for `segment_logsumexp`; with a gate also as for `segment_map`, and for five reads and writes of x. Source: generalised
    aggregation of Li et al. (2020), DeeperGCN, which has softmax and powers.

    >>> import torch, softmaxima as sm
    >>> mean_like = sm.graph.LogSumExpAggregation(temperature=100.0, normalise=True)
    >>> mean_like(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]))
    tensor([[2.0050],
            [0.0000],
            [5.0000]])
    """

    def __init__(self, temperature: Any = 1.0, normalise: bool = False, gate: nn.Module | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        self.normalise = normalise
        if normalise and gate is not None:
            raise ValueError(f"{name}: the weights of a gate sum to 1, so that there is nothing to take off; leave normalise out")
        held = held_value(name, "temperature", temperature, *TEMPERATURE)
        if isinstance(held, Tensor) and not isinstance(held, nn.Parameter):
            self.register_buffer("temperature", held)
        else:
            self.temperature = held
        self.gate = check_gate(name, gate)
        self._first = first_numbers(self, "temperature")

    def reset_parameters(self) -> None:
        """τ as it was at first, and the gate as it resets itself."""
        restore(self._first, self)
        reset(self.gate)

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """The value of each node, [nodes, channels] of x [edges, channels]."""
        name = type(self).__name__
        x = as_floating(name, x)
        check_real(name, x, "take x.real or x.abs()")
        axis, segments = check_dim(name, dim, x.ndim), segments_of(name, index, ptr, dim_size, x, dim)
        tau = value_of_segments(name, "temperature", self.temperature, x, axis, segments, *TEMPERATURE)
        scores = None if self.gate is None else scores_of(name, self.gate, x, dim)
        value = self._sum(x, tau, axis, segments) if scores is None else _weighted(x, scores, tau, axis, segments)
        return value.to(x.dtype)

    def _sum(self, x: Tensor, tau: Any, axis: int, segments: Any) -> Tensor:
        sum_of = segment_log_mean_exp if self.normalise else segment_logsumexp
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        # x/τ may be too large for the dtype, where τ log Σ exp(x/τ) is not: it is a + τ log Σ exp((x − a)/τ), a the largest.
        # Where looking for that would wait for a device, it is taken to be so.
        if is_concrete(x):
            value = sum_of(x, segments, dim=axis, temperature=tau)
            if not bool((value.movedim(axis, -1).isinf() & (segments.lengths > 0)).any()):
                return _times(tau, value)
        a = largest_of(x, segments, axis)
        return a + _times(tau, sum_of(x - a.index_select(axis, segments.index), segments, dim=axis, temperature=tau))

    def __repr__(self) -> str:
        held = self.temperature
        said = "learnt" if isinstance(held, (nn.Module, nn.Parameter)) else f"{held}"
        return f"{type(self).__name__}(temperature={said}, normalise={self.normalise}, gate={self.gate})"


def _weighted(x: Tensor, scores: Tensor, tau: Any, axis: int, segments: Any) -> Tensor:
    """τ log Σ w exp(x/τ), w = softmax(scores): a + τ log Σ exp((x − a + τ log w)/τ), a the largest that has a weight.

    Its error is that of τ log w, in float32 at least.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    log_weights = segment_map("log_softmax", scores.to(x.dtype), segments, dim=axis)
    there = (x != -math.inf) & (log_weights != -math.inf)
    a = largest_of(x.masked_fill(~there, -math.inf), segments, axis)
    own = tau.index_select(axis, segments.index) if isinstance(tau, Tensor) and tau.shape[axis] != 1 else tau
    shifted = (
        x.masked_fill(~there, 0.0) - a.index_select(axis, segments.index) + (own * log_weights.masked_fill(~there, 0.0)).to(x.dtype)
    )
    return a + _times(tau, segment_logsumexp(shifted, segments, dim=axis, temperature=tau, where=there))


def _times(tau: Any, value: Tensor) -> Tensor:
    """τ times the value; 0 where nothing is, and so is its slope."""
    return tau * value.masked_fill(value == -math.inf, 0.0)


@public
class MapAggregation(NotScripted, Aggregation):
    """A mean of a node's neighbours whose weights are a map of their scores, Σ_e p_e x_e, p = map(s/τ) over the neighbours.

    Args:
        map: a name or a function of a map, or its module, which has temperature and parameters of its own:
            `sm.Entmax(alpha=1.3, temperature=sm.Temperature(1.0))`. Of maps with exact zeros a node leaves neighbours out.
        params: of a name or a function, temperature and parameters of the map, which may learn: `alpha=1.3`.
        gate: a network from x [edges, channels] to the scores s, [edges, 1] or of x's shape. Without it s = x, channel by channel,
            which with softmax is `SoftmaxAggregation` of torch_geometric, and tends to the largest as τ → 0.

    Called as any `Aggregation` of torch_geometric. A node without neighbours gets 0. What has no weight has no say, whatever it is,
    ∞ and NaN too. `reset_parameters` gives what learns of the map the numbers it had at first, and calls the gate's own. The
    result has x's dtype; sums of narrower ones than float32 are taken in that.

    Raises:
        TypeError or ValueError for what is no map, a parameter that the map does not take, and a gate that is no module, or makes
        another shape.

    Cost: as for `segment_map`, and two reads and three writes of x.

    >>> import torch, softmaxima as sm
    >>> aggregate = sm.graph.MapAggregation("sparsemax")
    >>> aggregate(torch.tensor([[1.0], [0.6], [-3.0]]), torch.tensor([0, 0, 0]))
    tensor([[0.8800]])
    """

    def __init__(self, map: AnyMap | MapModule = "softmax", gate: nn.Module | None = None, **params: Any) -> None:
        super().__init__()
        self.map = held_map(type(self).__name__, map, params)
        self.gate = check_gate(type(self).__name__, gate)
        self._first = first_numbers(self, "map")

    def reset_parameters(self) -> None:
        """What learns of the map as it was at first, and the gate as it resets itself."""
        restore(self._first, self)
        reset(self.gate)

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """The value of each node, [nodes, channels] of x [edges, channels]."""
        name = type(self).__name__
        x = as_floating(name, x)
        axis, segments = check_dim(name, dim, x.ndim), segments_of(name, index, ptr, dim_size, x, dim)
        p = over_neighbours(self.map, x if self.gate is None else scores_of(name, self.gate, x, dim), segments, axis)
        # 0 · ∞ is 0 here, and a finite number keeps its slope: a map may be rising where it is 0.
        sent = x.masked_fill((p == 0) & ~x.isfinite(), 0.0)
        wide = torch.promote_types(x.dtype, torch.float32)
        shape = list(x.shape)
        shape[axis] = segments.count
        total = torch.zeros(shape, dtype=wide, device=x.device)
        return total.index_add(axis, segments.index, p.to(wide) * sent.to(wide)).to(x.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(map={said_map(self.map)}, gate={self.gate})"
