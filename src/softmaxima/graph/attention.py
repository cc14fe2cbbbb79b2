"""Attention over neighbours: the layers of torch_geometric, with any map in the place of their softmax.

Such a layer calls `softmax(scores, index, ptr, size)` of its own module. Its method is run here as it is written there, with
another function by that name, so that all else is, and stays, that of torch_geometric. (A class here has another name than its
parent, for torch_geometric knows the sources of classes by their names.)
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor

from softmaxima.core.contract import AnyMap
from softmaxima.graph.neighbours import held_map, over_neighbours, segments_of
from softmaxima.maps import MapModule


def _with_map(method: Callable[..., Tensor], held: MapModule) -> Callable[..., Tensor]:
    """The method, with the map where it calls softmax."""

    def softmax(scores: Tensor, index: Tensor, ptr: Tensor | None = None, size: int | None = None) -> Tensor:
        return over_neighbours(held, scores, segments_of(index, ptr, size), 0)

    globals_of = {**method.__globals__, "softmax": softmax}  # type: ignore[attr-defined]
    return FunctionType(method.__code__, globals_of, method.__name__, method.__defaults__, method.__closure__)  # type: ignore[attr-defined]


class MapGATConv(pyg.GATConv):
    """`torch_geometric.nn.GATConv` with any map as its attention: sparse ones leave neighbours out.

    Args:
        map: a name or a function of a map, or its module with temperature and parameters, which may learn: `sm.Sparsemax()`,
            `sm.Entmax(alpha=torch.nn.Parameter(torch.tensor(1.5)))`. The module's dim has no meaning here.
        options, more: those of torch_geometric's.

    Raises:
        TypeError or ValueError for what is no map, and what torch_geometric raises.

    Cost: as for `segment_map` of [edges, heads]. Source: Veličković et al. (2018).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapGATConv(3, 4, heads=2, map="sparsemax")
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 8])
    """

    def __init__(self, *options: Any, map: AnyMap | MapModule = "softmax", **more: Any) -> None:
        super().__init__(*options, **more)
        self.map = held_map(map)

    def edge_update(
        self,
        alpha_j: Tensor,
        alpha_i: Tensor | None,
        edge_attr: Tensor | None,
        index: Tensor,
        ptr: Tensor | None,
        dim_size: int | None,
    ) -> Tensor:
        """The weight of each edge."""
        return _with_map(pyg.GATConv.edge_update, self.map)(self, alpha_j, alpha_i, edge_attr, index, ptr, dim_size)


class MapGATv2Conv(pyg.GATv2Conv):
    """`torch_geometric.nn.GATv2Conv` with any map as its attention. Arguments, errors and cost as for `MapGATConv`.

    Source: Brody, Alon and Yahav (2022).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapGATv2Conv(3, 4, map=sm.Entmax(alpha=1.3))
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 4])
    """

    def __init__(self, *options: Any, map: AnyMap | MapModule = "softmax", **more: Any) -> None:
        super().__init__(*options, **more)
        self.map = held_map(map)

    def edge_update(
        self, x_j: Tensor, x_i: Tensor, edge_attr: Tensor | None, index: Tensor, ptr: Tensor | None, dim_size: int | None
    ) -> Tensor:
        """The weight of each edge."""
        return _with_map(pyg.GATv2Conv.edge_update, self.map)(self, x_j, x_i, edge_attr, index, ptr, dim_size)


class MapTransformerConv(pyg.TransformerConv):
    """`torch_geometric.nn.TransformerConv` with any map as its attention. Arguments, errors and cost as for `MapGATConv`.

    Source: Shi et al. (2021).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapTransformerConv(3, 4, map="entmax15")
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 4])
    """

    def __init__(self, *options: Any, map: AnyMap | MapModule = "softmax", **more: Any) -> None:
        super().__init__(*options, **more)
        self.map = held_map(map)

    def message(
        self,
        query_i: Tensor,
        key_j: Tensor,
        value_j: Tensor,
        edge_attr: Tensor | None,
        index: Tensor,
        ptr: Tensor | None,
        size_i: int | None,
    ) -> Tensor:
        """What each edge sends."""
        return _with_map(pyg.TransformerConv.message, self.map)(self, query_i, key_j, value_j, edge_attr, index, ptr, size_i)
