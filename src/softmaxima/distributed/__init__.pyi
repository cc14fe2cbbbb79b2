# Written by `softmaxima docs types`: what type checkers know of the functions that the room makes by name.

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from softmaxima.base.arguments import DType
from softmaxima.distributed.attention import attention as attention
from softmaxima.distributed.heads import linear_loss as linear_loss
from softmaxima.distributed.heads import margin_softmax_loss as margin_softmax_loss
from softmaxima.distributed.layers import LinearLoss as LinearLoss
from softmaxima.distributed.layers import MarginSoftmax as MarginSoftmax
from softmaxima.distributed.layers import SampledSoftmax as SampledSoftmax
from softmaxima.distributed.layouts import places as places
from softmaxima.distributed.losses import shared_loss as shared_loss
from softmaxima.distributed.maps import shared_map as shared_map
from softmaxima.distributed.maps import softmin as softmin
from softmaxima.distributed.means import batch_mean as batch_mean
from softmaxima.distributed.ranks import Group
from softmaxima.distributed.ranks import RanksError as RanksError
from softmaxima.distributed.sampled import sampled_softmax_loss as sampled_softmax_loss
from softmaxima.distributed.sequence import unshard as unshard
from softmaxima.distributed.sums import logsumexp as logsumexp
from softmaxima.engine.contract import AnyMap

__all__ = [
    "LinearLoss",
    "MarginSoftmax",
    "RanksError",
    "SampledSoftmax",
    "attention",
    "batch_mean",
    "linear_loss",
    "logsumexp",
    "margin_softmax_loss",
    "places",
    "sampled_softmax_loss",
    "shared_loss",
    "shared_map",
    "softmin",
    "unshard",
]

def budget_sparsemax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    budget: Any = 2.0,
) -> Tensor: ...
def cross_entropy(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
) -> Tensor: ...
def elastic_cross_entropy(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    beta: Any = 0.0,
) -> Tensor: ...
def elastic_softmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    beta: Any = 0.0,
) -> Tensor: ...
def entmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    alpha: Any = 1.5,
) -> Tensor: ...
def entmax15(
    shard: Tensor,
    dim: int = -1,
    *,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
) -> Tensor: ...
def entmax15_loss(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
) -> Tensor: ...
def entmax_loss(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    alpha: Any = 1.5,
) -> Tensor: ...
def eps_cross_entropy(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    map: AnyMap = "sparsemax",
    eps: float = 1e-06,
    **params: Any,
) -> Tensor: ...
def eps_softmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    eps: Any = 1e-06,
) -> Tensor: ...
def fenchel_young_loss(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    map: AnyMap = "softmax",
    **params: Any,
) -> Tensor: ...
def focal_loss(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    gamma: Any = 2.0,
) -> Tensor: ...
def log_softmax(
    shard: Tensor,
    dim: int = -1,
    *,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
) -> Tensor: ...
def minp_softmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    p: Any = 0.1,
) -> Tensor: ...
def normmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    alpha: Any = 2.0,
) -> Tensor: ...
def proportional(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    f: Callable[[Tensor], Tensor] = ...,
) -> Tensor: ...
def rectified_softmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    empty: Literal["zeros", "uniform"] = "zeros",
) -> Tensor: ...
def soft_accuracy_loss(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    map: AnyMap = "softmax",
    **params: Any,
) -> Tensor: ...
def softmax(
    shard: Tensor,
    dim: int = -1,
    *,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
) -> Tensor: ...
def sparse_softmax_loss(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
    k: int | None = None,
    p: float | None = None,
) -> Tensor: ...
def sparsemax(
    shard: Tensor,
    dim: int = -1,
    *,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
) -> Tensor: ...
def sparsemax_loss(
    shard: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    group: Group = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: float | Tensor = 1.0,
) -> Tensor: ...
def taylor_softmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    order: int = 2,
) -> Tensor: ...
def topk_softmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    k: int = 10,
) -> Tensor: ...
def topp_softmax(
    shard: Tensor,
    *,
    dim: int = -1,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    p: float = 0.9,
) -> Tensor: ...
