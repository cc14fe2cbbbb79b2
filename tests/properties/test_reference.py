"""Every map agrees with its literal definition in float64, for scores of every dtype."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from conftest import TOLERANCE, Case, normal, rows
from softmaxima.maps import REGISTRY

pytestmark = pytest.mark.gpu


def decided(case: Case, x: torch.Tensor) -> bool:
    """Whether no jump of the map at x hangs on the last digits of a parameter."""
    if case.claims.continuous:
        return True
    reference = case.reference(x)
    for parameter in case.map.params:
        value = case.params[parameter.name]
        for factor in (1 - 1e-6, 1 + 1e-6):
            if isinstance(value, float) and parameter.valid(value * factor):
                near = replace(case, params=case.params | {parameter.name: value * factor})
                if not torch.allclose(near.reference(x), reference, atol=1e-4, equal_nan=True):
                    return False
    return True


def clamp_to_neighbours(case: Case, x: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The result nearest `actual` that the reference gives for scores moved by their last digit beside the maximum.

    At the edge of a support p may grow as a root of the score, and the reference itself is as uncertain there.
    """
    finite = x.isfinite()
    spread = (x.amax(-1, keepdim=True) - x.where(finite, math.inf).amin(-1, keepdim=True)).clamp(min=1)
    step = torch.finfo(x.dtype).eps * spread * (x < x.amax(-1, keepdim=True))
    near = torch.stack([expected, case.reference(x - step), case.reference(x + step)])
    return actual.clamp(near.amin(0), near.amax(0))


def assert_close(case: Case, actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    relative = 4 * torch.finfo(dtype).eps if case.claims.logarithmic else 0.0
    torch.testing.assert_close(actual.double(), expected, atol=TOLERANCE[dtype], rtol=relative)


def test_the_edge_of_a_support_is_as_sharp_as_the_scores():
    """Here p grows as a square root, and float64 holds the gap of 1e-12 − 1 to 5 digits."""
    case = Case(REGISTRY["normmax"], {"alpha": 3.0})
    x = torch.tensor([[1e-12, 1.0]], dtype=torch.float64)
    exact = torch.tensor([[9.99998667e-7, 1 - 9.99998667e-7]], dtype=torch.float64)
    for p in (case(x), exact):
        assert_close(case, p, clamp_to_neighbours(case, x, p, case.reference(x)), torch.float64)


@given(data=st.data())
def test_agrees_with_the_reference(case: Case, dtype: torch.dtype, data: st.DataObject):
    x = data.draw(rows(dtype))
    assume(decided(case, x))
    out = case(x)
    assert out.dtype == dtype
    assert out.shape == x.shape
    expected = case.reference(x)
    if case.claims.sparse and case.claims.continuous and dtype == torch.float64:
        expected = clamp_to_neighbours(case, x, out, expected)
    assert_close(case, out, expected, dtype)


def test_agrees_with_the_reference_on_long_rows(case: Case):
    x = normal(3, 2000, scale=4.0)
    assert_close(case, case(x), case.reference(x), torch.float64)


def test_temperature_divides_the_scores(case: Case):
    x = normal(4, 6)
    tau = torch.tensor([[0.5], [1.0], [2.0], [10.0]], dtype=torch.float64)
    assert_close(case, case(x, temperature=tau), case.reference(x / tau), torch.float64)
    assert_close(case, case(x, temperature=0.25), case.reference(x / 0.25), torch.float64)


def test_parameter_per_row_equals_row_by_row(learnable):
    case, parameter = learnable
    x = normal(len(parameter.examples), 6)
    values = torch.tensor(parameter.examples, dtype=torch.float64)
    together = case.map(x, **case.params | {parameter.name: values[:, None]})
    alone = [case.map(row, **case.params | {parameter.name: float(value)}) for row, value in zip(x, values, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-13, rtol=0)


def test_parameter_broadcasts_over_heads(learnable):
    case, parameter = learnable
    x = normal(2, 3, 4, 5)
    values = torch.tensor([parameter.examples[h % len(parameter.examples)] for h in range(3)], dtype=torch.float64)
    together = case.map(x, **case.params | {parameter.name: values[:, None, None]})
    for head in range(3):
        alone = case.map(x[:, head], **case.params | {parameter.name: float(values[head])})
        torch.testing.assert_close(together[:, head], alone, atol=1e-13, rtol=0)


@pytest.mark.parametrize(
    ("name", "params"), [("topp_softmax", {"p": 0.3}), ("topk_softmax", {"k": 1}), ("minp_softmax", {"p": 1.0})]
)
def test_different_scores_with_equal_exponentials_are_no_ties(name: str, params: dict[str, float]):
    map, x = REGISTRY[name], torch.tensor([[0.0, 2.3e-17]], dtype=torch.float64)
    for p in (map.reference(x, **params), map.forward(x, **params), map(x, **params)):
        assert p.tolist() == [[0.0, 1.0]]
