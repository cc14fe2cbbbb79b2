"""Attention as torch and transformers ask for it: under autocast, and with masks of large negative numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima.attn import attention


def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Any:
    """`sm.attention` of what `F.scaled_dot_product_attention` takes."""
    query, key, value = (_autocast(x) for x in (query, key, value))
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask, bias = _parted(attn_mask)
        options["bias"] = bias if options.get("bias") is None else options["bias"] + bias
    return attention(query, key, value, attn_mask, **options)


def _autocast(x: Tensor) -> Tensor:
    """In the dtype of the region, where there is one, as torch's function has it."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


def _parted(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(what is seen, what is added to it): numbers near the most negative one hide a key, as −∞ does for every map."""
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return ~hidden, mask.masked_fill(hidden, 0.0)
