"""Every map over segments of scores: `segment_map`, and `segment_softmax` by itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from softmaxima.core.arguments import Array, as_scores, like_input
from softmaxima.core.autograd import apply
from softmaxima.core.contract import AnyMap, Map, find_map
from softmaxima.core.tracing import outside_compilers
from softmaxima.segments.arguments import prepared, value_of_segments
from softmaxima.segments.grouping import Segments
from softmaxima.segments.nested import is_jagged, nested_like, segments_of_nested
from softmaxima.segments.ragged import Operation, of_segments


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
    return outside_compilers(_segment_map, "a map of segments")(
        "segment_softmax", "softmax", x, index, num_segments, ptr, dim, temperature, where, {}
    )


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
        where: boolean, broadcasts to x; False leaves a score out.
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
    most. Under torch.compile the graph breaks here. On a CPU a dtype of less than 64 bits has sums in double, in the order of
    the index, whatever the number of threads.

    >>> import torch, softmaxima as sm
    >>> sm.segment_map("sparsemax", torch.tensor([1.0, 0.0, 0.6, 5.0]), ptr=torch.tensor([0, 3, 3, 4]))
    tensor([0.7000, 0.0000, 0.3000, 1.0000])
    """
    return outside_compilers(_segment_map, "a map of segments")(
        "segment_map", map, x, index, num_segments, ptr, dim, temperature, where, params
    )


def _segment_map(
    name: str, map: AnyMap, x: Any, index: Any, num_segments: Any, ptr: Any, dim: Any, temperature: Any, where: Any, params: Any
) -> Any:
    found = find_map(map, name)
    values = found.complete(params)
    if is_jagged(x):
        own, segments = segments_of_nested(name, x, {"index": index, "num_segments": num_segments, "ptr": ptr}, dim)
        return nested_like(x, _segment_map(name, map, own, segments, None, None, 0, temperature, where, params))
    scores = as_scores(name, x)
    segments, axis, tau, mask = prepared(name, scores, index, num_segments, ptr, dim, temperature, where)
    checked: list[Any] = []
    for parameter in found.params:
        value = values[parameter.name]
        if parameter.gradient is None:
            checked.append(parameter.check(name, value))
        else:
            checked.append(
                value_of_segments(name, parameter.name, value, scores, axis, len(segments), parameter.valid, parameter.domain)
            )
    return like_input(of_segments(_operation(found), segments, axis, scores, tau, mask, checked), x)


def _operation(map: Map) -> Operation:
    def rows(x: Tensor, tau: Any, mask: Tensor | None, params: Any) -> Tensor:
        return apply(map, x, tau, mask, *params)

    def kernels(library: Any, params: Any) -> Any:
        theta = None if map.kernel is None else map.kernel.theta(*params)
        return None if map.kernel is None or theta is None else library.of_map(map.kernel, theta)

    return Operation(rows, kernels, sums=False, uses_scores=map.uses_scores, shift_invariant=map.properties.shift_invariant)
