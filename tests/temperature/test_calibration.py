"""`calibrate_temperature` and `calibrate_scaling` against the literal log loss in float64: nothing is better than theirs."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize, minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

import softmaxima as sm
from conftest import at_most, normal
from softmaxima.base.numbers import InputError
from softmaxima.temperature.calibration import (
    METHODS,
    ScalingCalibration,
    TemperatureCalibration,
    calibrate_safely,
    calibrate_scaling,
    calibrate_temperature,
)
from softmaxima.temperature.reliability import reliability
from softmaxima_lab.calibrate.calibration import Settings, check_options

SEVERAL = [method for method in METHODS if not METHODS[method].is_one_number]
UNPENALISED = [method for method in METHODS if not METHODS[method].has_penalty]


def drawn(rows: int = 200, classes: int = 4, temperature: float = 3.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits that are `temperature` times those that the labels are drawn by."""
    x = normal(rows, classes, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    labels = torch.multinomial(x.softmax(-1), 1, generator=generator).squeeze(-1)
    return temperature * x, labels


def log_loss(z: np.ndarray, labels: np.ndarray, weight: np.ndarray | None = None, smoothing: float = 0.0) -> float:
    """The weighted mean of Σ_c −y_c log p_c; a class of −∞ has no share of y."""
    log_p, allowed = log_softmax(z, -1), np.isfinite(z)
    y = (1 - smoothing) * np.eye(z.shape[-1])[labels] + smoothing * allowed / allowed.sum(-1, keepdims=True)
    losses = -np.where(allowed, y * np.where(allowed, log_p, 0.0), 0.0).sum(-1)
    return float(np.average(losses, weights=weight))


def slope(x: Tensor, labels: Tensor, temperature: float) -> float:
    """f'(b) over the size of its two parts, by autograd of the literal mean."""
    b = torch.tensor(1 / temperature, dtype=torch.float64, requires_grad=True)
    x = x.double() - x.double().amax(-1, keepdim=True)
    parts = (b * x).logsumexp(-1).mean(), -b * x.gather(-1, labels[:, None]).mean()
    rates = [float(torch.autograd.grad(part, b, retain_graph=True)[0]) for part in parts]
    return abs(sum(rates)) / sum(map(abs, rates))


# A temperature ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.01, 0.5, 1.0, 3.0, 1e4])
@pytest.mark.parametrize("classes", [2, 4, 50])
def test_it_is_the_global_optimum(temperature: float, classes: int):
    x, labels = drawn(classes=classes, temperature=temperature)
    found = calibrate_temperature(x, labels)
    rows, target = x.numpy(), labels.numpy()
    best = minimize_scalar(
        lambda t: log_loss(rows / math.exp(t), target), bounds=(-9, 15), method="bounded", options={"xatol": 1e-9}
    )
    assert found.temperature == pytest.approx(math.exp(best.x), rel=1e-5)
    assert found.after.log_loss <= best.fun + 1e-14
    assert slope(x, labels, found.temperature) < 1e-12
    assert found.steps < 12
    assert found.bound is None


@hypothesis.given(st.integers(0, 2**31), st.integers(2, 6), st.integers(3, 30), st.floats(-8, 8), st.sampled_from([0.0, 2.0, 6.0]))
@at_most(80)
def test_the_slope_is_zero_wherever_there_is_an_optimum(seed: int, classes: int, rows: int, power: float, told: float):
    x = 10**power * normal(rows, classes, seed=seed)
    labels = (x / 10**power * told + normal(rows, classes, seed=seed + 1)).argmax(-1)
    try:
        found = calibrate_temperature(x, labels)
    except InputError as error:
        if "falls without end" in str(error):
            assert bool((x.argmax(-1) == labels).all())
        else:
            assert float((x.mean(-1) - x.gather(-1, labels[:, None])[:, 0]).mean()) >= 0
    else:
        assert slope(x, labels, found.temperature) < 1e-12
        assert found.after.log_loss <= min(found.before.log_loss, math.log(classes)) + 1e-12


def test_one_wrong_row_of_very_many_takes_few_steps():
    x = torch.zeros(100_000, 2, dtype=torch.float64)
    x[:, 0] = 1.0
    labels = torch.zeros(100_000, dtype=torch.long)
    labels[7] = 1
    found = calibrate_temperature(x, labels)
    assert found.temperature == pytest.approx(1 / math.log(99_999), rel=1e-12)
    assert found.steps < 8


def test_two_classes_have_a_closed_form():
    x = torch.tensor([[2.0, 0.0]] * 10)
    labels = torch.tensor([0] * 7 + [1] * 3)
    assert calibrate_temperature(x, labels).temperature == pytest.approx(2 / math.log(7 / 3), rel=1e-14)


def test_a_shift_of_rows_changes_nothing_and_a_factor_is_one_of_the_temperature():
    x, labels = drawn()
    tau = calibrate_temperature(x, labels).temperature
    shifts = 2.0**10 * torch.arange(len(x), dtype=torch.float64)[:, None]
    assert calibrate_temperature(x + shifts, labels).temperature == pytest.approx(tau, rel=1e-9)
    assert calibrate_temperature(x.log_softmax(-1), labels).temperature == pytest.approx(tau, rel=1e-12)
    for factor in (2.0**-900, 2.0**-3, 2.0**900):
        assert calibrate_temperature(factor * x, labels).temperature == factor * tau
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert calibrate_temperature(x[order], labels[order]).temperature == pytest.approx(tau, rel=1e-12)
    assert calibrate_temperature(x[:, [2, 0, 3, 1]], torch.tensor([1, 3, 0, 2])[labels]).temperature == pytest.approx(
        tau, rel=1e-12
    )


def test_every_dtype_and_kind_of_array_is_computed_in_float64(dtype: torch.dtype):
    x, labels = drawn(60, 3)
    x = x.to(dtype).double().to(dtype)
    expected = calibrate_temperature(x.double(), labels).temperature
    assert calibrate_temperature(x, labels).temperature == expected
    assert calibrate_temperature(x.view(3, 4, 5, 3), labels.view(3, 4, 5).to(torch.int32)).temperature == expected
    if dtype is not torch.bfloat16:
        assert calibrate_temperature(x.numpy(), labels.numpy()).temperature == expected
    assert calibrate_temperature(x.clone().requires_grad_(), labels).temperature == expected


@pytest.mark.parametrize("method", METHODS)
def test_classes_that_are_left_out_are_not_there(method: str):
    x, labels = drawn(150, 3)
    wide = torch.cat((x, torch.full((150, 1), 99.0)), -1)
    where = torch.tensor([True, True, True, False])
    infinite = wide.masked_fill(~where, -math.inf)
    options: dict[str, Any] = {"penalty": None} if method != "temperature" else {}
    masked, at_infinity = (
        calibrate_scaling(wide, labels, method, where=where, **options),
        calibrate_scaling(infinite, labels, method, **options),
    )
    assert masked.after.log_loss == pytest.approx(at_infinity.after.log_loss, rel=1e-12)
    if method == "temperature":
        assert masked.after == calibrate_temperature(x, labels).after
    torch.testing.assert_close(masked(wide, where=where), at_infinity(infinite))
    assert not masked(wide, where=where)[:, 3].any()
    assert reliability(masked(wide, where=where), labels).log_loss == pytest.approx(masked.after.log_loss, rel=1e-9)


def test_rows_may_leave_out_different_classes():
    x, labels = drawn(120, 5)
    where = (torch.rand(120, 5, generator=torch.Generator().manual_seed(3)) < 0.7).scatter(1, labels[:, None], True)
    found = calibrate_temperature(x, labels, where=where)
    masked = x.masked_fill(~where, -math.inf).numpy()
    best = minimize_scalar(lambda t: log_loss(masked / t, labels.numpy()), bounds=(0.1, 30), method="bounded")
    assert found.temperature == pytest.approx(best.x, rel=1e-5)
    assert found.before.log_loss == pytest.approx(log_loss(masked, labels.numpy()), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_counts_as_so_many_rows(method: str):
    x, labels = drawn(150, 3)
    times = torch.randint(0, 4, (150,), generator=torch.Generator().manual_seed(5))
    weighted = calibrate_scaling(x, labels, method, sample_weight=times)
    repeated = calibrate_scaling(x.repeat_interleave(times, 0), labels.repeat_interleave(times), method)
    torch.testing.assert_close(weighted(x), repeated(x), rtol=1e-8, atol=1e-10)
    assert weighted.after.log_loss == pytest.approx(repeated.after.log_loss, rel=1e-10)
    tiny = calibrate_scaling(x, labels, method, sample_weight=times.double() * 1e-300)
    torch.testing.assert_close(weighted(x), tiny(x), rtol=1e-8, atol=1e-10)


def test_blocks_that_are_not_kept_say_the_same(monkeypatch: pytest.MonkeyPatch):
    x, labels = drawn()
    expected = calibrate_temperature(x, labels)
    monkeypatch.setattr("softmaxima.temperature._one_number.KEPT", 0)
    monkeypatch.setattr("softmaxima.temperature._rows.BLOCK", 7)
    found = calibrate_temperature(x, labels)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-13)
    assert found.after.log_loss == pytest.approx(expected.after.log_loss, rel=1e-13)


def test_before_and_after_are_the_reliability_of_its_probabilities():
    x, labels = drawn()
    found = calibrate_temperature(x, labels)
    for measured, p in ((found.before, x.softmax(-1)), (found.after, found(x))):
        expected = reliability(p, labels)
        assert measured.log_loss == pytest.approx(expected.log_loss, rel=1e-12)
        assert measured.brier == pytest.approx(expected.brier, rel=1e-12)
        assert measured.calibration_error == pytest.approx(expected.calibration_error, rel=1e-9)


# Where there is none ------------------------------------------------------------------------------------------------------

RIGHT = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
BOTH = torch.tensor([0, 1])


def test_rows_that_are_all_right_have_no_best_temperature():
    with pytest.raises(InputError, match="every row's label has the highest score"):
        calibrate_temperature(RIGHT, BOTH)
    found = calibrate_temperature(RIGHT, BOTH, minimum=0.25)
    assert (found.temperature, found.bound) == (0.25, "minimum")
    smoothed = calibrate_temperature(RIGHT, BOTH, label_smoothing=0.1)
    best = minimize_scalar(lambda t: log_loss(RIGHT.numpy() / t, BOTH.numpy(), smoothing=0.1), bounds=(0.1, 30), method="bounded")
    assert smoothed.temperature == pytest.approx(best.x, rel=1e-5)
    assert smoothed.label_smoothing == 0.1


def test_scores_that_tell_less_than_nothing_have_no_best_temperature():
    with pytest.raises(InputError, match="look whether labels and columns are in one order"):
        calibrate_temperature(RIGHT, 1 - BOTH)
    found = calibrate_temperature(RIGHT, 1 - BOTH, maximum=8.0)
    assert (found.temperature, found.bound) == (8.0, "maximum")
    even = calibrate_temperature(RIGHT, 1 - BOTH, maximum=math.inf)
    assert (even.temperature, even.bound) == (math.inf, "maximum")
    assert even.after.log_loss == pytest.approx(math.log(2))
    masked = torch.tensor([[1e30, -3.0, -math.inf]])
    assert even(masked).tolist() == [[0.5, 0.5, 0.0]]
    assert even(masked.numpy(), where=np.array([True, False, True])).tolist() == [[1.0, 0.0, 0.0]]


def test_an_optimum_out_of_bounds_is_told():
    x, labels = drawn()
    tau = calibrate_temperature(x, labels).temperature
    assert calibrate_temperature(x, labels, minimum=tau / 2, maximum=2 * tau).bound is None
    assert calibrate_temperature(x, labels, minimum=2 * tau).bound == "minimum"
    assert calibrate_temperature(x, labels, maximum=tau / 2).temperature == tau / 2


def test_equal_scores_have_every_temperature():
    x, labels = torch.full((4, 3), 5.0), torch.arange(4) % 3
    with pytest.raises(InputError, match="the scores of each row are equal"):
        calibrate_temperature(x, labels, minimum=0.5, maximum=1.0)
    with pytest.raises(InputError, match="the scores of each row are equal"):
        calibrate_temperature(x, labels, minimum=1.0, maximum=1.0)


def test_a_temperature_that_was_forced_says_so():
    for labels in (BOTH, 1 - BOTH):
        found = calibrate_temperature(RIGHT, labels, minimum=1.0, maximum=1.0)
        assert (found.temperature, found.bound) == (1.0, "minimum" if labels is BOTH else "maximum")


FAULTLESS, CHANCE, SAME = "tell classes without fault", "no more than chance", "scores of each row are equal"
UNREACHED, ONE = "no finite numbers reach the least", "one temperature was taken"
LOST = normal(120, 4) * torch.tensor([1e8, 1.0, 1.0, 1.0])  # beside one class the others are lost
FOUR, THREE = (torch.arange(120) * 7919 % classes for classes in (4, 3))


@pytest.mark.parametrize(
    ("x", "labels", "method", "told"),
    [
        *((RIGHT, BOTH, method, FAULTLESS) for method in METHODS),
        (RIGHT, 1 - BOTH, "temperature", CHANCE),
        *((RIGHT, 1 - BOTH, method, FAULTLESS) for method in SEVERAL),  # by negative factors
        *((torch.zeros(4, 3), torch.arange(4) % 3, method, SAME) for method in METHODS),
        *((normal(120, 4), THREE, method, UNREACHED) for method in ("vector", "matrix")),  # a class without rows
        (LOST, FOUR, "per_class", ONE),
    ],
)
def test_safely_there_is_always_an_answer_and_its_note_is_true(x: Tensor, labels: Tensor, method: str, told: str):
    found, note = calibrate_safely(x, labels, method, penalty=0.0)
    p = found(x)
    assert bool(p.isfinite().all())
    torch.testing.assert_close(p.sum(-1), torch.ones(len(x), dtype=p.dtype))
    assert told in note
    assert (FAULTLESS in note) == (told == FAULTLESS)
    if told == FAULTLESS and method != "per_class":
        assert found.label_smoothing == 0.5
        torch.testing.assert_close(p.gather(-1, labels[:, None]).mean(), torch.tensor(0.75), atol=0.02, rtol=0)  # Platt's 3/4


# Several numbers ----------------------------------------------------------------------------------------------------------


def objective(method: str, penalty: float, x: np.ndarray, labels: np.ndarray) -> Any:
    """The literal function of all numbers, and where to begin."""
    n = x.shape[-1]
    x = x - x.mean(-1, keepdims=True)

    def value(theta: np.ndarray) -> float:
        if method == "matrix":
            w, a = theta[: n * n].reshape(n, n), theta[n * n :]
            off = penalty * (w[~np.eye(n, dtype=bool)] ** 2).mean()
            return log_loss(x @ w.T + a, labels) + off + penalty * (a**2).mean()
        a = theta[n:] if method == "vector" else np.zeros(n)
        return log_loss(x * theta[:n] + a, labels) + penalty * (a**2).mean()

    first = np.eye(n).ravel() if method == "matrix" else np.ones(n)
    return value, first if method == "per_class" else np.concatenate((first, np.zeros(n)))


@pytest.mark.parametrize("penalty", [0.0, 0.1])
@pytest.mark.parametrize("method", SEVERAL)
def test_affine_scores_are_the_global_optimum(method: str, penalty: float):
    x, labels = drawn(300, 3)
    penalty *= method != "per_class"
    found = calibrate_scaling(x, labels, method, penalty=penalty)
    value, first = objective(method, penalty, x.numpy(), labels.numpy())
    assert isinstance(found, ScalingCalibration)
    theta = np.concatenate([part.numpy().ravel() for part in (found.factors, found.bias) if part is not None])
    best = minimize(value, first, method="BFGS", options={"gtol": 1e-8})
    assert value(theta) <= best.fun + 1e-12
    assert value(theta) == pytest.approx(best.fun, abs=1e-6)
    steps = 1e-5 * np.eye(len(theta))
    slopes = [(value(theta + step) - value(theta - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(slopes, 0, atol=1e-8)
    assert found.steps < 15
    p = found(x)
    assert reliability(p, labels).log_loss == pytest.approx(found.after.log_loss, rel=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_more_numbers_fit_better_and_all_ignore_a_shift(method: str):
    x, labels = drawn(300, 3)
    fits = [calibrate_scaling(x, labels, name).after.log_loss for name in list(METHODS)[: list(METHODS).index(method) + 1]]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(fits))
    found, logarithms = calibrate_scaling(x, labels, method), calibrate_scaling(x.log_softmax(-1), labels, method)
    torch.testing.assert_close(found(x), logarithms(x + 7.0), rtol=1e-8, atol=1e-10)
    scaled = calibrate_scaling(2.0**40 * x, labels, method)
    torch.testing.assert_close(found(x), scaled(2.0**40 * x), rtol=1e-8, atol=1e-10)


def numbers(found: Any) -> Tensor:
    """All that was fitted, in one row."""
    parts = (torch.tensor([found.temperature]),) if found.temperature is not None else (found.factors, found.bias)
    return torch.cat([part.flatten() for part in parts if part is not None])


@hypothesis.given(
    st.sampled_from(list(METHODS)),
    st.sampled_from([0.0, None, 0.1]),
    st.integers(2, 4),
    st.integers(-20, 20),
    st.integers(0, 34),
    st.booleans(),
    st.integers(0, 2**31),
)
@at_most(160)
def test_what_is_added_to_all_scores_of_a_row_changes_no_number(
    method: str, penalty: float | None, classes: int, spread: int, size: int, masked: bool, seed: int
):
    """Of shifts that round nothing, to the last digits; of log p to what its own rounding leaves."""
    x, labels = drawn(80, classes, temperature=1.5, seed=seed)
    x = 2.0**spread * (2**12 * x).round() / 2**12
    if masked:
        x[::3, -1] = torch.where(labels[::3] == classes - 1, x[::3, -1], -math.inf)
    options: dict[str, Any] = {} if method in UNPENALISED else {"penalty": penalty}
    steps = torch.randint(-(2**size), 2**size + 1, (80, 1), generator=torch.Generator().manual_seed(seed))
    shifts = 2.0**spread * steps.double()
    try:
        expected = numbers(calibrate_scaling(x, labels, method, **options))
    except InputError as error:
        for shift in (shifts, shifts[:1]):
            with pytest.raises(type(error)):
                calibrate_scaling(x + shift, labels, method, **options)
        return
    for shift in (shifts, shifts[:1]):
        torch.testing.assert_close(numbers(calibrate_scaling(x + shift, labels, method, **options)), expected, rtol=1e-9, atol=1e-9)
    logarithms = numbers(calibrate_scaling(x.log_softmax(-1), labels, method, **options))
    torch.testing.assert_close(logarithms, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("penalty", [0.0, 0.1])
@pytest.mark.parametrize("method", SEVERAL)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_of_all_numbers_that_fit_alike_it_takes_the_least(method: str, penalty: float, classes: int, offset: float):
    x, labels = drawn(300, classes, temperature=1.5)
    found = calibrate_scaling(x + offset, labels, method, penalty=0.0 if method == "per_class" else penalty)
    assert isinstance(found, ScalingCalibration)
    zeros: list[Tensor] = []
    if classes == 2:
        own = found.factors if method != "matrix" else found.factors.diagonal()
        zeros += [own[0] - own[1]]
    if method == "matrix" and not penalty:
        zeros += [found.factors.sum(0), found.factors.sum(1)]
    if found.bias is not None:
        zeros += [found.bias.sum()]
    for zero in zeros:
        torch.testing.assert_close(zero, torch.zeros_like(zero), atol=1e-9, rtol=0)


def test_a_large_penalty_leaves_a_factor_a_class():
    x, labels = drawn(300, 3)
    per_class, matrix = calibrate_scaling(x, labels, "per_class"), calibrate_scaling(x, labels, "matrix", penalty=1e9)
    torch.testing.assert_close(per_class(x), matrix(x), atol=1e-5, rtol=1e-5)


def test_the_penalty_of_priors_fades_with_rows():
    x, labels = drawn(300, 3)

    def distance(times: int) -> float:
        given = x.repeat(times, 1), labels.repeat(times)
        free, held = (calibrate_scaling(*given, "matrix", penalty=penalty) for penalty in (0.0, None))
        return float((free(x) - held(x)).abs().max())

    assert distance(50) < distance(1) / 10


def is_attained(x: np.ndarray, labels: np.ndarray, with_bias: bool) -> bool:
    """Whether factors and biases of least log loss are finite: none put every row's class before all, and some row's strictly."""
    rows, n = x.shape
    features = x - x.mean(-1, keepdims=True)
    features = np.stack((features, np.ones_like(features)), -1) if with_bias else features[..., None]  # of z_c = ⟨θ_c, features_c⟩
    moves = np.einsum("rck,cd->rcdk", features, np.eye(n)).reshape(rows, n, -1)
    moves = moves[np.arange(rows), labels][:, None] - moves
    moves = moves[np.arange(n) != labels[:, None]]
    return linprog(-moves.sum(0), A_ub=-moves, b_ub=np.zeros(len(moves)), bounds=(-1, 1)).fun > -1e-9


@pytest.mark.parametrize("method", ["per_class", "vector"])
@pytest.mark.parametrize("seed", range(60))
def test_it_finds_an_optimum_exactly_where_there_is_one(method: str, seed: int):
    rng = np.random.default_rng(seed)
    n, rows = int(rng.integers(2, 5)), int(rng.integers(4, 20))
    x = rng.integers(-2, 3, (rows, n)).astype(float) if seed % 2 else rng.standard_normal((rows, n))
    labels = rng.integers(0, n, rows)
    x[labels == 0, 0] += 4 * (seed % 3)  # and sometimes a class is told without fault
    options: dict[str, Any] = {} if method == "per_class" else {"penalty": 0.0}
    try:
        calibrate_scaling(x, labels, method, **options)
        found = True
    except InputError:
        found = False
    assert found == is_attained(x, labels, method == "vector")


def test_a_class_without_rows_has_no_best_bias():
    x, labels = drawn(100, 3)
    x = torch.cat((x, normal(100, 1, seed=9)), -1)
    with pytest.raises(InputError, match="as where a class has no rows"):
        calibrate_scaling(x, labels, "vector")
    assert calibrate_scaling(x, labels, "vector", penalty=0.1)(x)[:, 3].max() < 0.2


@pytest.mark.parametrize("method", METHODS)
def test_it_gives_the_kind_of_array_and_gradients(method: str, dtype: torch.dtype):
    x, labels = drawn(100, 3)
    found = calibrate_scaling(x, labels, method)
    given = x[:6].to(dtype).view(2, 3, 3).requires_grad_()
    p = found(given)
    assert p.dtype == dtype
    assert p.shape == given.shape
    (gradient,) = torch.autograd.grad(p[..., 0].sum(), given)
    assert bool(gradient.any())
    if dtype is not torch.bfloat16:
        array = found(given.detach().numpy())
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, p.detach().numpy())


@pytest.mark.parametrize("method", [*METHODS, "even"])
def test_it_takes_what_softmax_takes(method: str):
    """NaN and +∞ make a row NaN, −∞ and `where` leave a class out; and it maps over rows."""
    x, labels = drawn(100, 3)
    found = calibrate_temperature(-x, labels, maximum=math.inf) if method == "even" else calibrate_scaling(x, labels, method)
    hard = torch.tensor(
        [[0.0, 1, 2], [math.nan, 1, 2], [1, math.inf, 2], [1, -math.inf, 2], [math.nan, -math.inf, 2], [-math.inf] * 3]
    )
    p, where = found(hard), torch.tensor([False, True, True])
    assert torch.equal(p.isnan(), sm.softmax(hard).isnan()), p
    assert torch.equal(p == 0, sm.softmax(hard) == 0), p
    assert not p[-1].any()
    masked = found(hard, where=where)
    assert not masked[[0, 1, 3, 4], 0].any()
    torch.testing.assert_close(masked[1], masked[0])
    for options in ({}, {"where": where}):
        mapped = torch.vmap(lambda row, options=options: found(row, **options))(hard)
        torch.testing.assert_close(mapped, found(hard, **options), equal_nan=True)


@pytest.mark.parametrize("size", [2.0**-1000, 2.0**-600, 2.0**600, 2.0**1022])
@pytest.mark.parametrize("method", METHODS)
def test_scores_of_any_size_are_calibrated(method: str, size: float):
    x, labels = drawn(90, 3)
    x = (x * 2**8).round().clamp(-(2**9), 2**9) / 2**10
    options: dict[str, Any] = {} if method in UNPENALISED else {"penalty": None}
    found, expected = (calibrate_scaling(scores, labels, method, **options) for scores in (size * x, x))
    assert found.after.log_loss == pytest.approx(expected.after.log_loss, rel=1e-9)
    torch.testing.assert_close(found(size * x), expected(x), rtol=1e-7, atol=1e-9)


def test_where_float64_ends_it_takes_the_end_or_says_so():
    signs = normal(90, 3).sign()
    labels = torch.where(torch.arange(90) % 2 > 0, signs.argmax(-1), torch.arange(90) // 2 % 3)
    least, most = (calibrate_temperature(size * signs, labels) for size in (5e-324, 1.7e308))
    assert (least.temperature, least.bound) == (sys.float_info.min, "minimum")
    assert (most.temperature, most.bound) == (sys.float_info.max, "maximum")
    with pytest.raises(InputError, match=r"equal, to 2\.3e-308"):
        calibrate_scaling(5e-324 * signs, labels, "vector")
    with pytest.raises(InputError, match=r"logits must be below 8\.9e307 in size"):
        calibrate_scaling(1.7e308 * signs, labels, "vector")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_where_leaves_out_may_be_no_number(method: str, wrong: float):
    x, labels = drawn(100, 3)
    wide, where = torch.cat((x, torch.full((100, 1), wrong)), -1), torch.tensor([True, True, True, False])
    options: dict[str, Any] = {} if method in UNPENALISED else {"penalty": None}
    found = calibrate_scaling(wide, labels, method, where=where, **options)
    expected = calibrate_scaling(torch.cat((x, torch.zeros(100, 1)), -1), labels, method, where=where, **options)
    assert found.after == expected.after
    assert torch.equal(numbers(found), numbers(expected))
    torch.testing.assert_close(found(wide, where=where), expected(wide, where=where))


# Wrong use ----------------------------------------------------------------------------------------------------------------

X, LABELS = drawn(6, 3)
NAN, PLUS = (X.index_put((torch.tensor(4), torch.tensor(1)), torch.tensor(value).double()) for value in (math.nan, math.inf))


@pytest.mark.parametrize(
    ("x", "labels", "options", "told"),
    [
        (NAN, LABELS, {}, "got nan in row 4"),
        (PLUS, LABELS, {}, "got inf in row 4"),
        (X.long(), LABELS, {}, "logits must be float64"),
        (X.tolist(), LABELS, {}, "logits must be a torch.Tensor"),
        (X[:, :1], LABELS, {}, "two classes or more"),
        (X[:0], LABELS[:0], {}, "must have rows"),
        (X[0, 0], LABELS, {}, r"\[..., classes\]"),
        (X, LABELS[:5], {}, "labels must have the shape"),
        (X, LABELS - 3, {}, "labels must be from 0 to 2"),
        (X, LABELS.double(), {}, "labels must be ints"),
        (X, LABELS, {"where": torch.ones(3)}, "where must be boolean"),
        (X, LABELS, {"where": torch.ones(4, dtype=torch.bool)}, "where must broadcast"),
        (X, LABELS, {"where": torch.zeros(3, dtype=torch.bool)}, "must not be left out by where or −∞"),
        (torch.full_like(X, -math.inf), LABELS, {}, "must not be left out by where or −∞"),
        (X, LABELS, {"sample_weight": -torch.ones(6)}, "sample_weight must be finite and not negative"),
        (X, LABELS, {"label_smoothing": 1.0}, "label_smoothing must be from 0 to below 1"),
        (X.to("meta"), LABELS, {}, "must hold values"),
    ],
)
@pytest.mark.parametrize("function", [calibrate_temperature, calibrate_scaling])
def test_wrong_use_is_one_sentence(function: Any, x: Any, labels: Any, options: dict[str, Any], told: str):
    with pytest.raises((TypeError, ValueError), match=told) as raised:
        function(x, labels, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (calibrate_temperature, {"minimum": 0.0}, "minimum must be positive"),
        (calibrate_temperature, {"minimum": math.inf}, "minimum must be positive and finite"),
        (calibrate_temperature, {"maximum": -1}, "maximum must be positive"),
        (calibrate_temperature, {"minimum": 2, "maximum": 1}, "minimum must be at most maximum, 1, got 2"),
        (calibrate_scaling, {"method": "tensor"}, "method must be one of temperature, per_class, vector, matrix"),
        (calibrate_scaling, {"method": "vector", "penalty": -1}, "penalty must be a finite number"),
        (calibrate_scaling, {"method": "per_class", "penalty": 1}, "method 'per_class' has none"),
    ],
)
def test_wrong_options_are_one_sentence(function: Any, options: dict[str, Any], told: str):
    with pytest.raises((TypeError, ValueError), match=told):
        function(X, LABELS, **options)


def scaled(**options: Any) -> None:
    calibrate_scaling(X, LABELS, **options)


def estimated(**options: Any) -> None:
    sm.TemperatureCalibrator(**options).fit(X.numpy(), LABELS.numpy())


def commanded(**options: Any) -> None:
    check_options(Settings(**options))


@pytest.mark.parametrize("door", [scaled, estimated, commanded])
@pytest.mark.parametrize("method", METHODS)
def test_every_door_refuses_the_same_penalties(door: Any, method: str):
    wrong = (-1, math.nan, math.inf, "1", True, *((1.0,) if method in UNPENALISED else ()))
    for penalty in wrong:
        with pytest.raises((TypeError, ValueError), match=r"penalty (must be a finite number of at least 0|is for biases)"):
            door(method=method, penalty=penalty)


def test_a_scaling_takes_as_many_classes_as_it_has():
    found = calibrate_scaling(*drawn(100, 3), "vector")
    with pytest.raises(InputError, match="logits must be of 3 classes"):
        found(torch.zeros(2, 4))
    assert isinstance(calibrate_scaling(X, LABELS, label_smoothing=0.1), TemperatureCalibration)


# Axes of classes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["temperature", "per_class", "vector", "matrix"])
def test_classes_may_be_along_any_axis(method: str):
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(6, 5, 4, 3, generator=generator)
    labels = x.softmax(-1).flatten(0, 2).multinomial(1, generator=generator).view(6, 5, 4)
    where = (torch.rand(6, 5, 4, 3, generator=generator) > 0.1).scatter(-1, labels.unsqueeze(-1), True)
    expected = sm.calibrate_scaling(x, labels, method, where=where, penalty=0.1 if method in ("vector", "matrix") else 0.0)
    for dim in (0, 1, 2, -2):
        moved, mask = x.movedim(-1, dim), where.movedim(-1, dim)
        found = sm.calibrate_scaling(
            moved, labels, method, dim=dim, where=mask, penalty=expected.penalty if method in ("vector", "matrix") else 0.0
        )  # type: ignore[union-attr]
        torch.testing.assert_close(found(moved, where=mask), expected(x, where=where).movedim(-1, dim))
        assert found.after.log_loss == pytest.approx(expected.after.log_loss)
        p = expected(x, where=where)
        assert str(sm.reliability(p.movedim(-1, dim), labels, dim=dim)) == str(sm.reliability(p, labels))
    with pytest.raises(
        ValueError, match=r"labels must have the shape \(6, 3, 5\), .* got \(6, 5, 4\); dim=1 says that the classes are"
    ):
        sm.calibrate_scaling(x.movedim(-1, 1), labels, method)


@pytest.mark.parametrize("method", ["temperature", "per_class", "vector", "matrix"])
def test_single_logits_are_those_of_two_classes(method: str):
    x, labels = (
        2 * torch.randn(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
        torch.arange(100).reshape(50, 2) % 2,
    )
    pair = torch.stack((torch.zeros_like(x), x), -1)
    found, expected = (sm.calibrate_scaling(given, labels, method, dim=dim) for given, dim in ((x, None), (pair, -1)))
    torch.testing.assert_close(found(x), expected(pair)[..., 1])
    np.testing.assert_allclose(found(x.numpy()), found(x))
    assert str(sm.reliability(found(x), labels, dim=None)) == str(found.after)
    hot = sm.calibrate_temperature(-x.abs() * (2 * labels - 1), labels, dim=None, maximum=math.inf)
    torch.testing.assert_close(hot(x), torch.full_like(x, 0.5))
    with pytest.raises(ValueError, match=r"got \(50, 2\); dim=None says that logits are single numbers of two classes"):
        sm.calibrate_scaling(x, labels, method)
    with pytest.raises(ValueError, match=r"where is for an axis of classes"):
        sm.calibrate_temperature(x, labels, dim=None, where=x > 0)
