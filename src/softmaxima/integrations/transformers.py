"""softmaxima in Hugging Face transformers: `attn_implementation="softmaxima_entmax15"`, and so for every map.

A model computes o = p v with p = map(x/τ), x = scaling ⟨q, k⟩ + bias, in the place of its softmax. Parameters stand in its config.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.numbers import nearest
from softmaxima.engine.contract import REGISTRY, Map, find_map
from softmaxima.integrations.calls import attend
from softmaxima.integrations.pairs import FUNCTIONS

PREFIX = "softmaxima_"
INSTALL = 'pip install "softmaxima[transformers]"'
OWN = ("temperature", "sink")  # what attention takes of a config beside the parameters of the map
# What models tell every implementation and no weight depends on here: places and windows are in the mask.
TOLD = (
    *("cache_position", "position_ids", "sliding_window", "max_length_q", "max_length_k", "seq_idx", "use_cache", "deterministic"),
    *("output_hidden_states", "output_router_logits", "return_dict"),
    *("labels", "shift_labels", "ignore_index", "logits_to_keep", "num_items_in_batch"),
)


def register() -> tuple[str, ...]:
    r"""Add `softmaxima_<map>` to the attention implementations of transformers, for every map that gives probabilities.

    o_i = Σ_j p_ij v_j,    p_i = map(x_i/τ),    x_ij = scaling ⟨q_i, k_j⟩ + bias_ij

    Any model that asks transformers' registry takes one: decoders with their caches, encoders, cross-attention, grouped heads,
    sliding windows, position biases, soft caps and the sinks of gpt-oss. With `softmaxima_softmax` it computes what `"eager"` does.
    `output_attentions=True` returns p, without dropout.

    The parameters of the map, `temperature` and `sink` are a dictionary in the config, `config.softmaxima = {"alpha": 1.3}`, which
    is saved and loaded with it; a list has one number a head, and `f` of `proportional` is given by its name. These are numbers,
    which do not learn: a config has no parameters. In a model of several parts, such as text and vision, what is set in the config
    of all is also set in that of each part, but for one that has its own: it is the config of an attention module's part that it
    reads. Set it after `register()`, and before the model is made, for some, as T5, copy it.

    transformers does not save which implementation a model has, and loads it with softmax, without a word: give
    `from_pretrained` the same `attn_implementation` again, or set `model.config.attn_implementation = "softmaxima_entmax"` before
    each `save_pretrained`. With it the file tells, and a process that has not called `register()` raises a ValueError.

    Maps that are registered later need another call, which is harmless to the rest.

    Returns:
        The names of the implementations.

    Raises:
        ModuleNotFoundError, ImportError: Without transformers 5 or later.

    A model raises a TypeError or a ValueError in its first layer, before any attention, for a parameter that the map does not have
    or that is a tensor, and for a keyword of a model that would change the weights and is not known here, such as the chosen keys
    of DeepSeek 3.2. A model that computes its own softmax, as BLOOM does, raises one where transformers makes its mask. A few that
    make their masks themselves too, DeBERTa (1 and 2), XLNet and Funnel, ask for nothing that is registered: they take the name
    and keep their softmax without a word. `type(model)._can_set_attn_implementation()` is False for them, and
    `sm.replace_attention` names them. Falcon and GPT-Neo, which choose among classes of their own, raise transformers' KeyError
    with the name when they are made.

    Cost: that of `sm.attention`. With `output_attentions` the scores of a layer are held, [batch, heads, L, S].

    Source: Wolf et al. (2020), arXiv:1910.03771; with sparse maps Correia et al. (2019), arXiv:1909.00015.

    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from softmaxima.integrations import transformers
    >>> "softmaxima_entmax" in transformers.register()
    True
    >>> size = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> config = BertConfig(**size, softmaxima={"alpha": 1.3}, attn_implementation="softmaxima_entmax")
    >>> BertModel(config)(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 8])
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, __version__
        from transformers.masking_utils import sdpa_mask
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "transformers":
            raise
        raise ModuleNotFoundError(f"register needs transformers, which is not installed: {INSTALL}", name=error.name) from None
    if int(__version__.partition(".")[0]) < 5:
        raise ImportError(f"register needs transformers 5 or later, got {__version__}: {INSTALL}")
    maps = [name for name, map in REGISTRY.items() if not map.properties.logarithmic]
    for name in maps:
        AttentionInterface.register(PREFIX + name, partial(_attention_forward, name))
        AttentionMaskInterface.register(PREFIX + name, partial(_attention_mask, name, sdpa_mask))
    PreTrainedConfig.softmaxima = property(_of_config, _set_in_config)  # type: ignore[attr-defined]
    return tuple(PREFIX + name for name in maps)


def _of_config(config: Any) -> Any:
    """`config.softmaxima`, which is saved with all that a config has."""
    return vars(config).get("softmaxima")


def _set_in_config(config: Any, value: Any) -> None:
    """Set it in the parts of a config too, as `attn_implementation` is, but for those that have their own."""
    before = _of_config(config)
    vars(config)["softmaxima"] = value
    for name in config.sub_configs:
        part: Any = getattr(config, name, None)
        if hasattr(type(part), "softmaxima") and part.softmaxima in (None, before):
            part.softmaxima = value


def _attention_mask(
    map: str,
    sdpa_mask: Callable[..., Any],
    *args: Any,
    config: Any = None,
    allow_is_causal_skip: bool = True,
    **asked: Any,
) -> Tensor | None:
    """The mask of a model, True where a query sees a key; None where it sees all.

    Where torch's function would be told `is_causal` in the place of a mask, there is a mask that says so, for it alone says what
    eager attention does: the modules of some models are not as causal as they say, or more.
    """
    if torch.compiler.is_compiling():
        return sdpa_mask(*args, allow_is_causal_skip=False, **asked)
    _check_registry(map, config)
    mask = sdpa_mask(*args, allow_is_causal_skip=allow_is_causal_skip, **asked)
    if mask is None and allow_is_causal_skip:
        mask = sdpa_mask(*args, allow_is_causal_skip=False, **asked)
        if not mask.is_inference():
            mask._causal = mask._version  # as long as nobody writes to it
    return mask


def _check_registry(map: str, config: Any) -> None:
    """That the attention of a model comes from the registry, told as transformers tells it: by the model's file."""
    file = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    if file is None or hasattr(file, "ALL_ATTENTION_FUNCTIONS"):
        return
    own = [x for x in vars(file).values() if isinstance(x, type) and x.__module__ == file.__name__ and "Attention" in x.__name__]
    if own:
        raise ValueError(
            f"{PREFIX}{map}: {own[0].__name__} does not ask transformers' registry, and computes its own softmax; take "
            'attn_implementation="eager" for this model'
        )


def _attention_forward(
    map: str,
    module: torch.nn.Module,
    query: Tensor,  # [batch, heads, L, E]
    key: Tensor,  # [batch, heads / groups, S, E]
    value: Tensor,  # [batch, heads / groups, S, Ev]
    attention_mask: Tensor | None,  # True where a query sees a key, or added to the scores
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # the score of a sink for each head
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    output_attentions: bool | None = None,
    **told: Any,
) -> tuple[Tensor, Tensor | None]:
    """(o [batch, L, heads, Ev], p where it is asked for), as transformers' registry has it."""
    found = find_map(map, PREFIX + map)
    unknown = sorted(name for name, value in told.items() if value is not None and name not in TOLD)
    if unknown:
        raise TypeError(
            f"{PREFIX}{map}: {type(module).__name__} gives {', '.join(unknown)}, which this implementation does not know; take "
            'attn_implementation="eager" for this model, or call it without'
        )
    options = _options(module, found, query)
    if s_aux is not None:
        if "sink" in options:
            raise ValueError(f"{PREFIX}{map}: {type(module).__name__} has sinks of its own; take sink out of config.softmaxima")
        options["sink"] = s_aux
    if query.shape[0] == 1:
        query = query.expand(key.shape[0], -1, -1, -1)  # learnt queries, the same for all
    causal = _is_causal(attention_mask, query.shape[2], key.shape[2])
    if causal:
        attention_mask = None
        causal = is_causal is None or is_causal or is_causal == getattr(module, "is_causal", None)  # else the caller's own word
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        attention_mask = _within_sequences(query, key, attention_mask, cu_seq_lens_q, cu_seq_lens_k)
    output, weights = attend(
        query,
        key,
        value,
        attention_mask,
        dropout_p=dropout if module.training else 0.0,
        is_causal=causal,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        map=found,
        softcap=softcap,
        bias=position_bias,
        return_weights=bool(output_attentions) or _collects_attentions(),
        **options,
    )
    return output.transpose(1, 2).contiguous(), weights


def _is_causal(mask: Any, queries: int, keys: int) -> bool:
    """Whether it is a causal mask as it was made, which attention does without."""
    version = getattr(mask, "_causal", None)
    return version is not None and version == mask._version and queries > 1 and tuple(mask.shape[2:]) == (queries, keys)


def _options(module: torch.nn.Module, map: Map, query: Tensor) -> dict[str, Any]:
    """What the config says of the map."""
    given = getattr(getattr(module, "config", None), "softmaxima", None)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f'config.softmaxima must be a dictionary, such as {{"temperature": 0.5}}, got {type(given).__name__}')
    known = (*OWN, *(parameter.name for parameter in map.params))
    for name in given:
        if name not in known:
            raise TypeError(
                f"config.softmaxima: {PREFIX}{map.name} has no parameter {name!r}{nearest(name, known)}; it has: {', '.join(known)}"
            )
    options = {name: _value(name, value, query) for name, value in given.items()}
    for parameter in map.params:
        if isinstance(f := options.get(parameter.name), str) and callable(parameter.default):
            raise ValueError(
                f"config.softmaxima: {parameter.name} must be one of {', '.join(FUNCTIONS)}, got {f!r}{nearest(f, FUNCTIONS)}"
            )
    return options


def _value(name: str, value: Any, query: Tensor) -> Any:
    """What stands for a value of a config: a list for one number a head, a name for a function."""
    if isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(
            f"config.softmaxima: {name} must be a number or a list of {query.shape[1]}, one a head, got {type(value).__name__}: a "
            "config cannot save it, and it would be no parameter of the model; call .tolist()"
        )
    if isinstance(value, str):
        return FUNCTIONS.get(value, value)
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) != query.shape[1] or not all(isinstance(x, Real) and not isinstance(x, bool) for x in value):
        raise ValueError(f"config.softmaxima: {name} must be a number or a list of {query.shape[1]}, one a head, got {value!r}")
    return torch.tensor(value, dtype=torch.promote_types(query.dtype, torch.float32), device=query.device)


def _within_sequences(query: Tensor, key: Tensor, mask: Tensor | None, bounds_q: Tensor, bounds_k: Tensor) -> Tensor | None:
    """The mask, in which a query sees the keys of its own sequence alone, where several stand in one row."""
    if len(bounds_q) < 3:
        return mask
    if len(query) > 1:
        raise ValueError(f"cu_seq_lens_q: sequences that are packed must stand in one row, got a batch of {len(query)}")
    of_query, of_key = (
        torch.searchsorted(bounds[1:].contiguous(), torch.arange(x.shape[2], device=x.device, dtype=bounds.dtype), right=True)
        for x, bounds in ((query, bounds_q), (key, bounds_k))
    )
    own = of_query[:, None] == of_key
    if mask is None:
        return own[None, None]
    return own & mask if mask.dtype == torch.bool else mask.masked_fill(~own, -math.inf)


def _collects_attentions() -> bool:
    """Whether `output_attentions=True` was said to the model: some modules, as GPT-2's, do not hand it on."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # transformers 5.0
        return False
    return any(key.endswith("attentions") for key in _active_collector.get() or ())
