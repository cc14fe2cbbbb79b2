"""Maps on parts of a row: any split, any order of merging, any part empty, and the same probabilities."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradgradcheck

from conftest import Case, normal, rows
from softmaxima.core.blocks import Part, State, state_of
from softmaxima.core.monoid import LogSum, log_sum, merge
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses import Loss
from softmaxima.maps import REGISTRY

INF, NAN = math.inf, math.nan


def parts_of(x: Tensor, cuts: list[int], tau: float | Tensor = 1.0) -> list[Part]:
    ends = [0, *sorted(min(cut, x.shape[-1]) for cut in cuts), x.shape[-1]]
    return [Part(x[..., a:b], tau, a) for a, b in itertools.pairwise(ends)]


def in_parts(case: Case, parts: list[Part], shuffle: int) -> Tensor:
    """As a stranger would: states in any order, merged in any tree."""
    blocks = case.map.blocks
    assert blocks is not None
    draw, state = random.Random(shuffle), None
    while state is None or not blocks.is_complete(state):
        states: list[State] = [blocks.begin(part, state, **case.params) for part in parts]
        while len(states) > 1:
            draw.shuffle(states)
            states.append(blocks.merge(states.pop(), states.pop(), parts[0].tau, **case.params))
        (state,) = states
    return torch.cat([blocks.finish(part, state, **case.params) for part in parts], -1)


def undecided(case: Case, x: Tensor, tau: float) -> bool:
    """Whether the last digit of a sum says which scores a nucleus has."""
    if case.map.name != "topp_softmax" or case.params["p"] == 1.0:
        return False
    ordered = torch.softmax((x - x.amax(-1, keepdim=True)) / tau, -1).sort(-1, descending=True).values.cumsum(-1)
    return bool(((ordered - case.params["p"]).abs() < 1e-9).any())


CUTS = st.lists(st.integers(0, 20), max_size=4)


def test_every_map_works_on_parts():
    ours = [map for map in REGISTRY.values() if map.reference.__module__.startswith("softmaxima.")]
    assert [map.name for map in ours if map.blocks is None] == []


@given(x=rows(), cuts=CUTS, shuffle=st.integers(0, 1000), tau=st.sampled_from([1.0, 0.3, 7.0]))
def test_any_split_and_any_order_give_the_whole(case: Case, x: Tensor, cuts: list[int], shuffle: int, tau: float):
    assume(not undecided(case, x, tau))
    x = x.double()
    p = in_parts(case, parts_of(x, cuts, tau), shuffle)
    torch.testing.assert_close(p, case(x, temperature=tau), rtol=1e-12, atol=1e-15, equal_nan=True)


@given(cuts=CUTS, shuffle=st.integers(0, 1000))
def test_hard_rows_in_parts(case: Case, cuts: list[int], shuffle: int):
    x = torch.tensor(
        [[1.0, 1.0, 1.0, 0.0], [-INF, 3.0, -INF, 2.0], [-INF] * 4, [NAN, 1.0, 2.0, 3.0], [INF, 0.0, 0.0, 1.0], [-5.0] * 4]
    )
    x = x.double()
    assume(not undecided(case, x[[0, 1, 5]], 1.0))
    p = in_parts(case, parts_of(x, cuts), shuffle)
    torch.testing.assert_close(p, case(x), rtol=1e-12, atol=1e-15, equal_nan=True)


def test_offsets_and_temperatures_of_rows_in_parts(case: Case):
    x = 1e8 + normal(3, 40)
    tau = torch.tensor([[0.5], [1.0], [3.0]], dtype=torch.float64)
    if not case.claims.shift_invariant:
        x = x - 1e8
    p = in_parts(case, parts_of(x, [7, 7, 30], tau), 0)
    torch.testing.assert_close(p, case(x, temperature=tau), rtol=1e-9, atol=1e-12)


def test_states_of_long_rows_are_small(case: Case):
    """The support of a row, and not its length, is what must be sent."""
    x = 3 * normal(2, 20_000)
    blocks = case.map.blocks
    assert blocks is not None
    state = state_of(blocks, parts_of(x, [4000, 9000, 15_000]), case.params)
    support = int((case(x) > 0).sum(-1).max()) if case.claims.sparse else 300
    assert sum(values.shape[-1] if values.ndim else 1 for values in state) <= max(300, 2 * support)


@given(x=rows(), cuts=CUTS)
def test_the_monoid_has_the_sum_and_its_derivatives(x: Tensor, cuts: list[int]):
    x = x.double().requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    total = functools.reduce(lambda a, b: merge(a, b, tau), (log_sum(part.x, tau) for part in parts_of(x, cuts)))
    value = LogSum(*total).value(tau).squeeze(-1)
    expected = torch.logsumexp(x / tau, -1)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)
    finite = expected.isfinite()
    if bool(finite.any()):
        ours = torch.autograd.grad(value[finite].sum(), (x, tau))
        theirs = torch.autograd.grad(expected[finite].sum(), x)[0]
        torch.testing.assert_close(ours[0], theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0, -1.0], [1.0, 2.0, 2.0, 2.0], [-INF, 1.0, 1.0, 0.5], [3.0, -INF, -INF, 3.0]])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_the_monoid_has_every_derivative_where_the_largest_are_tied(row: list[float], cut: int):
    row = torch.tensor([row, row[::-1]], dtype=torch.float64)
    allowed = row > -INF

    def value(finite: Tensor, tau: Tensor) -> Tensor:
        x = torch.full_like(row, -INF).masked_scatter(allowed, finite)
        return merge(log_sum(x[:, :cut], tau), log_sum(x[:, cut:], tau), tau).value(tau)

    def shares(finite: Tensor, tau: Tensor) -> Tensor:
        x = torch.full_like(row, -INF).masked_scatter(allowed, finite)
        return merge(log_sum(x[:, :cut], tau), log_sum(x[:, cut:], tau), tau).shares(x, tau)

    arguments = row[allowed].requires_grad_(), torch.tensor([[0.7], [2.0]], dtype=torch.float64, requires_grad=True)
    by_torch = lambda finite, tau: torch.logsumexp(torch.full_like(row, -INF).masked_scatter(allowed, finite) / tau, -1)
    own = torch.autograd.functional.jacobian(lambda *v: value(*v).squeeze(-1), arguments)
    for ours, theirs in zip(own, _jacobian(by_torch, arguments), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
    for function in (value, shares):
        gradients = torch.autograd.grad(function(*arguments).square().sum(), arguments, create_graph=True)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert gradgradcheck(function, arguments)


def _jacobian(function: Callable[..., Tensor], arguments: tuple[Tensor, Tensor]) -> list[Tensor]:
    """By differences."""
    step, found = 1e-6, []
    for i, v in enumerate(arguments):
        columns = []
        for k in range(v.numel()):
            moved = [a.detach().clone() for a in arguments], [a.detach().clone() for a in arguments]
            for sign, values in zip((1, -1), moved, strict=True):
                values[i].view(-1)[k] += sign * step
            columns.append((function(*moved[0]) - function(*moved[1])) / (2 * step))
        found.append(torch.stack(columns, -1).reshape(*columns[0].shape, *v.shape))
    return found


@pytest.mark.parametrize("n", [0, 1])
def test_rows_of_nothing_in_parts(case: Case, n: int):
    x = torch.full((2, n), -INF, dtype=torch.float64)
    p = in_parts(case, [Part(x), Part(x, first=n)], 0)
    assert p.shape == (2, 2 * n)
    if n:
        torch.testing.assert_close(p, case(torch.cat((x, x), -1)))


LOSSES_IN_PARTS = [(loss, options) for loss in LOSSES.values() if loss.map is not None for options in loss.examples]


@pytest.mark.parametrize(("own", "options"), LOSSES_IN_PARTS, ids=[f"{loss.name} {options}" for loss, options in LOSSES_IN_PARTS])
@given(x=rows(masks=False), cuts=CUTS, seed=st.integers(0, 100))
def test_losses_in_parts_are_those_of_the_whole(own: Loss, options: dict, x: Tensor, cuts: list[int], seed: int):
    x = x.double()
    labels = torch.randint(x.shape[-1], x.shape[:-1], generator=torch.Generator().manual_seed(seed))
    value, slopes = own.in_parts(parts_of(x, cuts), labels, **options)
    x.requires_grad_()
    expected = own.function(x, labels, reduction="none", **options)
    torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-11 * max(1.0, float(x.detach().abs().max())))
    torch.testing.assert_close(torch.cat(slopes, -1), torch.autograd.grad(expected.sum(), x)[0], rtol=1e-11, atol=1e-12)


def test_losses_without_a_conjugate_say_so():
    with pytest.raises(ValueError, match="soft_accuracy_loss: it has no form in parts"):
        LOSSES["soft_accuracy_loss"].in_parts([Part(torch.zeros(1, 2, dtype=torch.float64))], torch.tensor([0]))


@pytest.mark.parametrize(("own", "options"), LOSSES_IN_PARTS, ids=[f"{loss.name} {options}" for loss, options in LOSSES_IN_PARTS])
@pytest.mark.parametrize("offset", [0.0, 1e8, -1e16, 1e300])
def test_losses_in_parts_keep_their_digits(own: Loss, options: dict, offset: float):
    if own.map == "elastic_softmax" and offset < 0:
        pytest.skip("the sink takes all, at the scale of the offset")
    x = torch.tensor([[40.0, 0.0, 0.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0]], dtype=torch.float64) + offset
    labels = torch.tensor([0, 1, 2])
    value, _ = own.in_parts(parts_of(x, [1]), labels, **options)
    torch.testing.assert_close(value, own.function(x, labels, reduction="none", **options), rtol=1e-12, atol=0)


def test_labels_that_are_nowhere_are_refused():
    x = torch.zeros(2, 3, dtype=torch.float64)
    for labels in ([0, 3], [-100, 1]):
        with pytest.raises(ValueError, match="each label must be the place of one score in the parts"):
            LOSSES["cross_entropy"].in_parts(parts_of(x, [1]), torch.tensor(labels))
    with pytest.raises(ValueError, match=r"labels must be one a row, \(2,\), got \(2, 1\)"):
        LOSSES["cross_entropy"].in_parts(parts_of(x, [1]), torch.tensor([[0], [1]]))
    with pytest.raises(TypeError, match=r"Part: scores must be float64, got torch.float32"):
        Part(x.float())


@pytest.mark.parametrize(("name", "params"), [("elastic_softmax", {"beta": -INF}), ("eps_softmax", {"eps": 1e-300})])
def test_sinks_at_their_ends_in_parts(name: str, params: dict):
    case = Case(REGISTRY[name], params)
    x = torch.tensor([[-INF, -INF, -INF], [-709.9, -710.9, -INF], [1e300, 0.0, 1e300]], dtype=torch.float64)
    torch.testing.assert_close(in_parts(case, parts_of(x, [1]), 0), case(x), rtol=1e-12, atol=0)
