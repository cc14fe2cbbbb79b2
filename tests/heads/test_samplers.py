"""Samplers: what they draw is what they say, to the last class."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from conftest import normal
from softmaxima.heads.fixed_samplers import LogUniformSampler, UniformSampler, UnigramSampler
from softmaxima.heads.learned_samplers import FrequencySampler, InBatchSampler, LearnedSampler
from softmaxima.heads.sampler import Sampler, inverse

WEIGHTS = torch.tensor([0.0, 3.0, 0.5, 0.0, 0.0, 1.5, 2.0, 0.0])
LABELS = torch.tensor([1, 1, 5, 2, 7, 1, 0, 1, 6, 6])


def observed(sampler: Any) -> Any:
    sampler.observe(LABELS)
    return sampler


MADE: dict[str, Callable[[], Sampler]] = {
    "uniform": lambda: UniformSampler(8),
    "log-uniform": lambda: LogUniformSampler(8),
    "unigram": lambda: UnigramSampler(WEIGHTS),
    "power": lambda: UnigramSampler(WEIGHTS, power=0.75),
    "flat": lambda: UnigramSampler(WEIGHTS, power=0),
    "learned": lambda: LearnedSampler(normal(8)),
    "frequency": lambda: observed(FrequencySampler(8)),
    "window": lambda: observed(FrequencySampler(8, window=4, smoothing=0.3)),
    "new": lambda: FrequencySampler(8),
    "in-batch": lambda: observed(InBatchSampler(8)),
}
every_sampler = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


def p_value(drawn: Tensor, q: Tensor) -> float:
    """Of a chi-square test that the draws are of Q; 0 where one is impossible."""
    counts = torch.bincount(drawn.flatten(), minlength=len(q))
    if counts[q == 0].any():
        return 0.0
    expected = q[q > 0] * drawn.numel()
    return scipy.stats.chisquare(counts[q > 0].numpy(), expected.numpy(), sum_check=False).pvalue


@every_sampler
def test_log_q_sums_to_one(make: Callable[[], Sampler]):
    log_q = make().log_prob(torch.arange(8))
    assert log_q.dtype == torch.float64
    assert float(log_q.exp().sum()) == pytest.approx(1, abs=1e-14)


@every_sampler
def test_draws_are_of_log_q(make: Callable[[], Sampler]):
    sampler = make()
    q = sampler.log_prob(torch.arange(8)).detach().exp()
    drawn = sampler.sample((250, 800), generator=torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.long
    assert drawn.shape == (250, 800)
    assert p_value(drawn, q) > 1e-3
    assert p_value(drawn, 0.98 * q + 0.02 * q.flip(0).roll(1)) < 1e-6 or torch.allclose(q, q[:1])  # the test can fail


@pytest.mark.parametrize("classes", [1, 2, 3, 7, 1000, 10**6, 10**9, 2**40])
def test_log_uniform_draws_are_of_its_formula_and_in_range_at_the_ends(classes: int):
    sampler = LogUniformSampler(classes)
    place = torch.tensor([0, classes // 2, classes - 1])
    expected = [math.log(math.log1p(1 / (c + 1)) / math.log(classes + 1)) for c in place.tolist()]
    torch.testing.assert_close(sampler.log_prob(place), torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-15)
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for made in (sampler, UniformSampler(classes)):
        made._uniform = lambda shape, generator: ends  # type: ignore[method-assign]
        assert made.sample((2,)).tolist() == [0, classes - 1]


def test_a_class_of_weight_zero_is_not_drawn_at_any_edge():
    cumulative = WEIGHTS.double().cumsum(0)
    edges = torch.cat((cumulative / 7.0, torch.tensor([0.0, 1.0, 1 - 2**-53], dtype=torch.float64)))
    drawn = inverse(cumulative, edges)
    assert (WEIGHTS[drawn] > 0).all()
    assert inverse(cumulative, torch.tensor([0.0, 2.9 / 7, 3.1 / 7, 0.9]).double()).tolist() == [1, 1, 2, 6]


def test_unigram_weights_of_any_size_are_not_clipped():
    sampler = UnigramSampler(torch.tensor([1e300, 1e-300, 1e300], dtype=torch.float64))
    expected = torch.tensor([-math.log(2), -600 * math.log(10) - math.log(2)], dtype=torch.float64)
    torch.testing.assert_close(sampler.log_prob(torch.tensor([0, 1])), expected)
    powers = UnigramSampler(np.array([16, 1, 0]), power=0.75).log_prob(torch.arange(3)).exp()
    torch.testing.assert_close(powers, torch.tensor([8, 1, 0]).double() / 9)


def test_a_million_classes_by_frequency():
    sampler = UnigramSampler(1 / torch.arange(1, 10**6 + 1).double())
    drawn = sampler.sample((200_000,), generator=0)
    edges = torch.tensor([0, 1, 10, 100, 1000, 10**4, 10**5, 10**6])
    cumulative = torch.cat((torch.zeros(1).double(), sampler.log_prob(torch.arange(10**6)).exp().cumsum(0)))
    assert p_value(torch.bucketize(drawn, edges, right=True) - 1, cumulative[edges].diff()) > 1e-3


def test_a_window_forgets():
    sampler = FrequencySampler(4, window=3, smoothing=0.0)
    q = lambda: sampler.log_prob(torch.arange(4)).exp().tolist()
    assert q() == [0.25] * 4
    sampler.observe(torch.tensor([0, 0]))
    assert q() == [1, 0, 0, 0]
    sampler.observe(torch.tensor([[1], [2]]))
    assert q() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    sampler.observe(torch.tensor([], dtype=torch.long))
    for labels in ([0, 3], [3, 3, 2]):
        sampler.observe(torch.tensor(labels))
    assert q() == pytest.approx([0, 0, 1 / 3, 2 / 3])
    assert sampler.counts.tolist() == [0, 0, 1, 2]
    longer = FrequencySampler(4, window=3, smoothing=0.1)
    longer.observe(torch.tensor([0, 3, 3, 3, 2]))
    assert longer.counts.tolist() == [0, 0, 1, 2]


def test_a_state_dict_holds_what_was_learned():
    for make in (FrequencySampler, InBatchSampler):
        sampler, other = observed(make(8)), make(8)
        other.load_state_dict(sampler.state_dict())
        seen = LABELS.unique()
        assert torch.equal(other.log_prob(seen), sampler.log_prob(seen))
    assert UnigramSampler(WEIGHTS).state_dict() == {}


def test_learned_logits_fit_the_labels_frequencies():
    sampler = LearnedSampler(4)
    target = torch.tensor([0, 0, 0, 1, 2, 2, 0, 0])
    optimizer = torch.optim.SGD(sampler.parameters(), lr=4.0)
    for _ in range(300):
        optimizer.zero_grad()
        loss = sampler.loss(target)
        loss.backward()
        optimizer.step()
    p = torch.tensor([5, 1, 2]).double() / 8
    torch.testing.assert_close(sampler.log_prob(torch.arange(3)).exp().detach(), p, atol=0.01, rtol=0)
    assert loss.item() == pytest.approx(-float((p * p.log()).sum()), abs=0.01)
    slope = torch.autograd.grad(LearnedSampler(sampler.logits).loss(target), sampler.logits)[0]
    torch.testing.assert_close(slope, sampler.logits.softmax(0) - torch.tensor([5, 1, 2, 0]) / 8, atol=1e-6, rtol=0)


def test_logits_that_training_spoils_are_told():
    sampler = LearnedSampler(4)
    with torch.no_grad():
        sampler.logits[2] = math.nan
    for ask in (lambda: sampler.sample(3), lambda: sampler.log_prob(LABELS[:2]), lambda: sampler.loss(LABELS[:2])):
        with pytest.raises(ValueError, match=r"LearnedSampler: logits must be .* got nan for class 2"):
            ask()
    never = LearnedSampler(torch.tensor([0.0, -math.inf]))
    assert never.log_prob(torch.arange(2)).tolist() == [0, -math.inf]
    assert (never.sample(100) == 0).all()
    assert LearnedSampler(np.int64(3)).classes == 3


def test_a_batch_is_drawn_in_turns():
    sampler = observed(InBatchSampler(8))
    for shape in ((10,), (3, 10), (4, 5)):
        drawn = sampler.sample(shape, generator=1).flatten().view(-1, 10)
        assert (drawn.sort(-1).values == LABELS.sort().values).all()
    assert not torch.equal(sampler.sample((10,)), sampler.sample((10,)))


def test_a_batch_without_labels_is_drawn_from_the_window_and_from_all_classes_before():
    sampler, none = InBatchSampler(8), torch.empty(0, dtype=torch.long)
    for labels in (none, LABELS):
        sampler.observe(labels)
        sampler.observe(none)
        assert p_value(sampler.sample((20_000,), generator=0), sampler.log_prob(torch.arange(8)).exp()) > 1e-3


@every_sampler
def test_a_shape_is_an_int_or_several(make: Callable[[], Sampler]):
    sampler = make()
    whole = sampler.sample((6,), generator=0)
    for shape in (6, np.int64(6), [6], torch.Size([6])):
        assert torch.equal(sampler.sample(shape, generator=0), whole)
    for shape in ((), 0, (0,), (3, 0), (1, 2, 3)):
        assert sampler.sample(shape).shape == (shape if isinstance(shape, tuple) else (shape,))


@every_sampler
@pytest.mark.parametrize("shape", [-1, (2, -1), True, (2, False), 2.0, (2.0,), None, "3", torch.ones(2), [[2]]], ids=str)
def test_another_shape_is_told(make: Callable[[], Sampler], shape: Any):
    with pytest.raises((TypeError, ValueError), match=r"Sampler: shape must be an int, or a tuple of ints, of at least 0, got"):
        make().sample(shape)


@every_sampler
def test_classes_may_be_any_integers(make: Callable[[], Sampler]):
    sampler, classes = make(), torch.tensor([[7, 0], [1, 5]])
    expected = sampler.log_prob(classes)
    for other in (classes.to(torch.uint8), classes.int(), classes.numpy(), classes.numpy().astype(np.uint16)):
        assert torch.equal(sampler.log_prob(other), expected)
    assert torch.equal(sampler.log_prob(classes[1, 0]), expected[1, 0])


@every_sampler
@pytest.mark.parametrize(
    ("classes", "error", "message"),
    [
        (torch.tensor([0, 8]), IndexError, "class 8 is out of range for 8 classes; give one of 0, …, 7"),
        (torch.tensor(-1), IndexError, "class -1 is out of range for 8 classes"),
        (torch.tensor([1.0]), TypeError, r"classes must hold class indices, got torch.float32; call classes.long\(\)"),
        (torch.tensor([True]), TypeError, "classes must hold class indices, got torch.bool"),
        ([1], TypeError, "classes must be a torch.Tensor or a numpy.ndarray, got list"),
        (3, TypeError, "classes must be a torch.Tensor or a numpy.ndarray, got int"),
    ],
    ids=str,
)
def test_what_are_no_classes_is_told(make: Callable[[], Sampler], classes: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=f"Sampler: {message}"):
        make().log_prob(classes)


@pytest.mark.parametrize("made", [FrequencySampler, InBatchSampler])
@pytest.mark.parametrize("target", [[1], torch.ones(2), torch.tensor([0, 8]), torch.zeros(40, dtype=torch.long)], ids=type)
def test_labels_that_are_refused_leave_no_trace(made: Any, target: Any):
    sampler = made(8, window=30) if made is InBatchSampler else made(8, window=30, smoothing=0)
    sampler.observe(LABELS)
    before = copy.deepcopy(sampler)
    with pytest.raises((TypeError, ValueError, IndexError), match=f"{made.__name__}: target "):
        sampler.observe(target)
    assert all(torch.equal(x, y) for x, y in zip(sampler.buffers(), before.buffers(), strict=True))


def test_labels_may_be_arrays():
    for sampler in (FrequencySampler(8), InBatchSampler(8)):
        sampler.observe(LABELS.numpy().astype(np.uint8))
        assert torch.equal(sampler.log_prob(LABELS), observed(type(sampler)(8)).log_prob(LABELS))


@every_sampler
def test_a_seed_repeats_and_a_generator_moves_on(make: Callable[[], Sampler]):
    sampler = make()
    assert torch.equal(sampler.sample((50,), generator=3), sampler.sample((50,), generator=3))
    for generator in (torch.Generator().manual_seed(0), np.random.default_rng(0), None):
        assert not torch.equal(sampler.sample((50,), generator=generator), sampler.sample((50,), generator=generator))


@every_sampler
def test_samplers_copy_pickle_and_keep_float64(make: Callable[[], Sampler]):
    sampler = make()
    expected = sampler.log_prob(LABELS[:4])
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler)), make().half().float()):
        assert torch.equal(other.log_prob(LABELS[:4]), expected)
    assert str(8) in repr(sampler)


def test_an_abstract_sampler_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Sampler(3)  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: UniformSampler(0), ValueError, "UniformSampler: classes must be an int of at least 1, got 0"),
        (lambda: LogUniformSampler(2.5), TypeError, "LogUniformSampler: classes must be an int"),  # type: ignore[arg-type]
        (
            lambda: UnigramSampler(torch.tensor([1.0, -2.0])),
            ValueError,
            "finite and not negative, got -2.0 for class 1",
        ),
        (
            lambda: UnigramSampler(torch.tensor([math.nan])),
            ValueError,
            "finite and not negative, got nan for class 0",
        ),
        (
            lambda: UnigramSampler(torch.zeros(3)),
            ValueError,
            "must not all be 0, got 3 zeros; give one of the classes",
        ),
        (lambda: UnigramSampler(torch.ones(3, 2)), ValueError, r"weights must hold one number for each class, got .* \(3, 2\)"),
        (lambda: UnigramSampler([1.0]), TypeError, "weights must be a torch.Tensor or a numpy.ndarray, got list"),
        (lambda: UnigramSampler(WEIGHTS, power=-1), ValueError, "power must be a finite number of at least 0, got -1"),
        (
            lambda: LearnedSampler(torch.ones(2, 2)),
            TypeError,
            r"must be floating point, .* torch.float32 of shape \(2, 2\)",
        ),
        (lambda: LearnedSampler("x"), TypeError, "logits must be floating point, .* got str"),  # type: ignore[arg-type]
        (
            lambda: LearnedSampler(torch.tensor([0.0, math.nan])),
            ValueError,
            r"LearnedSampler: logits must be below \+∞ and not NaN, got nan for class 1; give finite ones, or −∞",
        ),
        (lambda: LearnedSampler(torch.tensor([math.inf, 0.0])), ValueError, "not NaN, got inf for class 0"),
        (lambda: LearnedSampler(torch.full((2,), -math.inf)), ValueError, "must not all be −∞, got 2 of them; give one"),
        (lambda: LearnedSampler(True), TypeError, "logits must be an int of at least 1, got the bool True"),
        (
            lambda: InBatchSampler(3, window=2).observe(torch.tensor([0, 1, 1])),
            ValueError,
            "target must have no more labels than window=2, .* got 3; give window=3 or more",
        ),
        (lambda: FrequencySampler(3, window=0), ValueError, "window must be an int of at least 1"),
        (lambda: FrequencySampler(3, smoothing=1.5), ValueError, r"smoothing must be in \[0, 1\], got 1.5"),
        (
            lambda: FrequencySampler(3).observe(torch.tensor([3])),
            IndexError,
            "target 3 is out of range for 3 classes; leave out",
        ),
        (lambda: FrequencySampler(3).observe(torch.ones(2)), TypeError, r"target must hold class indices, got torch.float32; call"),
        (lambda: LearnedSampler(3).loss(torch.tensor([-1])), IndexError, "target -1 is out of range for 3 classes"),
        (lambda: InBatchSampler(3).sample((2,)), ValueError, r"no batch was observed; call observe\(target\)"),
    ],
    ids=range(21),
)
def test_wrong_use_is_told(make: Callable[[], Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()
