"""StreamingFrequency: log Q of the items of a stream, from their gaps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from softmaxima.heads.frequencies import StreamingFrequency

ROOMY = 2**22  # buckets, in which few items meet


def stream(q: Tensor, batches: int, size: int) -> Tensor:
    return torch.multinomial(q, batches * size, replacement=True, generator=torch.Generator().manual_seed(0)).view(batches, size)


def test_without_forgetting_it_is_occurrences_by_draws():
    frequency = StreamingFrequency(ROOMY, rate=0)
    batches = [torch.tensor([[5, -3], [5, 2**62]]), torch.tensor([-3, 5]), torch.tensor([], dtype=torch.long), torch.tensor([8])]
    for batch in batches:
        frequency.observe(batch)
    found = frequency.log_prob(torch.tensor([[5, -3], [2**62, 8]])).exp()
    torch.testing.assert_close(found, torch.tensor([[3 / 6, 2 / 6], [1 / 4, 1 / 7]], dtype=torch.float64))
    assert frequency.log_prob(torch.tensor(9)) == -math.inf


def test_it_finds_the_probabilities_of_a_stream():
    q = 1 / torch.arange(1, 1001).double()
    q /= q.sum()
    frequency = StreamingFrequency(ROOMY, rate=0.005)
    for batch in stream(q, 400, 512):
        frequency.observe(batch)
    error = frequency.log_prob(torch.arange(1000)) - q.log()
    assert error[:100].abs().max() < 0.35  # of at least 250 occurrences
    assert error[:100].mean().abs() < 0.02
    assert error.mean().abs() < 0.05


def test_gaps_are_counted_in_draws_so_that_an_item_may_fill_a_batch():
    frequency = StreamingFrequency(ROOMY)
    q = torch.tensor([0.9, 0.1])
    for batch in stream(q, 100, 64):
        frequency.observe(batch)
    torch.testing.assert_close(frequency.log_prob(torch.arange(2)).exp(), q.double(), atol=0.02, rtol=0)


@pytest.mark.parametrize(("rate", "learns"), [(0.05, True), (0.0, False)])
def test_a_rate_forgets_what_is_old(rate: float, learns: bool):
    frequency = StreamingFrequency(ROOMY, rate)
    for q in (torch.tensor([0.8, 0.2]), torch.tensor([0.2, 0.8])):
        for batch in stream(q, 100, 16):
            frequency.observe(batch)
    found = frequency.log_prob(torch.arange(2)).exp()
    assert (abs(float(found[0]) - 0.2) < 0.1) == learns


def test_more_tables_are_nearer_where_items_share_buckets():
    q = torch.full((2000,), 1 / 2000, dtype=torch.float64)
    errors = []
    for tables in (1, 4):
        frequency = StreamingFrequency(4000, rate=0, tables=tables)
        for batch in stream(q, 100, 512):
            frequency.observe(batch)
        error = frequency.log_prob(torch.arange(2000)) - q.log()
        errors.append(float(error.mean()))
    assert errors[0] > 0.1
    assert -0.05 < errors[1] < errors[0] / 4


def test_it_keeps_float64_and_its_state():
    frequency = StreamingFrequency(100)
    frequency.observe(torch.tensor([1, 2, 2]))
    other = StreamingFrequency(100).half()
    other.load_state_dict(frequency.state_dict())
    assert other.gap.dtype == torch.float64
    assert torch.equal(other.log_prob(torch.tensor([1, 2])), frequency.log_prob(torch.tensor([1, 2])))
    assert repr(frequency) == "StreamingFrequency(buckets=100, rate=0.01, tables=1)"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"buckets": 0}, ValueError, "buckets must be an int of at least 1, got 0"),
        ({"buckets": 10, "rate": 1.0}, ValueError, r"rate must be in \[0, 1\), got 1.0"),
        ({"buckets": 10, "tables": 5}, ValueError, "tables must be at most 4, got 5; give more buckets instead"),
    ],
    ids=str,
)
def test_wrong_options_are_told(options: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=f"StreamingFrequency: {message}"):
        StreamingFrequency(**options)


def test_ids_that_are_no_integers_are_told():
    for method in (StreamingFrequency(10).observe, StreamingFrequency(10).log_prob):
        with pytest.raises(TypeError, match=r"StreamingFrequency: ids must be integers, got torch.float32; call ids.long\(\)"):
            method(torch.ones(3))
