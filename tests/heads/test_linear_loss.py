"""The losses of a linear layer in parts, against the same losses of all scores at once in float64."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import exhaustively, normal

INF = math.inf

# (what linear_loss is given, the function, its options, the map with its parameters)
LOSSES: tuple[tuple[Any, str, dict[str, Any], str, dict[str, Any]], ...] = (
    ("cross_entropy", "cross_entropy", {}, "softmax", {}),
    ("sparsemax", "sparsemax_loss", {}, "sparsemax", {}),
    ("entmax15", "entmax15_loss", {}, "entmax15", {}),
    (("entmax", 1.3), "entmax_loss", {"alpha": 1.3}, "entmax", {"alpha": 1.3}),
    (("elastic", 0.5), "elastic_cross_entropy", {"beta": 0.5}, "elastic_softmax", {"beta": 0.5}),
    (("sparse_softmax", 5), "sparse_softmax_loss", {"k": 5}, "topk_softmax", {"k": 5}),
    (("sparse_softmax", {"p": 0.9}), "sparse_softmax_loss", {"p": 0.9}, "topp_softmax", {"p": 0.9}),
    ("soft_accuracy", "soft_accuracy_loss", {}, "softmax", {}),
    ("surrogate", "surrogate_loss", {}, "softmax", {}),
    (
        ("eps_cross_entropy", {"map": "sparsemax", "eps": 1e-3}),
        "eps_cross_entropy",
        {"map": "sparsemax", "eps": 1e-3},
        "sparsemax",
        {},
    ),
    ("normmax", "fenchel_young_loss", {"map": "normmax"}, "normmax", {"alpha": 2.0}),
)
OF_A_CONJUGATE = ("cross_entropy", "sparsemax_loss", "entmax15_loss", "entmax_loss", "elastic_cross_entropy", "fenchel_young_loss")
# Of gradients that are sums of products of numbers of that dtype, relative to the largest: float32 sums of 600 products, and
# roundings of the inputs' dtype.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def conjugate(map: str, params: dict[str, Any], x: Tensor) -> Tensor:
    """V(x) = ⟨p, x⟩ − Ω(p), whose gradient is p."""
    found = sm.find_map(map)
    p = found.reference(x.detach(), **params)
    return (p * x).sum(-1) - found.regulariser(p, **params)  # type: ignore[misc]


def literal(subject: Any, x: Tensor, y: Tensor, z: float, reduction: str, weight: Tensor | None, smoothing: float) -> Tensor:
    """The loss of scores x [rows, classes] in float64, with z·V(x)² before the weight of each row."""
    _, name, options, map, params = subject
    shared = {"weight": weight, "label_smoothing": smoothing}
    rows = getattr(sm, name)(x, y, reduction="none", **shared, **options)
    classes, ones = x.shape[-1], torch.ones(len(x), dtype=x.dtype)
    kept = ones if y.is_floating_point() else (y >= 0).to(x.dtype)
    hit = y if y.is_floating_point() else torch.nn.functional.one_hot(y.clamp_min(0), classes).to(x.dtype)
    smoothed = hit * (1 - smoothing) + smoothing / classes
    each = torch.ones(classes, dtype=x.dtype) if weight is None else weight
    counts = (smoothed * each).sum(-1)
    if z:
        rows = rows + kept * counts * z * conjugate(map, params, x).square()
    if reduction == "none":
        return rows
    if reduction == "sum":
        return rows.sum()
    return rows.sum() / (len(x) if y.is_floating_point() else (kept * each[y.clamp_min(0)]).sum())


@given(data=st.data())
def test_every_loss_and_option_is_that_of_all_scores(data: st.DataObject):
    draw = data.draw
    subject = draw(st.sampled_from(LOSSES), "loss")
    dtype = draw(st.sampled_from([torch.float64, torch.float32]), "dtype")
    n, classes, features = draw(st.integers(1, 9)), draw(st.sampled_from([6, 97, 600, 1030])), draw(st.sampled_from([1, 7, 32, 70]))
    reduction, soft = draw(st.sampled_from(["mean", "sum", "none"])), draw(st.booleans(), "soft")
    softcap, tau = draw(st.sampled_from([None, 2.5]), "softcap"), draw(st.sampled_from([1.0, 0.7, "one", "rows"]), "tau")
    z = draw(st.sampled_from([0.0, 0.03]), "z") if subject[1] in OF_A_CONJUGATE else 0.0
    smoothing = draw(st.sampled_from([0.0, 0.2]), "smoothing")
    chunk = draw(st.sampled_from(["auto", 1, 4]), "chunk")
    hidden = normal(n, features, seed=1).requires_grad_()
    weight = normal(classes, features, seed=2, scale=features**-0.5).requires_grad_()
    bias = normal(classes, seed=3).requires_grad_() if draw(st.booleans(), "bias") else None
    class_weight = torch.linspace(0.1, 2, classes, dtype=torch.float64) if draw(st.booleans(), "class weight") else None
    if tau == "rows":
        tau = torch.linspace(0.5, 2, n, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    elif tau == "one":
        tau = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    y: Tensor = normal(n, classes, seed=4).softmax(-1)
    if not soft:
        y = y.argmax(-1)
        y[n // 2 :: 3] = -100
        y[0] = classes - 1

    learning = [v for v in (hidden, weight, bias, tau) if isinstance(v, Tensor)]
    narrow = {id(v): v.detach().to(dtype).requires_grad_() for v in learning}
    of = lambda v: narrow.get(id(v), v)
    found = sm.linear_loss(
        of(hidden),
        of(weight),
        y if not soft else y.to(dtype),
        loss=subject[0],
        bias=of(bias),
        temperature=of(tau),
        softcap=softcap,
        z_loss=z,
        label_smoothing=smoothing,
        class_weight=None if class_weight is None else class_weight.to(dtype),
        reduction=reduction,
        chunk=chunk,
    )
    x = torch.nn.functional.linear(hidden, weight, bias)
    x = x if softcap is None else softcap * (x / softcap).tanh()
    x = x / tau
    expected = literal(subject, x, y, z, reduction, class_weight, smoothing)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    slope = normal(*expected.shape, seed=5)
    slopes = torch.autograd.grad(found, list(narrow.values()), slope.to(dtype))
    for a, b in zip((found, *slopes), (expected, *torch.autograd.grad(expected, learning, slope)), strict=True):
        size = max(1.0, float(b.detach().abs().max()))
        torch.testing.assert_close(a.double(), b, rtol=0, atol=TOLERANCE[dtype] * size)


@pytest.mark.parametrize("subject", LOSSES[:8] + LOSSES[9:], ids=lambda subject: str(subject[0]))
@pytest.mark.parametrize("soft", [False, True])
def test_some_classes_at_a_time_are_as_all(subject: Any, soft: bool):
    hidden, weight, bias = normal(5, 6, seed=1), normal(103, 6, seed=2, scale=0.4), normal(103, seed=3)
    inputs = [x.requires_grad_() for x in (hidden, weight, bias)]
    y: Tensor = normal(5, 103, seed=4).softmax(-1)
    if not soft:
        y = y.argmax(-1)
        y[2] = -100
    class_weight = torch.linspace(0.1, 2, 103, dtype=torch.float64)
    for reduction in ("mean", "none"):
        options = {
            "loss": subject[0],
            "bias": bias,
            "z_loss": 0.03 if subject[1] in OF_A_CONJUGATE else 0.0,
            "temperature": 0.8,
            "softcap": 3.0,
            "class_weight": class_weight,
            "reduction": reduction,
        }
        found, expected = (sm.linear_loss(hidden, weight, y, chunk=chunk, **options) for chunk in ((3, 40), "auto"))
        torch.testing.assert_close(found, expected)
        slope = normal(*expected.shape, seed=5)
        for a, b in zip(*(torch.autograd.grad(v, inputs, slope) for v in (found, expected)), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("subject", LOSSES[:4], ids=lambda subject: str(subject[0]))
def test_half_precision_is_that_of_its_numbers_in_float64(subject: Any, half: torch.dtype):
    hidden, weight = (
        normal(20, 32, seed=1, dtype=half).requires_grad_(),
        normal(700, 32, seed=2, scale=0.2, dtype=half).requires_grad_(),
    )
    y = torch.arange(20) * 35
    found = sm.linear_loss(hidden, weight, y, loss=subject[0], chunk=6)
    wide = [v.detach().double().requires_grad_() for v in (hidden, weight)]
    expected = getattr(sm, subject[1])(wide[0] @ wide[1].T, y, **subject[2])
    assert found.dtype == half
    for a, b in zip(
        (found, *torch.autograd.grad(found, (hidden, weight))), (expected, *torch.autograd.grad(expected, wide)), strict=True
    ):
        assert a.dtype == half
        torch.testing.assert_close(a.double(), b, rtol=0, atol=TOLERANCE[half] * max(1e-3, float(b.detach().abs().max())))


def test_gradients_of_half_precision_are_sums_in_float32_and_go_to_float32_where_the_weight_wants_it():
    hidden, y = torch.ones(4096, 8, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.long)
    weight = torch.nn.Parameter(torch.zeros(600, 8, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32  # type: ignore[attr-defined]
    sm.linear_loss(hidden, weight, y, reduction="sum").backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    # A sum of 4096 equal numbers stops growing at 256 of them in bfloat16.
    torch.testing.assert_close(weight.grad[1:].double(), torch.full((599, 8), 4096 / 600, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("subject", [LOSSES[0], LOSSES[1], LOSSES[4]], ids=lambda subject: str(subject[0]))
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives_are_those_of_finite_differences_twice(subject: Any, reduction: str):
    inputs = [normal(3, 4, seed=1), normal(7, 4, seed=2), normal(7, seed=3)]
    inputs = [x.requires_grad_() for x in inputs]

    def function(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        labels = torch.tensor([0, 6, -100])
        return sm.linear_loss(hidden, weight, labels, loss=subject[0], bias=bias, reduction=reduction, softcap=3.0)

    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("option", ["one", "rows"])
def test_options_of_a_loss_learn(option: str):
    hidden, weight, y = normal(6, 4, seed=1), normal(600, 4, seed=2), torch.arange(6)
    beta = torch.full(() if option == "one" else (6, 1), 0.3, dtype=torch.float64, requires_grad=True)
    alpha = torch.full_like(beta, 1.4).requires_grad_()
    for loss, parameter in (("elastic", beta), ("entmax", alpha)):
        found = sm.linear_loss(hidden, weight, y, loss=(loss, parameter), chunk=4)
        expected = {
            "elastic": lambda: sm.elastic_cross_entropy(hidden @ weight.T, y, beta=beta),
            "entmax": lambda: sm.entmax_loss(hidden @ weight.T, y, alpha=alpha),
        }[loss]()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(v, parameter)[0] for v in (found, expected)))
        likely = (hidden @ weight.T).argmax(-1)
        outputs = sm.linear_loss(hidden, weight, likely, loss=(loss, parameter), chunk=4, outputs=("log_prob", "entropy"))
        p = sm.elastic_softmax(hidden @ weight.T, beta=beta) if loss == "elastic" else sm.entmax(hidden @ weight.T, alpha=alpha)
        ones = p.masked_fill(p == 0, 1.0)
        whole = p.gather(-1, likely.unsqueeze(-1)).log().sum() - 3 * (ones * ones.log()).sum()
        parts = outputs.log_prob.sum() + 3 * outputs.entropy.sum()
        torch.testing.assert_close(*(torch.autograd.grad(v, parameter)[0] for v in (parts, whole)))


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(
    ("called", "gap"),
    [
        ("cross_entropy", 9e3),
        (("elastic", 0.3), 9e3),
        (("sparse_softmax", 2), 700.0),
        (("entmax", 1.0), 700.0),
        (("entmax", 1 + 1e-6), 600.0),
    ],
    ids=str,
)
def test_log_probabilities_beyond_float32_have_gradients(called: Any, gap: float, learns: bool):
    hidden, weight = torch.eye(1, 2).requires_grad_(), torch.tensor([[-1e5, 0.0]]).repeat(600, 1)
    weight[:2, 0] = torch.tensor([gap, 0.0])
    scale = torch.ones((), requires_grad=learns)
    for bias in (torch.zeros(600), torch.zeros(600).index_fill(0, torch.tensor([1]), -INF)):
        bias.requires_grad_()
        found = sm.linear_loss(hidden, weight, torch.tensor([1]), loss=called, bias=bias, temperature=scale, outputs="log_prob")
        impossible = bool(bias[1] == -INF)
        torch.testing.assert_close(found.log_prob, torch.tensor([-INF if impossible else -gap]), rtol=1e-3, atol=0)
        slopes = torch.autograd.grad(found.log_prob.sum(), [hidden, bias, *([scale] if learns else [])])
        assert all(v.isfinite().all() for v in slopes)
        torch.testing.assert_close(slopes[1][1], torch.tensor(0.0 if impossible else 1.0), rtol=1e-3, atol=0)
        assert not impossible or all((v == 0).all() for v in slopes)


@pytest.mark.parametrize("subject", [*LOSSES[:6], LOSSES[10]], ids=lambda subject: str(subject[0]))
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_log_probabilities_and_entropies_come_with_gradients(subject: Any, reduction: str):
    hidden, weight = normal(7, 5, seed=1).requires_grad_(), normal(600, 5, seed=2).requires_grad_()
    x = hidden @ weight.T / 0.8
    y = x.detach().topk(2).indices[:, 1].clone()
    y[3] = -100
    found = sm.linear_loss(
        hidden, weight, y, loss=subject[0], temperature=0.8, reduction=reduction, outputs=("log_prob", "entropy"), chunk=3
    )
    p = sm.find_map(subject[3])(x, **subject[4])
    kept = y >= 0
    chosen = p.gather(-1, y.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    log_prob = torch.where(kept & (chosen > 0), chosen.where(chosen > 0, 1.0).log(), torch.where(kept, -INF, 0.0))
    entropy = torch.where(kept, torch.special.entr(p).sum(-1), 0.0)
    for a, b in (
        (found.loss, getattr(sm, subject[1])(x, y, reduction=reduction, **subject[2])),
        (found.log_prob, log_prob),
        (found.entropy, entropy),
    ):
        torch.testing.assert_close(a, b)
    finite = log_prob.detach() > -INF
    slopes = [
        torch.autograd.grad(found.loss.sum() + 2 * found.log_prob[finite].sum() - found.entropy.sum(), v, retain_graph=True)[0]
        for v in (hidden, weight)
    ]
    whole = getattr(sm, subject[1])(x, y, reduction=reduction, **subject[2]).sum() + 2 * log_prob[finite].sum() - entropy.sum()
    for a, b in zip(slopes, torch.autograd.grad(whole, (hidden, weight)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("called", ["cross_entropy", "sparsemax"])
def test_masked_classes_ignored_rows_and_rows_of_nan(called: str):
    hidden, weight = normal(5, 4, seed=1).requires_grad_(), normal(700, 4, seed=2).requires_grad_()
    bias = torch.zeros(700, dtype=torch.float64)
    bias[5:] = -INF
    y = torch.tensor([0, 4, -100, 2, 1])
    found = sm.linear_loss(hidden, weight, y, loss=called, bias=bias, z_loss=0.01)
    found.backward()
    assert weight.grad is not None
    assert hidden.grad is not None
    assert found.isfinite()
    assert (weight.grad[5:] == 0).all()
    assert (hidden.grad[2] == 0).all()
    with torch.no_grad():
        hidden[2] = math.nan
    slopes = torch.autograd.grad(sm.linear_loss(hidden, weight, y, loss=called, bias=bias, z_loss=0.01), (hidden, weight))
    torch.testing.assert_close(slopes, (hidden.grad, weight.grad))
    with torch.no_grad():
        hidden[3] = math.nan
    weight.grad = hidden.grad = None
    rows = sm.linear_loss(hidden, weight, y, loss=called, reduction="none")
    assert rows.isnan().tolist() == [False, False, False, True, False]
    rows[:3].sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[:3].isfinite().all()
    assert sm.linear_loss(hidden, weight, torch.tensor([0, -100, -100, -100, -100]), loss=called).isfinite()


def test_no_rows_and_no_rows_that_count():
    weight = normal(700, 4, seed=1, dtype=torch.float32).requires_grad_()
    for hidden, y in ((torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)), (torch.ones(2, 4), torch.tensor([-100, -100]))):
        found = sm.linear_loss(hidden.requires_grad_(), weight, y)
        assert found.isnan()
        slopes = torch.autograd.grad(found, (hidden, weight))
        assert all((slope == 0).all() for slope in slopes)
        assert sm.linear_loss(hidden, weight, y, reduction="sum") == 0
        assert sm.linear_loss(hidden, weight, y, reduction="none").shape == y.shape


def test_shapes_are_those_of_the_target():
    hidden, weight, y = normal(2, 3, 4, seed=1), normal(9, 4, seed=2), torch.tensor([[0, 1, 2], [3, 4, 8]])
    rows = sm.linear_loss(hidden, weight, y, reduction="none", outputs="entropy")
    assert rows.loss.shape == rows.entropy.shape == (2, 3)
    assert rows.log_prob is None
    torch.testing.assert_close(sm.linear_loss(hidden[1, 2], weight, y[1, 2]), rows.loss[1, 2])
    temperature = torch.tensor([[[1.0]], [[2.0]]])
    torch.testing.assert_close(
        sm.linear_loss(hidden, weight, y, temperature=temperature, reduction="none")[1],
        sm.linear_loss(hidden[1], weight, y[1], temperature=2.0, reduction="none"),
    )


def test_gradients_accumulate_and_can_be_asked_for_again():
    hidden, weight, y = normal(5, 4, seed=1), torch.nn.Parameter(normal(700, 4, seed=2)), torch.arange(5)
    loss = sm.linear_loss(hidden, weight, y, loss="sparsemax")
    loss.backward(retain_graph=True)
    assert weight.grad is not None
    once = weight.grad.clone()
    weight.grad.mul_(0)
    (3 * loss).backward(retain_graph=True)
    torch.testing.assert_close(weight.grad, 3 * once)
    loss.backward()
    torch.testing.assert_close(weight.grad, 4 * once)
    (sm.linear_loss(hidden, weight, y, loss="sparsemax") / 4).backward()
    torch.testing.assert_close(weight.grad, 4.25 * once)


def test_targets_and_class_weights_learn():
    hidden, weight = normal(5, 4, seed=1), normal(700, 4, seed=2)
    soft, class_weight = normal(5, 700, seed=3).softmax(-1).requires_grad_(), torch.ones(700, dtype=torch.float64).requires_grad_()
    found = sm.linear_loss(hidden, weight, soft, class_weight=class_weight)
    expected = sm.cross_entropy(hidden @ weight.T, soft, class_weight)
    for a, b in zip(*(torch.autograd.grad(v, (soft, class_weight)) for v in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("subject", LOSSES[:7], ids=lambda subject: str(subject[0]))
@pytest.mark.parametrize("label", [0, 1])
def test_a_class_without_weight_or_score_is_alike_by_kernels_and_by_operations(subject: Any, label: int):
    hidden, weight, y = normal(3, 4, seed=1).requires_grad_(), normal(600, 4, seed=2), torch.tensor([label, 2, 3])
    bias = torch.zeros(600, dtype=torch.float64).index_fill(0, torch.tensor([0]), -INF).requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    z_loss = 0.1 if subject[1] in OF_A_CONJUGATE else 0.0
    slopes = []
    for learns in (False, True):
        class_weight = torch.linspace(0, 2, 600, dtype=torch.float64).requires_grad_(learns)
        options = {"loss": subject[0], "bias": bias, "temperature": tau, "class_weight": class_weight, "z_loss": z_loss}
        found = sm.linear_loss(hidden, weight, y, reduction="sum", **options)
        slopes.append(torch.autograd.grad(found, (hidden, bias, tau)))
    assert all(v.isfinite().all() for v in slopes[1])
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("subject", LOSSES[:7], ids=lambda subject: str(subject[0]))
def test_class_weights_of_0_learn(subject: Any):
    hidden, weight, y = normal(3, 4, seed=1), normal(5, 4, seed=2), torch.tensor([0, 1, 2])
    class_weight = torch.tensor([0.0, 1.0, 0.5, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    loss = lambda weights: sm.linear_loss(hidden, weight, y, loss=subject[0], class_weight=weights, reduction="sum")
    (slope,) = torch.autograd.grad(loss(class_weight), class_weight)
    step = torch.zeros(5, dtype=torch.float64).index_fill(0, torch.tensor([0]), 1e-6)
    torch.testing.assert_close(slope[0], (loss(class_weight + step) - loss(class_weight))[()] / 1e-6, rtol=1e-5, atol=1e-8)


def test_labels_and_weights_that_change_before_the_backward_pass_do_not_count():
    hidden, weight, y = normal(5, 4, seed=1).requires_grad_(), normal(700, 4, seed=2), torch.arange(5)
    class_weight = torch.ones(700, dtype=torch.float64)
    found, again = (sm.linear_loss(hidden, weight, y, class_weight=class_weight, reduction="none").sum() for _ in range(2))
    (slope,) = torch.autograd.grad(found, hidden)
    y.zero_()
    class_weight.zero_()
    torch.testing.assert_close(torch.autograd.grad(again, hidden)[0], slope)


def test_what_does_not_learn_gets_no_gradient():
    hidden, weight, y = normal(5, 4, seed=1).requires_grad_(), normal(700, 4, seed=2), torch.arange(5)
    sm.linear_loss(hidden, weight, y).backward()
    assert hidden.grad is not None
    assert weight.grad is None
    with torch.no_grad():
        assert not sm.linear_loss(hidden, weight, y).requires_grad


@pytest.mark.parametrize(
    "options",
    [{}, exhaustively({"loss": "sparsemax", "reduction": "none"}), exhaustively({"loss": "entmax15", "outputs": "entropy"})],
    ids=str,
)
def test_a_compiled_function_is_the_same_without_a_break(options: dict[str, Any]):
    hidden, weight, y = normal(5, 4, seed=1).requires_grad_(), normal(700, 4, seed=2).requires_grad_(), torch.arange(5)

    def function(hidden: Tensor, weight: Tensor) -> Tensor:
        found = sm.linear_loss(hidden, weight, y, chunk=2, **options)
        return (found.loss + found.entropy.sum()) if isinstance(found, tuple) else found.sum()

    found, expected = torch.compile(function, fullgraph=True)(hidden, weight), function(hidden, weight)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad(v, (hidden, weight)) for v in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_softcap_over_a_temperature_may_be_beyond_the_dtype(dtype: torch.dtype):
    hidden, weight, target = normal(4, 3).to(dtype), normal(6, 3, seed=1).to(dtype), torch.tensor([0, 1, 5, 5])
    largest = torch.finfo(dtype).max / 8
    capped = sm.linear_loss(hidden, weight, target, softcap=largest, temperature=1e-2)
    torch.testing.assert_close(capped, sm.linear_loss(hidden, weight, target, temperature=1e-2))


def test_autocast_changes_no_derivative():
    weight, bias = normal(7, 4, seed=2).float(), torch.tensor([0.0, -math.inf, 1.0, 0.0, 0.0, 0.0, 0.0])
    gradients = []
    for enabled in (False, True):
        hidden, tau = normal(5, 4).float().requires_grad_(), torch.tensor(0.7, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = sm.linear_loss(hidden, weight, torch.tensor([0, 2, 3, 4, 5]), bias=bias, temperature=tau)
        first = torch.autograd.grad(loss, (hidden, tau), create_graph=True)
        gradients.append((*first, *torch.autograd.grad(first[1], (hidden, tau))))
    torch.testing.assert_close(*gradients)


def test_autocast_computes_in_float32():
    hidden, weight, y = torch.ones(5, 4), normal(700, 4, seed=2, dtype=torch.float32).requires_grad_(), torch.arange(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = sm.linear_loss(hidden.bfloat16(), weight, y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sm.linear_loss(hidden.bfloat16().float(), weight, y))


def test_transforms_and_forward_mode():
    hidden, weight, y = normal(3, 4, seed=1), normal(7, 4, seed=2), torch.arange(3)
    function = lambda hidden: sm.linear_loss(hidden, weight, y, loss="entmax15")
    expected = lambda hidden: sm.entmax15_loss(hidden @ weight.T, y)
    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(transform(function)(hidden), transform(expected)(hidden))


def test_the_module_learns_ties_and_saves():
    embedding = torch.nn.Embedding(700, 4)
    head = sm.LinearLoss(4, 700, loss=("elastic", torch.nn.Parameter(torch.tensor(0.5))), tie_weight=embedding.weight, bias=True)
    assert head.weight is embedding.weight
    assert {name for name, _ in head.named_parameters()} == {
        "weight",
        "bias",
        "loss_options.beta",
    }
    head(torch.ones(3, 4), torch.arange(3)).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
    other = pickle.loads(pickle.dumps(copy.deepcopy(head)))
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other(torch.ones(3, 4), torch.arange(3)), head(torch.ones(3, 4), torch.arange(3)))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ((torch.ones(2, 3), torch.ones(5, 4), torch.zeros(2).long()), {}, ValueError, r"weight must be \(classes, 3\)"),
        ((torch.ones(2, 3), torch.ones(3, 5), torch.zeros(2).long()), {}, ValueError, r"call weight.T"),
        ((torch.ones(2, 3), torch.ones(5, 3).double(), torch.zeros(2).long()), {}, TypeError, r"as hidden is"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.tensor([0, 5])), {}, IndexError, "target 5 is out of range for 5 classes"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(3).long()), {}, ValueError, r"class indices of shape \(2,\)"),
        ((torch.ones(2, 3).long(), torch.ones(5, 3), torch.zeros(2).long()), {}, TypeError, "hidden must be float64"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"loss": "softmaks"}, ValueError, "did you mean 'softmax'"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"loss": 3}, TypeError, "loss must be the name"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"loss": "arcface"}, ValueError, "take MarginSoftmax"),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()),
            {"loss": ("entmax", -0.5)},
            ValueError,
            "alpha must be positive",
        ),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"loss": ("sparsemax", 2)}, TypeError, "takes no option"),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()),
            {"loss": "sparse_softmax"},
            ValueError,
            "exactly one of k and p",
        ),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"bias": torch.ones(4)}, ValueError, "each of the 5 classes"),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()),
            {"temperature": 0.0},
            ValueError,
            "temperature must be positive",
        ),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()),
            {"temperature": torch.ones(2)},
            ValueError,
            "call temperature.unsqueeze",
        ),
        (
            (torch.ones(2, 3).double(), torch.ones(5, 3).double(), torch.zeros(2).long()),
            {"temperature": torch.tensor(math.inf)},
            ValueError,
            "temperature must be positive",
        ),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"softcap": -1}, ValueError, "softcap must be"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"z_loss": -1.0}, ValueError, "z_loss must be"),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()),
            {"z_loss": 0.1, "loss": "soft_accuracy"},
            ValueError,
            "z_loss needs",
        ),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"chunk": 0}, ValueError, "chunk must be"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"chunk": "all"}, TypeError, 'chunk must be "auto"'),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()), {"temperature": 1e-39}, ValueError, "from 1.2e-38"),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()),
            {"outputs": "perplexity"},
            ValueError,
            "outputs must be one of",
        ),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.ones(2, 5) / 5),
            {"outputs": "log_prob"},
            ValueError,
            "target holds probabilities",
        ),
        (
            (torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long()),
            {"class_weight": torch.ones(4)},
            ValueError,
            "class_weight must hold .* of the 5 classes",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_told_in_a_sentence(arguments: Any, options: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=r"^\w+: ") as raised:
        sm.linear_loss(*arguments, **options)
    assert raised.match(says)


@pytest.mark.parametrize(
    ("module", "options", "error", "says"),
    [
        (sm.LinearLoss, {"tie_weight": torch.nn.Embedding(5, 3)}, TypeError, "pass embedding.weight"),
        (sm.LinearLoss, {"tie_weight": torch.ones(3, 5)}, ValueError, r"must be of shape \(5, 3\)"),
        (sm.LinearLoss, {"tie_weight": torch.ones(5, 3), "dtype": torch.float64}, ValueError, "leave out device and dtype"),
        (sm.LinearLoss, {"bias": torch.ones(5)}, TypeError, "bias must be True or False"),
        (sm.LinearLoss, {"temprature": 1.0}, TypeError, "unknown argument 'temprature'; did you mean 'temperature'"),
        (sm.MarginSoftmax, {"temperature": 1.0}, TypeError, "unknown argument 'temperature'"),
        (sm.MarginSoftmax, {"class_weight": torch.ones(4)}, ValueError, "class_weight must hold .* of the 5 classes"),
    ],
    ids=str,
)
def test_modules_refuse_at_once(module: Any, options: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=r"^\w+: ") as raised:
        module(3, 5, **options)
    assert raised.match(says)


@pytest.mark.parametrize("called", ["cross_entropy", "sparsemax", ("elastic", -1.0), ("entmax", 1.3)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_z_loss_apart_is_what_it_adds(called, reduction: str):
    hidden, weight, y = normal(6, 3), normal(5, 3, seed=1), torch.tensor([0, 1, 2, -100, 4, 0])
    for class_weight, smoothing in ((None, 0.0), (torch.linspace(0.5, 2, 5).double(), 0.1)):
        options = {"loss": called, "class_weight": class_weight, "label_smoothing": smoothing, "reduction": reduction, "chunk": 4}
        results = []
        for apart in (True, False):
            given = [v.clone().requires_grad_() for v in (hidden, weight)]
            if apart:
                found = sm.linear_loss(*given, y, z_loss=0.1, outputs="z_loss", **options)
                torch.testing.assert_close(found.loss, sm.linear_loss(*given, y, z_loss=0.1, **options))
                value = found.loss - found.z_loss
            else:
                value = sm.linear_loss(*given, y, **options)
            results.append((value, *torch.autograd.grad(value.sum(), given)))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("empty", ["nan", "zero"])
@pytest.mark.parametrize("rows", ["of weight 0", "ignored", "some ignored"])
@pytest.mark.parametrize("called", ["cross_entropy", "focal_loss", "sparsemax_loss"])
def test_the_gradient_of_a_mean_over_nothing_is_that_of_the_loss_of_all_scores(called: str, rows: str, empty: str):
    hidden, weight, y = normal(3, 4, 5), normal(6, 5, seed=1), torch.arange(12).reshape(3, 4) % 6
    if "ignored" in rows:
        y[:, : 4 if rows == "ignored" else 2] = -100
    of_class = None if rows == "ignored" else torch.zeros(6, dtype=torch.float64)
    apart = lambda h, y: sm.linear_loss(h, weight, y, loss=called, class_weight=of_class, empty=empty)
    whole = lambda h, y: getattr(sm, called)(h @ weight.T, y, weight=of_class, empty=empty)
    expected = torch.stack([torch.func.grad(whole)(h, each) for h, each in zip(hidden, y, strict=True)])
    for f in (apart, whole):
        recorded = [v.clone().requires_grad_() for v in hidden]
        eager = torch.stack([torch.autograd.grad(f(h, each), h)[0] for h, each in zip(recorded, y, strict=True)])
        for found in (eager, torch.func.vmap(torch.func.grad(f))(hidden, y)):
            torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_mean_over_nothing_may_be_zero():
    hidden, weight, y = normal(3, 2).requires_grad_(), normal(4, 2, seed=1), torch.full((3,), -100)
    for chunk in ("auto", (2, 2)):
        for rows in (3, 0):
            assert math.isnan(sm.linear_loss(hidden.detach()[:rows], weight, y[:rows], chunk=chunk))
            value = sm.linear_loss(hidden[:rows], weight, y[:rows], chunk=chunk, empty="zero")
            assert float(value.detach()) == 0
            assert not bool(torch.autograd.grad(value, hidden)[0].any())
    assert float(sm.LinearLoss(2, 4, empty="zero").double()(hidden, y).detach()) == 0
