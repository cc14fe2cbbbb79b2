"""AdaptiveSoftmax beyond what all heads have: torch's module beside it, labels in any order, and how cutoffs are chosen."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import normal
from softmaxima.heads import adaptive
from softmaxima.heads.adaptive import AdaptiveSoftmax, cheapest_cutoffs

FEATURES, CLASSES = 16, 40

MODULES: dict[str, dict[str, Any]] = {
    "two clusters": {"cutoffs": [5, 20]},
    "three clusters": {"cutoffs": [1, 7, 39], "div_value": 2.0},
    "with a bias": {"cutoffs": [10, 11], "div_value": 3.0, "head_bias": True},
    "one cluster": {"cutoffs": [8], "div_value": 1.0},
}


def torch_module(name: str, dtype: torch.dtype = torch.float64) -> Any:
    module = nn.AdaptiveLogSoftmaxWithLoss(FEATURES, CLASSES, **MODULES[name], dtype=dtype)
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed, scale=0.7))
    return module


def states(rows: int, seed: int = 9, scale: float = 1.0) -> Tensor:
    return normal(rows, FEATURES, seed=seed, scale=scale)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("few", [0, 2**18])
def test_it_is_torchs_module_in_loss_gradients_logarithms_and_best_classes(name: str, few: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adaptive, "FEW", few)
    module = torch_module(name)
    head, hidden = AdaptiveSoftmax.from_torch(module), states(60).requires_grad_()
    for target in (torch.arange(60) % CLASSES, torch.arange(60) % 5, torch.full((60,), 39)):
        loss, expected = head(hidden, target), module(hidden, target)
        torch.testing.assert_close(loss, expected.loss, rtol=1e-12, atol=0)
        rows = AdaptiveSoftmax.from_torch(module, reduction="none")(hidden, target)
        torch.testing.assert_close(rows, -expected.output, rtol=1e-12, atol=1e-12)
        own, theirs = (
            torch.autograd.grad(value, (hidden, *of.parameters()), allow_unused=True)
            for value, of in ((loss, head), (expected.loss, module))
        )
        for found, right in zip(own, theirs, strict=True):
            assert (found is None) == (right is None)
            if found is not None:
                torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(head.log_prob(hidden), module.log_prob(hidden), rtol=1e-12, atol=1e-12)
    assert torch.equal(head.predict(hidden)[:, 0], module.predict(hidden))


@pytest.mark.parametrize("name", MODULES)
def test_state_dicts_are_those_of_torchs_module(name: str):
    module = torch_module(name)
    head = AdaptiveSoftmax(FEATURES, CLASSES, **MODULES[name], dtype=torch.float64)
    assert list(head.state_dict()) == list(module.state_dict())
    head.load_state_dict(module.state_dict())
    hidden = states(5)
    torch.testing.assert_close(head.log_prob(hidden), module.log_prob(hidden))
    back = head.to_torch()
    torch.testing.assert_close(back.log_prob(hidden), module.log_prob(hidden))
    assert (back.cutoffs, back.div_value, back.head_bias) == (module.cutoffs, module.div_value, module.head_bias)


def test_a_conversion_copies_and_keeps_dtype_and_mode():
    module = torch_module("two clusters", torch.bfloat16).eval()
    head = AdaptiveSoftmax.from_torch(module, ignore_index=3, class_weight=torch.ones(CLASSES))
    assert head.head.weight.dtype == torch.bfloat16
    assert not head.training
    assert head.ignore_index == 3
    nn.init.zeros_(module.head.weight)
    assert (head.head.weight != 0).any()
    back = head.to_torch()
    assert back.head.weight.dtype == torch.bfloat16
    assert not back.training
    assert AdaptiveSoftmax.from_torch(module, dtype=torch.float32).tail[1][0].weight.dtype == torch.float32
    module.tail.requires_grad_(False)
    still = AdaptiveSoftmax.from_torch(module)
    for made in (still, still.to_torch()):
        assert [p.requires_grad for p in made.parameters()] == [True, False, False, False, False]


def test_classes_in_any_order_have_the_ranks_of_their_frequencies():
    order = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(0))  # the class of each rank
    frequencies = torch.empty(CLASSES, dtype=torch.float64)
    frequencies[order] = 1 / torch.arange(1.0, CLASSES + 1, dtype=torch.float64)
    own = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20], frequencies=frequencies, dtype=torch.float64)
    sorted_head = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20], dtype=torch.float64)
    sorted_head.load_state_dict({name: value for name, value in own.state_dict().items() if name != "rank"})
    hidden, rank = states(CLASSES), torch.arange(CLASSES)
    torch.testing.assert_close(own(hidden, order[rank]), sorted_head(hidden, rank))
    torch.testing.assert_close(own.log_prob(hidden)[:, order], sorted_head.log_prob(hidden))
    assert torch.equal(own.predict(hidden, 7), order[sorted_head.predict(hidden, 7)])
    assert torch.equal(own.sample(hidden, 9, generator=0), order[sorted_head.sample(hidden, 9, generator=0)])
    ties = AdaptiveSoftmax(FEATURES, 4, [2], frequencies=[1, 2, 2, 1])
    assert ties.rank is not None
    assert ties.rank.tolist() == [2, 0, 1, 3]


def test_ranks_are_loaded_with_the_rest_and_must_be_a_permutation():
    first = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20], frequencies=torch.arange(1.0, CLASSES + 1))
    second = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20], frequencies=torch.ones(CLASSES))
    second.load_state_dict(first.state_dict())
    hidden = states(5).float()
    assert torch.equal(second.log_prob(hidden), first.log_prob(hidden))
    assert torch.equal(second.predict(hidden, 3), first.predict(hidden, 3))
    state = first.state_dict()
    for wrong in (torch.zeros(CLASSES, dtype=torch.long), torch.arange(CLASSES - 1), torch.arange(CLASSES) + 1):
        with pytest.raises(RuntimeError, match=r"rank must hold each of 0 … 39 once, got \d+ numbers from \d to \d+"):
            second.load_state_dict({**state, "rank": wrong})
    for wrong in (torch.arange(CLASSES).double(), torch.zeros(CLASSES, 1, dtype=torch.long), 3):
        with pytest.raises(RuntimeError, match="AdaptiveSoftmax: rank must be"):
            second.load_state_dict({**state, "rank": wrong})
    sorted_head = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20])
    with pytest.raises(RuntimeError, match=r"Unexpected key.*rank"):
        sorted_head.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*rank"):
        second.load_state_dict(sorted_head.state_dict())
    assert torch.equal(second.predict(hidden, 3), first.predict(hidden, 3))


def test_only_clusters_that_may_have_better_classes_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    head = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20], dtype=torch.float64)
    with torch.no_grad():
        head.head.weight.zero_()
        head.head.weight[0, 0], head.head.weight[6, 1] = 9.0, 9.0  # class 0, and the second cluster
    hidden = torch.zeros(4, FEATURES, dtype=torch.float64)
    hidden[:3, 0], hidden[3, 1] = 1.0, 1.0
    looked = []
    within = adaptive._Layers.log_p_within

    def counted(layers: Any, i: int, states: Tensor) -> Tensor:
        looked.extend([i] * len(states))
        return within(layers, i, states)

    monkeypatch.setattr(adaptive._Layers, "log_p_within", counted)
    found = head.predict(hidden)
    assert looked == [1]
    assert torch.equal(found, head.log_prob(hidden).argmax(1, keepdim=True))


def cost(frequencies: np.ndarray, cutoffs: tuple[int, ...], features: int, div_value: float) -> float:
    """Multiplications a row."""
    p, ends = frequencies / frequencies.sum(), (*cutoffs, len(frequencies))
    total = features * (ends[0] + len(cutoffs))
    for i, (first, last) in enumerate(itertools.pairwise(ends), 1):
        total += p[first:last].sum() * (features // div_value**i) * (features + last - first)
    return float(total)


@given(
    frequencies=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=11),
    features=st.sampled_from([4, 32, 128, 600]),
    div_value=st.sampled_from([2.0, 4.0]),
)
def test_the_chosen_cutoffs_are_the_cheapest_that_leave_frequent_classes_their_features(
    frequencies: list[float], features: int, div_value: float
):
    f = np.sort(np.array(frequencies))[::-1]
    after = 1 - np.cumsum(np.append(0.0, f))[: len(f)] / f.sum()  # the share of the ranks from each on
    least = features // div_value if features < 8 * div_value else 8
    allowed = [
        cuts
        for count in range(5)
        for cuts in itertools.combinations(range(1, len(f)), count)
        if count == 0 or features // div_value**count >= least
        if all(after[cut] <= 2.0**-i + 1e-12 for i, cut in enumerate(cuts, 1))
    ]
    chosen = cheapest_cutoffs(f, features, div_value)
    assert chosen in allowed
    assert cost(f, chosen, features, div_value) == pytest.approx(min(cost(f, cuts, features, div_value) for cuts in allowed))


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("features", [64, 512])
def test_the_grid_of_cutoffs_costs_little(power: float, features: int):
    f = np.arange(1.0, 2001) ** -power
    chosen = cheapest_cutoffs(f, features, 4.0)
    after = 1 - np.append(0.0, np.cumsum(f)[:-1]) / f.sum()
    one = [(cut,) for cut in range(1, 2000) if after[cut] <= 0.5]
    two = [(first, last) for (first,) in one[::20] for last in range(first + 20, 2000, 20) if after[last] <= 0.25]
    every = min(cost(f, cuts, features, 4.0) for cuts in one + two * (features > 64))  # the second of 64 would have 4 features
    assert cost(f, chosen, features, 4.0) < 1.03 * every


def test_cutoffs_follow_frequencies_or_zipfs_law():
    zipf = AdaptiveSoftmax(128, 100_000)
    assert zipf.cutoffs == AdaptiveSoftmax(128, 100_000, frequencies=1 / np.arange(1.0, 100_001)).cutoffs
    assert len(zipf.cutoffs) == 2
    flat = AdaptiveSoftmax(128, 1000, frequencies=np.ones(1000))
    assert flat.cutoffs[0] >= 500
    assert AdaptiveSoftmax(3, 1000).cutoffs == ()  # a cluster would have no feature
    assert AdaptiveSoftmax(64, 1).cutoffs == ()
    one = AdaptiveSoftmax(4, 1)
    assert one(torch.ones(2, 4), torch.zeros(2, dtype=torch.long)) == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: AdaptiveSoftmax(16, 40, [20, 5]), ValueError, r"cutoffs must rise between 1 and 39, .* got \[20, 5\]"),
        (lambda: AdaptiveSoftmax(16, 40, [5, 5]), ValueError, "cutoffs must rise"),
        (lambda: AdaptiveSoftmax(16, 40, [0]), ValueError, "cutoffs must rise"),
        (lambda: AdaptiveSoftmax(16, 40, [40]), ValueError, "cutoffs must rise"),
        (lambda: AdaptiveSoftmax(16, 40, [1.5]), TypeError, "cutoffs must be an int, got 1.5"),
        (lambda: AdaptiveSoftmax(16, 40, 5), TypeError, "cutoffs must be ranks, got 5; pass a list of ints"),
        (lambda: AdaptiveSoftmax(16, 40, "5"), TypeError, "cutoffs must be ranks, got the string '5'; pass a list of ints"),
        (lambda: AdaptiveSoftmax(16, 40, torch.tensor(5)), TypeError, "cutoffs must be ranks, got 5; pass a list of ints"),
        (lambda: AdaptiveSoftmax(16, 40, torch.tensor([5.0])), TypeError, "cutoffs must be an int, got 5.0; pass an int"),
        (lambda: AdaptiveSoftmax(16, 40, [5, 10, 20]), ValueError, r"cluster 3 has 16 // 4.0\*\*3 = 0; give fewer cutoffs"),
        (lambda: AdaptiveSoftmax(16, 40, [5], div_value=0.5), ValueError, "div_value must be a finite number of at least 1"),
        (lambda: AdaptiveSoftmax(16, 40, [5], head_bias="yes"), TypeError, "head_bias must be True or False"),
        (lambda: AdaptiveSoftmax(16, 40, frequencies=[1.0]), ValueError, "one number for each of the 40 classes"),
        (lambda: AdaptiveSoftmax.from_torch(nn.Linear(2, 3)), TypeError, "module must be torch's, got Linear"),
        (
            lambda: AdaptiveSoftmax.from_torch(torch_module("one cluster"), cutoffs=[5], reduction="sum"),
            TypeError,
            "AdaptiveSoftmax.from_torch: options must be among frequencies, .*, got cutoffs; the module decides on its layers",
        ),
        (
            lambda: AdaptiveSoftmax(16, 40, dtype=torch.int64),
            TypeError,
            "dtype must be float64, .* got torch.int64; pass torch.float",
        ),
        (lambda: AdaptiveSoftmax(16, 40, dtype="half"), TypeError, "got the string 'half'; pass torch.float32"),
        (
            lambda: AdaptiveSoftmax(16, 40, device="gpu"),
            ValueError,
            "device must be one that torch has here, got 'gpu'; give 'cpu'",
        ),
        (lambda: AdaptiveSoftmax(16, 40, device=1.5), TypeError, "device must be one that torch has here, got 1.5; pass 'cpu'"),
        (lambda: AdaptiveSoftmax(16, 40, frequencies=[[1.0], [2.0, 3.0]]), TypeError, "must be one row of numbers, got ..1.0., .2"),
        (lambda: AdaptiveSoftmax(16, 4, [2], frequencies=[1] * 4).to_torch(), ValueError, "torch's module takes ranks as labels"),
        (lambda: AdaptiveSoftmax(16, 4, ()).to_torch(), ValueError, r"has cutoffs and no temperature, got \(\) and 1.0"),
        (lambda: AdaptiveSoftmax(16, 4, [2], temperature=2.0).to_torch(), ValueError, "no temperature, got .2,. and 2.0"),
    ],
)
def test_what_makes_no_head_is_told(make: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()


def test_parts_of_rows_are_as_the_whole(monkeypatch: pytest.MonkeyPatch):
    head, hidden = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20], dtype=torch.float64), states(9)
    expected = head.log_prob(hidden), head.topk(hidden, 10)
    monkeypatch.setattr(adaptive, "HELD", 1)
    torch.testing.assert_close((head.log_prob(hidden), head.topk(hidden, 10)), expected)


@pytest.mark.parametrize("few", [0, 2**18])
def test_a_sum_beyond_float16_has_a_mean(few: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adaptive, "FEW", few)
    torch.manual_seed(0)
    head = AdaptiveSoftmax(FEATURES, CLASSES, [5, 20], dtype=torch.float16)
    with torch.no_grad():
        head.head.weight.mul_(200.0)
    hidden = states(1, scale=3.0).half().expand(4000, FEATURES)
    target = head.log_prob(hidden[0]).argmin().expand(4000)
    assert 4000 * head(hidden[0], target[0]).item() > 65504
    torch.testing.assert_close(head(hidden, target), head(hidden[0], target[0]), rtol=2e-3, atol=0)
