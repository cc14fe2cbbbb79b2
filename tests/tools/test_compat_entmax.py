"""`softmaxima.compat.entmax` against the entmax package: its surface, its values where it is right, and what it gets wrong."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import entmax as theirs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck

import softmaxima as sm
import softmaxima.compat.entmax as ours
from conftest import DTYPES, TOLERANCE, normal, rows
from softmaxima.maps.entmax import ENTMAX

INF, NAN = math.inf, math.nan
BISECTION = 2e-9  # 1.3 bisects to rounding, which 1/(α − 1) multiplies; its entmax15 takes the difference of two mean squares


def public(*modules: Any) -> dict[str, Any]:
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "").startswith("entmax")
        if not (inspect.isclass(value) and issubclass(value, torch.autograd.Function))
    }


SURFACE = public(theirs, theirs.activations, theirs.root_finding, theirs.losses)
SURFACE |= {
    name: getattr(theirs.activations, name) for name in ("_sparsemax_threshold_and_support", "_entmax_threshold_and_support")
}


# The surface -----------------------------------------------------------------------------------------------------------------


def arguments(function: Any) -> list[tuple[Any, ...]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", SURFACE)
def test_signature_is_that_of_the_package(name: str):
    assert arguments(getattr(ours, name)) == arguments(SURFACE[name])
    if inspect.isclass(SURFACE[name]):
        assert arguments(getattr(ours, name).forward) == arguments(SURFACE[name].forward)


@pytest.mark.parametrize("name", [name for name in SURFACE if inspect.isclass(SURFACE[name])])
def test_modules_hold_their_arguments_under_the_same_names(name: str):
    held = {key: value for key, value in vars(SURFACE[name]()).items() if key in inspect.signature(SURFACE[name]).parameters}
    assert {key: getattr(getattr(ours, name)(), key) for key in held} == held
    assert getattr(ours, name)().state_dict() == SURFACE[name]().state_dict()


def test_every_name_of_the_package_is_found_where_the_package_has_it():
    assert {name for name in vars(theirs) if not name.startswith("_") and not name.startswith("test_")} <= set(ours.__all__)
    for module in ("activations", "root_finding", "losses"):
        for name in public(getattr(theirs, module)):
            assert getattr(getattr(ours, module), name) is getattr(ours, name)
    assert ours.__version__ == theirs.__version__


@pytest.mark.parametrize("name", [name for name in ours.__all__ if name not in ("activations", "root_finding", "losses")])
def test_every_name_has_a_docstring_and_an_example(name: str):
    assert ">>> " in (inspect.getdoc(getattr(ours, name)) or "")


def package_tests() -> Iterator[Any]:
    """The tests that the package ships, over our names."""
    replaced = {f"entmax{module}": ours for module in ("", ".activations", ".root_finding", ".losses")}
    kept = {name: sys.modules[name] for name in replaced}
    for path in sorted(Path(theirs.__file__).parent.glob("test_*.py")):
        namespace = {"__name__": path.stem}
        sys.modules.update(replaced)
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                exec(compile(path.read_text(), path, "exec"), namespace)
        finally:
            sys.modules.update(kept)
        for batches in (namespace.get("Xs", []), namespace.get("ys", [])):
            del batches[1:]  # one of five such batches is enough
        for name, function in namespace.items():
            if name.startswith("test_") and name != "test_budget_grad_multiple_k":  # that one gives normmax an alpha below 1
                marks = [mark.args for mark in getattr(function, "pytestmark", [])]
                for i, values in enumerate(itertools.product(*(values for _, values in marks))):
                    call = partial(function, **{argument: value for (argument, _), value in zip(marks, values, strict=True)})
                    yield pytest.param(call, id=f"{path.stem}-{name}-{i}")


@pytest.mark.parametrize("test", [*package_tests()])
def test_the_tests_of_the_package_pass(test: Callable[[], None]):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        test()


# Equal values and gradients --------------------------------------------------------------------------------------------------

# (name, arguments, arguments with which the package is precise)
MAPS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sparsemax", {}, {}),
    ("sparsemax", {"k": 3}, {}),
    ("entmax15", {}, {}),
    ("entmax15", {"k": 3}, {}),
    ("sparsemax_bisect", {"n_iter": 1, "ensure_sum_one": False}, {}),
    *(("entmax_bisect", {"alpha": alpha}, {"n_iter": 100}) for alpha in (0.3, 0.8, 1.2, 1.5, 2, 2.5)),
    ("entmax_bisect", {"alpha": 1.5, "n_iter": 1}, {"n_iter": 100}),
    *(("normmax_bisect", {"alpha": alpha}, {"n_iter": 100}) for alpha in (1.1, 1.5, 2, 5)),
    *(("budget_bisect", {"budget": budget}, {"n_iter": 100}) for budget in (0, 0.5, 1, 2, 3.3)),
]
MAP_NAMES = sorted({name for name, _, _ in MAPS})


def over(*cases: Any) -> Any:
    return pytest.mark.parametrize(
        ("name", "options", "precise"), cases, ids=[f"{c[0]}-{','.join(f'{k}={v}' for k, v in c[1].items())}" for c in cases]
    )


@over(*MAPS)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_probabilities_and_gradients_equal_those_of_the_package(name: str, options: Any, precise: Any, dim: int):
    x, g = normal(6, 5, 7, scale=1.0).requires_grad_(), normal(6, 5, 7, seed=1)
    p, expected = getattr(ours, name)(x, dim=dim, **options), getattr(theirs, name)(x, dim=dim, **options | precise)
    assert p.shape == expected.shape
    assert p.dtype == expected.dtype
    torch.testing.assert_close(p, expected, atol=BISECTION, rtol=0)
    if name != "budget_bisect" or dim <= 0:  # its gradient raises elsewhere
        torch.testing.assert_close(grad(p, x, g)[0], grad(expected, x, g)[0], atol=1e-6, rtol=1e-6)


@over(*MAPS)
def test_narrow_dtypes_round_the_float64_result(name: str, options: Any, precise: Any, dtype: torch.dtype):
    x = normal(20, 9, scale=1.0, dtype=dtype)
    p, expected = getattr(ours, name)(x, **options), getattr(theirs, name)(x.double(), **options | precise)
    assert p.dtype == getattr(theirs, name)(x, **options).dtype == dtype
    torch.testing.assert_close(p.double(), expected, atol=BISECTION + TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("alpha", [0.4, 1.2, 1.9, 2.5])
def test_alpha_gradient_equals_that_of_the_package(alpha: float):
    x, g = normal(6, 5, scale=1.0), normal(6, 5, seed=1)
    gradients = []
    for package, n_iter in ((ours, 1), (theirs, 100)):
        value = torch.full((6, 1), alpha, dtype=torch.float64, requires_grad=True)
        gradients += grad(package.entmax_bisect(x, value, -1, n_iter), value, g)
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("helper", ["_sparsemax_threshold_and_support", "_entmax_threshold_and_support"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_thresholds_and_their_gradients_equal_those_of_the_package(helper: str, dim: int):
    x = normal(6, 5, 7, scale=1.0).requires_grad_()
    (tau, size), (tau_, size_) = (getattr(package.activations, helper)(x, dim) for package in (ours, theirs))
    torch.testing.assert_close(tau, tau_, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(size, size_)
    torch.testing.assert_close(grad(tau.sum(), x), grad(tau_.sum(), x), atol=1e-10, rtol=1e-10)
    assert [t.dtype for t in getattr(ours, helper)(x.float())] == [torch.float32, torch.int64]


X, TARGET = normal(12, 7), torch.arange(12) % 7

# (name of the function, of the module, arguments, arguments with which the package is precise)
LOSSES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("sparsemax_loss", "SparsemaxLoss", {}, {}),
    ("sparsemax_loss", "SparsemaxLoss", {"k": 2}, {}),
    ("sparsemax_bisect_loss", "SparsemaxBisectLoss", {"n_iter": 1}, {}),
    ("entmax15_loss", "Entmax15Loss", {}, {}),
    ("entmax15_loss", "Entmax15Loss", {"k": 2}, {}),
    *(("entmax_bisect_loss", "EntmaxBisectLoss", {"alpha": alpha}, {"n_iter": 100}) for alpha in (0.5, 1.2, 1.5, 2.5)),
    *(("normmax_bisect_loss", "NormmaxBisectLoss", {"alpha": alpha}, {"n_iter": 100}) for alpha in (1.5, 2, 5)),
]
LOSS_NAMES = sorted({(function, module) for function, module, _, _ in LOSSES})


@pytest.mark.parametrize(("function", "module", "options", "precise"), LOSSES)
def test_losses_and_gradients_equal_those_of_the_package(function: str, module: str, options: Any, precise: Any):
    x, g = X.clone().requires_grad_(), normal(12, seed=1)
    loss, expected = getattr(ours, function)(x, TARGET, **options), getattr(theirs, function)(x, TARGET, **options | precise)
    torch.testing.assert_close(loss, expected, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(grad(loss, x, g), grad(expected, x, g), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(getattr(ours, module)(**options).loss(X, TARGET), loss)
    for reduction, ignore_index in itertools.product(("elementwise_mean", "sum", "none"), (-100, 2)):
        more = {"reduction": reduction, "ignore_index": ignore_index}
        reduced, expected = getattr(ours, module)(**options, **more), getattr(theirs, module)(**options | precise, **more)
        torch.testing.assert_close(reduced(x, TARGET), expected(x, TARGET), atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(grad(reduced(x, TARGET).sum(), x), grad(expected(x, TARGET).sum(), x), atol=1e-7, rtol=1e-7)


# What the package gets wrong -------------------------------------------------------------------------------------------------


def alone(name: str, x: Tensor) -> Tensor:
    """The rows of x one at a time."""
    return torch.stack([getattr(ours, name)(row) for row in x])


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "_sparsemax_threshold_and_support", "_entmax_threshold_and_support"])
@pytest.mark.parametrize("dim", [-3, -2])
def test_k_works_along_every_axis(name: str, dim: int):
    x = normal(4, 5, 6, scale=0.1)
    torch.testing.assert_close(getattr(ours, name)(x, dim, 2), getattr(ours, name)(x, dim + 3))


@pytest.mark.parametrize("name", MAP_NAMES)
def test_a_row_without_an_allowed_score_gives_zeros_and_leaves_the_others_alone(name: str):
    x = normal(3, 4)
    x[1] = -INF
    x.requires_grad_()
    p = getattr(ours, name)(x)
    assert torch.equal(p[1], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(p, alone(name, x))
    p.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[1].any()


@pytest.mark.parametrize("name", MAP_NAMES)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_nan_stays_in_its_row(name: str, bad: float):
    x = normal(3, 4)
    x[1, 2] = bad
    p = getattr(ours, name)(x)
    assert p[1].isnan().all()
    torch.testing.assert_close(p[::2], alone(name, x[::2]))


@pytest.mark.parametrize("name", MAP_NAMES)
def test_a_masked_score_gets_zero_and_no_gradient(name: str):
    x = normal(5, 6)
    x[:, ::2] = -INF
    x.requires_grad_()
    p = getattr(ours, name)(x)
    torch.testing.assert_close(p[:, 1::2], getattr(ours, name)(x[:, 1::2]))
    assert not p[:, ::2].any()
    (p * normal(5, 6, seed=1)).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[:, ::2].any()


@pytest.mark.parametrize("name", ["_sparsemax_threshold_and_support", "_entmax_threshold_and_support"])
def test_the_threshold_of_a_row_of_masks_is_out_of_reach(name: str):
    x = torch.tensor([[-INF, -INF], [0.0, -INF]], requires_grad=True)
    tau, size = getattr(ours, name)(x)
    assert tau.tolist() == [[INF], [-1.0]]
    assert size.tolist() == [[0], [1]]
    tau[1].sum().backward()
    assert x.grad.tolist() == [[0, 0], [1, 0]]


def test_the_support_counts_only_positive_probabilities():
    assert ours._entmax_threshold_and_support(torch.tensor([0.0, -1.0]))[1] == 1


@pytest.mark.parametrize("name", MAP_NAMES)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_sums_are_wide(name: str, half: torch.dtype):
    x = normal(4096, scale=0.01, dtype=half)
    torch.testing.assert_close(getattr(ours, name)(x), getattr(ours, name)(x.double()).to(half), atol=1e-6, rtol=2**-8)
    far = torch.tensor([-1000.0, -1008.0, -1008.0], dtype=half)
    torch.testing.assert_close(getattr(ours, name)(far), getattr(ours, name)(far.double()).to(half))


@pytest.mark.parametrize("name", ["budget_bisect", "normmax_bisect"])
def test_narrow_gradients_round_the_float64_gradient(name: str, dtype: torch.dtype):
    x, g = normal(8, 6, scale=0.5, dtype=dtype), normal(8, 6, seed=1, dtype=dtype)
    narrow, wide = (v.clone().requires_grad_() for v in (x, x.double()))
    (actual,), (expected,) = grad(getattr(ours, name)(narrow), narrow, g), grad(getattr(ours, name)(wide), wide, g.double())
    torch.testing.assert_close(actual, expected.to(dtype))


@pytest.mark.parametrize("name", ["entmax_bisect", "normmax_bisect"])
def test_the_result_has_the_dtype_of_the_scores(name: str):
    alpha = torch.full((3, 1), 1.5, dtype=torch.float64, requires_grad=True)
    p = getattr(ours, name)(normal(3, 4, dtype=torch.float32), alpha)
    assert p.dtype == torch.float32
    assert grad(p.square().sum(), alpha)[0].dtype == torch.float64


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 1)])
def test_budget_has_a_gradient_along_every_axis(dim: int, shape: tuple[int, ...]):
    x = normal(*shape, scale=0.5).requires_grad_()
    assert gradcheck(partial(ours.budget_bisect, budget=0.7, dim=dim), (x,))


@pytest.mark.parametrize("name", ["EntmaxBisect", "NormmaxBisect", "BudgetBisect", "EntmaxBisectLoss", "NormmaxBisectLoss"])
def test_parameters_learn_and_tensors_move(name: str):
    inputs = (X, TARGET) if name.endswith("Loss") else (X,)
    parameter = torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    module = getattr(ours, name)(parameter)
    module(*inputs).square().sum().backward()
    assert parameter.grad
    held = getattr(ours, name)(parameter.detach())
    torch.testing.assert_close(held(*inputs), module(*inputs))
    assert list(module.state_dict()) == [next(iter(inspect.signature(type(module)).parameters))]
    assert not held.state_dict()
    assert next(held.to(torch.float32).buffers()).dtype == torch.float32
    torch.testing.assert_close(copy.deepcopy(module)(*inputs), module(*inputs))


@pytest.mark.parametrize("name", ["entmax_bisect_loss", "normmax_bisect_loss"])
def test_one_alpha_a_row_gives_one_loss_a_row(name: str):
    alpha = torch.linspace(1.1, 3, 12, dtype=torch.float64).unsqueeze(1)
    each = [getattr(ours, name)(X[i : i + 1], TARGET[i : i + 1], a.item()) for i, a in enumerate(alpha)]
    torch.testing.assert_close(getattr(ours, name)(X, TARGET, alpha), torch.cat(each))


@pytest.mark.parametrize(("function", "module"), LOSS_NAMES)
def test_ignored_rows_cost_nothing_whatever_the_index(function: str, module: str):
    for label in (2, 255, -1, -100):
        target = TARGET.clone()
        target[::3] = label
        counted = target != label
        x = X.clone()
        x[::6] = NAN
        x[3] = -INF
        x.requires_grad_()
        loss = getattr(ours, module)(ignore_index=label)(x, target)
        torch.testing.assert_close(loss, getattr(ours, function)(X[counted], TARGET[counted]).mean())
        loss.backward()
        assert not x.grad[~counted].any()
        assert x.grad[counted].any(-1).all()


@pytest.mark.parametrize(("function", "module"), LOSS_NAMES)
def test_a_mean_over_no_row_is_nan_as_in_torch_and_its_gradient_zero(function: str, module: str):
    x, nothing = X.clone().requires_grad_(), torch.full((12,), -100)
    loss = getattr(ours, module)()(x, nothing)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(x, nothing), equal_nan=True)
    loss.backward()
    assert not x.grad.any()
    assert getattr(ours, module)(reduction="sum")(x, nothing) == 0
    assert getattr(ours, module)()(X[:0], TARGET[:0]).isnan()
    assert getattr(ours, function)(X[:0], TARGET[:0]).shape == (0,)


@pytest.mark.parametrize(("function", "module"), LOSS_NAMES)
def test_a_masked_class_costs_nothing_where_it_is_not_the_target(function: str, module: str):
    x = torch.cat((X, torch.full((12, 2), -INF, dtype=torch.float64)), 1).requires_grad_()
    loss = getattr(ours, function)(x, TARGET)
    torch.testing.assert_close(loss, getattr(ours, function)(X, TARGET))
    loss.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert getattr(ours, function)(x, torch.full((12,), 8)).tolist() == [INF] * 12


@pytest.mark.parametrize(("function", "module"), LOSS_NAMES)
def test_losses_keep_their_digits_far_from_zero(function: str, module: str):
    x = (20 * X).round() / 8
    near, far = (getattr(ours, function)(v.float(), TARGET) for v in (x, x + 1e5))
    torch.testing.assert_close(far, near)
    assert (far >= 0).all()
    many = getattr(ours, module)()(x.half().repeat(500, 1), TARGET.repeat(500))
    torch.testing.assert_close(many, getattr(ours, module)()(x, TARGET).half())


def test_the_loss_of_normmax_keeps_its_norm_for_large_alpha():
    x = torch.zeros(1, 3, dtype=torch.float64)
    loss = ours.normmax_bisect_loss(x, torch.tensor([0]), 1000.0)
    torch.testing.assert_close(loss, torch.tensor([1 - 3 ** (1 / 1000) / 3], dtype=torch.float64))


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-9, 1 - 1e-9])
def test_entmax_passes_through_softmax(alpha: float):
    torch.testing.assert_close(ours.entmax_bisect(X, alpha), X.softmax(-1), atol=1e-7, rtol=0)
    expected = torch.nn.functional.cross_entropy(X, TARGET)
    torch.testing.assert_close(ours.EntmaxBisectLoss(alpha)(X, TARGET), expected, atol=1e-7, rtol=0)


def test_alpha_may_lie_on_both_sides_of_one():
    alpha = torch.tensor([0.2, 0.9, 1.0, 1.4, 2.0, 3.0], dtype=torch.float64).unsqueeze(1)
    each = [ours.entmax_bisect(X[i], a.item()) for i, a in enumerate(alpha)]
    torch.testing.assert_close(ours.entmax_bisect(X[:6], alpha), torch.stack(each))
    each = [ours.entmax_bisect_loss(X[i : i + 1], TARGET[i : i + 1], a.item()) for i, a in enumerate(alpha)]
    torch.testing.assert_close(ours.entmax_bisect_loss(X[:6], TARGET[:6], alpha), torch.cat(each))


# Derivatives -----------------------------------------------------------------------------------------------------------------

LEARNABLE = [
    *(("entmax_bisect", alpha) for alpha in (0.4, 0.9, 1.5, 2.0, 2.5)),
    *(("normmax_bisect", alpha) for alpha in (1.2, 1.5, 2.0, 2.5)),
    ("budget_bisect", 1.7),
]


@pytest.mark.parametrize(("name", "value"), LEARNABLE)
@pytest.mark.parametrize("dim", [0, 1])
def test_first_and_second_derivatives_of_scores_and_parameter(name: str, value: float, dim: int):
    x = normal(3, 3, scale=0.7).requires_grad_()
    parameter = torch.full((1, 3) if dim == 0 else (3, 1), value, dtype=torch.float64, requires_grad=True)
    function = lambda x, parameter: getattr(ours, name)(x, parameter, dim)
    assert gradcheck(function, (x, parameter))
    assert gradgradcheck(function, (x, parameter))


@pytest.mark.parametrize("name", MAP_NAMES)
def test_derivatives_with_exact_zeros_and_masks(name: str):
    x = torch.tensor([[1.0, 0.7, -9.0, 0.4], [-5.0, 0.2, 0.3, 0.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, False, False, False], [False, False, False, True]])
    function = lambda x: getattr(ours, name)(x.masked_fill(mask, -INF))
    assert gradcheck(function, (x,))
    assert gradgradcheck(function, (x,))


@pytest.mark.parametrize(("function", "module"), LOSS_NAMES)
def test_losses_have_second_derivatives(function: str, module: str):
    x, target = normal(3, 4, scale=0.7).requires_grad_(), torch.tensor([0, -100, 3])
    loss = getattr(ours, module)(reduction="none")
    assert gradcheck(loss, (x, target))
    assert gradgradcheck(loss, (x, target))
    alpha = torch.full((3, 1), 1.4, dtype=torch.float64, requires_grad=True)
    if "alpha" in inspect.signature(getattr(ours, function)).parameters:
        learnt = lambda x, alpha: getattr(ours, function)(x, target.clamp_min(0), alpha)
        assert gradcheck(learnt, (x, alpha))
        assert gradgradcheck(learnt, (x, alpha))


def test_the_gradient_of_a_loss_is_the_distance_to_the_target():
    y = torch.nn.functional.one_hot(TARGET, 7)
    for map, loss, values in (
        (ours.normmax_bisect, ours.normmax_bisect_loss, (1.0, 1.5, 2, 20)),
        (ours.entmax_bisect, ours.entmax_bisect_loss, (0.3, 1.5)),
    ):
        for alpha in values:
            x = X.clone().requires_grad_()
            (actual,) = grad(loss(x, TARGET, alpha).sum(), x)
            torch.testing.assert_close(actual, map(X, alpha) - y, atol=1e-12, rtol=0)


def test_normmax_at_one_is_uniform_over_the_largest_and_constant():
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0]], requires_grad=True)
    for alpha in (1, torch.ones(1, 1, requires_grad=True)):
        p = ours.normmax_bisect(x, alpha)
        assert p.tolist() == [[0, 0.5, 0.5, 0]]
        assert not grad(p.square().sum(), x)[0].any()
    assert not grad(ours.normmax_bisect(x, alpha).square().sum(), alpha)[0].any()


@pytest.mark.parametrize("name", MAP_NAMES)
def test_transforms(name: str):
    function = getattr(ours, name)
    x = normal(3, 4, 5)
    torch.testing.assert_close(torch.func.vmap(function)(x), function(x))
    if name in {learnable for learnable, _ in LEARNABLE}:
        values = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)
        each = torch.stack([function(row, v.item()) for row, v in zip(x, values, strict=True)])
        torch.testing.assert_close(torch.func.vmap(function)(x, values), each)
    reverse, forward = torch.func.jacrev(function)(x[0]), torch.func.jacfwd(function)(x[0])
    torch.testing.assert_close(reverse, forward, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "value"), [("entmax_bisect", 0.5), ("entmax_bisect", 1.5), ("normmax_bisect", 1.5), ("budget_bisect", 1.5)]
)
def test_compiled_equals_eager(name: str, value: float):
    torch._dynamo.reset()
    x, parameter = normal(3, 5).requires_grad_(), torch.full((3, 1), value, dtype=torch.float64, requires_grad=True)
    function = lambda x, parameter: getattr(ours, name)(x, parameter).square().sum()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        grad(compiled(x, parameter), (x, parameter)), grad(function(x, parameter), (x, parameter)), atol=1e-12, rtol=1e-10
    )
    static = torch.compile(lambda x: getattr(ours, name)(x, value), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(static(x), getattr(ours, name)(x, value))


# Maps that solve what they state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.2, 0.75, 0.99])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_literal_reference(alpha: float, scale: float, dtype: torch.dtype):
    x = normal(20, 9, scale=scale, dtype=dtype)
    expected = ENTMAX.reference(x, alpha)
    torch.testing.assert_close(ENTMAX(x, alpha=alpha).double(), expected, atol=TOLERANCE[dtype], rtol=0)


@given(rows(), st.floats(1.01, 30))
def test_normmax_solves_its_problem(x: Tensor, alpha: float):
    p = ours.normmax_bisect(x, alpha)
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[:, 0]), atol=1e-14, rtol=0)
    # x − ∇‖p‖ is a constant λ where p > 0, and x ≤ λ elsewhere; p = entmax(‖p‖^β x/β) says both
    norm = torch.linalg.vector_norm(p, alpha, -1, keepdim=True)
    largest = x.amax(-1, keepdim=True)
    again = sm.entmax(norm ** (alpha - 1) * (x - largest) / (alpha - 1), alpha=alpha)
    # scores within rounding of λ have probabilities like rounding^{1/β}
    torch.testing.assert_close(p, again, atol=max(1e-9, 1e-13 ** (1 / max(1, alpha - 1))), rtol=0)


@given(rows(), st.one_of(st.floats(0, 13), st.integers(0, 13)))
def test_budget_solves_its_problem(x: Tensor, budget: float):
    p = ours.budget_bisect(x, budget)
    allowed = x > -INF
    torch.testing.assert_close(p.sum(-1), allowed.sum(-1).double().clamp_max(budget), atol=1e-13, rtol=0)
    assert ((p >= 0) & (p <= 1)).all()
    # x − p is a constant λ where 0 < p < 1, at most λ where p = 0, and at least λ where p = 1
    for row, q, open_ in zip(x, p, allowed, strict=True):
        rest = (row - q)[open_]
        lower = rest[q[open_] < 1].amax() if (q[open_] < 1).any() else -INF
        upper = rest[q[open_] > 0].amin() if (q[open_] > 0).any() else INF
        assert lower <= upper + 1e-12


@given(rows(), st.floats(0.05, 0.999))
def test_entmax_below_one_solves_its_problem(x: Tensor, alpha: float):
    p = ours.entmax_bisect(x, alpha)
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[:, 0]), atol=1e-14, rtol=0)
    assert ((p > 0) == (x > -INF)).all()
    beta = alpha - 1
    level = (p**beta / beta - x).masked_fill(x == -INF, NAN)  # λ/β, one number a row
    spread = level.nan_to_num(-INF).amax(-1) - level.nan_to_num(INF).amin(-1)
    assert (spread <= 1e-12 * (1 + (p**beta / beta).masked_fill(x == -INF, 0).abs().amax(-1))).all()


def test_normmax_takes_any_alpha_and_any_spacing_in_few_steps():
    spaced = -torch.logspace(-15, 0, 1000, dtype=torch.float64)
    for x, alpha in itertools.product(
        (normal(1000), spaced, 1e4 * spaced, torch.zeros(1000, dtype=torch.float64)), (1 + 1e-9, 1.5, 1e6)
    ):
        p = ours.normmax_bisect(x, alpha)
        torch.testing.assert_close(p.sum(), p.new_ones(()))
        log_u = p.log() - torch.logsumexp(alpha * p.log(), -1) / alpha
        levels = (x - ((alpha - 1) * log_u).exp())[p > 0]  # all λ
        torch.testing.assert_close(levels, levels[:1].expand_as(levels), atol=1e-6, rtol=0)


def test_budget_one_is_sparsemax_and_a_budget_that_cannot_be_spent_is_spent_as_far_as_it_goes():
    torch.testing.assert_close(ours.budget_bisect(X, 1), sm.sparsemax(X))
    assert ours.budget_bisect(torch.tensor([5.0, -INF, 1.0]), 2.5).tolist() == [1, 0, 1]
    assert ours.budget_bisect(torch.tensor([5.0, 1.0]), 7).tolist() == [1, 1]


def test_budget_is_exact_among_scores_of_any_size():
    assert ours.budget_bisect(torch.tensor([0.0, -1e30]), 1.5).tolist() == [1, 0.5]
    far = torch.tensor([1e9, 0.75, 0.5, -1e38], dtype=torch.float64)
    assert ours.budget_bisect(far, 1.5).tolist() == [1, 0.375, 0.125, 0]
    spaced = torch.logspace(-15, 3, 1000, dtype=torch.float64)
    for x, budget in itertools.product((normal(1000), spaced, -spaced, torch.zeros(1000)), (0.001, 1, 333.3, 999, 1000)):
        torch.testing.assert_close(ours.budget_bisect(x.double(), budget).sum().item(), float(budget), atol=0, rtol=1e-15)


@pytest.mark.parametrize("name", MAP_NAMES)
def test_shapes_and_strides(name: str):
    function = getattr(ours, name)
    assert function(torch.zeros(2, 0)).shape == (2, 0)
    assert function(torch.zeros(0, 3)).shape == (0, 3)
    assert function(torch.tensor(3.0)) == 1
    x = normal(4, 5, 6)
    for view in (x.movedim(0, 2), x[:, ::2], x.transpose(0, 1)[1:], x[:, :1].expand(4, 5, 6)):
        for dim in (-2, -1, 0, 1):
            torch.testing.assert_close(function(view, dim=dim), function(view.contiguous(), dim=dim), atol=1e-15, rtol=0)


# Wrong use -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ours.sparsemax(X, k=0), ValueError, "k must be an int of at least 1, got 0"),
        (lambda: ours.entmax15(X, -1, 1.5), TypeError, "k must be an int of at least 1, got 1.5; pass an int"),
        (lambda: ours.Entmax15(k=-3)(X), ValueError, "k must be an int of at least 1, got -3"),
        (lambda: ours.entmax_bisect(X, n_iter=0), ValueError, "n_iter must be an int of at least 1, got 0"),
        (
            lambda: ours.SparsemaxBisectLoss("50")(X, TARGET),
            TypeError,
            "n_iter must be an int of at least 1, got the string '50'",
        ),
        (lambda: ours.entmax_bisect(X, 0.0), ValueError, "entmax: alpha must be positive and finite, got 0.0"),
        (lambda: ours.entmax_bisect(X, -torch.ones(())), ValueError, "alpha must be positive and finite"),
        (lambda: ours.entmax_bisect_loss(X, TARGET, -0.5), ValueError, "alpha must be positive and finite"),
        (lambda: ours.normmax_bisect(X, 0.9), ValueError, "normmax_bisect: alpha must be at least 1 and finite, got 0.9"),
        (lambda: ours.normmax_bisect_loss(X, TARGET, INF), ValueError, "alpha must be at least 1 and finite, got inf"),
        (lambda: ours.budget_bisect(X, -1), ValueError, "budget_bisect: budget must be at least 0 and finite, got -1.0"),
        (lambda: ours.budget_bisect(X, torch.ones(12)), ValueError, "budget must broadcast against scores of shape .*; (give|one)"),
        (lambda: ours.budget_bisect(X, dim=2), IndexError, "dim must be in"),
        (lambda: ours._sparsemax_threshold_and_support(X.long()), TypeError, "scores must be float64"),
        (lambda: ours.sparsemax_loss(X, TARGET - 100), IndexError, "target -100 is out of range for 7 classes"),
        (lambda: ours.normmax_bisect_loss(X, TARGET + 1), IndexError, "target 7 is out of range for 7 classes"),
        (lambda: ours.SparsemaxLoss(reduction="mean"), ValueError, "must be one of elementwise_mean, sum, none, got 'mean'"),
    ],
)
def test_wrong_use_raises(call: Callable[[], Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", MAP_NAMES)
def test_dtypes_and_arrays_are_those_of_the_library(name: str):
    function = getattr(ours, name)
    for dtype in DTYPES:
        assert function(X.to(dtype)).dtype == dtype
    assert (function(X.numpy()) == function(X).numpy()).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert function(X.bfloat16()).dtype == torch.float32
