"""Attention over keys in parts, against attention over all of them: outputs and every gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import normal
from softmaxima.maps import REGISTRY

MAPS = [name for name, map in REGISTRY.items() if map.blocks is not None and not map.properties.logarithmic]


@st.composite
def cases(draw: Any) -> tuple[dict[str, Tensor], dict[str, Any], list[int]]:
    """(matrices, options, where the parts end)."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    heads, groups = draw(st.sampled_from([(1, 1), (4, 2), (3, 1)]))
    queries, keys = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    spread = draw(st.sampled_from([0.3, 1.0, 4.0]))

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64, requires_grad=True)

    found = {"key": drawn(heads // groups, keys, 3), "value": drawn(heads // groups, keys, 2)}
    found["query"] = (spread * drawn(heads, queries, 3)).detach().requires_grad_()
    if draw(st.booleans()):
        found["bias"] = drawn(heads, queries, keys)
    if draw(st.booleans()):
        found["attn_mask"] = torch.rand(queries, keys, generator=rng) > 0.4
    name = draw(st.sampled_from(MAPS))
    params = {parameter.name: draw(st.sampled_from(parameter.examples)) for parameter in REGISTRY[name].params}
    options = {
        "map": name,
        "is_causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 2, (3, None)])),
        "scale": draw(st.sampled_from([None, 0.7])),
        "first_query": draw(st.sampled_from([0, 3, -1])),
        "softcap": draw(st.sampled_from([None, 0.8])),
        "alibi_slopes": draw(st.sampled_from([None, torch.linspace(-0.1, 0.5, heads, dtype=torch.float64)])),
        "temperature": draw(st.sampled_from([1.0, 0.6])),
        "enable_gqa": groups > 1,
        **params,
    }
    ends = sorted({*draw(st.lists(st.integers(1, keys), max_size=3)), keys})
    return found, options, ends


@given(cases())
@settings(max_examples=80)
def test_parts_are_attention_over_all_keys(case: tuple[dict[str, Tensor], dict[str, Any], list[int]]) -> None:
    given_, options, ends = case
    of_keys = {name: x for name, x in given_.items() if name in ("attn_mask", "bias")}
    expected = sm.attention(given_["query"], given_["key"], given_["value"], **of_keys, **options)
    g = normal(*expected.shape)
    learn = [name for name in ("query", "key", "value", "bias") if name in given_]
    right = dict(zip(learn, torch.autograd.grad(expected, [given_[name] for name in learn], g), strict=True))

    plain = {name: x.detach() for name, x in given_.items()}
    queries = sm.attention_in_parts(plain["query"], **options)
    parts = []
    for first, last in zip([0, *ends], ends, strict=False):
        own = {name: x[..., first:last] for name, x in plain.items() if name in of_keys}
        parts.append(queries.part(plain["key"][:, first:last], plain["value"][:, first:last], first, **own))
    torch.testing.assert_close(queries.attend(parts), expected.detach(), rtol=1e-8, atol=1e-9)

    state = queries.state(parts)
    sums = queries.begin_pull(parts[0], g, state)
    for part in parts[1:]:
        sums = queries.rows.merge_pull(sums, queries.begin_pull(part, g, state))
    found = [queries.pull(part, g, state, sums) for part in parts]
    axis = {"key": -2, "value": -2, "bias": -1}
    for name in learn:
        together = sum(each[name] for each in found) if name == "query" else torch.cat([each[name] for each in found], axis[name])
        torch.testing.assert_close(together, right[name], rtol=1e-6, atol=1e-8, msg=lambda words, name=name: f"{name}: {words}")


def test_a_query_gets_its_gradient_from_every_matrix_of_keys() -> None:
    q, k, v = normal(2, 4).requires_grad_(), normal(3, 5, 4), normal(3, 5, 1)
    g = normal(3, 2, 1)
    (expected,) = torch.autograd.grad(sm.attention(q, k, v, map="sparsemax"), q, g)
    queries = sm.attention_in_parts(q.detach(), map="sparsemax")
    part = queries.part(k, v)
    state = queries.state([part])
    torch.testing.assert_close(queries.pull(part, g, state, queries.begin_pull(part, g, state))["query"], expected)


def test_what_cannot_be_done_is_refused() -> None:
    q, k, v = torch.ones(2, 4), torch.ones(3, 4), torch.ones(3, 1)
    with pytest.raises(ValueError, match="first must be"):
        sm.attention_in_parts(q).part(k, v, -1)
    with pytest.raises((TypeError, ValueError), match=r"^attention_in_parts: key must not require grad"):
        sm.attention_in_parts(q).part(k.requires_grad_(), v)
    with pytest.raises(ValueError, match=r"^attention_in_parts: unknown map"):
        sm.attention_in_parts(q, map="softmx")
    whole = replace(sm.find_map("softmax"), blocks=None)
    with pytest.raises(ValueError, match=r"^attention_in_parts: softmax does not say how it works on parts"):
        sm.attention_in_parts(q, map=whole)
    with pytest.raises(TypeError, match=r"^attention_in_parts: unknown argument 'sink'; map 'softmax' takes: none$"):
        sm.attention_in_parts(q, sink=1.0)
    with pytest.raises(TypeError, match=r"first_query must be .* got 'bottom_right': keys come in parts$"):
        sm.attention_in_parts(q, first_query="bottom_right")
    with pytest.raises(ValueError, match=r"^attention_in_parts: alibi_slopes must not require grad"):
        sm.attention_in_parts(q[None], alibi_slopes=torch.ones(1, requires_grad=True)).part(k[None].detach(), v[None])
    with pytest.raises(TypeError, match=r"unknown argument 'is_casual'; did you mean 'is_causal'\?"):
        sm.attention_in_parts(q, is_casual=True)
    with pytest.raises(ValueError, match=r"^attention_in_parts: query must not require grad"):
        sm.attention_in_parts(q.clone().requires_grad_())
    with pytest.raises(TypeError, match=r"^attention_in_parts: all must be tensors or all NumPy arrays"):
        sm.attention_in_parts(q.numpy()).part(k.detach(), v)
    queries = sm.attention_in_parts(q)
    part = queries.part(k.detach(), v)
    state = queries.state([part])
    assert torch.equal(queries.attend(part for _ in range(1)), queries.attend([part]))
    for wrong in (lambda: queries.finish(3, state), lambda: queries.state([3]), lambda: queries.begin_pull(3, v, state)):
        with pytest.raises(TypeError, match=r"a part must come from \.part\(key, value\), got int"):
            wrong()
    with pytest.raises(TypeError, match=r"parts must be a list of what \.part\(key, value\) gives, got AttentionPart"):
        queries.attend(part)
    with pytest.raises(TypeError, match=r"state must be of all parts, from \.state\(parts\), got int"):
        queries.finish(part, 4)
    with pytest.raises(ValueError, match="g must have the shape"):
        queries.begin_pull(part, torch.ones(3, 1), state)
