"""States of logsumexp: merging is associative and commutative, the value is that of all scores at once, and a tree gives it too."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal
from softmaxima.io import counts as counts_module
from softmaxima.io import state as state_module
from softmaxima.io._scaled import exponential
from softmaxima.io.counts import COUNTED, EIGHT_BITS, Codes
from softmaxima.kernels import interface

INF = math.inf
scores = st.one_of(st.floats(-30, 30), st.floats(-1e4, 1e4), st.sampled_from([-INF, 0.0, 1.0, -1.0, -math.log(2), 1e4, -1e4]))
lists = st.lists(scores, min_size=1, max_size=24)


def of(values: Sequence[float]) -> sm.LogSumExpState:
    return sm.LogSumExpState().update(np.array(values, np.float64))


def exact(values: Sequence[float]) -> mpmath.mpf:
    """LSE in 1200 bits: exp(−745) beside 1 has its digits."""
    with mpmath.workprec(1200):
        return mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(float(v))) for v in values))


def ulps(value: float, truth: float | mpmath.mpf, largest: float = 0.0) -> float:
    """How far a value is from the truth, in units of the truth's last place; those of a 64-bit `largest`, if they are larger."""
    if math.isinf(float(truth)) or math.isnan(float(truth)):
        return 0.0 if value == float(truth) or (math.isnan(value) and math.isnan(float(truth))) else INF
    unit = max(float(np.spacing(abs(float(truth)))), 2.0**-62 * abs(largest))
    with mpmath.workprec(1200):
        return float(abs(mpmath.mpf(float(value)) - truth) / mpmath.mpf(unit))


def parts(data: st.DataObject, values: list[float]) -> list[list[float]]:
    """The values in some order, cut at some places."""
    values = data.draw(st.permutations(values))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(values) - 1)))))
    return [values[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True) if a < b]


def fold(data: st.DataObject, states: list[sm.LogSumExpState]) -> sm.LogSumExpState:
    """Merged two by two, in some order."""
    while len(states) > 1:
        first = states.pop(data.draw(st.integers(0, len(states) - 1)))
        second = states.pop(data.draw(st.integers(0, len(states) - 1)))
        states.append(first.merge(second))
    return states[0]


@given(values=lists)
def test_the_value_is_within_an_ulp_of_the_truth(values: list[float]):
    assert ulps(float(of(values).value), exact(values), max(values)) <= 1


@given(
    values=st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=24),
    tau=st.sampled_from([1.0, 0.7]),
    cancels=st.booleans(),
    data=st.data(),
)
def test_narrow_scores_have_the_digits_of_their_sum(values: list[float], tau: float, cancels: bool, data: st.DataObject):
    x = np.array(values, np.float32)
    if cancels:  # M and the logarithm of the sum
        x = (x - tau * sm.LogSumExpState().update(x, temperature=tau).value).astype(np.float32)
    with mpmath.workdps(60):
        truth = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(float(score)) / mpmath.mpf(tau)) for score in x))
    merged = fold(
        data, [sm.LogSumExpState().update(np.array(part, np.float32), temperature=tau) for part in parts(data, x.tolist())]
    )
    for state in (sm.LogSumExpState().update(x, temperature=tau), merged):
        unit = np.spacing(max(abs(float(truth)), math.log(len(x)), 1.0))
        height = 0.0 if tau == 1.0 else np.spacing(abs(float(x.max()) / tau))
        assert abs(float(state.value) - truth) <= 2 * unit + height


@given(values=lists, data=st.data())
def test_any_order_and_grouping_gives_the_same_to_an_ulp(values: list[float], data: st.DataObject):
    whole, merged = of(values), fold(data, [of(part) for part in parts(data, values)])
    assert ulps(float(merged.value), float(whole.value)) <= 1
    assert (merged.n, merged.count, merged.maximum) == (whole.n, whole.count, whole.maximum)
    assert merged.effective_size == pytest.approx(float(whole.effective_size), rel=1e-13)


@given(a=lists, b=lists, c=lists)
def test_merging_is_associative_and_commutative(a: list[float], b: list[float], c: list[float]):
    x, y, z = of(a), of(b), of(c)
    left, right = x.merge(y).merge(z), x.merge(y.merge(z))
    assert ulps(float(left.value), float(right.value)) <= 1
    assert x.merge(y).value == y.merge(x).value
    assert x.merge(y).effective_size == y.merge(x).effective_size


@given(data=st.data(), height=st.integers(1, 4))
def test_states_of_rows_are_rows_of_states(data: st.DataObject, height: int):
    row = st.lists(scores, min_size=5, max_size=5)
    table = np.array(data.draw(st.lists(row, min_size=height, max_size=height)))
    merged = sm.LogSumExpState().update(table[:, :2]).merge(sm.LogSumExpState().update(table[:, 2:].T, dim=0))
    assert merged.shape == (height,)
    for i in range(height):
        assert ulps(merged.value[i], exact(table[i].tolist()), max(table[i])) <= 1
        assert merged.effective_size[i] == pytest.approx(float(of(table[i].tolist()).effective_size), rel=1e-13)


@given(values=lists)
def test_nothing_is_the_identity_and_a_pickle_is_the_same_state(values: list[float]):
    state, nothing = of(values), sm.LogSumExpState()
    for same in (state.merge(nothing), nothing.merge(state), state.update(np.zeros(0)), pickle.loads(pickle.dumps(state))):
        assert (same.value, same.n, same.count, same.effective_size) == (state.value, state.n, state.count, state.effective_size)


@given(values=st.lists(st.floats(-40, 40), min_size=1, max_size=20))
def test_the_effective_size_is_one_over_the_sum_of_squares(values: list[float]):
    p = np.exp(np.array(values) - max(values))
    p /= p.sum()
    assert float(of(values).effective_size) == pytest.approx(1 / (p**2).sum(), rel=1e-12)


def test_infinities_nan_and_nothing(dtype: torch.dtype):
    x = torch.tensor([[-INF, -INF], [INF, 0.0], [INF, INF], [math.nan, 0.0], [0.0, -INF]], dtype=dtype)
    state = sm.LogSumExpState().update(x)
    np.testing.assert_array_equal(state.value, [-INF, INF, INF, math.nan, 0.0])
    np.testing.assert_array_equal(state.effective_size, [0.0, 1.0, 2.0, math.nan, 1.0])
    np.testing.assert_array_equal(state.count, [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(state.n, [2] * 5)
    np.testing.assert_array_equal(state.merge(state).value, [-INF, INF, INF, math.nan, math.log(2)])
    later = state.update(torch.full((5, 1), 3.0, dtype=dtype))
    np.testing.assert_array_equal(later.value, [3.0, INF, INF, math.nan, of([3.0, 0.0]).value])
    assert sm.LogSumExpState().value == -INF
    assert sm.LogSumExpState().effective_size == 0
    assert sm.LogSumExpState().update(torch.zeros(3, 0, dtype=dtype)).value.tolist() == [-INF] * 3
    assert sm.LogSumExpState().update(torch.zeros(0, 3, dtype=dtype)).shape == (0,)
    assert float(sm.LogSumExpState().update(torch.tensor(2.5, dtype=dtype)).value) == 2.5


def test_digits_near_zero_survive_merging():
    tiny = of([0.0]).merge(of([-40.0]))
    assert ulps(float(tiny.value), exact([0.0, -40.0])) <= 1
    far = of([-700.0]).merge(of([-40.0])).merge(of([0.0]))
    assert ulps(float(far.value), exact([0.0, -40.0, -700.0])) <= 1
    balance = [-3.0] * 20  # M + log m = −3 + log 20 cancels
    assert ulps(float(of(balance).value), exact(balance)) <= 1
    worse = [-math.log(2)] * 2  # all 53 digits cancel, and 64 have 11 left
    assert ulps(float(of(worse).value), exact(worse), worse[0]) <= 1


@pytest.mark.parametrize("scale", [1e15, 1e18, 1e19, 1e300])
def test_scores_of_any_size_are_summed(scale: float):
    values = [scale, np.nextafter(scale, 0), scale, -scale, 0.0]
    assert ulps(float(of(values).value), exact(values)) <= 1
    assert ulps(float(of([-v for v in values[:4]]).value), exact([-v for v in values[:4]])) <= 1
    assert float(of([-scale, np.nextafter(-scale, -INF)]).value) >= -scale


def test_doubling_thirty_times_sums_a_billion_terms_exactly():
    values = [0.1, -1.0, -7.0]
    state = of(values)
    for _ in range(30):
        state = state.merge(state)
    with mpmath.workprec(200):
        truth = exact(values) + 30 * mpmath.log(2)
    assert ulps(float(state.value), truth) <= 1
    assert state.n == 3 * 2**30
    for _ in range(31):
        state = state.merge(state)
    with pytest.raises(ValueError, match=r"merge: states must be of fewer than 2\^63 scores together"):
        state.merge(state)


def test_a_maximum_that_rises_again_and_again_loses_nothing():
    values = (np.arange(3000) * 0.01).tolist()
    state = sm.LogSumExpState()
    for value in values:
        state = state.update(np.array([value]))
    assert ulps(float(state.value), exact(values)) <= 1
    assert state.value == of(values).value


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("n", [1, 2, 127, 128, 4095, 4096, 65_537])
def test_rows_of_every_length_agree_with_float64(n: int, offset: float, dtype: torch.dtype):
    x = (normal(2, n) + offset).to(dtype)
    state = sm.LogSumExpState().update(x)
    reference = torch.logsumexp(x.double(), -1).numpy()
    # Long rows are summed in the dtype that the map computes in, relative to the maximum: 2⁻²³ a term.
    tolerance = 1e-14 if n < 128 or dtype == torch.float64 else 2**-23
    np.testing.assert_allclose(state.value, reference, rtol=1e-15 + 2**-52, atol=tolerance)
    np.testing.assert_array_equal(state.maximum, x.double().amax(-1).numpy())
    np.testing.assert_array_equal(state.count, (x == x.amax(-1, keepdim=True)).sum(-1).numpy())
    p = torch.softmax(x.double(), -1)
    np.testing.assert_allclose(state.effective_size, (1 / p.square().sum(-1)).numpy(), rtol=1e-11 if tolerance < 1e-13 else 1e-6)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_long_rows_merge_with_short_ones(backend: str, monkeypatch):
    monkeypatch.setattr(interface, "AVAILABLE", interface.AVAILABLE and backend == "native")
    x = normal(3, 9000)
    x[0, 17] = x[0, 8000] = 50.0  # the maximum of two parts
    x[1, 8000] = 50.0  # of the second only, so that the first falls
    x[2, 17] = 50.0
    state = sm.LogSumExpState().update(x[:, :5000]).update(x[:, 5000:])
    np.testing.assert_allclose(state.value, torch.logsumexp(x, -1).numpy(), rtol=1e-15)
    assert state.count.tolist() == [2, 1, 1]
    infinite = torch.full((3, 5000), -INF, dtype=torch.float64)
    infinite[1, 3] = INF
    infinite[2, 3] = math.nan
    np.testing.assert_array_equal(sm.LogSumExpState().update(infinite).value, [-INF, INF, math.nan])
    np.testing.assert_array_equal(sm.LogSumExpState().update(infinite).effective_size, [0.0, 1.0, math.nan])
    np.testing.assert_array_equal(state.update(infinite).value[[0, 2]], [state.value[0], math.nan])


def test_the_terms_of_a_block_of_many_rows_are_worked_on_in_pieces(monkeypatch):
    monkeypatch.setattr(state_module, "PIECE", 8)
    x = normal(3, 10)
    np.testing.assert_allclose(sm.LogSumExpState().update(x).value, torch.logsumexp(x, -1).numpy(), rtol=1e-15)
    assert sm.LogSumExpState().update(x).n.tolist() == [10] * 3
    torch.testing.assert_close(sm.sequence_logsumexp(x), torch.logsumexp(x, -1), rtol=1e-15, atol=0)


def test_masks_temperature_strides_and_integers():
    x, where = normal(4, 7).T, normal(7, 4, seed=1) > 0
    for dim in (0, -2):
        state = sm.LogSumExpState().update(x, dim, temperature=0.5, where=where)
        expected = torch.logsumexp((x / 0.5).masked_fill(~where, -INF), 0)
        np.testing.assert_allclose(state.value, expected.numpy(), rtol=1e-15)
        np.testing.assert_array_equal(state.n, where.sum(0).numpy())
    assert sm.LogSumExpState().update(np.zeros((3, 4)), where=np.array([True, False, False, False])).n.tolist() == [1, 1, 1]
    assert sm.LogSumExpState().update(np.array([0, 0])).value == math.log(2)
    assert sm.LogSumExpState().update(np.zeros(4)[::-1]).value == math.log(4)
    assert sm.LogSumExpState().update(np.array([1e308]), temperature=0.01).value == INF


@given(k=st.floats(-1e6, 1e6))
def test_terms_are_exponentials(k: float):
    term = exponential(np.array(k))
    with mpmath.workprec(200):
        truth = mpmath.exp(mpmath.mpf(k)) / mpmath.mpf(2) ** int(term.exponent)
        assert float(abs((mpmath.mpf(float(term.high)) + mpmath.mpf(float(term.low))) / truth - 1)) <= 2**-53


def test_wrong_use_is_refused_before_any_work():
    state = sm.LogSumExpState().update(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"rows of shape \(2,\), got \(3,\); keep one state"):
        state.update(np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"merge: this state is of rows of shape \(2,\), got \(\)"):
        state.merge(of([1.0]))
    with pytest.raises(TypeError, match="merges with another, got float"):
        state.merge(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="carries no gradient"):
        sm.LogSumExpState().update(torch.zeros(3, requires_grad=True))
    with pytest.raises(TypeError, match="got list"):
        sm.LogSumExpState().update([1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scores must be float64"):
        sm.LogSumExpState().update(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"temperature must be positive and finite.* got 0"):
        sm.LogSumExpState().update(np.zeros(3), temperature=0)
    with pytest.raises(IndexError, match="dim must be in"):
        sm.LogSumExpState().update(np.zeros(3), 1)
    with pytest.raises(ValueError, match="temperature"):
        sm.streaming_logsumexp([], temperature=-1.0)


def test_a_state_without_squares_says_so():
    state = sm.LogSumExpState(squares=None).update(np.zeros(3))
    assert state.value == math.log(3)
    for without in (state, state.merge(of([1.0])), of([1.0]).merge(state), state.update(np.zeros(5000))):
        with pytest.raises(ValueError, match="squares=None; start from LogSumExpState"):
            _ = without.effective_size


@given(values=lists, data=st.data())
def test_streams_and_sequences_equal_the_state_of_all(values: list[float], data: st.DataObject):
    whole = float(of(values).value)
    blocks = [np.array(part) for part in parts(data, values)]
    assert ulps(float(sm.streaming_logsumexp(iter(blocks))), whole) <= 1
    assert ulps(float(sm.streaming_logsumexp(values)), whole) <= 1
    assert ulps(float(sm.sequence_logsumexp(np.array(values))), whole) <= 1


@given(values=lists, size=st.sampled_from([1, 500]), tau=st.sampled_from([1.0, 0.3, 3e-308]), squares=st.booleans(), data=st.data())
def test_pieces_of_arrays_and_of_tensors_are_the_same_sum(values, size: int, tau: float, squares: bool, data: st.DataObject):
    dtype = data.draw(st.sampled_from(["<f8", ">f8", "<f4", ">f4", "<f2"]))
    with np.errstate(over="ignore"):
        pieces = [np.array(part * size, dtype)[:: data.draw(st.sampled_from([1, -1, 2]))] for part in parts(data, values)]
    tensors = [torch.from_numpy(piece.astype(piece.dtype.newbyteorder("="))) for piece in pieces]
    ours, theirs = state_module.of_pieces(pieces, tau, squares), state_module.of_pieces(tensors, tau, squares)
    for a, b in zip(
        (ours.maximum, ours.count, ours.n, *ours.rest), (theirs.maximum, theirs.count, theirs.n, *theirs.rest), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ours.value, theirs.value)
    if squares:
        np.testing.assert_array_equal(ours.effective_size, theirs.effective_size)


@given(blocks=st.lists(st.binary(max_size=18), max_size=4), kind=st.sampled_from(COUNTED), scale=st.sampled_from([1.0, 0.1]))
@pytest.mark.parametrize("native", [True, False])
def test_counted_codes_are_the_sum_of_their_scores(native: bool, blocks: list[bytes], kind: str, scale: float):
    size = 1 if kind in EIGHT_BITS else 2
    if kind == "bool":
        blocks = [bytes(byte % 2 for byte in block) for block in blocks]
    raw = [np.frombuffer(block[: len(block) // size * size] * 3, "V2" if kind == "bfloat16" else kind) for block in blocks]
    scores = [
        torch.frombuffer(bytearray(q), dtype=torch.bfloat16).double().numpy() if q.dtype == "V2" and q.size else q for q in raw
    ]
    codes, most = Codes(kind, scale, 3.0), 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "MOST", most)  # of a counter, which is emptied after so many
        patch.setattr(interface, "AVAILABLE", native and interface.AVAILABLE)
        [counts] = codes.counted(raw)
        each = list(codes.counted(raw, -1.0))  # after each block
    assert counts.sum() == sum(map(len, raw))
    assert len(each) == len(raw) + 1
    np.testing.assert_array_equal(sum(each), counts)
    with np.errstate(invalid="ignore", over="ignore"):
        summed = state_module.of_pieces([scale * (q.astype(np.float64) - 3.0) for q in scores if q.size], 2.0, True)
    counted = codes.state(counts, 2.0, True)
    assert (counted.n, counted.count) == (summed.n, summed.count)
    np.testing.assert_array_equal(counted.maximum, summed.maximum)
    if np.isfinite(summed.value):
        assert ulps(float(counted.value), float(summed.value)) <= 1
        assert ulps(float(counted.effective_size), float(summed.effective_size)) <= 4
    else:
        np.testing.assert_array_equal(counted.value, summed.value)


def test_streams_take_numbers_arrays_and_tensors():
    assert sm.streaming_logsumexp([]) == -INF
    assert sm.streaming_logsumexp([0.0, np.float32(0), np.array(0.0), np.zeros(5), 0]) == pytest.approx(math.log(9), rel=1e-15)
    assert sm.streaming_logsumexp(math.log(k) for k in range(1, 10_001)) == pytest.approx(math.log(50_005_000), rel=1e-15)
    blocks = normal(3, 10, dtype=torch.float32).split(4, -1)
    value = sm.streaming_logsumexp(blocks)
    torch.testing.assert_close(value, torch.logsumexp(torch.cat(blocks, -1), -1))
    assert sm.streaming_logsumexp([torch.zeros(2)]).dtype == torch.float32
    assert sm.streaming_logsumexp([torch.zeros(2), torch.zeros(2, dtype=torch.float64)]).dtype == torch.float64
    assert sm.streaming_logsumexp([torch.zeros(2, dtype=torch.int64)]).dtype == torch.get_default_dtype()
    assert sm.streaming_logsumexp([np.zeros(2, np.float32)]).dtype == np.float32
    assert sm.streaming_logsumexp([np.zeros((2, 3)), np.zeros((4, 3))], 0).shape == (3,)
    assert sm.streaming_logsumexp([np.zeros(2)], temperature=0.5) == math.log(2)
    with pytest.raises(TypeError, match="got str"):
        sm.streaming_logsumexp(["1.0"])
    with pytest.raises(ValueError, match="keep one state for each shape"):
        sm.streaming_logsumexp([np.zeros((2, 3)), np.zeros((3, 3))])


def test_a_sequence_by_halves_is_logsumexp_with_its_gradient(dtype: torch.dtype):
    x = normal(3, 50, dtype=dtype)
    where = normal(3, 50, seed=1) > -1
    for dim in (0, 1, -1):
        ours = sm.sequence_logsumexp(x, dim, temperature=2.0, where=where)
        torch.testing.assert_close(ours, sm.logsumexp(x, dim, temperature=2.0, where=where))
    assert float(sm.sequence_logsumexp(torch.zeros(0, dtype=dtype))) == -INF
    assert float(sm.sequence_logsumexp(torch.tensor(2.5, dtype=dtype))) == 2.5
    assert isinstance(sm.sequence_logsumexp(np.zeros(3)), np.float64)
    torch.testing.assert_close(torch.func.vmap(sm.sequence_logsumexp)(x.double()), torch.logsumexp(x.double(), -1))


def test_gradients_of_a_sequence():
    x, where = normal(3, 4).requires_grad_(), normal(3, 4, seed=1) > -1
    function = lambda x: sm.sequence_logsumexp(x, 0, temperature=2.0, where=where)
    assert gradcheck(function, (x,), check_forward_ad=True)
    assert gradgradcheck(function, (x,))
    (gradient,) = torch.autograd.grad(sm.sequence_logsumexp(x).sum(), x)
    torch.testing.assert_close(gradient, sm.softmax(x.detach()))
