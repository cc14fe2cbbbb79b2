"""Every map and loss meets the same hard inputs: ∞, NaN, ties, offsets, empty, long, strided, every dim, four dtypes."""

from __future__ import annotations

import itertools
import math
import os

import pytest
import torch

import softmaxima as sm
from conftest import DTYPES, INTERPRETED, TOLERANCE, Case, LossCase, normal, some
from softmaxima.maps import REGISTRY

INF, NAN = math.inf, math.nan
NATIVE = os.environ.get("SOFTMAXIMA_BACKEND") not in ("triton", "reference")  # kernels, which know the limit beside +∞
pytestmark = pytest.mark.gpu


def test_row_of_masks_gives_nothing_and_no_gradient(case: Case, dtype: torch.dtype):
    x = torch.tensor([[-INF, -INF, -INF], [1.0, 2.0, -INF]], dtype=dtype, requires_grad=True)
    out = case(x)
    assert bool((out[0] == case.nothing).all())
    (gradient,) = torch.autograd.grad(out.masked_fill(x == -INF, 0.0).sum() + out[1, 0], x)
    assert bool((gradient[0] == 0).all())
    assert float(gradient[1, 2]) == 0


def test_row_with_nan_is_nan_and_no_other_row_is(case: Case, dtype: torch.dtype):
    x = normal(3, 5, dtype=dtype)
    x[1, 2] = NAN
    x.requires_grad_()
    out = case(x)
    assert bool(out[1].isnan().all())
    assert not bool(out[[0, 2]].isnan().any())
    g = normal(3, 5, seed=1).to(dtype)
    (gradient,) = torch.autograd.grad((out * g).sum(), x)
    assert not bool(gradient[[0, 2]].isnan().any())
    assert bool(gradient[1, 2].isnan())
    (twice_differentiable,) = torch.autograd.grad(case(x), x, g, create_graph=True)
    transformed = torch.func.vjp(case, x.detach())[1](g)[0]
    for other in (twice_differentiable, transformed):
        assert torch.equal(other.isnan(), gradient.isnan())


def test_masked_nan_is_not_seen(case: Case):
    x = normal(2, 4)
    x[0, 1] = NAN
    x.requires_grad_()
    tau = torch.full((2, 1), 1.5, dtype=torch.float64, requires_grad=True)
    out = case(x, where=~x.isnan(), temperature=tau)
    first = torch.autograd.grad((out.nan_to_num(neginf=0) * normal(2, 4, seed=1)).sum(), (x, tau), create_graph=True)
    second = torch.autograd.grad(first[0].sum() + first[1].sum(), (x, tau))
    assert not any(bool(values.isnan().any()) for values in (out, *first, *second))


INFINITE = ((0.0, INF, 1.0), (0.0, 1.0, 2.0), (INF, 1.0, INF))


def test_plus_infinity_gives_nan_as_torch_does(case: Case, dtype: torch.dtype):
    x = torch.tensor(INFINITE, dtype=dtype, requires_grad=True)
    out = case(x)
    (gradient,) = torch.autograd.grad(out[:, 0].sum(), x)
    for values in (out, gradient):
        assert bool(values[[0, 2]].isnan().any(-1).all())
        assert bool(values[1].isfinite().all())


SUMS = {
    "logsumexp": sm.logsumexp,
    "with a temperature": lambda x: sm.logsumexp(x, temperature=torch.tensor(2.0, dtype=torch.float64)),
    "of columns": lambda x: sm.logsumexp(x.mT.contiguous(), 0),
    "weighted": lambda x: sm.logsumexp(x, weights=torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)),
    "compensated": lambda x: sm.logsumexp(x, precision="compensated"),
    "composed": lambda x: torch.func.vmap(sm.logsumexp)(x),
    "log_mean_exp": sm.log_mean_exp,
    "logcumsumexp": lambda x: sm.logcumsumexp(x)[..., -1],
    "logaddexp": lambda x: sm.logaddexp(sm.logaddexp(x[:, 0], x[:, 1]), x[:, 2]),
    "adaptive": lambda x: sm.adaptive_logsumexp(x, around=1.0),
    "multimodal": lambda x: sm.multimodal_logsumexp([x[:, :1], x[:, 1:]]),
    "matrix": lambda x: sm.matrix_logsumexp(torch.diag_embed(x)),
    "segments": lambda x: sm.segment_logsumexp(x.flatten(), torch.arange(9) // 3),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_infinite_beside_plus_infinity_and_its_gradient_is_that_of_the_map(name: str, dtype: torch.dtype):
    x = torch.tensor(INFINITE, dtype=dtype, requires_grad=True)
    value = SUMS[name](x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert value[[0, 2]].tolist() == [INF, INF]
    assert bool(gradient.isnan()[x == INF].all())
    assert bool(value[1].isfinite() & gradient[1].isfinite().all())


def test_a_loss_beside_plus_infinity_is_no_number_and_nor_is_its_gradient(loss: LossCase, dtype: torch.dtype):
    """It is +∞ where the loss is a logarithm's and a finite score has some of the target, of focal loss all, else NaN."""
    if loss.loss.on_cosines:
        return
    x = torch.tensor(INFINITE, dtype=dtype, requires_grad=True)
    of_log = loss.loss.name in ("cross_entropy", "elastic_cross_entropy", "focal_loss") or (
        loss.loss.name == "fenchel_young_loss" and loss.options["map"] in ("softmax", "elastic_softmax", "eps_softmax")
    )
    labels, soft = (torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0])), torch.softmax(normal(3, 3), -1).to(dtype)
    tries = [(target, smoothing) for target in labels for smoothing in (0.0, 0.1)] + [(soft, 0.0)]
    for target, smoothing in tries:
        value = loss(x, target, reduction="none", label_smoothing=smoothing)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        is_shared = smoothing > 0 or target is soft
        for row in (0, 2):
            is_endless = of_log and (loss.loss.name != "focal_loss" if is_shared else bool(x[row, target[row]].isfinite()))
            found = value[row].item()
            assert (is_endless and math.isinf(found)) or ((not is_endless or not NATIVE) and math.isnan(found)), (target, smoothing)
        assert bool(gradient[[0, 2]].isnan().any(-1).all())
        assert bool(value[1].isfinite() & gradient[1].isfinite().all())


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_offsets_of_1e4_stay_finite(case: Case, dtype: torch.dtype, offset: float):
    x = torch.tensor([[0.0, 8.0, 16.0], [-8.0, 0.0, 0.0]], dtype=dtype)
    moved = x + offset  # multiples of 8 are exact at 1e4 in float16; in bfloat16 they are not, so compare what arrived
    if case.claims.order_preserving or case.claims.shift_invariant:
        p = case.probabilities(moved)
        assert bool(p.isfinite().all())
        assert bool((p.double().sum(-1) <= case.largest_mass(moved) + 2 * TOLERANCE[dtype]).all())
    if case.claims.shift_invariant:
        arrived = moved.double() - offset
        torch.testing.assert_close(case(moved).double(), case.map(arrived, **case.params), atol=TOLERANCE[dtype], rtol=2**-7)
    x = moved.requires_grad_()
    (gradient,) = torch.autograd.grad(case(x)[..., 0].sum(), x)
    assert bool(gradient.isfinite().all())


def test_ties_share_alike_unless_the_map_selects(case: Case, dtype: torch.dtype):
    for n in (2, 3, 100):
        p = case.probabilities(torch.full((2, n), 1.5, dtype=dtype))
        if case.claims.continuous or case.map.name == "rectified_softmax":
            torch.testing.assert_close(p, p[..., :1].expand_as(p), atol=0, rtol=0)
        else:
            chosen = p[p > 0]
            torch.testing.assert_close(chosen, chosen[:1].expand_as(chosen), atol=0, rtol=0)


def test_no_scores_give_nothing(case: Case, dtype: torch.dtype):
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 3)):
        x = torch.zeros(shape, dtype=dtype, requires_grad=True)
        out = case(x)
        assert out.shape == x.shape
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


def test_one_score_takes_what_there_is(case: Case, dtype: torch.dtype):
    for x in (torch.tensor(2.5, dtype=dtype), torch.tensor([2.5], dtype=dtype)):
        out = case.probabilities(x)
        assert out.shape == x.shape
        if case.claims.mass == "at most one":
            assert 0 < float(out) <= 1
        else:
            assert float(out) == 1


def test_two_scores_agree_with_the_reference(case: Case, dtype: torch.dtype):
    x = torch.tensor([[0.25, 0.0], [3.0, -1.0], [-0.5, -0.25]], dtype=dtype)
    torch.testing.assert_close(case(x).double(), case.reference(x), atol=TOLERANCE[dtype], rtol=2**-8)


def test_65537_scores_agree_with_the_reference(case: Case):
    x = normal(1, 65_537, scale=3.0).bfloat16().half()  # numbers of every dtype
    expected, relative = case.reference(x.double()), 2**-7 if case.claims.logarithmic else 0.0
    for dtype in DTYPES:
        torch.testing.assert_close(case(x.to(dtype)).double(), expected, atol=TOLERANCE[dtype], rtol=relative)


def test_half_precision_sums_are_wide(dtype: torch.dtype):
    p = sm.softmax(torch.zeros(100_000, dtype=dtype))
    assert float(p.double().sum()) == pytest.approx(1.0, rel=4e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6)
    assert float(sm.logsumexp(torch.zeros(100_000, dtype=dtype))) == pytest.approx(math.log(100_000), rel=4e-3)


def test_every_dim_and_layout_gives_the_same(case: Case, dtype: torch.dtype):
    x = normal(2, 3, 4, dtype=dtype)
    # Vector and scalar code round differently, and above α = 2 the threshold depends much on the roundings.
    rounding = (64 if case.params.get("alpha", 2) > 2 else 4) * torch.finfo(dtype).eps
    gaps = normal(2, 6, 4, dtype=dtype)[:, ::2].copy_(x)
    for dim in range(3):
        expected = torch.stack([case(row) for row in x.movedim(dim, -1).reshape(-1, x.shape[dim])])
        expected = expected.reshape(x.movedim(dim, -1).shape).movedim(-1, dim)
        for layout in (x, x.transpose(0, 2).contiguous().transpose(0, 2), gaps):
            for axis in (dim, dim - 3):
                torch.testing.assert_close(case(layout, dim=axis), expected, atol=rounding, rtol=rounding)
    expanded = normal(4, dtype=dtype).expand(3, 4)
    torch.testing.assert_close(case(expanded)[2], case(expanded[0].clone()), atol=0, rtol=0)


@pytest.mark.parametrize("f", [torch.exp, torch.square, lambda x: 1 / (1 + torch.exp(-x))], ids=["exp", "square", "logistic"])
@pytest.mark.parametrize("size", [1.0, 30.0, 100.0, -100.0, 1e-25])
def test_function_may_leave_the_range_of_float32(f, size: float):
    x = (size * torch.tensor([[1.0, 0.97, 0.95], [0.99, 0.98, 0.96]])).requires_grad_()
    g = normal(2, 3, dtype=torch.float32)
    for call in (lambda x: sm.proportional(x, f=f), lambda x: REGISTRY["proportional"](x, f=f)):
        p = call(x)
        (gradient,) = torch.autograd.grad(p, x, g)
        z = x.detach().double().requires_grad_()
        exact = REGISTRY["proportional"].reference(z, f=f)
        torch.testing.assert_close(p.double(), exact, atol=0, rtol=1e-5)
        (exact_gradient,) = torch.autograd.grad(exact, z, g.double())
        torch.testing.assert_close(gradient, exact_gradient.float(), atol=1e-5 * float(exact_gradient.abs().max()) + 1e-43, rtol=0)


def test_input_is_not_written(case: Case):
    x = normal(3, 4)
    before = x.clone()
    case(x, where=x > -1, temperature=2.0)
    assert torch.equal(x, before)


def test_loss_with_masked_classes_is_never_nan(loss: LossCase, dtype: torch.dtype):
    if loss.loss.on_cosines:
        pytest.skip("a cosine cannot be −∞")
    x = loss.scores(4, 5, dtype=dtype)
    x[:, 3] = -INF
    x[2] = -INF
    x.requires_grad_()
    target = torch.tensor([0, 3, 1, 2])
    rows = loss(x, target, reduction="none")
    (gradient,) = torch.autograd.grad(rows.masked_fill(~rows.isfinite(), 0.0).sum() + 0 * rows[0], x, retain_graph=True)
    assert not bool(rows.isnan().any())
    assert bool(rows[[0, 3]].isfinite().all())
    assert not bool(gradient.isnan().any())
    assert bool((gradient[:, 3] == 0).all())
    bounded = loss.loss.name in ("eps_cross_entropy", "soft_accuracy_loss") and loss.options.get("eps", 1) != 0
    if not bounded:
        assert bool((rows[[1, 2]] == INF).all())


@pytest.mark.parametrize("shape", [(3, 4), (20, 4), (8, 40)], ids=str)
def test_loss_gradient_is_finite_where_the_target_is_masked(loss: LossCase, shape: tuple[int, int]):
    if loss.loss.on_cosines:
        pytest.skip("a cosine cannot be −∞")
    x = loss.scores(*shape)
    x[0, 1] = -INF
    x[1] = -INF
    x.requires_grad_()
    target = torch.tensor([1, 0] + [2] * (shape[0] - 2))
    (gradient,) = torch.autograd.grad(loss(x, target, reduction="sum"), x)
    assert bool(gradient.isfinite().all())
    assert float(gradient[0, 1]) == 0
    assert bool((gradient[1] == 0).all())
    one_hot = torch.nn.functional.one_hot(target, shape[1]).to(x.dtype)
    (same,) = torch.autograd.grad(loss(x, one_hot, reduction="sum"), x)
    torch.testing.assert_close(gradient, same)


def test_masked_target_that_does_not_count_costs_nothing(loss: LossCase):
    if loss.loss.on_cosines:
        pytest.skip("a cosine cannot be −∞")
    x = loss.scores(2, 4)
    x[0, 1] = -INF
    target, weight = torch.tensor([1, 2]), torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    assert float(loss(x, target, weight=weight, reduction="none")[0]) == 0
    assert bool(loss(x, target, weight=weight).isfinite())
    assert not bool(loss(x, target, label_smoothing=1.0, reduction="none").isnan().any())


def test_loss_of_a_nan_row_is_nan_and_of_no_other(loss: LossCase):
    x = loss.scores(3, 4)
    x[1, 0] = NAN
    rows = loss(x, torch.tensor([1, 2, 3]), reduction="none")
    assert rows.isnan().tolist() == [False, True, False]


def test_ignored_nan_row_is_not_seen(loss: LossCase):
    x = loss.scores(3, 4)
    x[1] = NAN
    x.requires_grad_()
    target = torch.tensor([1, -100, 3])
    value = loss(x, target)
    torch.testing.assert_close(value, loss(x.detach()[[0, 2]], target[[0, 2]]))
    (gradient,) = torch.autograd.grad(value, x)
    assert bool((gradient[1] == 0).all())


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_loss_with_offsets_of_1e4_is_finite(loss: LossCase, offset: float):
    if not loss.loss.on_cosines:
        x = (loss.scores(3, 4, dtype=torch.float32) + offset).requires_grad_()
        value = loss(x, torch.tensor([1, 2, 3]))
        (gradient,) = torch.autograd.grad(value, x)
        assert bool(value.isfinite())
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", ["am_softmax_loss", "cosface", "arcface"])
def test_margin_losses_are_finite_and_fall_towards_the_target_up_to_the_edges(name: str):
    function = sm.losses.REGISTRY[name].function
    cosine = torch.cat((torch.tensor([-1.0]), torch.linspace(-1, 1, 401, dtype=torch.float64)[1:-1], torch.tensor([1.0])))
    x = torch.stack((cosine, torch.zeros_like(cosine)), -1).requires_grad_()
    rows = function(x, torch.zeros(len(cosine), dtype=torch.long), reduction="none")
    (gradient,) = torch.autograd.grad(rows.sum(), x)
    assert bool(rows.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert bool((rows.diff() <= 1e-12).all())
    assert bool((gradient[:, 0] <= 1e-12).all())  # p_t − 1, rounded, times the derivative of an angle


@pytest.mark.parametrize("rows", [1, 16])
def test_cosine_beyond_1_is_seen_beside_nan(rows: int):
    x = torch.tensor([[0.5, NAN, 0.1], [0.2, 0.3, 1.5]]).repeat(rows, 1)
    target = torch.tensor([0, 1]).repeat(rows)
    for labels in (target, target.masked_fill(target == 1, -100)):
        with pytest.raises(ValueError, match=r"got 1\.5"):
            sm.cosface(x, labels)
    assert sm.cosface(x.clamp_max(1.0), target, reduction="none").isnan().tolist() == [True, False] * rows


def hard_rows(x: torch.Tensor) -> torch.Tensor:
    """With masks, NaN, +∞, ties and one score far above the others in some of the rows."""
    x[2] = -INF
    x[3, 0], x[4, 1], x[5, 0] = NAN, -INF, INF
    x[6] = 0
    x[7, 0] = 60
    return x


HEIGHTS_AND_WIDTHS = ((16, 3), (33, 64), (200, 10), (70, 128))[: 1 if INTERPRETED else 4]


def test_rows_do_not_depend_on_how_many_there_are(case: Case, dtype: torch.dtype):
    for shape in some(HEIGHTS_AND_WIDTHS, case, dtype):
        rows_do_not_depend_on_how_many_there_are(case, dtype, shape)


def rows_do_not_depend_on_how_many_there_are(case: Case, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = hard_rows(normal(*shape, dtype=dtype)).requires_grad_()
    g = normal(*shape, seed=1).to(dtype)
    out = case(x)
    (gradient,) = torch.autograd.grad(out, x, g)
    few, slopes = [], []
    for begin in range(0, shape[0], 8):
        part = x.detach()[begin : begin + 8].clone().requires_grad_()
        few.append(case(part))
        slopes.append(torch.autograd.grad(few[-1], part, g[begin : begin + 8])[0])
    torch.testing.assert_close(out, torch.cat(few), equal_nan=True, atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])
    torch.testing.assert_close(gradient, torch.cat(slopes), equal_nan=True, atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


def test_losses_of_rows_do_not_depend_on_how_many_there_are(loss: LossCase, dtype: torch.dtype):
    if loss.loss.on_cosines:
        pytest.skip("these scores are no cosines")
    for shape, smoothing in some(itertools.product(HEIGHTS_AND_WIDTHS, (0.0, 0.1)), loss, dtype):
        losses_of_rows_do_not_depend_on_how_many_there_are(loss, dtype, shape, smoothing)


def losses_of_rows_do_not_depend_on_how_many_there_are(
    loss: LossCase, dtype: torch.dtype, shape: tuple[int, int], smoothing: float
) -> None:
    x = hard_rows(normal(*shape, dtype=dtype)).requires_grad_()
    target = torch.arange(shape[0]) % shape[1]
    target[1] = -100
    weight = normal(shape[1], seed=1).exp()
    options = {"label_smoothing": smoothing, "weight": weight, "reduction": "none"}
    value = loss(x, target, **options)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    few, slopes = [], []
    for begin in range(0, shape[0], 8):
        part = x.detach()[begin : begin + 8].clone().requires_grad_()
        few.append(loss(part, target[begin : begin + 8], **options))
        slopes.append(torch.autograd.grad(few[-1].sum(), part)[0])
    unit = {"atol": 4 * TOLERANCE[dtype], "rtol": 4 * TOLERANCE[dtype]}  # what lies between two numbers may be rounded to either
    torch.testing.assert_close(value, torch.cat(few), equal_nan=True, **unit)
    torch.testing.assert_close(gradient, torch.cat(slopes), equal_nan=True, **unit)


@pytest.mark.skipif(INTERPRETED, reason="the GPU's thresholds are those of sums in float32")
@pytest.mark.parametrize(
    ("alpha", "count"), [(1.25, 16), (1.5, 16), (1.5, 64), (1.5, 256), (1.5, 1024), (2.0, 8), (2.0, 64), (3.0, 4)]
)
@pytest.mark.parametrize("offset", [0.0, 1.0, -16.0])
def test_score_at_the_edge_of_the_support_gets_zero(alpha: float, count: int, offset: float, dtype: torch.dtype):
    """Of `count` equal scores the edge is count^−β/β below them, here a number of few bits."""
    beta = alpha - 1
    x = torch.tensor([[0.0] * count + [-(count**-beta) / beta] * 3], dtype=torch.float64).repeat(5, 1) + offset
    if bool((x.to(dtype).double() != x).any()):
        return
    of_order = {1.5: REGISTRY["entmax15"], 2.0: REGISTRY["sparsemax"]}.get(alpha)
    for case in (Case(REGISTRY["entmax"], {"alpha": alpha}), *([Case(of_order, {})] if of_order else [])):
        for p in (case(x.to(dtype)), case(x.to(dtype).T.contiguous(), 0).T, case.map.forward(x.to(dtype), **case.params)):
            assert bool((p[:, count:] == 0).all()), (str(case), p)
            assert bool((p[:, :count] > 0).all())


def test_a_complex_sum_beside_infinity_is_that_of_the_exponentials_as_its_prefixes_are():
    parts = (0.0, 1.0, -2.0, INF, -INF, math.nan)
    z = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex128)
    pairs = torch.cartesian_prod(torch.arange(len(z)), torch.arange(len(z)))
    x = z[pairs].requires_grad_()
    whole = sm.logsumexp(x)
    torch.testing.assert_close(sm.logcumsumexp(x)[:, -1], whole, equal_nan=True)
    torch.testing.assert_close(sm.logcumsumexp(x)[:, 0], sm.logsumexp(x[:, :1]), equal_nan=True)
    finite = x.detach().isfinite().all(-1)
    torch.testing.assert_close(whole[finite], x[finite].exp().sum(-1).log(), atol=1e-12, rtol=0)
