"""Linear attention against attention with Taylor softmax, which holds all scores."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import normal
from softmaxima.attn import linear


@st.composite
def cases(draw: Any) -> tuple[list[Tensor], dict[str, Any], int]:
    """(query, key and value, options that both functions have, how many keys a chunk has)."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32, torch.bfloat16]))
    heads, groups = draw(st.sampled_from([(1, 1), (4, 2), (3, 1)]))
    causal = draw(st.booleans())
    queries = draw(st.integers(1, 9))
    keys = queries if causal else draw(st.integers(1, 20))
    size, value_size = draw(st.sampled_from([(1, 1), (3, 5), (8, 2)]))

    def drawn(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()

    rows = [drawn(heads, queries, size), drawn(heads // groups, keys, size), drawn(heads // groups, keys, value_size)]
    options = {
        "is_causal": causal,
        "scale": draw(st.sampled_from([None, 1.5])),
        "temperature": draw(st.sampled_from([1.0, 0.5 + torch.rand(heads, generator=rng, dtype=torch.float64)])),
        "key_lengths": draw(st.sampled_from([None, torch.randint(0, keys + 1, (2,), generator=rng)])),
        "enable_gqa": groups > 1,
    }
    return rows, options, draw(st.integers(1, 25))


@given(cases())
@settings(max_examples=80)
def test_it_is_attention_with_taylor_softmax(case: tuple[list[Tensor], dict[str, Any], int]) -> None:
    rows, options, chunk = case
    expected = sm.attention(*(x.double() for x in rows), map="taylor_softmax", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "CHUNK", chunk)
        found = sm.linear_attention(*rows, **options)
        g = normal(*expected.shape)
        gradients = torch.autograd.grad(found, rows, g.to(found.dtype))
    right = torch.autograd.grad(expected, rows, g)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}[found.dtype]
    assert found.dtype == rows[0].dtype
    for a, b in zip((found, *gradients), (expected, *right), strict=True):
        a, b = a.detach().double(), b.detach().double()
        assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())), (a, b)


@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from([torch.nan, torch.inf]))
@settings(max_examples=40)
def test_what_is_excluded_is_never_read(case: tuple[list[Tensor], dict[str, Any], int], seed: int, junk: float) -> None:
    """Padding, keys that come after a query, and by the gradients of keys the queries that come before."""
    (q, k, v), options, chunk = case
    place = int(torch.randint(0, k.shape[-2], (), generator=torch.Generator().manual_seed(seed)))
    before, behind = torch.arange(min(place, q.shape[-2])), torch.arange(place, k.shape[-2])
    causal = options["is_causal"]
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "CHUNK", chunk)
        for value in (junk, 0.0):
            own = [q, *(x.detach().index_fill(-2, behind, value).requires_grad_() for x in (k, v))]
            output = sm.linear_attention(*own, **options if causal else {**options, "key_lengths": torch.tensor([place, 0])})
            found = (output, *torch.autograd.grad(output.square().sum(), own))
            results.append([x[..., :place, :] for x in found[:2]] if causal else [*found])
            if causal:
                own = [q.detach().index_fill(-2, before, value).requires_grad_(), k, v]
                g = normal(*output.shape).to(output.dtype).index_fill(-2, before, value)
                results[-1] += [x[..., place:, :] for x in torch.autograd.grad(sm.linear_attention(*own, **options), own, g)]
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


@given(cases())
@settings(max_examples=30)
def test_a_token_at_a_time(case: tuple[list[Tensor], dict[str, Any], int]) -> None:
    """Each query sees the keys up to its own, by the state that the earlier left."""
    (q, k, v), options, _ = case
    options = {**options, "is_causal": False, "key_lengths": None}
    length = min(q.shape[-2], k.shape[-2])
    q, k, v = (x[..., :length, :] for x in (q, k, v))
    expected = sm.linear_attention(q, k, v, **{**options, "is_causal": True})
    state, found = None, []
    for i in range(length):
        one, state = sm.linear_attention(*(x[..., i : i + 1, :] for x in (q, k, v)), **options, state=state, return_state=True)
        found.append(one)
    tolerance = 3e-2 if q.dtype == torch.bfloat16 else 1e-4 if q.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(torch.cat(found, -2), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_causal", [False, True])
def test_first_and_second_derivatives(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "CHUNK", 2)
    rng = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, 3, n, generator=rng, dtype=torch.float64, requires_grad=True) for n in (2, 2, 1)]
    state = torch.rand(1, 6, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    state = (state + 1).detach().requires_grad_()

    def attend(*args: Tensor) -> Any:
        return sm.linear_attention(*args[:3], is_causal=is_causal, state=args[3], return_state=True)

    assert torch.autograd.gradcheck(attend, (*rows, state))
    assert torch.autograd.gradgradcheck(attend, (*rows, state))


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_in_a_batch_are_those_one_by_one(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "CHUNK", 3)
    rows = [normal(2, 7, n, seed=n).requires_grad_() for n in (4, 4, 3)]
    output, g = sm.linear_attention(*rows, is_causal=is_causal), normal(2, 2, 7, 3)
    together = torch.autograd.grad(output, rows, g, retain_graph=True, is_grads_batched=True)
    for i in range(2):
        for a, b in zip(together, torch.autograd.grad(output, rows, g[i], retain_graph=True), strict=True):
            torch.testing.assert_close(a[i], b)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize(("is_causal", "most"), [(False, 45), (True, 80)])
def test_memory_does_not_grow_by_the_features_of_every_chunk(is_causal: bool, most: int) -> None:
    """Those of 256 keys are 17 MiB for 8 heads of 64, and so are those of 256 queries."""
    code = f"""
import torch, softmaxima as sm
torch.set_num_threads(1)
def peak(n):
    rows = [torch.randn(8, n, 64, requires_grad=True) for _ in range(3)]
    sm.linear_attention(*rows, is_causal={is_causal}).sum().backward()
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
print(-peak(256) + peak(1024))
"""
    grown = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < most, grown


def test_states_add_up_and_nothing_gives_zero() -> None:
    q, k, v = (normal(2, 7, n, seed=n) for n in (4, 4, 3))
    whole, state = sm.linear_attention(q, k, v, return_state=True)
    states = [sm.linear_attention(q, k[:, own], v[:, own], return_state=True)[1] for own in (slice(0, 3), slice(3, 7))]
    torch.testing.assert_close(states[0] + states[1], state)
    torch.testing.assert_close(sm.linear_attention(q, k[:, :0], v[:, :0], state=state), whole)
    assert (sm.linear_attention(q, k[:, :0], v[:, :0]) == 0).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"order": 4}, "order must be 2"),
        ({"is_causal": True}, "as many queries as keys, got 3 and 5"),
        ({"state": torch.ones(2, 4, 3)}, "state must have the shape"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"key": torch.ones(2, 5, 3)}, "must be of one size"),
        ({"enable_gqa": 1}, "enable_gqa must be True or False"),
    ],
)
def test_errors_come_before_any_work(change: dict[str, Any], words: str) -> None:
    good = {"query": torch.ones(2, 3, 4), "key": torch.ones(2, 5, 4), "value": torch.ones(2, 5, 2)}
    with pytest.raises((TypeError, ValueError), match=f"^linear_attention: .*{words}"):
        sm.linear_attention(**{**good, **change})
