"""What nodes make of their neighbours: logsumexp, from the sum to the largest by temperature, and means weighted by a map."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import Aggregation

from softmaxima.core.contract import AnyMap
from softmaxima.core.modules import held_value
from softmaxima.core.numbers import TEMPERATURE, check_flag
from softmaxima.graph.neighbours import held_map, over_neighbours, segments_of
from softmaxima.maps import MapModule
from softmaxima.segments import segment_log_mean_exp, segment_logsumexp, segment_map


class LogSumExpAggregation(Aggregation):
    """The logarithm of the sum of exponentials of a node's neighbours, τ log Σ_e exp(x_e/τ), channel by channel.

    As τ → 0 it is the largest, and as τ grows the mean and τ log d for d neighbours.

    Args:
        temperature: τ > 0, a number, a tensor that broadcasts to [nodes, channels], or a module that says it, such as
            `sm.Temperature`, to learn it.
        normalise: takes τ log d off, so that a node's degree has no say.
        gate: a network from x [edges, channels] to scores [edges, 1] or of x's shape: then it is τ log Σ_e w_e exp(x_e/τ), w the
            softmax of those scores over the neighbours, whose sum is 1.

    Called as any `Aggregation` of torch_geometric: (x, index) or (x, ptr=…), and as `aggr=` of its layers. A node without
    neighbours gets 0, as from those.

    Raises:
        TypeError or ValueError for a temperature that is not positive, and for a gate beside `normalise`, whose weights sum to 1.

    Cost: as for `segment_logsumexp`. Source: generalised aggregation of Li et al. (2020), DeeperGCN, which has softmax and powers.

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
        self.normalise = check_flag(name, "normalise", normalise)
        if normalise and gate is not None:
            raise ValueError(f"{name}: the weights of a gate sum to 1, so that there is nothing to take off; leave normalise out")
        held = held_value(name, "temperature", temperature, *TEMPERATURE)
        if isinstance(held, Tensor) and not isinstance(held, nn.Parameter):
            self.register_buffer("temperature", held)
        else:
            self.temperature = held
        self.gate = gate

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
        segments = segments_of(index, ptr, dim_size)
        tau = self.temperature() if isinstance(self.temperature, nn.Module) else self.temperature
        if self.gate is not None:
            # Weights that are a softmax have a logarithm, and Σ w exp(z) is Σ exp(z + log w).
            log_weights = segment_map("log_softmax", self.gate(x), segments, dim=dim)
            of_nodes = isinstance(tau, Tensor) and tau.ndim == x.ndim and tau.shape[dim] > 1
            own = tau.index_select(dim, segments.index) if of_nodes else tau
            value = segment_logsumexp(x / own + log_weights, segments, dim=dim)
        else:
            value = (segment_log_mean_exp if self.normalise else segment_logsumexp)(x, segments, dim=dim, temperature=tau)
        # Where nothing is, so is its slope.
        return tau * value.masked_fill(value == -math.inf, 0.0)

    def __repr__(self) -> str:
        held = self.temperature
        said = "learnt" if isinstance(held, (nn.Module, nn.Parameter)) else f"{held}"
        return f"{type(self).__name__}(temperature={said}, normalise={self.normalise}, gate={self.gate})"


class MapAggregation(Aggregation):
    """A mean of a node's neighbours whose weights are a map of their scores, Σ_e p_e x_e, p = map(s/τ) over the neighbours.

    Args:
        map: a name or a function of a map, or its module with temperature and parameters, which may learn:
            `sm.Entmax(alpha=1.3, temperature=sm.Temperature(1.0))`. Of maps with exact zeros a node leaves neighbours out.
        gate: a network from x [edges, channels] to the scores s, [edges, 1] or of x's shape. Without it s = x, channel by channel,
            which with softmax is `SoftmaxAggregation` of torch_geometric, and tends to the largest as τ → 0.

    Called as any `Aggregation` of torch_geometric. A node without neighbours gets 0.

    Raises:
        TypeError or ValueError for what is no map.

    Cost: as for `segment_map`, and a read and two writes of x.

    >>> import torch, softmaxima as sm
    >>> aggregate = sm.graph.MapAggregation("sparsemax")
    >>> aggregate(torch.tensor([[1.0], [0.6], [-3.0]]), torch.tensor([0, 0, 0]))
    tensor([[0.8800]])
    """

    def __init__(self, map: AnyMap | MapModule = "softmax", gate: nn.Module | None = None) -> None:
        super().__init__()
        self.map = held_map(map)
        self.gate = gate

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
        segments = segments_of(index, ptr, dim_size)
        p = over_neighbours(self.map, x if self.gate is None else self.gate(x), segments, dim)
        shape = list(x.shape)
        shape[dim] = len(segments)
        return torch.zeros(shape, dtype=x.dtype, device=x.device).index_add(dim, segments.index, p * x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(map={self.map}, gate={self.gate})"
