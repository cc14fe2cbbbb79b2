"""Attention with any map.

The room is `softmaxima.attn`, for `softmaxima.attention` is the function.
"""

from __future__ import annotations

from softmaxima.attn.attention import attention
from softmaxima.attn.linear import linear_attention
from softmaxima.attn.merge import merge_attention
from softmaxima.attn.multihead import MultiheadAttention
from softmaxima.attn.parts import AttentionInParts, attention_in_parts
from softmaxima.base.public import listing

__all__ = ["AttentionInParts", "MultiheadAttention", "attention", "attention_in_parts", "linear_attention", "merge_attention"]
__dir__ = listing(globals())
