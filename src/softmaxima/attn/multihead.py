"""MultiheadAttention: torch's module, with any map in softmax's place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from softmaxima.attn.arguments import OPTIONS, Visible, check_request, check_window, of_module, with_params
from softmaxima.attn.attention import attend
from softmaxima.base.arguments import check_place, check_tensor
from softmaxima.base.modules import WithOptions
from softmaxima.base.numbers import check_count, check_number
from softmaxima.base.public import public
from softmaxima.engine.contract import AnyMap, find_map

NAME = "MultiheadAttention"


@public
class MultiheadAttention(WithOptions, nn.MultiheadAttention):
    r"""`torch.nn.MultiheadAttention` with any map from scores to probabilities.

    MultiHead(Q, K, V) = concat(head_1, …, head_H) W^O,    head_h = attention(Q W_h^Q, K W_h^K, V W_h^V)

    Arguments, shapes, masks and state dict are those of torch's module, of which this is one; with `map="softmax"` its outputs too,
    but where a query may see nothing: it gets the bias of the output projection, not NaN. `is_causal=True` is enough for a causal
    mask. Padded keys and values are never read, and may be NaN; a padded query gives what it holds. The weights that are
    returned are those before dropout.

    Args:
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype: as of
            `torch.nn.MultiheadAttention`.
        map, temperature, sink, window, softcap, alibi_slopes, params: as of `sm.attention`; what a module as map learns is this
            module's too. A tensor is a buffer, an `nn.Parameter` a parameter that
            learns, of a shape [num_heads] for one a head; both are in the state dict.

    Raises:
        TypeError, ValueError: As `sm.attention` does, for its arguments when the module is made where they can be told.

    Source: Vaswani et al. (2017), arXiv:1706.03762.

    >>> import torch, softmaxima as sm
    >>> alpha = sm.Positive(1.5, minimum=1.0, shape=(4,))
    >>> layer = sm.MultiheadAttention(16, 4, batch_first=True, map="entmax", alpha=alpha)
    >>> x = torch.ones(2, 5, 16)
    >>> output, weights = layer(x, x, x)
    >>> output.shape, weights.sum(-1).allclose(torch.ones(2, 5))
    (torch.Size([2, 5, 16]), True)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        map: AnyMap | nn.Module = "softmax",
        temperature: float | Tensor | nn.Module = 1.0,
        sink: float | Tensor | None = None,
        window: int | tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        alibi_slopes: Tensor | None = None,
        **params: Any,
    ) -> None:
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "kdim": kdim, "vdim": vdim}
        for what, value in sizes.items():
            if value is not None or what in ("embed_dim", "num_heads"):
                check_count(NAME, what, value, 1)
        place = check_place(NAME, device, dtype)
        dropout = check_number(NAME, "dropout", dropout, lambda p: 0 <= p <= 1, "between 0 and 1")
        if embed_dim % num_heads:
            raise ValueError(f"{NAME}: num_heads must divide embed_dim, got {num_heads} and {embed_dim}")
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, **place
        )  # fmt: skip
        if alibi_slopes is not None and (add_bias_kv or add_zero_attn):
            raise ValueError(
                f"{NAME}: alibi_slopes count places, which keys of add_bias_kv and add_zero_attn do not have; leave one out"
            )
        own = {"temperature": temperature, "sink": sink, "window": window, "softcap": softcap, "alibi_slopes": alibi_slopes}
        give_map(self, NAME, map, **own, **params)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, weights or None), as torch's module: True in a mask of booleans leaves a key out."""
        self._check(query, key, value)
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if key_padding_mask is not None:
            key_padding_mask = _checked("key_padding_mask", key_padding_mask, [tuple(key.shape[0 if batched else 1 : 2])])
            key_padding_mask = key_padding_mask.reshape(key.shape[:2])
            key, value = (_without_padding(x, key_padding_mask) for x in (key, value))
        q, k, v = self._heads(query, key, value)
        asked = {"is_causal": is_causal, **with_params(self.options)}
        if k.shape[-2] > key.shape[1]:  # what hides keys by their places does not know those that the module adds
            left, right = check_window(NAME, asked.pop("window", None))
            places = Visible(query.shape[1], key.shape[1], left, 0 if asked.pop("is_causal") else right).mask(query.device)
        else:
            places = None
        allowed, bias = self._masks(key_padding_mask, attn_mask, places, (*q.shape[:-1], key.shape[1]), k.shape[-2])
        dropout = self.dropout if self.training else 0.0
        request = check_request(NAME, q, k, v, attn_mask=allowed, bias=bias, dropout_p=dropout, **asked)
        output, _, weights = attend(request, v, wants_weights=need_weights)
        output = self.out_proj(output.transpose(1, 2).flatten(-2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        weight = self.out_proj.weight
        cast = torch.is_autocast_enabled(weight.device.type) if weight.device.type != "meta" else True
        for what, x in (("query", query), ("key", key), ("value", value)):
            if check_tensor(NAME, what, x).is_nested:
                raise TypeError(
                    f"{NAME}: {what} must not be nested; make the nn.TransformerEncoder with enable_nested_tensor=False"
                )
            if x.dtype != weight.dtype and not cast:
                raise TypeError(
                    f"{NAME}: {what} must be of the weights' dtype, {weight.dtype}, got {x.dtype}; call {what}.to({weight.dtype})"
                )
        sizes = (self.embed_dim, self.kdim, self.vdim)
        for what, x, size in zip(("query", "key", "value"), (query, key, value), sizes, strict=True):
            if x.ndim != query.ndim or x.ndim not in (2, 3) or x.shape[-1] != size:
                shape = "[batch, length, size]" if self.batch_first else "[length, batch, size]"
                raise ValueError(f"{NAME}: {what} must be {shape} or [length, size] with the size {size}, got {tuple(x.shape)}")

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head, [batch, heads, length, size]."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat((x, b.expand(x.shape[0], 1, -1)), 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (torch.cat((x, x.new_zeros(x.shape[0], 1, x.shape[-1])), 1) for x in (k, v))
        q, k, v = (x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def _masks(
        self,
        padding: Tensor | None,
        mask: Tensor | None,
        places: Tensor | None,
        shape: tuple[int, ...],
        keys: int,
    ) -> tuple[Tensor | None, Tensor | None]:
        """(True where a query sees a key, what is added to scores), with the keys that the module itself adds, which all see.

        Two masks as of torch's module, True leaving out, the first [batch, keys], and `places`, True where a query sees a key.
        """
        batch, heads, queries, given = shape
        found = [] if places is None else [~places]
        wide = torch.promote_types(self.out_proj.weight.dtype, torch.float32)
        if padding is not None:
            found.append(padding[:, None, None])
        if mask is not None:
            mask = _checked("attn_mask", mask, [(queries, given), (batch * heads, queries, given)])
            found.append(mask if mask.ndim == 2 else mask.unflatten(0, (batch, heads)))
        allowed = bias = None
        for x in found:
            if keys > given:
                x = nn.functional.pad(x, (0, keys - given))
            if x.dtype == torch.bool:
                allowed = ~x if allowed is None else allowed & ~x
            else:
                bias = x if bias is None else bias.to(wide) + x.to(wide)
        return allowed, bias


def _without_padding(x: Tensor, padding: Tensor) -> Tensor:
    """Keys or values with 0 where there are none, which are no part of the gradient by the weights of their projection."""
    left_out = padding if padding.dtype == torch.bool else padding == -math.inf
    return x.masked_fill(left_out.unsqueeze(-1), 0.0) if x.shape[:2] == padding.shape else x


def _checked(what: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> Tensor:
    check_tensor(NAME, what, mask)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{NAME}: {what} must be boolean (True leaves a key out) or floating point, got {mask.dtype}")
    if tuple(mask.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"{NAME}: {what} must have the shape {expected}, got {tuple(mask.shape)}")
    return mask


def give_map(module: MultiheadAttention, name: str, map: AnyMap, **options: Any) -> None:
    """Let the module have this map; `name` is of the function that was called, for errors."""
    params = {option: value for option, value in options.items() if option not in OPTIONS}
    map, options["temperature"], own = of_module(name, map, options["temperature"], params)
    given: dict[str, Any] = {"map": find_map(map, name).name}
    for option, value in {**options, **own}.items():
        if option == "window" and value is not None:
            value = check_window(name, value)
        if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
            value = value.item()
        if value is not None:
            given[option] = value
    row = torch.zeros(module.num_heads, 1, 1, dtype=module.out_proj.weight.dtype, device="cpu")
    said = {option: value() if isinstance(value, nn.Module) else value for option, value in given.items()}
    told = {option: value.detach().cpu() if isinstance(value, Tensor) else value for option, value in said.items()}
    check_request(name, row, row, row, **with_params(told))  # says what is wrong with them
    module.hold(**given)
    module._qkv_same_embed_dim = False  # of which torch's own layers ask before they go around `forward`
