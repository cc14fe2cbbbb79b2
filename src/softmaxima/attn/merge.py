r"""merge_attention: attention over disjoint sets of keys, of their outputs o_k and LSE_k.

    LSE = log Σ_k exp(LSE_k),    w = softmax_k(LSE_k),    o = Σ_k w_k o_k

For o_k = Σ_j exp(x_j) v_j / exp(LSE_k) over the keys j of part k. (o, LSE) is a monoid: merges may be merged, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE, Array, as_scores, like_input
from softmaxima.base.jacobian import product
from softmaxima.base.public import public
from softmaxima.lse.logsumexp import logsumexp
from softmaxima.maps.softmax import softmax

NAME = "merge_attention"


@public
def merge_attention(outputs: Iterable[Array], lses: Iterable[Array]) -> tuple[Array, Array]:
    r"""Attention over all keys, of that over parts of them: exact, in one round.

    LSE = log Σ_k exp(LSE_k),    o = Σ_k exp(LSE_k − LSE) o_k

    It merges what `attention` returns with `return_lse=True`, for softmax and elastic softmax: keys that are split among devices,
    or read at different times, such as a prefix that many queries share. A sink belongs to one of the parts, for it counts
    where it is given. `attention_in_parts` is for all other maps.

    Args:
        outputs: o_k [..., L, Ev] of one part or more, a list or stacked along the first axis.
        lses: LSE_k [..., L] in nats, likewise; −∞ where a query saw no key of the part, whose output there is not read.

    Returns:
        (o, LSE), shapes and array kind as of one part, of the wider dtypes; they can be merged further. Where all parts are −∞, o
        is 0 and LSE is −∞. NaN and +∞ make NaN of a query's output. Half precision is summed in float32.

    Raises:
        TypeError or ValueError for no parts, another number of outputs than of lses, and shapes or devices that do not fit.

    Differentiable by all outputs and lses, twice too. Cost: each is read once, and once more for the gradient.

    Source: Rabe & Staats (2021), arXiv:2112.05682.

    >>> import torch, softmaxima as sm
    >>> q, k, v = torch.tensor([[1.0, 0.5]]), torch.eye(4, 2), torch.arange(8.0).reshape(4, 2)
    >>> parts = [sm.attention(q, k[part], v[part], return_lse=True) for part in (slice(0, 1), slice(1, 4))]
    >>> sm.merge_attention(*zip(*parts))
    (tensor([[2.3565, 3.3565]]), tensor([1.6960]))
    >>> sm.attention(q, k, v)
    tensor([[2.3565, 3.3565]])
    """
    given, given_masses = _listed("outputs", outputs), _listed("lses", lses)
    parts = [as_scores(NAME, o, "an output") for o in given]
    masses = [as_scores(NAME, m, "an LSE") for m in given_masses]
    if len({isinstance(x, Tensor) for x in (*given, *given_masses)}) > 1:
        raise TypeError(f"{NAME}: outputs and lses must be all tensors or all NumPy arrays, got both; call torch.from_numpy()")
    _check(parts, masses)
    dtype = _widest(parts)
    mass = torch.stack([m.to(_widest(masses)) for m in masses], -1)  # [..., L, parts]
    shares = softmax(mass, -1).unsqueeze(-1).unbind(-2)
    merged = sum(product(w.to(COMPUTE_DTYPE[dtype]), o.to(COMPUTE_DTYPE[dtype])) for w, o in zip(shares, parts, strict=True))
    return like_input(merged.to(dtype), given[0]), like_input(logsumexp(mass, -1), given[0])  # type: ignore[union-attr]


def _listed(what: str, given: Any) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise TypeError(f"{NAME}: {what} must be a list of tensors or arrays, one a part, got {type(given).__name__}") from None


def _widest(parts: list[Tensor]) -> torch.dtype:
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    return dtype


def _check(outputs: list[Tensor], masses: list[Tensor]) -> None:
    if not outputs or len(outputs) != len(masses):
        raise ValueError(
            f"{NAME}: there must be one LSE for each output, and one part at least, got {len(outputs)} and {len(masses)}"
        )
    shape, device = outputs[0].shape, outputs[0].device
    for part, (o, m) in enumerate(zip(outputs, masses, strict=True)):
        if o.ndim == 0 or o.shape != shape:
            raise ValueError(
                f"{NAME}: all outputs must be of one shape [..., L, Ev], got {tuple(shape)} and, of part {part}, {tuple(o.shape)}"
            )
        if m.shape != shape[:-1]:
            raise ValueError(
                f"{NAME}: the LSE of a part must be of its output's shape but for the last axis, {tuple(shape[:-1])}, got "
                f"{tuple(m.shape)} of part {part}"
            )
        if {o.device, m.device} != {device}:
            raise ValueError(f"{NAME}: all parts must be on one device, got {device}, and {o.device} and {m.device} of part {part}")
