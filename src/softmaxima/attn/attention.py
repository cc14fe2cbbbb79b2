"""attention: o_i = Σ_j p_ij v_j, p_i = map(x_i/τ), x_ij = scale ⟨q_i, k_j⟩ + bias_ij."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from softmaxima.attn import blocks, fused, naive, nested
from softmaxima.attn.arguments import Request, check_request
from softmaxima.base.arguments import Array, like_input
from softmaxima.base.public import public
from softmaxima.base.tracing import is_exporting_to_onnx
from softmaxima.engine.contract import AnyMap

NAME = "attention"


@public
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    map: AnyMap | nn.Module = "softmax",
    softcap: float | None = None,
    bias: Array | None = None,
    alibi_slopes: Array | None = None,
    temperature: float | Array = 1.0,
    sink: float | Array | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    key_lengths: Array | None = None,
    first_query: int | Array | str = 0,
    return_lse: bool = False,
    return_weights: bool = False,
    **params: Any,
) -> Any:
    r"""Attention with any map from scores to probabilities.

    o_i = Σ_j p_ij v_j,    p_i = map(x_i/τ),    x_ij = scale ⟨q_i, k_j⟩ + bias_ij    over the keys j that query i may see.

    The names and shapes are those of `torch.nn.functional.scaled_dot_product_attention`, which it equals with `map="softmax"`. A
    query that may see nothing gives 0. What a query may not see, and the value of a key whose p is 0, is never read in either pass:
    it may be NaN or ±∞. All is differentiable, twice too: by query, key, value, bias, τ, sink and parameters.

    Args:
        query: [..., L, E]; with heads [batch, heads, L, E].
        key: [..., S, E], and
        value: [..., S, Ev]. The axes before the last two broadcast among the three; outputs, LSE and p have those of all.
            All three may be nested, with torch's jagged layout: [batch, heads, ragged, E] or [batch, ragged, E], keys and values of
            as many sequences as queries. They are padded to the longest; so are outputs and LSE, before they are cut again.
            attn_mask, bias and return_weights have no shape then, and a key's length is its sequence's.
        attn_mask: of booleans, True where a query may see a key, or of floating point, which is added to the scores; it
            broadcasts to [..., L, S]. torch's `causal_upper_left` and `causal_lower_right` are taken without a mask in memory.
        dropout_p: The share of probabilities that are set to 0, the others scaled by 1/(1 − dropout_p); 1 sets all to 0. As in
            torch's function, it applies whenever it is given.
        is_causal: A query sees the keys up to its own place, together with whatever else is masked: query i those from 0 to i.
        scale: A factor of ⟨q, k⟩; without it 1/√E.
        enable_gqa: Heads of queries share those of keys and values, whose number divides theirs, in groups.
        map: The name or the function of a registered map, or a `sm.Map`; `params` are its parameters, each by its name or by
            `map_` and its name, as the scale of perturb_max, `map_scale=`, must be. One that may be a tensor, such as α of entmax,
            may be one a head, [heads], or broadcast to [..., L, 1]. A module, `sm.Entmax(…)`, is its map with
            the temperature and the parameters that it has, which learn.
        softcap: c > 0, a number: scale ⟨q, k⟩ becomes c tanh(scale ⟨q, k⟩/c), which lies between −c and c, as in Gemma 2. What is
            added to scores is added afterwards.
        bias: Added to the scores, and differentiable; broadcasts to [..., L, S].
        alibi_slopes: m [heads] or [batch, heads] of ALiBi: −m |place of the query − place of the key| is added to the scores. Those
            of Press et al. are 2^(−8h/H) for h = 1 … H. Differentiable.
        temperature: τ > 0, a number, one a head or one a query.
        sink: The score of one more key with the value 0, not divided by τ: a number, one a head or one a query. With softmax this
            is elastic softmax, whose probabilities may add up to less than 1.
        window: How many keys to either side of its own place a query sees: a number, or (before, after), None for all.
        key_lengths: Integers [batch]: how many keys there are; those behind are padding.
        first_query: The place of the first query among the keys, from which `is_causal`, `window` and `alibi_slopes` count: an
            integer, how many keys a cache had before those of the queries; integers [batch]; or "bottom_right", which is S − L, and
            with `key_lengths` those less L, so that the last query stands at the last key. So it is in `causal_lower_right` of
            torch, in FlashAttention (its `causal`, `window_size` and `alibi_slopes`), and in xformers'
            `LowerTriangularFromBottomRightMask`. A query that stands before all keys sees nothing where it is causal.
        return_lse: Also LSE_j(x_ij/τ), the sink included, [..., L], of softmax and elastic_softmax, by which `merge_attention`
            merges outputs over different keys. Where a query may see nothing it is the sink, which is β of elastic_softmax,
            and −∞ without one.
        return_weights: Also p, [..., L, S], before dropout, in query's dtype.

    Returns:
        o [..., L, Ev] in value's dtype; a tuple (o, LSE, p) of what was asked for otherwise. The LSE is float32 at least.

    Raises:
        TypeError, ValueError: Before any work, for shapes that do not broadcast, dtypes that do not fit, tensors beside arrays,
            numbers outside their domain, and a map that gives logarithms.

    Cost: 2·L·S·(E + Ev) operations. A kernel holds the scores of 48 queries and the keys and values of a head in each thread;
    `return_weights=True`, second derivatives and torch.func hold [..., L, S]. Without a kernel, and with a gradient by a bias, by α
    or by a sink of other maps than softmax, torch's operations work on a block of queries at a time, and take a few times as long;
    in a graph that is exported or traced they work on all at once.

    Source: Vaswani et al. (2017), arXiv:1706.03762; with sparse maps Correia et al. (2019), arXiv:1909.00015.

    >>> import torch, softmaxima as sm
    >>> q, k = torch.tensor([[4.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    >>> v = torch.tensor([[1.0], [2.0], [3.0]])
    >>> o, p = sm.attention(q, k, v, map="sparsemax", return_weights=True)
    >>> p
    tensor([[0.7828, 0.2172, 0.0000]])
    >>> o
    tensor([[1.2172]])
    """
    if nested.any_nested(query, key, value):
        beside = {"attn_mask": attn_mask, "bias": bias, "key_lengths": key_lengths, "return_weights": return_weights}
        of_scores = {"scale": scale, "softcap": softcap, "alibi_slopes": alibi_slopes, "is_causal": is_causal, "window": window}
        of_maps = {"map": map, "temperature": temperature, "sink": sink, "dropout_p": dropout_p, **params}
        options = {**of_scores, **of_maps, "enable_gqa": enable_gqa, "return_lse": return_lse}
        return nested.attend(NAME, attention, beside, first_query, query, key, value, **options)
    request = check_request(
        NAME,
        query,
        key,
        value,
        map=map,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        softcap=softcap,
        bias=bias,
        alibi_slopes=alibi_slopes,
        temperature=temperature,
        sink=sink,
        dropout_p=dropout_p,
        enable_gqa=enable_gqa,
        window=window,
        key_lengths=key_lengths,
        first_query=first_query,
        params=params,
    )
    found = attend(request, value, wants_lse=return_lse, wants_weights=return_weights)
    found = [like_input(x, query) for x in found if x is not None]
    return tuple(found) if len(found) > 1 else found[0]


def attend(
    request: Request, value: Any, *, wants_lse: bool = False, wants_weights: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(o and p in the dtype of `value` as it was given, LSE; the last two where they are wanted)."""
    if wants_lse:
        request.check_lse()
    if wants_weights or is_exporting_to_onnx():
        output, p = naive.attend(request)
        mass = naive.log_mass(request) if wants_lse else None
    else:
        output, mass = (fused if fused.fits(request) else blocks).attend(request, wants_lse)
        p = None
    if isinstance(value, Tensor):
        output = output.to(value.dtype)  # under autocast half precision came as float32
    return output, mass if wants_lse else None, p.to(output.dtype) if p is not None and wants_weights else None
