"""Graph networks of torch_geometric with every map: aggregations, logsumexp among them, and attention over neighbours."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch_geometric") is None:
    raise ImportError(
        'sm.graph needs torch_geometric, which is not installed: pip install "softmaxima[graph]"', name="torch_geometric"
    )

from softmaxima.base.public import listing
from softmaxima.graph.aggregation import LogSumExpAggregation, MapAggregation
from softmaxima.graph.attention import MapGATConv, MapGATv2Conv, MapTransformerConv

__all__ = ["LogSumExpAggregation", "MapAggregation", "MapGATConv", "MapGATv2Conv", "MapTransformerConv"]
__dir__ = listing(globals())
