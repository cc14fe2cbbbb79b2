# Written by `softmaxima docs types`: what type checkers know of the functions that the room makes by name.

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from softmaxima.dask.chunks import Array
from softmaxima.dask.files import file_logsumexp as file_logsumexp
from softmaxima.dask.losses import chunked_loss as chunked_loss
from softmaxima.dask.maps import chunked_map as chunked_map
from softmaxima.dask.maps import softmin as softmin
from softmaxima.dask.sums import logsumexp as logsumexp
from softmaxima.engine.contract import AnyMap

__all__ = [
    "chunked_loss",
    "chunked_map",
    "file_logsumexp",
    "logsumexp",
    "softmin",
]

def budget_sparsemax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    budget: Any = 2.0,
) -> Array: ...
def cross_entropy(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
) -> Array: ...
def elastic_cross_entropy(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    beta: Any = 0.0,
) -> Array: ...
def elastic_softmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    beta: Any = 0.0,
) -> Array: ...
def entmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    alpha: Any = 1.5,
) -> Array: ...
def entmax15(
    x: Array,
    dim: int = -1,
    *,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
) -> Array: ...
def entmax15_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
) -> Array: ...
def entmax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    alpha: Any = 1.5,
) -> Array: ...
def eps_cross_entropy(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    map: AnyMap = "sparsemax",
    eps: float = 1e-06,
    **params: Any,
) -> Array: ...
def eps_softmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    eps: Any = 1e-06,
) -> Array: ...
def fenchel_young_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    map: AnyMap = "softmax",
    **params: Any,
) -> Array: ...
def focal_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    gamma: Any = 2.0,
) -> Array: ...
def log_softmax(
    x: Array,
    dim: int = -1,
    *,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
) -> Array: ...
def minp_softmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    p: Any = 0.1,
) -> Array: ...
def normmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    alpha: Any = 2.0,
) -> Array: ...
def proportional(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    f: Callable[[Tensor], Tensor] = ...,
) -> Array: ...
def rectified_softmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    empty: Literal["zeros", "uniform"] = "zeros",
) -> Array: ...
def soft_accuracy_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    map: AnyMap = "softmax",
    **params: Any,
) -> Array: ...
def softmax(
    x: Array,
    dim: int = -1,
    *,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
) -> Array: ...
def sparse_softmax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
    k: int | None = None,
    p: float | None = None,
) -> Array: ...
def sparsemax(
    x: Array,
    dim: int = -1,
    *,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
) -> Array: ...
def sparsemax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    temperature: Any = 1.0,
    split_every: Any = None,
) -> Array: ...
def taylor_softmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    order: int = 2,
) -> Array: ...
def topk_softmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    k: int = 10,
) -> Array: ...
def topp_softmax(
    x: Array,
    *,
    dim: int = -1,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    p: float = 0.9,
) -> Array: ...
