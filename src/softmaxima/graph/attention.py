"""Attention over neighbours: the layers of torch_geometric, with any map in the place of their softmax.

Such a layer calls `softmax(scores, index, ptr, size)` of its own module. Its method is run here as it is written there, with
another function by that name, so that all else is, and stays, that of torch_geometric. (A class here has another name than its
parent, for torch_geometric knows the sources of classes by their names.)
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch_geometric
import torch_geometric.nn as pyg
from torch import Tensor

from softmaxima.core.contract import AnyMap
from softmaxima.graph.neighbours import first_numbers, held_map, over_neighbours, restore, said_map, segments_of
from softmaxima.maps import MapModule


def _with_map(name: str, method: Callable[..., Tensor], held: MapModule) -> Callable[..., Tensor]:
    """The method, with the map where it calls softmax."""

    def softmax(scores: Tensor, index: Tensor, ptr: Tensor | None = None, size: int | None = None) -> Tensor:
        return over_neighbours(held, scores, segments_of(name, index, ptr, size, scores, 0), 0)

    globals_of = {**method.__globals__, "softmax": softmax}  # type: ignore[attr-defined]
    return FunctionType(method.__code__, globals_of, method.__name__, method.__defaults__, method.__closure__)  # type: ignore[attr-defined]


@functools.cache
def _check_calls_softmax(name: str, method: Callable[..., Tensor]) -> None:
    """Raise where a method has no softmax of its module's that a map could take the place of."""
    code = getattr(method, "__code__", None)
    if code is None or not any(i.opname == "LOAD_GLOBAL" and i.argval == "softmax" for i in dis.get_instructions(code)):
        raise ImportError(
            f"{name}: torch_geometric {torch_geometric.__version__} takes no softmax from its module in {method.__qualname__}, in "
            "whose place a map could be; use another version, such as 2.8.1",
            name="torch_geometric",
        )


def _repr(layer: Any, of_parent: str) -> str:
    return f"{of_parent[:-1]}, map={said_map(layer.map)})"


def _restore_map(layer: Any) -> None:
    """As it was at first; the parent's constructor resets before there is a map."""
    if "_first" in layer.__dict__:
        restore(layer._first, layer)


class MapGATConv(pyg.GATConv):
    """`torch_geometric.nn.GATConv` with any map as its attention: sparse ones leave neighbours out.

    Args:
        map: a name or a function of a map, or its module with temperature and parameters, which may learn: `sm.Sparsemax()`,
            `sm.Entmax(alpha=torch.nn.Parameter(torch.tensor(1.5)))`. The module's dim has no meaning here.
        options, more: those of torch_geometric's.

    Raises:
        TypeError or ValueError for what is no map, ImportError where torch_geometric's own layer calls no softmax that a map could
        take the place of, and what torch_geometric raises.

    `reset_parameters` gives what learns of the map the numbers it had at first.

    Cost: as for `segment_map` of [edges, heads]. Source: Veličković et al. (2018).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapGATConv(3, 4, heads=2, map="sparsemax")
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 8])
    """

    def __init__(self, *options: Any, map: AnyMap | MapModule = "softmax", **more: Any) -> None:
        _check_calls_softmax(type(self).__name__, pyg.GATConv.edge_update)
        super().__init__(*options, **more)
        self.map = held_map(map)
        self._first = first_numbers(self, "map")

    def reset_parameters(self) -> None:
        """As the parent's, and what learns of the map as it was at first."""
        super().reset_parameters()
        _restore_map(self)

    def __repr__(self) -> str:
        return _repr(self, super().__repr__())

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
        return _with_map(type(self).__name__, pyg.GATConv.edge_update, self.map)(
            self, alpha_j, alpha_i, edge_attr, index, ptr, dim_size
        )


class MapGATv2Conv(pyg.GATv2Conv):
    """`torch_geometric.nn.GATv2Conv` with any map as its attention. Arguments, errors and cost as for `MapGATConv`.

    Source: Brody, Alon and Yahav (2022).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapGATv2Conv(3, 4, map=sm.Entmax(alpha=1.3))
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 4])
    """

    def __init__(self, *options: Any, map: AnyMap | MapModule = "softmax", **more: Any) -> None:
        _check_calls_softmax(type(self).__name__, pyg.GATv2Conv.edge_update)
        super().__init__(*options, **more)
        self.map = held_map(map)
        self._first = first_numbers(self, "map")

    def reset_parameters(self) -> None:
        """As the parent's, and what learns of the map as it was at first."""
        super().reset_parameters()
        _restore_map(self)

    def __repr__(self) -> str:
        return _repr(self, super().__repr__())

    def edge_update(
        self, x_j: Tensor, x_i: Tensor, edge_attr: Tensor | None, index: Tensor, ptr: Tensor | None, dim_size: int | None
    ) -> Tensor:
        """The weight of each edge."""
        return _with_map(type(self).__name__, pyg.GATv2Conv.edge_update, self.map)(self, x_j, x_i, edge_attr, index, ptr, dim_size)


class MapTransformerConv(pyg.TransformerConv):
    """`torch_geometric.nn.TransformerConv` with any map as its attention. Arguments, errors and cost as for `MapGATConv`.

    Source: Shi et al. (2021).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapTransformerConv(3, 4, map="entmax15")
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 4])
    """

    def __init__(self, *options: Any, map: AnyMap | MapModule = "softmax", **more: Any) -> None:
        _check_calls_softmax(type(self).__name__, pyg.TransformerConv.message)
        super().__init__(*options, **more)
        self.map = held_map(map)
        self._first = first_numbers(self, "map")

    def reset_parameters(self) -> None:
        """As the parent's, and what learns of the map as it was at first."""
        super().reset_parameters()
        _restore_map(self)

    def __repr__(self) -> str:
        return _repr(self, super().__repr__())

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
        return _with_map(type(self).__name__, pyg.TransformerConv.message, self.map)(
            self, query_i, key_j, value_j, edge_attr, index, ptr, size_i
        )
