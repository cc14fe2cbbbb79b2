"""Maps on parts of a row: any split, any order of merging, any part empty, and the same probabilities."""

from __future__ import annotations

import functools
import itertools
import math
import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradgradcheck

import softmaxima as sm
from conftest import Case, at_most, cases, normal, rows
from softmaxima.base.monoid import LogSum, log_sum, merge
from softmaxima.engine.blocks import Part, State
from softmaxima.engine.contract import Map
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses import Loss
from softmaxima.maps import REGISTRY, InParts
from softmaxima.maps.topp_softmax import LARGEST

INF, NAN = math.inf, math.nan


def pieces(x: Tensor, cuts: list[int]) -> list[Tensor]:
    ends = [0, *sorted(min(cut, x.shape[-1]) for cut in cuts), x.shape[-1]]
    return [x[..., a:b] for a, b in itertools.pairwise(ends)]


def rows_of(case: Case, tau: float | Tensor = 1.0) -> InParts:
    if case.map.blocks is None:
        pytest.skip("a map need not say how it works on parts")
    return sm.in_parts(case.map, temperature=tau, **case.params)


def merged(states: list[State], merge: Callable[[State, State], State], draw: random.Random) -> State:
    """In any tree."""
    while len(states) > 1:
        draw.shuffle(states)
        states.append(merge(states.pop(), states.pop()))
    return states[0]


def in_parts(case: Case, parts: list[Tensor], shuffle: int, tau: float | Tensor = 1.0) -> Tensor:
    """As a stranger would: states in any order, sent as one tensor a part, merged in any tree."""
    rows, draw = rows_of(case, tau), random.Random(shuffle)
    numbered = list(rows.parts(parts))

    def one(known: State | None) -> State:
        nothing = rows.identity(numbered[0], known)
        states = [rows.begin(part, known) for part in numbered] + [nothing]
        varying = [i for i, values in enumerate(nothing) if values.shape[-1] == 0]
        width = max((state[i].shape[-1] for state in states for i in varying), default=0)
        sent = [rows.pack(state, nothing, width) for state in states]
        assert len({values.shape for values in sent}) == 1
        return merged([rows.unpack(values, nothing) for values in sent], rows.merge, draw)

    if shuffle % 2:
        state = rows.in_passes(one)
    else:  # all passes, whether they are needed or not
        state = None
        for _ in range(rows.passes):
            state = one(state)
    return torch.cat([rows.finish(part, state) for part in numbered], -1)


def undecided(case: Case, x: Tensor, tau: float) -> bool:
    """Whether the last digit of a sum says which scores a nucleus has."""
    if case.map.name != "topp_softmax" or case.params["p"] == 1.0:
        return False
    ordered = torch.softmax((x - x.amax(-1, keepdim=True)) / tau, -1).sort(-1, descending=True).values.cumsum(-1)
    return bool(((ordered - case.params["p"]).abs() < 1e-9).any())


CUTS = st.lists(st.integers(0, 20), max_size=4)


# Clusters of whole rows, and a grid that is found from them.
WHOLE = ["fusedmax", "oscarmax", "perturb_max"]


def test_every_map_works_on_parts():
    ours = [map for map in REGISTRY.values() if map.reference.__module__.startswith("softmaxima.")]
    assert [map.name for map in ours if map.blocks is None] == WHOLE


@given(x=rows(), cuts=CUTS, shuffle=st.integers(0, 1000), tau=st.sampled_from([1.0, 0.3, 7.0]))
def test_any_split_and_any_order_give_the_whole(case: Case, x: Tensor, cuts: list[int], shuffle: int, tau: float):
    assume(not undecided(case, x, tau))
    x = x.double()
    p = in_parts(case, pieces(x, cuts), shuffle, tau)
    torch.testing.assert_close(p, case(x, temperature=tau), rtol=1e-12, atol=4e-15, equal_nan=True)


@at_most(20)
@given(cuts=CUTS, shuffle=st.integers(0, 1000))
def test_hard_rows_in_parts(case: Case, cuts: list[int], shuffle: int):
    x = torch.tensor(
        [[1.0, 1.0, 1.0, 0.0], [-INF, 3.0, -INF, 2.0], [-INF] * 4, [NAN, 1.0, 2.0, 3.0], [INF, 0.0, 0.0, 1.0], [-5.0] * 4]
    )
    x = x.double()
    assume(not undecided(case, x[[0, 1, 5]], 1.0))
    p = in_parts(case, pieces(x, cuts), shuffle)
    torch.testing.assert_close(p, case(x), rtol=1e-12, atol=1e-15, equal_nan=True)


def test_offsets_and_temperatures_of_rows_in_parts(case: Case):
    x = 1e8 + normal(3, 40)
    tau = torch.tensor([[0.5], [1.0], [3.0]], dtype=torch.float64)
    if not case.claims.shift_invariant:
        x = x - 1e8
    p = in_parts(case, pieces(x, [7, 7, 30]), 0, tau)
    torch.testing.assert_close(p, case(x, temperature=tau), rtol=1e-9, atol=1e-12)


def test_states_of_long_rows_are_small(case: Case):
    """The support of a row, and not its length, is what must be sent."""
    x = 3 * normal(2, 20_000)
    state = rows_of(case).state(pieces(x, [4000, 9000, 15_000]))
    support = int((case(x) > 0).sum(-1).max())
    most = 300 if case.map.blocks.passes(**case.params) > 1 else 2 * support if case.claims.sparse else 8
    assert sum(values.shape[-1] if values.ndim else 1 for values in state) <= most


@pytest.mark.parametrize("scale", [3.0, 1e-3])
def test_long_rows_whose_support_is_a_few_scores_or_all(case: Case, scale: float):
    x, g = scale * normal(3, 2000), normal(3, 2000, seed=1)
    x[1, ::3], x[2] = -INF, -INF
    x[0, [5, 1700]] = x[0].max() + scale  # equal scores in two parts
    x[0, 6] = x[0, 5]
    rows, scores = rows_of(case), x.clone().requires_grad_()
    parts, slopes = list(rows.parts(pieces(x, [1500, 1501]))), pieces(g, [1500, 1501])
    state = rows.state(parts)
    sums = rows.sums(parts, slopes, state)
    p, v = (torch.cat(values, -1) for values in (
        [rows.finish(part, state) for part in parts],
        [rows.pull(part, slope, state, sums)[0] for part, slope in zip(parts, slopes, strict=True)],
    ))  # fmt: skip
    whole = case(scores)
    expected = torch.autograd.grad(whole.masked_fill(whole.isinf(), 0.0), scores, g)[0]
    torch.testing.assert_close(p, whole.detach(), rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(v, expected, rtol=1e-9, atol=1e-13 * float(expected.abs().max()))


# Nuclei of long rows: among the largest scores of the parts, which one pass tells, or not.

EACH = LARGEST + 36  # scores of a part
ZEROS = torch.zeros(2, 3 * EACH, dtype=torch.float64)
ONE = (torch.arange(3 * EACH) == 40).double()
LONG: dict[str, tuple[Tensor, float, int]] = {  # (rows, p, passes)
    "a few high scores": (3 * normal(4, 3 * EACH, seed=1), 0.5, 1),
    "no more than one part tells": (1e-3 * normal(2, 3 * EACH, seed=1), 0.2, 1),
    "more than the parts tell": (1e-3 * normal(2, 3 * EACH, seed=1), 0.9, 10),
    "one row of several": (torch.cat((6 * normal(3, 3 * EACH, seed=1), 1e-3 * normal(1, 3 * EACH, seed=2))), 0.9, 10),
    "the largest in one part": (0.1 * normal(2, 3 * EACH, seed=1) + (torch.arange(3 * EACH) < EACH) * 20.0, 0.95, 10),
    "equal scores, of which the first part tells enough": (ZEROS, (LARGEST - 0.5) / (3 * EACH), 1),
    "one equal score more": (ZEROS, (LARGEST + 0.5) / (3 * EACH), 10),
    "equal scores, of which those of other parts count less": (ZEROS - (torch.arange(3 * EACH) < EACH) * 1.0, 0.1, 1),
    "a high score, and then equal ones beyond the first part": (ZEROS + (torch.arange(3 * EACH) == 7) * 3.0, 0.36, 10),
    "rows of nothing, of one score and of two kinds of zeros": (
        torch.stack((ZEROS[0] - INF, ONE.log(), torch.where(ONE > 0, -0.0, ZEROS[0]))), (LARGEST - 0.5) / (3 * EACH), 1
    ),
    "rows with NaN and with +∞ beside others": (
        torch.where(torch.arange(3 * EACH) == 150, torch.tensor([[NAN], [INF], [9.0]]), normal(3, 3 * EACH)).double(), 0.5, 1
    ),
}  # fmt: skip


def literal_nucleus(x: Tensor, p: float) -> Tensor:
    """Which scores are kept, by sorting."""
    ordered = (x + 0.0).sort(dim=-1, descending=True, stable=True)
    mass = (ordered.values - ordered.values[..., :1]).nan_to_num(-INF, neginf=-INF).exp()
    before = mass.cumsum(-1) - mass
    return torch.zeros_like(x, dtype=torch.bool).scatter(
        -1, ordered.indices, (before < p * mass.sum(-1, keepdim=True)) & (mass > 0)
    )


def passes_and_state(rows: InParts, parts: list[Part], shuffle: int = 0) -> tuple[int, State]:
    """(how many passes there were, the state that they make in any order)."""
    taken: list[int] = []

    def one(known: State | None) -> State:
        taken.append(1)
        return merged([rows.begin(part, known) for part in parts], rows.merge, random.Random(shuffle))

    state = rows.in_passes(one)
    return len(taken), state


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("shuffle", range(3))
def test_a_nucleus_among_the_largest_scores_of_parts_takes_one_pass(kind: str, shuffle: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["softmaxima.maps.topp_softmax"], "FEW", 0)  # as of many rows
    x, share, passes = LONG[kind]
    tau, g = torch.linspace(0.5, 2.0, len(x), dtype=torch.float64).unsqueeze(-1), normal(*x.shape, seed=9)
    rows = sm.in_parts("topp_softmax", p=share, temperature=tau)
    parts, slopes = list(rows.parts(pieces(tau * x, [EACH, 2 * EACH]))), pieces(g, [EACH, 2 * EACH])
    taken, state = passes_and_state(rows, parts, shuffle)
    assert taken == passes
    assert sum(values.shape[-1] for values in state) <= 7 + 2 * EACH
    scores = (tau * x).requires_grad_()
    whole = sm.topp_softmax(scores, p=share, temperature=tau)
    p = torch.cat([rows.finish(part, state) for part in parts], -1)
    torch.testing.assert_close(p, whole.detach(), rtol=1e-13, atol=0, equal_nan=True)
    ordinary = ~whole.isnan().any(-1)
    assert torch.equal((p > 0)[ordinary], literal_nucleus(x, share)[ordinary])
    sums = rows.sums(parts, slopes, state)
    v = torch.cat([rows.pull(part, slope, state, sums)[0] for part, slope in zip(parts, slopes, strict=True)], -1)
    expected = torch.autograd.grad((whole * g)[ordinary].sum(), scores)[0]
    torch.testing.assert_close(v[ordinary], expected[ordinary], rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize(("count", "passes"), [(8, 1), (12, 10)])
def test_of_many_parts_no_more_scores_are_kept_than_of_eight(count: int, passes: int):
    """A state of the first pass is bounded, however many parts there are, and is exact where it tells less."""
    ordered = torch.linspace(0.0, -1e-3, count * LARGEST, dtype=torch.float64)
    x = ordered.view(LARGEST, count).t().reshape(1, -1)  # so that every part has scores of all sizes
    rows = sm.in_parts("topp_softmax", p=0.9)
    parts = list(rows.parts(pieces(x, list(range(LARGEST, count * LARGEST, LARGEST)))))
    first = merged([rows.begin(part) for part in parts], rows.merge, random.Random(1))
    assert max(values.shape[-1] for values in first) == min(count, 8) * LARGEST
    taken, state = passes_and_state(rows, parts)
    assert taken == passes
    p = torch.cat([rows.finish(part, state) for part in parts], -1)
    assert torch.equal(p > 0, literal_nucleus(x, 0.9))


@at_most(40)
@given(
    levels=st.sampled_from([1, 2, 5, 1000]),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    share=st.sampled_from([0.01, 0.2, 0.47, 0.9]),
    seed=st.integers(0, 1000),
)
def test_equal_scores_of_long_rows_in_parts(levels: int, cuts: list[int], share: float, seed: int):
    x = torch.randint(levels, (3, 300), generator=torch.Generator().manual_seed(seed)).double() / max(1, levels // 4)
    x = x.masked_fill(normal(3, 300, seed=seed) > 1.0, -INF)
    assume(not undecided(Case(REGISTRY["topp_softmax"], {"p": share}), x, 1.0))
    rows = sm.in_parts("topp_softmax", p=share)
    parts = list(rows.parts(pieces(x, cuts)))
    _, state = passes_and_state(rows, parts, seed)
    p = torch.cat([rows.finish(part, state) for part in parts], -1)
    assert torch.equal(p > 0, literal_nucleus(x, share))
    torch.testing.assert_close(p, sm.topp_softmax(x, p=share), rtol=1e-13, atol=0)


@pytest.mark.parametrize("n", [12, 400])
@pytest.mark.parametrize("share", [1 - 2**-53, 1 - 2**-52, 1 - 1e-13])
def test_a_share_of_nearly_all_keeps_no_more_scores_than_there_are(n: int, share: float):
    """Rounding asks for one more of the lowest scores, whose probability would be missing."""
    x = torch.randint(4, (200, n), generator=torch.Generator().manual_seed(1)).double() * -0.37
    p = torch.cat(list(sm.in_parts("topp_softmax", p=share).probabilities(pieces(x, [n // 3]))), -1)
    torch.testing.assert_close(p.sum(-1), torch.ones(200, dtype=torch.float64), rtol=0, atol=1e-14)


@at_most(15)
@given(x=rows(), cuts=CUTS, shuffle=st.integers(0, 1000), tau=st.sampled_from([1.0, 0.3, "learnt"]))
def test_derivatives_in_parts_are_those_of_the_whole(case: Case, x: Tensor, cuts: list[int], shuffle: int, tau: float | str):
    tau = torch.linspace(0.5, 2, len(x), dtype=torch.float64).unsqueeze(-1) if tau == "learnt" else tau
    assume(not undecided(case, x, tau))
    learnt = {
        p.name: torch.as_tensor(case.params[p.name]).double().expand(len(x), 1).clone() for p in case.map.params if p.gradient
    }
    case = Case(case.map, case.params | learnt)
    rows, draw = rows_of(case, tau), random.Random(shuffle)
    parts, slopes = list(rows.parts(pieces(x, cuts))), pieces(normal(*x.shape, seed=shuffle), cuts)
    state = rows.state(parts)
    begun = [rows.begin_pull(part, g, state) for part, g in zip(parts, slopes, strict=True)]
    sums = merged(begun, rows.merge_pull, draw)
    pulled = [rows.pull(part, g, state, sums) for part, g in zip(parts, slopes, strict=True)]
    inputs = {"x": x, **learnt} | ({"temperature": tau} if isinstance(tau, Tensor) else {})
    inputs = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    whole = case.map(**({"temperature": tau} | case.params | inputs))
    finite = whole.masked_fill(whole.isinf(), 0.0)
    expected = dict(zip(inputs, torch.autograd.grad(finite, list(inputs.values()), torch.cat(slopes, -1)), strict=True))
    found = {"x": torch.cat([v for v, _ in pulled], -1)} | {
        name: sum(others[name] for _, others in pulled) for name in inputs if name != "x"
    }
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name],
            gradient,
            rtol=1e-10,
            atol=1e-10 * max(1.0, float(gradient.abs().max())),
            msg=lambda m, name=name: f"{name}: {m}",
        )


@at_most(15)
@given(x=rows(), cuts=CUTS, tau=st.sampled_from([1.0, 0.3]))
def test_attention_may_begin_before_all_parts_are_known(case: Case, x: Tensor, cuts: list[int], tau: float):
    """What is added up under the state so far needs a factor only."""
    rows, values = rows_of(case, tau), normal(x.shape[-1], 3)
    parts = list(rows.parts(pieces(x, cuts)))
    if not rows.online:
        with pytest.raises(ValueError, match=f"{case.map.name}: a score that comes later may take others out"):
            rows.factor(rows.begin(parts[0]), rows.begin(parts[0]))
        return
    assert rows.passes == 1
    state = rows.identity(parts[0])
    found = torch.zeros(len(x), 3, dtype=torch.float64)
    for part in parts:
        before, state = state, rows.merge(state, rows.begin(part))
        found = found * rows.factor(before, state) + rows.finish(part, state) @ values[part.first : part.first + part.x.shape[-1]]
    torch.testing.assert_close(found, case(x, temperature=tau) @ values, rtol=1e-11, atol=1e-12)


def test_parts_of_every_kind(case: Case, dtype: torch.dtype):
    """Any dtype, masks, arrays, rows that begin elsewhere."""
    x, allowed = normal(3, 9, dtype=dtype), normal(3, 9, seed=1) > -1
    rounding = 1e-12 if dtype == torch.float64 else 0.501 * torch.finfo(dtype).eps  # half a unit in the last place
    expected = case(x.double(), where=allowed)
    rows = rows_of(case)
    first = torch.tensor([[4], [0], [7]])
    cuts = [rows.part(x[:, 5:], first + 5, allowed[:, 5:]), rows.part(x[:, :5], first, allowed[:, :5])]
    p = torch.cat(list(rows.probabilities(cuts))[::-1], -1)
    assert p.dtype == dtype
    torch.testing.assert_close(p.double(), expected, rtol=rounding, atol=max(1e-15, rounding * torch.finfo(dtype).smallest_normal))
    if dtype == torch.float32:
        arrays = list(rows.probabilities([x[:, :5].numpy(), x[:, 5:].numpy()]))
        assert {(type(array), array.dtype) for array in arrays} == {(np.ndarray, np.dtype("float32"))}


def test_states_that_are_too_wide_are_refused():
    x = torch.zeros(2, 7, dtype=torch.float64)
    for own in (sm.in_parts("sparsemax"), sm.in_parts("topk_softmax", k=7)):
        part = own.part(x)
        state, nothing = own.begin(part), own.identity(part)
        assert own.pack(state, nothing, 7).shape == own.pack(state, nothing).shape
        with pytest.raises(ValueError, match="packed: width must be at least that of the state, 7, got 6"):
            own.pack(state, nothing, 6)
    with pytest.raises(ValueError, match="unpacked: this is no packed state"):
        own.unpack(torch.zeros(2, 3, dtype=torch.float64), nothing)


def test_wrong_use_in_parts_is_refused():
    rows = sm.in_parts(sm.topp_softmax, p=0.5)
    x = torch.zeros(2, 3)
    with pytest.raises(TypeError, match="topp_softmax: the parts are read 11 times, and an iterator only once; give a list"):
        rows.probabilities(iter([x]))
    with pytest.raises(ValueError, match="there must be one part at least"):
        rows.state([])
    with pytest.raises(ValueError, match=r"scores must not require grad, which stops at a part; call .detach\(\), and take `pull`"):
        rows.part(x.requires_grad_())
    with torch.no_grad():
        part = rows.part(x)
    with pytest.raises(ValueError, match=r"g must have the shape of the part, \(2, 3\), got \(3,\)"):
        rows.begin_pull(part, torch.zeros(3), rows.state([part]))
    with pytest.raises(ValueError, match="alpha must have size 1 along the last axis"):
        sm.in_parts("entmax", alpha=torch.tensor([1.5, 2.0]))
    with pytest.raises(ValueError, match="first must be an int of at least 0, got -1"):
        rows.part(part.x, -1)
    with pytest.raises(TypeError, match=r"Part: scores must be of floating point, got torch.int64"):
        Part(x.long())


@given(x=rows(), cuts=CUTS)
def test_the_monoid_has_the_sum_and_its_derivatives(x: Tensor, cuts: list[int]):
    x = x.double().requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    total = functools.reduce(lambda a, b: merge(a, b, tau), (log_sum(part, tau) for part in pieces(x, cuts)))
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
    p = in_parts(case, [x, x], 0)
    assert p.shape == (2, 2 * n)
    if n:
        torch.testing.assert_close(p, case(torch.cat((x, x), -1)))


LOSSES_IN_PARTS = [(loss, options) for loss in LOSSES.values() if loss.row_form is not None for options in loss.examples]
every_loss = pytest.mark.parametrize(
    ("own", "options"), LOSSES_IN_PARTS, ids=[f"{loss.name} {options}" for loss, options in LOSSES_IN_PARTS]
)


@every_loss
@at_most(15)
@given(
    x=rows(masks=False),
    cuts=CUTS,
    seed=st.integers(0, 100),
    kind=st.sampled_from(["labels", "soft", "smoothed", "ignored"]),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
)
def test_losses_in_parts_are_those_of_the_whole(
    own: Loss, options: dict, x: Tensor, cuts: list[int], seed: int, kind: str, weighted: bool, reduction: str
):
    n, generator = x.shape[-1], torch.Generator().manual_seed(seed)
    assume(n > 1 or kind != "smoothed")
    labels = torch.randint(n, x.shape[:-1], generator=generator)
    account: dict = {"reduction": reduction, "weight": None, "label_smoothing": 0.1 if kind == "smoothed" else 0.0}
    if weighted:
        account["weight"] = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
    if kind == "ignored":
        labels[0] = -100
    y = torch.softmax(normal(*x.shape, seed=seed), -1) if kind == "soft" else labels
    target = pieces(y, cuts) if kind == "soft" else labels
    value, slopes = own.in_parts(pieces(x, cuts), target, **options, **account)
    x.requires_grad_()
    expected = own.function(x, y, **options, **account)
    scale = max(1.0, float(x.detach().abs().max()))
    torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-11 * scale, equal_nan=True)
    if bool(expected.isfinite().all()):
        (gradient,) = torch.autograd.grad(expected.sum(), x)
        torch.testing.assert_close(torch.cat(slopes, -1), gradient, rtol=1e-10, atol=1e-11)


@every_loss
@pytest.mark.parametrize("target", [[2, 0], [0, 2], [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]])
def test_masked_targets_in_parts(own: Loss, options: dict, target: list):
    x = torch.tensor([[0.0, 1.0, -INF], [-INF, 1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor(target, dtype=torch.float64 if isinstance(target[0], list) else torch.long)
    expected = own.function(x, y, reduction="none", **options)
    value, slopes = own.in_parts(
        pieces(x.detach(), [1]), pieces(y, [1]) if y.is_floating_point() else y, reduction="none", **options
    )
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat(slopes, -1), torch.autograd.grad(expected.sum(), x)[0], rtol=1e-11, atol=1e-12)


def test_the_regulariser_of_a_label_need_not_be_0():
    x = torch.tensor([[1.0, 0.5, -1.0]], dtype=torch.float64)
    for label in range(3):
        y = torch.tensor([label])
        value, _ = LOSSES["fenchel_young_loss"].in_parts(pieces(x, [1, 2]), y, map="normmax")
        torch.testing.assert_close(value, sm.fenchel_young_loss(x, y, map="normmax"))


REGULARISED = [map for map in REGISTRY.values() if map.blocks is not None and map.regulariser is not None]


@pytest.mark.parametrize("map", REGULARISED, ids=[map.name for map in REGULARISED])
def test_a_regulariser_comes_of_any_parts(map: Map):
    """Of labels, smoothed ones and probabilities, in parts of any width and none, with zeros and classes that are left out."""
    for case in cases(map):
        x, few = normal(4, 9, seed=1), normal(4, 9, seed=2).softmax(-1)
        few[1, 2:] = 0.0
        few[2] = torch.eye(9, dtype=torch.float64)[3]
        x[0, 4], few[0, 4] = -INF, 0.0
        params = {f"map_{name}" if name in ("weight",) else name: value for name, value in case.params.items()}
        for target, more in ((few / few.sum(-1, keepdim=True), {}), (torch.tensor([0, 8, 4, -100]), {"label_smoothing": 0.1})):
            for cuts in ([3, 3, 8], [0, 1], []):
                scores = (x if not more else normal(4, 9, seed=3)).clone().requires_grad_()
                options: dict = {"map": map.name, "reduction": "none", **params, **more}
                expected = sm.fenchel_young_loss(scores, target, **options)
                y = pieces(target, cuts) if target.is_floating_point() else target
                value, slopes = LOSSES["fenchel_young_loss"].in_parts(pieces(scores.detach(), cuts), y, **options)
                torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
                slope = torch.autograd.grad(expected.sum(), scores)[0]
                torch.testing.assert_close(torch.cat(slopes, -1), slope, rtol=1e-11, atol=1e-12)


@every_loss
def test_losses_of_ignored_rows_in_parts_have_no_gradient(own: Loss, options: dict):
    value, slopes = own.in_parts(pieces(normal(2, 5), [2]), torch.tensor([-100, -100]), **options)
    assert bool(value.isnan())
    assert not any(bool(v.any()) for v in slopes)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ([[-1.0, 2.0]], {}, "must not be negative"),
        ([[1.0, 1.0]], {}, "must sum to 1"),
        ([[0.5, 0.5]], {"ignore_index": 1}, "ignore_index works with class indices"),
        ([5], {}, "got 5"),
    ],
)
def test_losses_in_parts_refuse_what_the_whole_refuses(target: list, options: dict, message: str):
    y = torch.tensor(target)
    with pytest.raises(ValueError, match=f"sparsemax_loss: .*{message}"):
        LOSSES["sparsemax_loss"].in_parts([normal(1, 2)], [y] if y.is_floating_point() else y, **options)
    with pytest.raises(TypeError, match="sparsemax_loss: unknown argument 'alpha'; loss 'sparsemax_loss' takes: none"):
        LOSSES["sparsemax_loss"].in_parts([normal(1, 2)], torch.tensor([0]), alpha=2.0)


def test_what_is_no_part_is_refused():
    rows, x = sm.in_parts("softmax"), normal(4, 6)
    with pytest.raises(TypeError, match=r"parts must be a list of arrays, got one Tensor; call with \[x\]"):
        list(rows.probabilities(x))
    with pytest.raises(TypeError, match=r"a part must be made by `part\(x\)`, got Tensor"):
        rows.begin(x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"all parts must be of the same rows, \(4,\), got \(1,\)"):
        list(rows.probabilities([x, x[:1]]))


def test_losses_without_a_form_in_parts_say_so():
    x = [torch.zeros(1, 2)]
    with pytest.raises(ValueError, match="arcface: it has no form in parts"):
        LOSSES["arcface"].in_parts(x, torch.tensor([0]))
    with pytest.raises(ValueError, match="fenchel_young_loss: taylor_softmax has no form in parts"):
        LOSSES["fenchel_young_loss"].in_parts(x, torch.tensor([0]), map="taylor_softmax")


@every_loss
@pytest.mark.parametrize("offset", [0.0, 1e8, -1e16, 1e300])
def test_losses_in_parts_keep_their_digits(own: Loss, options: dict, offset: float):
    if (offset and "elastic" in str((own.name, options))) or "eps_softmax" in str(options):
        pytest.skip("the sink takes all, or nothing, at the scale of the offset")
    x = torch.tensor([[40.0, 0.0, 0.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0]], dtype=torch.float64) + offset
    if own.name == "eps_cross_entropy" and options["map"] == "taylor_softmax":
        pytest.skip("it depends on the offset")
    labels = torch.tensor([0, 1, 2])
    value, _ = own.in_parts(pieces(x, [1]), labels, reduction="none", **options)
    torch.testing.assert_close(value, own.function(x, labels, reduction="none", **options), rtol=1e-12, atol=1e-16)


def test_labels_that_are_nowhere_are_refused():
    x = pieces(torch.zeros(2, 3, dtype=torch.float64), [1])
    for labels in ([0, 3], [-1, 1]):
        with pytest.raises(ValueError, match="each label must be the place of one score in the parts"):
            LOSSES["cross_entropy"].in_parts(x, torch.tensor(labels))
    with pytest.raises(ValueError, match=r"labels must be one a row, \(2,\), got \(2, 1\)"):
        LOSSES["cross_entropy"].in_parts(x, torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="target must hold class indices, or be a list of the probabilities of each part"):
        LOSSES["cross_entropy"].in_parts(x, torch.zeros(2, 3))


@pytest.mark.parametrize(("name", "params"), [("elastic_softmax", {"beta": -INF}), ("eps_softmax", {"eps": 1e-300})])
def test_sinks_at_their_ends_in_parts(name: str, params: dict):
    case = Case(REGISTRY[name], params)
    x = torch.tensor([[-INF, -INF, -INF], [-709.9, -710.9, -INF], [1e300, 0.0, 1e300]], dtype=torch.float64)
    torch.testing.assert_close(in_parts(case, pieces(x, [1]), 0), case(x), rtol=1e-12, atol=0)
