"""Attention over parts of the keys, merged: any split, any order, any part without a key, and the same as over all."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import DTYPES, normal

INF, NAN = math.inf, math.nan

# What two roundings of the parts' outputs and one of their logarithms add to the error of one rounding.
MERGED = {torch.float64: 1e-13, torch.float32: 3e-6, torch.bfloat16: 0.03, torch.float16: 4e-3}


def heads(*lengths: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """query, key, value of two heads."""
    return [normal(2, length, 3, seed=seed, scale=1.0, dtype=dtype) for seed, length in enumerate(lengths)]


def in_pieces(cuts: list[int], *tensors: Tensor, dim: int) -> list[tuple[Tensor, ...]]:
    n = tensors[0].shape[dim]
    ends = [0, *sorted(min(cut, n) for cut in cuts), n]
    return [tuple(x.narrow(dim, a, b - a) for x in tensors) for a, b in itertools.pairwise(ends)]


@given(
    cuts=st.lists(st.integers(0, 9), max_size=4),
    order=st.randoms(use_true_random=False),
    hidden=st.integers(0, 2**9 - 1),
    sink=st.sampled_from([None, -1.0, 2.0]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_split_and_order_of_the_keys_give_the_whole(
    cuts: list[int], order: Any, hidden: int, sink: float | None, dtype: torch.dtype
):
    q, k, v = heads(4, 9, 9, dtype=dtype)
    mask = torch.tensor([[(hidden >> (i * j) % 9) & 1 for j in range(9)] for i in range(4)]).bool()
    whole = sm.attention(q, k, v, mask, sink=sink, return_lse=True)
    parts = [
        sm.attention(q, *kv, *m, sink=sink if first == 0 else None, return_lse=True)
        for first, (kv, m) in enumerate(zip(in_pieces(cuts, k, v, dim=1), in_pieces(cuts, mask, dim=1), strict=True))
    ]
    order.shuffle(parts)
    merged = sm.merge_attention(*zip(*parts, strict=True))
    for found, expected in zip(merged, whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=MERGED[dtype], atol=MERGED[dtype])
    nested = sm.merge_attention(*zip(sm.merge_attention(*zip(*parts[:2], strict=True)), *parts[2:], strict=True))
    for found, expected in zip(nested, merged, strict=True):
        torch.testing.assert_close(found, expected, rtol=MERGED[dtype], atol=MERGED[dtype])


def test_every_derivative_of_outputs_and_logarithms():
    outputs = [normal(2, 3, seed=seed).requires_grad_() for seed in range(3)]
    masses = [normal(2, seed=seed) for seed in range(3)]
    masses[1][0] = -INF
    masses = [mass.requires_grad_() for mass in masses]

    def merge(*parts: Tensor) -> tuple[Tensor, Tensor]:
        silent = torch.tensor([[False, False], [True, False], [False, False]])
        return sm.merge_attention(parts[:3], [m.masked_fill(s, -INF) for m, s in zip(parts[3:], silent, strict=True)])

    finite = [mass.detach().masked_fill(mass == -INF, 0.0).requires_grad_() for mass in masses]
    assert gradcheck(merge, (*outputs, *finite))
    assert gradgradcheck(merge, (*outputs, *finite))
    o, mass = sm.merge_attention(outputs, masses)
    for gradient in torch.autograd.grad(o.sum() + mass.sum(), [*outputs, *masses]):
        assert gradient.isfinite().all()


def test_a_part_without_a_key_is_not_read():
    o, mass = normal(2, 3), normal(2)
    spoilt = torch.full_like(o, NAN).requires_grad_()
    nothing = torch.full_like(mass, -INF)
    found, its_mass = sm.merge_attention([spoilt, o], [nothing, mass])
    torch.testing.assert_close((found, its_mass), (o, mass))
    assert (torch.autograd.grad(found.sum(), spoilt)[0] == 0).all()
    found, its_mass = sm.merge_attention([spoilt, spoilt], [nothing, nothing])
    assert (found == 0).all()
    assert (its_mass == -INF).all()


def test_logarithms_of_any_size_merge():
    outputs = torch.tensor([[[1.0]], [[3.0]]])
    for offset in (-1e30, -1e4, 1e4, 1e30):
        o, mass = sm.merge_attention(outputs, torch.full((2, 1), offset))
        torch.testing.assert_close((o, mass), (torch.tensor([[2.0]]), torch.tensor([offset + math.log(2)])))


def test_the_widest_dtype_and_the_kind_of_the_first_part():
    o, mass = sm.merge_attention([torch.ones(2, 3).half(), torch.ones(2, 3)], [torch.zeros(2), torch.zeros(2).double()])
    assert (o.dtype, mass.dtype) == (torch.float32, torch.float64)
    o, mass = sm.merge_attention([np.ones((2, 3)), np.zeros((2, 3))], [np.zeros(2), np.zeros(2)])
    assert isinstance(o, np.ndarray)
    assert isinstance(mass, np.ndarray)
    np.testing.assert_allclose(o, 0.5)


@pytest.mark.parametrize(
    ("outputs", "masses", "message"),
    [
        ([], [], "one part at least, got 0 and 0"),
        ([torch.ones(2, 3)], [], "one LSE for each output"),
        ([torch.ones(2, 3), torch.ones(2, 4)], [torch.ones(2)] * 2, r"one shape .* got \(2, 3\) and, of part 1, \(2, 4\)"),
        ([torch.ones(2, 3)], [torch.ones(2, 1)], r"\(2,\), got \(2, 1\) of part 0"),
        ([torch.tensor(1.0)], [torch.tensor(1.0)], "one shape"),
    ],
)
def test_parts_that_do_not_fit_are_told(outputs: list[Tensor], masses: list[Tensor], message: str):
    with pytest.raises(ValueError, match=message):
        sm.merge_attention(outputs, masses)


def test_what_is_no_list_and_mixed_kinds_are_told():
    with pytest.raises(TypeError, match="outputs must be a list of tensors or arrays, one a part, got NoneType"):
        sm.merge_attention(None, None)
    with pytest.raises(TypeError, match="must be all tensors or all NumPy arrays, got both"):
        sm.merge_attention([np.ones((2, 3)), torch.ones(2, 3)], [torch.ones(2)] * 2)


def test_integers_are_told():
    with pytest.raises(TypeError, match="an output must be float64"):
        sm.merge_attention([torch.ones(2, 3).int()], [torch.ones(2)])
