"""Attention over neighbours: the layers of torch_geometric, with any map in the place of their softmax.

Such a layer calls `softmax(scores, index, ptr, size)` of its own module. Its method is run here as it is written there, with
another function by that name, so that all else is, and stays, that of torch_geometric; the layer itself comes to that function as
part of the size, which the method hands on. (A class here has another name than its parent, for torch_geometric knows the sources
of classes by their names.)
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

import torch
import torch_geometric
import torch_geometric.nn as pyg
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from softmaxima.base.numbers import check_count, check_flag, check_int, described
from softmaxima.base.public import add_names, public
from softmaxima.engine.contract import AnyMap
from softmaxima.graph.neighbours import NotScripted, first_numbers, held_map, over_neighbours, restore, said_map, segments_of
from softmaxima.maps import MapModule


class _Size(NamedTuple):
    """How many nodes there are, and the layer that asks."""

    nodes: int | None
    layer: Any


def _map(scores: Tensor, index: Tensor, ptr: Tensor | None, size: _Size) -> Tensor:
    segments = segments_of(type(size.layer).__name__, index, ptr, size.nodes, scores, 0)
    return over_neighbours(size.layer.map, scores, segments, 0)


def _with_map(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method, whose last argument is the size, with the layer's map where it calls softmax."""
    code = getattr(method, "__code__", None)
    if code is None:
        return method  # which is refused when a layer is made
    # Without the module's name, as compilers look names up in the module that has it.
    globals_of = {name: value for name, value in method.__globals__.items() if name != "__name__"}  # type: ignore[attr-defined]
    own = FunctionType(code, {**globals_of, "softmax": _map}, method.__name__, method.__defaults__, method.__closure__)  # type: ignore[attr-defined]

    @functools.wraps(method)
    def with_map(self: Any, *others: Any) -> Tensor:  # all of them in their places, as `public` hands them on
        return own(self, *others[:-1], _Size(others[-1], self))

    return with_map


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


@functools.cache
def _options(parent: type) -> frozenset[str]:
    """What a layer of torch_geometric takes by name."""
    return frozenset(name for each in (parent, pyg.MessagePassing) for name in inspect.signature(each.__init__).parameters)


def _of_edges(method: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass, which says what edges it is not for."""

    @functools.wraps(method)
    def forward(self: Any, x: Any, edge_index: Any, *options: Any, **more: Any) -> Any:
        pairs = isinstance(edge_index, Tensor) and edge_index.layout == torch.strided
        if pairs and (edge_index.ndim != 2 or edge_index.shape[0] != 2):
            repair = "call edge_index.T" if edge_index.ndim == 2 and edge_index.shape[1] == 2 else "give two rows"
            raise ValueError(
                f"{type(self).__name__}: edge_index must be [2, edges], the node that each edge comes from and the one it goes to, "
                f"got shape {tuple(edge_index.shape)}; {repair}"
            )
        if pairs and edge_index.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"{type(self).__name__}: edge_index must be of int64, got {edge_index.dtype}; call edge_index.long()")
        _check_nodes(self, x)
        if pairs:
            _check_attributes(self, signature.bind(self, x, edge_index, *options, **more).arguments.get("edge_attr"), edge_index)
        return method(self, x, edge_index, *options, **more)

    signature = inspect.signature(method)
    return forward


def _check_nodes(layer: Any, x: Any) -> None:
    """Features of the nodes, or of those that edges come from and those that they go to."""
    name, widths = type(layer).__name__, layer.in_channels
    both = x if isinstance(x, (tuple, list)) and len(x) == 2 else (x,)
    widths = widths if isinstance(widths, (tuple, list)) else (widths, widths)
    own = next((each.dtype for each in layer.parameters() if not isinstance(each, UninitializedParameter)), None)
    for each, width in zip(both, widths, strict=False):
        if each is None and each is not both[0]:
            continue
        if not isinstance(each, Tensor):
            raise TypeError(f"{name}: x must be a tensor [nodes, features] or a pair of them, got {described(each, 'a tensor')}")
        if each.ndim != 2 or (width >= 0 and each.shape[1] != width):
            wanted = width if width >= 0 else "features"
            raise ValueError(
                f"{name}: x must be [nodes, {wanted}], got shape {tuple(each.shape)}; in_channels is the number of features"
            )
        if own is not None and each.dtype != own and not torch.is_autocast_enabled(each.device.type):
            raise TypeError(f"{name}: x must be of the layer's {own}, got {each.dtype}; call x.to({own}), or convert the layer")


def _check_attributes(layer: Any, edge_attr: Any, edge_index: Tensor) -> None:
    """Numbers of each edge, of a layer that takes some."""
    name, edges, width = type(layer).__name__, edge_index.shape[1], layer.edge_dim
    if edge_attr is None and width is not None and isinstance(layer, pyg.TransformerConv):
        raise ValueError(f"{name}: edge_attr must be given to a layer that is made with edge_dim={width}, a row for each edge")
    if edge_attr is None:
        return
    if width is None:
        raise ValueError(f"{name}: edge_attr needs a layer that takes it; make it with edge_dim=, the numbers of an edge")
    if not isinstance(edge_attr, Tensor):
        raise TypeError(f"{name}: edge_attr must be a tensor [edges, {width}], got {described(edge_attr, 'a tensor')}")
    of_one = edge_attr.ndim == 1 and width == 1
    if (
        len(edge_attr.shape) == 0
        or edge_attr.shape[0] != edges
        or not (of_one or (edge_attr.ndim == 2 and width in (-1, edge_attr.shape[1])))
    ):
        raise ValueError(f"{name}: edge_attr must be [{edges}, {width}], one row an edge, got shape {tuple(edge_attr.shape)}")


def _constructor(parent: type[pyg.MessagePassing]) -> Any:
    """That of the layer of torch_geometric, which takes a map too."""

    def constructor(self: Any, *options: Any, map: AnyMap | MapModule = "softmax", **more: Any) -> None:
        self._make(options, map, more)

    known = inspect.signature(parent.__init__)
    own = [inspect.signature(constructor).parameters["map"], *known.parameters.values()]
    constructor.__signature__ = known.replace(parameters=sorted(own, key=lambda each: each.kind))  # type: ignore[attr-defined]
    constructor.__name__ = "__init__"
    return constructor


def _checked(name: str, parent: type[pyg.MessagePassing], options: Sequence[Any]) -> list[Any]:
    """The options, of which torch_geometric does not check that counts and flags are some: those of NumPy as Python's."""
    checked = list(options)
    known = [*inspect.signature(parent.__init__).parameters.values()][1:]
    for place, (parameter, value) in enumerate(zip(known, options, strict=False)):
        what = parameter.name
        if parameter.annotation is bool:
            checked[place] = check_flag(name, what, value)
        elif parameter.annotation is int:
            checked[place] = check_count(name, what, value)
        elif what == "in_channels" or (what == "edge_dim" and value is not None):
            is_pair = what == "in_channels" and isinstance(value, (tuple, list)) and len(value) == 2
            domain = "an int, -1 for that of the first call"
            counts = [check_int(name, what, each, lambda count: count >= -1, domain) for each in (value if is_pair else (value,))]
            checked[place] = tuple(counts) if is_pair else counts[0]
    return checked


class _MapConv(NotScripted, pyg.MessagePassing):
    """What layers with a map have beside what their parents have."""

    _parent: ClassVar[type[pyg.MessagePassing]]
    _attends: ClassVar[str]  # the method that calls softmax

    def _make(self, options: Sequence[Any], map: AnyMap | MapModule, more: Mapping[str, Any]) -> None:
        _check_calls_softmax(type(self).__name__, getattr(self._parent, self._attends))
        options = _checked(type(self).__name__, self._parent, options)
        known = _options(self._parent)
        try:
            held = held_map(type(self).__name__, map, {name: value for name, value in more.items() if name not in known})
        except TypeError as error:
            add_names(error, more, ("map", *known))
            raise
        super().__init__(*options, **{name: value for name, value in more.items() if name in known})
        self.map = held
        self._first = first_numbers(self, "map")

    def reset_parameters(self) -> None:
        """As the parent's, and what learns of the map as it was at first."""
        super().reset_parameters()
        if "_first" in self.__dict__:  # the parent's constructor resets before there is a map
            restore(self._first, self)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, map={said_map(self.map)})"


@public
class MapGATConv(_MapConv, pyg.GATConv):
    """`torch_geometric.nn.GATConv` with any map as its attention: sparse ones leave neighbours out.

    Args:
        map: a name or a function of a map, or its module, which has temperature and parameters of its own: `sm.Sparsemax()`,
            `sm.Entmax(alpha=sm.Positive(1.5, minimum=1.0))`. The module's dim has no meaning here.
        options, more: those of torch_geometric's, and of a name or a function temperature and parameters of the map: `alpha=1.3`.

    Raises:
        TypeError or ValueError for what is no map, an argument that neither torch_geometric's layer nor the map takes, and an
        edge_index that is not [2, edges]; ImportError where torch_geometric's own layer calls no softmax that a map could
        take the place of, and what torch_geometric raises.

    `reset_parameters` gives what learns of the map the numbers it had at first.

    Cost: as for `segment_map` of [edges, heads]. Source: Veličković et al. (2018).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapGATConv(3, 4, heads=2, map="sparsemax")
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 8])
    """

    _parent, _attends = pyg.GATConv, "edge_update"
    edge_update = _with_map(pyg.GATConv.edge_update)
    __init__ = _constructor(pyg.GATConv)
    forward = _of_edges(pyg.GATConv.forward)


@public
class MapGATv2Conv(_MapConv, pyg.GATv2Conv):
    """`torch_geometric.nn.GATv2Conv` with any map as its attention. Arguments, errors and cost as for `MapGATConv`.

    Source: Brody, Alon and Yahav (2022).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapGATv2Conv(3, 4, map=sm.Entmax(alpha=1.3))
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 4])
    """

    _parent, _attends = pyg.GATv2Conv, "edge_update"
    edge_update = _with_map(pyg.GATv2Conv.edge_update)
    __init__ = _constructor(pyg.GATv2Conv)
    forward = _of_edges(pyg.GATv2Conv.forward)


@public
class MapTransformerConv(_MapConv, pyg.TransformerConv):
    """`torch_geometric.nn.TransformerConv` with any map as its attention. Arguments, errors and cost as for `MapGATConv`.

    Source: Shi et al. (2021).

    >>> import torch, softmaxima as sm
    >>> layer = sm.graph.MapTransformerConv(3, 4, map="entmax15")
    >>> layer(torch.ones(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 4])
    """

    _parent, _attends = pyg.TransformerConv, "message"
    message = _with_map(pyg.TransformerConv.message)
    __init__ = _constructor(pyg.TransformerConv)
    forward = _of_edges(pyg.TransformerConv.forward)
