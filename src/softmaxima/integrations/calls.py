"""Attention as torch and transformers ask for it: under autocast, and with masks of large negative numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima.attn import attention


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    return_weights: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """(o, p where it is wanted) by `sm.attention`, of what `F.scaled_dot_product_attention` takes."""
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask, added = _parted(attn_mask)
        bias = added if bias is None else bias + added
    found = attention(query, key, value, attn_mask, bias=bias, return_weights=return_weights, **options)
    output, weights = found if return_weights else (found, None)
    kind = output.device.type
    if torch.is_autocast_enabled(kind) and output.dtype != torch.float64:
        output = output.to(torch.get_autocast_dtype(kind))  # as of torch's function
    return output, weights


def _parted(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(what is seen, what is added to it): numbers near the most negative one hide a key, as −∞ does for every map."""
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return ~hidden, mask.masked_fill(hidden, 0.0)
