"""What can be made of each segment, found again by a key: every map, and sums of exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from softmaxima.engine.autograd import apply
from softmaxima.engine.contract import Map
from softmaxima.engine.recorded import find_keyed
from softmaxima.lse.log_mean_exp import row_log_mean_exp
from softmaxima.lse.logsumexp import row_logsumexp, row_signed_logsumexp
from softmaxima.segments.ragged import Operation


def operation_of(map: Map) -> Operation:
    def rows(x: Tensor, tau: Any, mask: Tensor | None, params: Any) -> Tensor:
        return apply(map, x, tau, mask, *params)

    def kernels(library: Any, params: Any) -> Any:
        theta = None if map.kernel is None else map.kernel.theta(*params)
        return None if map.kernel is None or theta is None else library.of_map(map.kernel, theta)

    return Operation(
        map.key, rows, kernels, sums=False, uses_scores=map.uses_scores, shift_invariant=map.properties.shift_invariant, map=map
    )


def _weighted(x: Tensor, tau: Any, mask: Tensor | None, params: Sequence[Any]) -> Tensor:
    value, sign = row_signed_logsumexp(x, tau, mask, params[0], "native")
    return value.masked_fill(sign < 0, math.nan)


def _sum(name: str, rows: Callable[[Tensor, Any, Tensor | None], Tensor]) -> Operation:
    return Operation(
        name,
        lambda x, tau, mask, params: rows(x, tau, mask),
        lambda library, params: library.of_sum(name),
        sums=True,
        uses_scores=True,
    )


LOGSUMEXP, LOG_MEAN_EXP = _sum("logsumexp", row_logsumexp), _sum("log_mean_exp", row_log_mean_exp)
WEIGHTED = Operation("weighted", _weighted, lambda library, params: None, sums=True, uses_scores=True, weighted=True)
SUMS = {each.key: each for each in (LOGSUMEXP, LOG_MEAN_EXP, WEIGHTED)}


def find_operation(key: str) -> Operation:
    return SUMS[key] if key in SUMS else operation_of(find_keyed(key))
