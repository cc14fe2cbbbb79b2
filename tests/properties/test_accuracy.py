"""How exact the native kernels are, in units in the last place, beside numbers of 64 bits; in every instruction set there is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import normal, some
from softmaxima.kernels import interface, native
from softmaxima.maps import REGISTRY

INF, NAN = math.inf, math.nan
Wide = np.longdouble

pytestmark = [
    pytest.mark.skipif(not native.AVAILABLE, reason="there is no native library"),
    pytest.mark.skipif(np.finfo(Wide).nmant < 63, reason="NumPy has no type with more digits than float64 here"),
]


def ulps(actual: Tensor, exact: np.ndarray) -> np.ndarray:
    """The distance in units in the last place that a number of the dtype has where the exact value is."""
    info = torch.finfo(actual.dtype)
    magnitude = np.maximum(np.abs(exact), Wide(info.smallest_normal))
    unit = np.exp2(np.floor(np.log2(magnitude))) * Wide(info.eps)
    with np.errstate(invalid="ignore"):
        distance = np.abs(actual.double().numpy().astype(Wide) - exact) / unit
    return np.where(np.isinf(exact) & (actual.double().numpy() == exact), 0, distance)


def wide(x: Tensor) -> np.ndarray:
    return x.double().numpy().astype(Wide)


def assert_within(limit: float, actual: Tensor, exact: np.ndarray, where: np.ndarray | bool = True) -> None:
    distance = np.where(where, ulps(actual, exact), 0)
    worst = np.unravel_index(np.argmax(distance), distance.shape)  # NaN counts as the largest
    assert distance[worst] <= limit, f"{distance[worst]:.2f} ulp at {worst}: {actual[worst]!r} for {exact[worst]}"


# exp and log -----------------------------------------------------------------------------------------------------------------


def float32_patterns(low: int, high: int, step: int) -> Tensor:
    return torch.arange(low, high, step, dtype=torch.int64).to(torch.int32).view(torch.float32)


def signed(x: Tensor) -> Tensor:
    return torch.cat((x, -x))


def arguments_of_exp(dtype: torch.dtype) -> Iterator[Tensor]:
    edges = {
        torch.float32: (88.722839, -103.97208, -87.336548),
        torch.float64: (709.782712893384, -745.1332191019412, -708.3964185322641),
    }
    for edge in edges[dtype]:  # overflow, the last subnormal result, the last normal one
        near = torch.tensor([edge], dtype=dtype)
        integer = near.view(torch.int32 if dtype == torch.float32 else torch.int64)
        yield (integer + torch.arange(-2000, 2000, dtype=integer.dtype)).view(dtype)
    if dtype == torch.float32:
        yield signed(float32_patterns(0, 0x7F800000, 8191))
        yield signed(float32_patterns(0x3D000000, 0x42D00000, 257))  # 1/32 to 104
    else:
        random = np.random.default_rng(0)
        yield torch.from_numpy(random.uniform(-745.2, 709.8, 200_000))
        yield signed(torch.from_numpy(np.exp(random.uniform(-745, 7, 100_000))))
    halves = (torch.arange(-2200, 2100, dtype=torch.float64) + 0.5) * math.log(2)  # as far from n log 2 as can be
    yield halves.to(dtype)


def arguments_of_log(dtype: torch.dtype) -> Iterator[Tensor]:
    near_one = torch.tensor([1.0], dtype=dtype).view(torch.int32 if dtype == torch.float32 else torch.int64)
    yield (near_one + torch.arange(-5000, 5000, dtype=near_one.dtype)).view(dtype)
    root = torch.tensor([math.sqrt(0.5), math.sqrt(2)], dtype=dtype).view(near_one.dtype)  # where the exponent changes
    yield (root[:, None] + torch.arange(-2000, 2000, dtype=root.dtype)).view(dtype).flatten()
    if dtype == torch.float32:
        yield float32_patterns(1, 0x7F800000, 8191)
        yield float32_patterns(1, 0x00800000, 97)  # subnormal
        yield float32_patterns(0x3F000000, 0x40000000, 97)
    else:
        random = np.random.default_rng(1)
        yield torch.from_numpy(np.exp(random.uniform(-744, 709, 200_000)))
        yield torch.from_numpy(random.uniform(0.4, 2.5, 100_000))
        yield torch.from_numpy(1 + np.exp(random.uniform(-36, -1, 50_000)) * random.choice([-1, 1], 50_000))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_exp_is_within_1_ulp(kind: torch.dtype):
    for x in arguments_of_exp(kind):
        actual = native.elementwise("exp", x.contiguous())
        with np.errstate(over="ignore"):
            exact = np.exp(wide(x))
        # Above the largest number comes ∞; what rounds to it is below, by half a unit.
        overflows = exact > Wide(torch.finfo(kind).max) * (1 + Wide(torch.finfo(kind).eps) / 4)
        assert bool((actual[torch.from_numpy(overflows)] == INF).all())
        assert_within(1.0, actual, exact, ~overflows)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_log_is_within_1_ulp(kind: torch.dtype):
    for x in arguments_of_log(kind):
        x = x[(x > 0) & (x < INF)].contiguous()
        assert_within(1.0, native.elementwise("log", x), np.log(wide(x)))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_exp_and_log_at_the_ends(kind: torch.dtype):
    info = torch.finfo(kind)
    for length in (1, 9):  # scalar code, and vectors
        evaluate = lambda name, x, length=length: native.elementwise(name, torch.full((length,), x, dtype=kind)).tolist()
        for x, expected in (
            (INF, INF),
            (-INF, 0.0),
            (info.max, INF),
            (info.min, 0.0),
            (0.0, 1.0),
            (-0.0, 1.0),
            (info.tiny / 4, 1.0),
        ):
            assert evaluate("exp", x) == [expected] * length
        for x, expected in ((0.0, -INF), (-0.0, -INF), (INF, INF), (1.0, 0.0)):
            assert evaluate("log", x) == [expected] * length
        for name, x in (("exp", NAN), ("log", NAN), ("log", -1.0), ("log", -INF), ("log", -info.tiny / 4)):
            assert all(map(math.isnan, evaluate(name, x)))


# Probabilities ---------------------------------------------------------------------------------------------------------------

FAINT = 1e-30  # probabilities below are not promised any digits
# Within 2 units of the exact value rounded; 3 where a processor has no fused multiply-add.
FUSED = native.AVAILABLE and interface.instruction_set() != "baseline"
LIMIT = {
    torch.float32: 2.5 if FUSED else 3.5,
    torch.bfloat16: 0.51,  # half a unit, and those of float32
    torch.float16: 0.51,
}


def score_rows(dtype: torch.dtype) -> Iterator[Tensor]:
    """Rows of many scales, offsets and lengths; also ones that rounding errors of sums are largest for."""
    for n in (1, 2, 3, 16, 63, 257, 1024, 3000):
        yield torch.cat(
            [
                normal(max(1, 100 // n), n, seed=i, scale=scale) + offset
                for i, scale in enumerate((0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0))
                for offset in (0.0, 100.0, -100.0, 1e4, -1e4)
            ]
        ).to(dtype)
        yield torch.linspace(-15, 39, 30, dtype=torch.float64).to(dtype)[:, None].expand(-1, n).contiguous()  # equal scores
    # Blocks of 1024 scores that are far from one another, either way.
    for distance in (20.0, 39.0, 60.0, 100.0, 300.0):
        steps = torch.tensor([0.0, distance, -distance, distance - 0.3]).repeat_interleave(1024)
        yield torch.stack((steps, -steps, steps + 39.0, steps.flip(0) - 15.9)).to(dtype)


def weights(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(exp(z − max z), max z); 0 and 0 in a row of −∞."""
    top = z.max(-1, keepdims=True)
    top = np.where(np.isneginf(top), Wide(0), top)
    return np.exp(z - top), top


def exact_softmax(z: np.ndarray, sink: float = -INF) -> np.ndarray:
    """exp(z) / (Σ exp(z) + exp(sink))."""
    e, top = weights(z)
    with np.errstate(over="ignore"):
        mass = e.sum(-1, keepdims=True) + np.exp(Wide(sink) - top)
    return e / np.where(mass == 0, Wide(1), mass)


@pytest.mark.parametrize("kind", LIMIT, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 7.0])
def test_softmax_and_its_relatives_keep_their_last_digits(kind: torch.dtype, temperature: float):
    for i, x in some(enumerate(score_rows(kind)), kind, temperature):
        where = None if i % 3 else normal(*x.shape, seed=i) > -0.5
        options = {"temperature": temperature, "where": where}
        z = wide(x) / Wide(temperature)
        z = z if where is None else np.where(where.numpy(), z, -INF)
        p = exact_softmax(z)
        assert_within(LIMIT[kind], sm.softmax(x, **options), p, p > FAINT)
        across = sm.softmax(x.T.contiguous(), 0, **{**options, "where": None if where is None else where.T}).T
        assert_within(LIMIT[kind], across, p, p > FAINT)
        for beta in (-3.0, 5.0, 88.0, 100.0):
            p = exact_softmax(z, beta)
            assert_within(LIMIT[kind], sm.elastic_softmax(x, beta=beta, **options), p, p > FAINT)
        p = exact_softmax(np.where(z < 0, -INF, z))
        assert_within(LIMIT[kind], sm.rectified_softmax(x, **options), p, p > FAINT)
        order = np.argsort(-wide(x if where is None else x.masked_fill(~where, -INF)), -1, kind="stable")
        ranks = np.argsort(order, -1, kind="stable")
        for k in (1, 5, 70):
            p = exact_softmax(np.where(ranks < k, z, -INF))
            assert_within(LIMIT[kind], sm.topk_softmax(x, k=k, **options), p, p > FAINT)
        nucleus = sm.topp_softmax(x, p=0.8, **options)
        p = exact_softmax(np.where((nucleus > 0).numpy(), z, -INF))
        assert_within(LIMIT[kind], nucleus, p, (p > FAINT) & (kind != torch.float16))  # float16 rounds some that it keeps to 0


@pytest.mark.parametrize("beta", [1000.0, -1003.7, 745.0])
def test_elastic_softmax_keeps_its_digits_at_any_level(beta: float):
    for gaps in (4 * normal(50, 3), 200 * normal(50, 3)):
        for dim in (0, 1):
            p = sm.elastic_softmax(beta + gaps, dim=dim, beta=beta)
            exact = np.exp(wide(beta + gaps) - Wide(beta))
            exact /= 1 + exact.sum(dim, keepdims=True)
            assert_within(4, p, exact, exact > 1e-300)


def test_elastic_softmax_is_right_where_the_level_is_near_a_huge_score():
    cases = [
        ([3e16], 0.3, 1e17),
        ([1e18 * 0.3, 1e18 * 0.3 - 0.6], 0.3, 1e18),
        ([300.0], 0.3, 1000.0),
        ([77.63835876804356, 73.19604076786437], 0.07763835876804356, 1000.0),
        ([3e9, 3e9 - 0.6], 0.3, 1e10),
    ]
    for scores, tau, beta in cases:
        x = torch.tensor(scores, dtype=torch.float64)
        gaps = [Fraction(score) / Fraction(tau) - Fraction(beta) for score in scores]
        e = np.exp(np.array([Wide(float(gap)) + Wide(float(gap - Fraction(float(gap)))) for gap in gaps]))
        rows = sm.in_parts("elastic_softmax", temperature=tau, beta=beta)
        assert_within(4, torch.cat(list(rows.probabilities([x[:1], x[1:]]))), e / (1 + e.sum()))
        assert_within(4, sm.elastic_softmax(x, temperature=tau, beta=beta), e / (1 + e.sum()))
        columns = sm.elastic_softmax(x[:, None].expand(-1, 70).contiguous(), dim=0, temperature=tau, beta=beta)
        assert_within(4, columns[:, 0], e / (1 + e.sum()))
    for tau in (1e-30, 1e-300):
        x = torch.full((2, 1), -1e10 if tau < 1e-100 else -1e300, dtype=torch.float64)
        for dim, rows in ((0, x), (1, x.T.contiguous())):
            assert bool((sm.elastic_softmax(rows, dim=dim, beta=-INF, temperature=tau) == 0.5).all())


@pytest.mark.parametrize("rows", [3, 40])
def test_scores_far_below_a_large_one_keep_their_digits(rows: int):
    for n in (2, 18, 65, 300, 1100):
        for top in (100.0, 139.0, 141.0, 150.0, 153.0, 1e3, 1e6):
            x = (top - 80 * torch.rand(rows, n, generator=torch.Generator().manual_seed(n))).index_fill(
                1, torch.tensor([n // 2]), top
            )
            p = exact_softmax(wide(x))
            assert_within(LIMIT[torch.float32], sm.softmax(x), p, p > FAINT)
            assert_within(LIMIT[torch.float32], sm.softmax(x.T.contiguous(), 0).T, p, p > FAINT)


@pytest.mark.parametrize(("kind", "depth"), [(torch.float32, -95.0), (torch.float64, -720.0)], ids=str)
def test_equal_scores_that_hardly_count_get_the_same(kind: torch.dtype, depth: float):
    for top, place in ((0.0, 1500), (60.0, 1100), (-30.0, 3000)):
        p = sm.softmax(torch.full((4000,), depth, dtype=kind).index_fill(0, torch.tensor([place]), top))
        assert p.unique().tolist() == sorted({p[place].item(), p[place - 1].item()})


@pytest.mark.parametrize("n", [4097, 30_000])
def test_log_softmax_of_long_columns_keeps_its_digits_near_0(n: int):
    for mass in (1.2e-7, 1e-6, 1e-5, 1e-3):
        x = torch.full((n, 3), -math.log((n - 1) / mass)).index_fill(0, torch.tensor([n // 3]), 0.0)
        exact = -np.log1p(Wide(n - 1) * np.exp(wide(x[0, :1])))
        assert_within(2.0, sm.log_softmax(x, 0)[n // 3, :1], exact)


def test_many_parts_are_as_exact_as_one():
    x = torch.arange(3000, dtype=torch.float64) * 1e-3
    exact = exact_softmax(wide(x))
    parts = sm.in_parts("softmax").probabilities(list(x.split(1)))
    assert_within(4.0, torch.cat(list(parts)), exact, exact > 0)
    for gap in np.linspace(5, 27, 23):
        row = torch.tensor([3.7, 3.7 - gap, 3.7 - gap], dtype=torch.float64)
        log_p = torch.cat(list(sm.in_parts("log_softmax", temperature=0.7).probabilities(list(row.split(1)))))
        z = wide(row) / Wide(0.7)
        assert_within(4.0, log_p[:1], -np.log1p(2 * np.exp(z[1:2] - z[:1])))


@pytest.mark.parametrize(("first", "last"), [(1400.0, 1441.0), (0.1, 60.0), (0.1, 300.0), (-1400.0, -1300.0), (0.3, -700.0)])
def test_blocks_far_apart_keep_their_digits(first: float, last: float):
    x = torch.full((2100,), first, dtype=torch.float64)
    x[-2:] = last
    p = exact_softmax(wide(x)[None])[0]
    for row, exact in ((x, p), (x.flip(0), p[::-1])):
        assert_within(4, sm.softmax(row), exact, exact > 1e-300)
        assert_within(4, sm.elastic_softmax(row, beta=-INF), exact, exact > 1e-300)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_parts_are_as_exact_as_the_whole(temperature: float, scale: float):
    x = scale * temperature * normal(50, 24)
    z = wide(x) / Wide(temperature)
    for name, params, exact in (
        ("softmax", {}, exact_softmax(z)),
        ("elastic_softmax", {"beta": 400.0}, exact_softmax(z, 400.0)),
        ("rectified_softmax", {}, exact_softmax(np.where(z < 0, -INF, z))),
    ):
        rows = sm.in_parts(name, temperature=temperature, **params)
        p = torch.cat(list(rows.probabilities([x[:, :7], x[:, 7:7], x[:, 7:]])), -1)
        assert_within(4, p, exact, exact > 1e-300)


def taylor(z: np.ndarray, order: int) -> np.ndarray:
    """Σ z^m/m! up to the order."""
    value = np.ones_like(z)
    for m in range(order, 0, -1):
        value = 1 + z * value / m
    return value


@pytest.mark.parametrize("kind", [*LIMIT, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("order", [2, 10])
def test_taylor_softmax_keeps_its_last_digits(kind: torch.dtype, temperature: float, order: int):
    near_root = torch.linspace(-2.5, 0.5, 3001, dtype=torch.float64).to(kind)[None]  # f' is 0 at −1 for order 2
    huge = torch.tensor([[0.3, -1.0, 0.5], [-1.0, 0.7, -INF], [1e-3, 0.0, 1.0]], dtype=torch.float64) * torch.finfo(kind).max / 2
    for i, x in some(enumerate([*score_rows(kind), near_root, huge.to(kind)]), kind, temperature, order):
        where = None if i % 3 else normal(*x.shape, seed=i) > -0.5
        z = wide(x) / Wide(temperature)
        masked = np.isneginf(z) if where is None else np.isneginf(z) | ~where.numpy()
        z = np.where(masked, Wide(0), z)
        f = np.where(masked, Wide(0), taylor(z, order))
        mass = f.sum(-1, keepdims=True)
        p = f / np.where(mass == 0, Wide(1), mass)
        # What cancels at negative scores is lost in double, and z itself is rounded.
        size = taylor(np.abs(z), order)
        rounded = 2.0**-51 * order * size / np.where(mass == 0, Wide(1), mass)
        assert_within_or(LIMIT.get(kind, 2.0), sm.taylor_softmax(x, order=order, temperature=temperature, where=where), p, rounded)


@pytest.mark.parametrize("n", [16, 33, 128, 300])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
def test_a_row_of_the_taylor_softmax_does_not_see_those_beside_it(kind: torch.dtype, n: int):
    x = torch.randn(20, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(kind)
    largest = torch.finfo(kind).max
    for row, value in enumerate((largest, -largest, largest**0.5, -INF, INF, math.nan)):
        x[3 * row, :: row + 1] = value
    together, alone = sm.taylor_softmax(x), torch.cat([sm.taylor_softmax(row) for row in x.split(1)])
    torch.testing.assert_close(together, alone, rtol=4 * torch.finfo(kind).eps, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("kind", LIMIT, ids=str)
def test_nucleus_is_the_smallest_that_holds_the_share(kind: torch.dtype):
    for x in score_rows(kind):
        e, _ = weights(wide(x))
        for share in (0.1, 0.5, 0.99):
            kept = (sm.topp_softmax(x, p=share) > 0).numpy()
            mass = (e * kept).sum(-1) / e.sum(-1)
            # The lowest score that is kept is needed. Masses are of float32 exponentials, and float16 rounds some to 0.
            lowest = np.where(kept, e, INF).min(-1) / e.sum(-1)
            assert bool((mass - lowest <= share + 1e-6).all())
            if kind != torch.float16:
                assert bool((mass >= share - 1e-6).all())


def exact_entmax(z: np.ndarray, alpha: float) -> np.ndarray:
    """relu(βz − λ)^{1/β} by bisection of λ."""
    beta = Wide(alpha) - 1
    gap = z - z.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        power = lambda edge: np.where(gap > edge, beta * (gap - edge), Wide(0)) ** (1 / beta)
    low, high = np.full_like(gap[:, :1], -1 / beta), np.zeros_like(gap[:, :1])
    for _ in range(70):
        middle = (low + high) / 2
        enough = power(middle).sum(-1, keepdims=True) >= 1
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return power(low)


@pytest.mark.parametrize("kind", [*LIMIT, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("alpha", "temperature"), [(2.0, 1.0), (1.5, 1.0), *((alpha, 0.3) for alpha in (2.0, 1.5, 1.25, 1.75, 1.9, 1.99))]
)
def test_thresholds_are_exact_to_the_rounding_of_the_scores(kind: torch.dtype, alpha: float, temperature: float):
    limit = LIMIT.get(kind, 2.0)
    names = {2.0: ("sparsemax", "entmax"), 1.5: ("entmax15", "entmax")}.get(alpha, ("entmax",))
    cases = [
        normal(rows, n, seed=n, scale=scale)
        for rows, n in ((6, 10), (6, 700), (70, 2), (40, 100))
        for scale in (0.01, 0.3, 3.0, 30.0)
    ]
    cases.append(scores_about_the_threshold())
    for x in some(cases, kind, alpha):
        x = (x * temperature).to(kind)
        z = wide(x) / Wide(temperature)
        p = exact_entmax(z, alpha)
        # z is rounded to 2⁻⁵³ of it, as the threshold is a few times, and p moves by p^{2−α} with both.
        condition = 2.0**-53 * (64 + np.abs(z - z.max(-1, keepdims=True)).clip(0, 100)) * np.where(p > 0, p, 1e-30) ** (2 - alpha)
        for name in names:
            actual = REGISTRY[name](x, temperature=temperature, **({"alpha": alpha} if name == "entmax" else {}))
            unit = np.exp2(np.floor(np.log2(np.maximum(p, Wide(torch.finfo(kind).smallest_normal))))) * Wide(torch.finfo(kind).eps)
            excess = np.abs(wide(actual) - p) - limit * unit - condition
            assert excess.max() <= 0, f"{name} at {np.unravel_index(excess.argmax(), p.shape)}: {excess.max()}"


def scores_about_the_threshold() -> Tensor:
    """Many scores just below the threshold, and as many below them: Newton's step from one group lands just short of the other."""
    edge = 1e-3
    group = lambda second, many, below, few, lower: torch.cat(
        (torch.tensor([0.0, second]), torch.full((many,), below), torch.full((few,), lower), torch.full((400 - many - few,), -9.0))
    )
    rows = [group(-0.5, 300, -0.75 - edge, few, -0.75 - edge - 2.1 * edge / few) for few in (3, 10, 30)]
    rows += [group(-0.885, 276, -1.01757, 122, -1.01759)]
    return torch.stack(rows).double()


# Logarithms ------------------------------------------------------------------------------------------------------------------


def exact_log_sum(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(max z, log Σ exp(z − max z)), exact also where that is near 0."""
    e, top = weights(z)
    at_top = z == top
    count, rest = at_top.sum(-1, keepdims=True).astype(Wide), np.where(at_top, Wide(0), e).sum(-1, keepdims=True)
    return top, np.log(count) + np.log1p(rest / count)


def exact_sparsemax(x: Tensor) -> tuple[Fraction, dict[float, Fraction]]:
    """(λ below the largest score, the probability of each different score)."""
    largest = Fraction(float(x.max()))
    values, counts = np.unique(-x.double().numpy(), return_counts=True)
    total, kept, level = Fraction(0), 0, Fraction(-1)
    for value, count in zip(-values, counts, strict=True):
        gap = Fraction(float(value)) - largest
        if kept and gap <= level:
            break
        total, kept = total + gap * int(count), kept + int(count)
        level = (total - 1) / kept
    return level, {float(v): max(Fraction(float(v)) - largest - level, Fraction(0)) for v in -values}


def beside_one(crowd: Tensor) -> Tensor:
    """Many scores, and one of 0."""
    return torch.cat((torch.zeros(1, dtype=torch.float64), crowd.double()))


NEAR = 38801 * 2.0**-53  # above the lowest threshold there is, and yet no more than its last digits
CROWDS = {
    "far above the lowest threshold": lambda n: beside_one(torch.full((n,), -0.9)),
    "at the threshold": lambda n: beside_one(torch.full((n,), -1.0 + NEAR, dtype=torch.float64)),
    "at an offset": lambda n: 64.512988123675974 + beside_one(torch.full((n,), -1.0)),
    "of many values": lambda n: normal(n, scale=1e-3),
    "within the rounding of the threshold": lambda n: beside_one(-1 + (torch.arange(n) % 9).double() * 2.0**-53),
}


@pytest.mark.parametrize("n", [19, 64, 127, 500, 1025, 40_000])
@pytest.mark.parametrize("crowd", CROWDS)
def test_sparsemax_shares_out_the_mass_exactly_among_a_crowd(crowd: str, n: int):
    x = CROWDS[crowd](n)
    _, exact = exact_sparsemax(x)
    expected = torch.tensor([float(exact[float(value)]) for value in x.tolist()], dtype=torch.float64)
    lost = (4 if n > 127 else 4 + n / 8) * 2.0**-52  # short rows add up four at a time, and the fours plainly
    for p in (sm.sparsemax(x), sm.sparsemax(x.expand(17, -1))[5], sm.sparsemax(x.expand(17, -1).T, 0)[:, 5]):
        assert abs(math.fsum(p.tolist()) - 1) <= lost
        assert (p - expected).abs().sum() <= lost
    loss = sm.sparsemax_loss(x, torch.tensor(1))
    gaps = {v: Fraction(v) - Fraction(float(x.max())) for v in exact}
    right = sum((exact[v] * (gaps[v] - exact[v] / 2) for v in x.tolist()), Fraction(1, 2)) - gaps[float(x[1])]
    assert abs(float(loss) - float(right)) <= 1e-13 * max(1.0, float(right))


@pytest.mark.parametrize("n", [500, 128_255])
def test_sparsemax_of_narrow_scores_keeps_small_probabilities_at_any_temperature(n: int):
    x = torch.cat((torch.zeros(1), torch.full((n,), -0.99 * 0.7)))
    z = float(x[1]) / 0.7
    exact = Wide(1 + z) / Wide(n + 1)  # z − λ, λ = (n z − 1)/(n + 1)
    assert_within(2, sm.sparsemax(x, temperature=0.7)[1:2], np.array([exact]))


def test_entmax15_shares_out_the_mass_among_many_equal_scores():
    x = CROWDS["far above the lowest threshold"](100_000)
    assert abs(math.fsum(sm.entmax15(x).tolist()) - 1) <= 2e-13


@pytest.mark.parametrize("alpha", [3.0, 10.0, 17.0, 20.0, 50.0, 500.0])
def test_entmax_of_high_order_sums_to_1(alpha: float):
    """Where the last digit of a threshold moves p by 0.1, whatever other rows there are beside."""
    x = normal(20_000, 5, scale=0.3 / (alpha - 1))
    p = sm.entmax(x, alpha=alpha)
    assert (p.sum(-1) - 1).abs().max() <= 1e-12
    torch.testing.assert_close(p[:50], torch.cat([sm.entmax(row[None], alpha=alpha) for row in x[:50]]), atol=1e-11, rtol=0)


@pytest.mark.parametrize("kind", [*LIMIT, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 7.0])
def test_logarithms_of_sums_are_within_1_ulp_and_log_probabilities_within_2(kind: torch.dtype, temperature: float):
    rows = list(score_rows(kind))
    rows += [torch.log_softmax(normal(400, n, seed=n), -1).to(kind) for n in (2, 3, 10, 1000)]  # LSE is about 0
    rows += [torch.tensor([[0.0, -40.0], [0.0, -5.0]]).to(kind)]
    for x in some(rows, kind, temperature):
        z = wide(x) / Wide(temperature)
        top, log_sum = exact_log_sum(z)
        value, exact = sm.logsumexp(x, temperature=temperature), (top + log_sum)[:, 0]
        unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), Wide(torch.finfo(kind).smallest_normal))))) * Wide(
            torch.finfo(kind).eps
        )
        # max z and log Σ are double numbers (with a temperature z is one), and where they cancel what their rounding left remains.
        cancelled = 2.0**-52 * np.abs(top[:, 0]) * (4 if temperature != 1.0 else 1)
        excess = np.abs(wide(value) - exact) - unit - cancelled
        assert excess.max() <= 0, f"{x[excess.argmax()]}: {value[excess.argmax()]} for {exact[excess.argmax()]}"
        for log_p in (sm.log_softmax(x, temperature=temperature), sm.log_softmax(x.T.contiguous(), 0, temperature=temperature).T):
            exact = (z - top) - log_sum
            assert bool((log_p <= 0).all())
            rounded: np.ndarray | float = 0.0
            if temperature != 1.0 and kind == torch.float64:  # 1/τ is rounded, and each gap with it
                farthest = np.where(np.isneginf(z), 0, top - z).max(-1, keepdims=True)
                rounded = 2.0**-51 * (np.abs(z) + farthest * np.minimum(np.abs(exact), 1))
            assert_within_or(2.0, log_p, exact, rounded)


def assert_within_or(limit: float, actual: Tensor, exact: np.ndarray, absolute: np.ndarray | float) -> None:
    assert_within(limit, actual, exact, np.abs(wide(actual) - exact) > absolute)


def test_small_sums_keep_their_digits():
    for dtype, exact in (
        (torch.float32, 4.248354255291589e-18),
        (torch.float64, 4.248354255291589e-18),
        (torch.bfloat16, 4.25e-18),
    ):
        assert float(sm.logsumexp(torch.tensor([0.0, -40.0], dtype=dtype))) == pytest.approx(exact, rel=torch.finfo(dtype).eps)
        assert float(sm.log_softmax(torch.tensor([0.0, -40.0], dtype=dtype))[0]) == pytest.approx(
            -exact, rel=torch.finfo(dtype).eps
        )
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        zeros = torch.zeros(100_000, dtype=dtype)
        assert_within(0.51, sm.logsumexp(zeros)[None], np.log(Wide(100_000))[None])
        assert_within(0.51, sm.softmax(zeros)[:1], np.array([Wide(1) / 100_000]))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("distance", [17.0, 1000.0])
def test_no_probability_is_above_1(distance: float, temperature: float):
    high = torch.linspace(-60, 60, 10_001)
    x = torch.stack((high, high - distance), -1)
    for batch in (x, x.T.contiguous().T, *x[:800].split(8)):
        assert float(sm.softmax(batch, temperature=temperature).max()) <= 1
        assert float(sm.elastic_softmax(batch, temperature=temperature, beta=-300.0).max()) <= 1


def test_topk_softmax_of_many_scores_sums_to_1():
    x = torch.tensor([0.1, -0.3] * 1000, dtype=torch.float64).expand(8, 2000)
    torch.testing.assert_close(sm.topk_softmax(x, k=1999).sum(-1), torch.ones(8, dtype=torch.float64), atol=1e-15, rtol=0)


@pytest.mark.exhaustive
def test_a_hundred_million_scores_sum_to_1():
    x = torch.empty(100_000_000).normal_(generator=torch.Generator().manual_seed(0)).mul_(3)
    value = float(sm.logsumexp(x))
    mass = sum(float(part.double().exp().sum()) for part in x.split(4_000_000))
    assert value == pytest.approx(math.log(mass), rel=2**-23)
    p = sm.softmax(x)
    del x
    assert float(p.sum(dtype=torch.float64)) == pytest.approx(1.0, abs=1e-6)


# proportional ----------------------------------------------------------------------------------------------------------------

FUNCTIONS = {
    torch.sigmoid: lambda z: 1 / (1 + mpmath.exp(-z)),
    torch.square: lambda z: z * z,
    torch.nn.functional.softplus: lambda z: z if z > 20 else mpmath.log1p(mpmath.exp(z)),
    torch.exp: mpmath.exp,
    torch.relu: lambda z: max(z, mpmath.mpf(0)),
}


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["float32", "float64"])
@given(
    scores=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40),
    repeat=st.sampled_from([1, 16]),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 30.0, 300.0, 1e4]),
    offset=st.sampled_from([0.0, -25.0, 300.0, -400.0, -800.0, -1e4]),
    tau=st.sampled_from([1.0, 0.7, 3.3]),
)
@example(scores=[1.0, -0.625, -1.0], repeat=1, scale=200.0, offset=-600.0, tau=1.0)
def test_proportional_is_within_6_ulp(
    f, kind: torch.dtype, scores: list[float], repeat: int, scale: float, offset: float, tau: float
):
    x = (torch.tensor(scores, dtype=torch.float64) * scale + offset).to(kind)
    p = sm.proportional(x.repeat(repeat), f=f, temperature=tau)[: len(x)]
    with mpmath.workdps(80):
        values = [FUNCTIONS[f](mpmath.mpf(score) / mpmath.mpf(tau)) for score in x.tolist()]
        mass = repeat * mpmath.fsum(values)
        for actual, value in zip(p.tolist(), values, strict=True):
            exact = value / mass if mass else mass
            unit = float(exact) if exact < FAINT else math.ldexp(torch.finfo(kind).eps, math.frexp(float(exact))[1] - 1)
            assert abs(actual - exact) <= 6 * max(unit, 1e-288 if kind == torch.float64 else 1e-30)
