"""MultiheadAttention beside torch's module, whose place it takes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import softmaxima as sm


@st.composite
def pairs(draw: Any) -> tuple[nn.MultiheadAttention, sm.MultiheadAttention, tuple[Tensor, ...], dict[str, Any]]:
    """(torch's module, ours with its state, what both are called with)."""
    seed = draw(st.integers(0, 2**32 - 1))
    torch.manual_seed(seed)
    yes = st.booleans()
    size, heads = draw(st.sampled_from([(8, 2), (12, 4), (6, 1)]))
    kdim, vdim = draw(st.sampled_from([(None, None), (5, 7)]))
    batched, batch_first = draw(yes), draw(yes)
    options = {"bias": draw(yes), "add_bias_kv": draw(yes), "add_zero_attn": draw(yes), "kdim": kdim, "vdim": vdim}
    theirs = nn.MultiheadAttention(size, heads, batch_first=batch_first, **options)
    ours = sm.MultiheadAttention(size, heads, batch_first=batch_first, **options)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    batch, queries, keys = 3 if batched else 1, 4, 5

    def tokens(length: int, size: int) -> Tensor:
        shape = (length, size) if not batched else (batch, length, size) if batch_first else (length, batch, size)
        return torch.randn(shape, requires_grad=True)

    call: dict[str, Any] = {"need_weights": draw(yes), "average_attn_weights": draw(yes)}
    shape = draw(st.sampled_from([None, (queries, keys), (batch * heads, queries, keys)]))
    floats = draw(yes)
    if shape is not None:
        mask = torch.rand(shape) > 0.6
        mask[..., 0] = False
        call["attn_mask"] = torch.randn(shape) if floats else mask
    if draw(yes):
        padding = torch.rand((batch, keys) if batched else (keys,)) > 0.6
        padding[..., 0] = False
        call["key_padding_mask"] = torch.where(padding, -torch.inf, 0.0) if floats else padding
    return theirs, ours, (tokens(queries, size), tokens(keys, kdim or size), tokens(keys, vdim or size)), call


@given(pairs(), st.booleans())
@settings(max_examples=80)
def test_it_is_torchs_with_softmax(case: tuple[Any, ...], training: bool) -> None:
    theirs, ours, given_, call = case
    theirs.train(training)
    ours.train(training)
    expected, weights = theirs(*given_, **call)
    found, own = ours(*given_, **call)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (own is None) == (weights is None)
    if weights is not None:
        torch.testing.assert_close(own, weights, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(expected)
    learn = [*given_, *(p for p in theirs.parameters())], [*given_, *(p for p in ours.parameters())]
    gradients = [torch.autograd.grad(y, x, g, allow_unused=True) for y, x in zip((expected, found), learn, strict=True)]
    for a, b in zip(*gradients, strict=True):
        if a is not None:
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)


@given(pairs(), st.sampled_from([torch.nan, torch.inf]))
@settings(max_examples=40)
def test_padding_is_never_read(case: tuple[Any, ...], junk: float) -> None:
    """Nor by the gradients of the projections."""
    _, ours, (query, *of_keys), call = case
    padding = call.get("key_padding_mask")
    assume(padding is not None)
    padding = (padding if padding.dtype == torch.bool else padding == -torch.inf).unsqueeze(-1)
    padding = padding.transpose(0, 1) if padding.ndim > 2 and not ours.batch_first else padding
    results = []
    for value in (junk, 0.0):
        own = [query, *(x.detach().masked_fill(padding, value).requires_grad_() for x in of_keys)]
        output, weights = ours(*own, **call)
        learn = [*own, *ours.parameters()]
        results.append([output, weights, *torch.autograd.grad(output.square().sum(), learn, allow_unused=True)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_every_option_is_attentions() -> None:
    torch.manual_seed(0)
    alpha, sink = nn.Parameter(torch.tensor([1.2, 1.8])), torch.tensor([0.0, 1.0])
    options = {"sink": sink, "window": (2, 0), "softcap": 1.5, "alibi_slopes": torch.tensor([0.1, 0.3])}
    layer = sm.MultiheadAttention(8, 2, batch_first=True, map="entmax", alpha=alpha, temperature=0.5, **options)
    x = torch.randn(3, 6, 8)
    output, weights = layer(x, x, x, average_attn_weights=False)
    q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in nn.functional.linear(x, layer.in_proj_weight).chunk(3, -1))
    o, p = sm.attention(q, k, v, map="entmax", alpha=alpha, temperature=0.5, return_weights=True, **options)
    torch.testing.assert_close(weights, p)
    torch.testing.assert_close(output, layer.out_proj(o.transpose(1, 2).flatten(-2)))
    output.sum().backward()
    assert alpha.grad is not None
    assert {"alpha", "sink", "alibi_slopes"} <= layer.state_dict().keys()
    assert dict(layer.named_parameters())["alpha"] is alpha
    assert "map='entmax'" in repr(layer)


def test_a_module_as_map_learns_in_it() -> None:
    torch.manual_seed(0)
    entmax, x = sm.Entmax(alpha=sm.Positive(1.3, minimum=1.0), temperature=nn.Parameter(torch.tensor(0.7))), torch.randn(3, 6, 8)
    layer = sm.MultiheadAttention(8, 2, batch_first=True, map=entmax)
    plain = sm.MultiheadAttention(8, 2, batch_first=True, map="entmax", alpha=1.3, temperature=0.7)
    plain.load_state_dict(layer.state_dict(), strict=False)
    found = layer(x, x, x)[0]
    torch.testing.assert_close(found, plain(x, x, x)[0])
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in entmax.parameters())
    assert {id(parameter) for parameter in entmax.parameters()} <= {id(parameter) for parameter in layer.parameters()}


@pytest.mark.parametrize("training", [True, False])
def test_in_torchs_layers(training: bool) -> None:
    """A sparse map takes effect in an encoder, which otherwise has a fast path of its own in evaluation."""
    torch.manual_seed(0)
    one = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    softmax = encoder.train(training)(x, src_key_padding_mask=padding)
    outputs = {}
    for name in ("softmax", "sparsemax"):
        own = copy.deepcopy(encoder)
        for layer in own.layers:
            state = layer.self_attn.state_dict()
            layer.self_attn = sm.MultiheadAttention(8, 2, batch_first=True, map=name)
            layer.self_attn.load_state_dict(state)
        own.train(training)
        with torch.set_grad_enabled(training):
            outputs[name] = own(x, src_key_padding_mask=padding)
    seen = ~padding
    torch.testing.assert_close(outputs["softmax"][seen], softmax[seen], rtol=1e-4, atol=1e-5)
    assert (outputs["sparsemax"][seen] - softmax[seen]).abs().max() > 1e-3


def test_saved_copied_compiled() -> None:
    layer = sm.MultiheadAttention(8, 2, batch_first=True, map="entmax", alpha=nn.Parameter(torch.tensor([1.2, 1.8])))
    x = torch.randn(2, 5, 8)
    expected = layer(x, x, x, need_weights=False)[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(x, x, x, need_weights=False)[0], expected)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, x, x, need_weights=False)[0], expected)


def test_nested_tensors_are_refused() -> None:
    x = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
    with pytest.raises(TypeError, match="enable_nested_tensor=False"):
        sm.MultiheadAttention(8, 2, batch_first=True)(x, x, x)


@pytest.mark.parametrize("average", [True, False])
def test_weights_have_the_dtype_of_the_module(average: bool) -> None:
    layer, x = sm.MultiheadAttention(8, 2, dtype=torch.bfloat16), torch.randn(3, 1, 8).bfloat16()
    assert layer(x, x, x, average_attn_weights=average)[1].dtype == torch.bfloat16


def test_a_query_that_sees_nothing() -> None:
    layer = sm.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 3, 8)
    output, weights = layer(x, x, x, attn_mask=torch.ones(3, 3, dtype=torch.bool))
    torch.testing.assert_close(output, layer.out_proj.bias.expand(1, 3, 8))
    assert (weights == 0).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"map": "softmx"}, "unknown map"),
        ({"map": "log_softmax"}, "must give probabilities"),
        ({"map": "entmax", "alpha": -0.5}, "alpha must be"),
        ({"map": "entmax", "alpha": torch.full((3,), 1.5)}, r"alpha must have the shape \[2\]"),
        ({"temperature": -1.0}, "temperature must be"),
        (
            {"beta": 1.0},
            "^MultiheadAttention: unknown argument 'beta'; it goes with a map that has it, as in map=.elastic_softmax., beta=",
        ),
        ({"batch_frist": True}, r"unknown argument 'batch_frist'; did you mean 'batch_first'\?"),
        ({"dropout": 1.1}, "dropout must be between 0 and 1"),
        ({"map": sm.Entmax(), "alpha": 1.3}, "^MultiheadAttention: Entmax.* leave out alpha$"),
        ({"alibi_slopes": torch.ones(2), "add_zero_attn": True}, "alibi_slopes count places"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        sm.MultiheadAttention(8, 2, **arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.ones(2, 5, 7)}, "query must be"),
        ({"query": torch.ones(2, 5, 8).numpy()}, "MultiheadAttention: query must be a torch.Tensor, got ndarray"),
        ({"key": torch.ones(2, 5, 8).double()}, "key must be of the weights' dtype, torch.float32, got torch.float64"),
        ({"key": torch.ones(5, 8)}, "key must be"),
        ({"attn_mask": torch.ones(5, 4) > 0}, "attn_mask must have the shape"),
        ({"attn_mask": torch.ones(5, 5, dtype=torch.int64)}, "attn_mask must be boolean"),
        ({"key_padding_mask": torch.ones(5, 2) > 0}, "key_padding_mask must have the shape"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(change: dict[str, Any], words: str) -> None:
    x = torch.ones(2, 5, 8)
    with pytest.raises((TypeError, ValueError), match=words):
        sm.MultiheadAttention(8, 2, batch_first=True)(**{"query": x, "key": x, "value": x, **change})


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_every_query_sees_the_keys_that_the_module_adds(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    ours, x = sm.MultiheadAttention(8, 2, **options), torch.randn(5, 2, 8)
    theirs = torch.nn.MultiheadAttention(8, 2, **options)
    theirs.load_state_dict(ours.state_dict())
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    found, weights = ours(x, x, x, is_causal=True)
    torch.testing.assert_close(found, theirs(x, x, x, attn_mask=mask, is_causal=True)[0])
    assert (weights[:, :, 5:] > 0).all()
    narrow = sm.MultiheadAttention(8, 2, window=1, **options)
    assert (narrow(x, x, x)[1][:, :, 5:] > 0).all()
