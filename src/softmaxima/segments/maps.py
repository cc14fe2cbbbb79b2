"""Every map over segments of scores: `segment_map`, and `segment_softmax` by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from softmaxima.base.arguments import Array, as_map_scores, like_input
from softmaxima.base.public import public
from softmaxima.engine.contract import AnyMap, find_map
from softmaxima.segments.arguments import prepared, value_of_segments
from softmaxima.segments.grouping import Segments
from softmaxima.segments.nested import is_jagged, nested_like, segments_of_nested, values_beside
from softmaxima.segments.operations import operation_of
from softmaxima.segments.recorded import compiled, evaluate


@public
def segment_softmax(
    x: Array,
    index: Array | Segments | None = None,
    num_segments: int | None = None,
    *,
    ptr: Array | None = None,
    dim: int = 0,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """The softmax of each segment of scores: p_e = exp(x_e/τ) / Σ_{f in e's segment} exp(x_f/τ).

    What `torch_geometric.utils.softmax` is, four to six times as fast on a CPU. Arguments, errors and cost as for `segment_map`.

    >>> import torch, softmaxima as sm
    >>> sm.segment_softmax(torch.tensor([1.0, 0.0, 1.0, 5.0]), torch.tensor([0, 1, 0, 1]))
    tensor([0.5000, 0.0067, 0.5000, 0.9933])
    """
    counted = num_segments is not None or ptr is not None or isinstance(temperature, (int, float))
    return compiled(_segment_map, "a map of segments", x, index, counted)(
        "segment_softmax", "softmax", x, index, num_segments, ptr, dim, temperature, where, {}
    )


@public
def segment_map(
    map: AnyMap,
    x: Array,
    index: Array | Segments | None = None,
    num_segments: int | None = None,
    *,
    ptr: Array | None = None,
    dim: int = 0,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    **params: Any,
) -> Array:
    """A map of each segment of scores, p = map(x/τ) over those with the same index, as neighbours of a node or a ragged sequence.

    Args:
        map: the name of a map (`"sparsemax"`), its function, or a `Map`.
        x: scores, E of them along `dim`; every other axis has segments of its own. Or a jagged nested tensor [batch, ragged, …] of
            torch, whose rows are the segments, without an index.
        index: integers [E], the segment of each score, in any order; or `Segments`, which are found once for many calls.
        num_segments: how many segments there are, which may be empty; by default one more than the largest index.
        ptr: in the place of an index, where segments of scores in order begin: ptr[0] = 0 ≤ … ≤ ptr[S] = E.
        dim: the axis of the segments.
        temperature: τ > 0, a number, or a tensor that broadcasts to x's shape with the number of segments along `dim`; a tensor may
            require grad. So may parameters that learn.
        where: boolean, broadcasts to x, nested where x is; False leaves a score out.
        params: the map's parameters.

    Returns:
        Probabilities of x's shape, array kind and dtype, nested where x is. A segment with nothing allowed has zeros; NaN stays in
        its segment.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Derivatives of every order, as of the map. Cost: the value and the first derivative by scores and τ take a read of the index
    and each array, and a write. On a CPU those of an index out of order are moved to where its segments are, and back; on a GPU
    there is a launch for each power of two among the lengths. Derivatives by parameters and of second order, and segments
    beyond what a GPU's chip holds (4096 to 8192 scores), copy scores to rows of a few lengths first, padded by an eighth at
    most. torch.compile and torch.export keep one operation, `softmaxima::segments`, of an index or a ptr, whose derivative is of
    first order where that is compiled; for Segments, for nested tensors, and where the number of segments is needed and not
    given, a compiled graph breaks. On a CPU a dtype of less than 64 bits has sums in double, in the order of the index, whatever
    the number of threads.

    >>> import torch, softmaxima as sm
    >>> sm.segment_map("sparsemax", torch.tensor([1.0, 0.0, 0.6, 5.0]), ptr=torch.tensor([0, 3, 3, 4]))
    tensor([0.7000, 0.0000, 0.3000, 1.0000])
    """
    counted = num_segments is not None or ptr is not None
    numbers = (int, float, str) if not counted else (int, float, str, np.ndarray, Tensor, nn.Module)
    held = all(isinstance(v, numbers) for v in (temperature, *params.values()))  # by an operation
    return compiled(_segment_map, "a map of segments", x, index, held)(
        "segment_map", map, x, index, num_segments, ptr, dim, temperature, where, params
    )


def _segment_map(
    name: str, map: AnyMap, x: Any, index: Any, num_segments: Any, ptr: Any, dim: Any, temperature: Any, where: Any, params: Any
) -> Any:
    found = find_map(map, name)
    values = found.complete(params, name)
    if is_jagged(name, x):
        own, segments = segments_of_nested(name, x, {"index": index, "num_segments": num_segments, "ptr": ptr}, dim)
        where = values_beside(name, "where", where, x)
        return nested_like(x, _segment_map(name, map, own, segments, None, None, 0, temperature, where, params))
    scores = as_map_scores(name, x)
    segments, axis, tau, mask = prepared(name, scores, index, num_segments, ptr, dim, temperature, where)
    checked: list[Any] = []
    for parameter in found.params:
        value = values[parameter.name]
        if parameter.gradient is None:
            checked.append(parameter.check(name, value))
        else:
            checked.append(
                value_of_segments(name, parameter.name, value, scores, axis, segments, parameter.valid, parameter.domain)
            )
    return like_input(evaluate(operation_of(found), segments, axis, scores, tau, mask, checked), x)
