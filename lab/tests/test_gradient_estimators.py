"""Estimators of ∇E f(D): what each claims, measured on a problem of which the gradient is known."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import pytest
import torch

from softmaxima.sampling import Relax, expectation, rebar, reinforce, relax, score_function, second_moment, sum_and_sample
from softmaxima.sampling.estimators import ESTIMATORS
from softmaxima_lab.studies.gradient_estimators import (
    PLAN,
    Measured,
    Problem,
    estimated,
    measure_estimators,
    measured,
    standard_problem,
)

DEVIATIONS = 4.5  # standard errors: a false alarm in 1e5, of the seeded few


@pytest.fixture(scope="module")
def table() -> dict[str, Measured]:
    return {row.name: row for row in measure_estimators(estimates=8000, steps=50)}


def test_the_table_has_every_estimator(table: dict[str, Measured]):
    assert set(table) == set(PLAN) == set(ESTIMATORS)


@pytest.mark.parametrize("name", PLAN)
def test_each_takes_as_many_evaluations_of_f(name: str):
    problem, seen = standard_problem(), 0

    def f(draws: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += draws.shape[:-1].numel()
        return problem.f(draws)

    options, samples = PLAN[name]
    more = {"control": f} if name == "relax" else {}
    expectation(problem.x.clone().requires_grad_(), f, name, samples=samples, **options, **more)
    assert seen == 4


@pytest.mark.parametrize("name", [name for name in PLAN if ESTIMATORS[name].unbiased])
def test_unbiased_estimators_are(table: dict[str, Measured], name: str):
    assert table[name].deviation < DEVIATIONS


def test_a_bias_is_seen(table: dict[str, Measured]):
    """The others are not within the noise of this many estimates, but for the sparse relaxation, whose noise is large."""
    biased = [row for row in table.values() if not row.unbiased and row.name != "gumbel_sparsemax"]
    assert all(row.deviation > DEVIATIONS for row in biased)
    assert all(0.05 < row.bias < 0.5 for row in biased)


def test_variances_are_in_their_order(table: dict[str, Measured]):
    of = {name: row.variance for name, row in table.items()}
    assert of["reinforce_leave_one_out"] < of["reinforce"] / 3
    assert of["sum_and_sample"] < of["reinforce_leave_one_out"]
    assert of["rebar"] < of["reinforce"] / 3
    assert of["relax"] < of["rebar"] / 1.3  # by what it learned
    assert of["rao_blackwell_gumbel"] < of["straight_through_gumbel"] / 2
    assert of["gumbel_softmax"] < of["reinforce"]


def test_rao_blackwell_keeps_the_bias_of_what_it_averages(table: dict[str, Measured]):
    ours, theirs = table["rao_blackwell_gumbel"], table["straight_through_gumbel"]
    assert abs(ours.bias - theirs.bias) < 0.02
    assert table["reinmax"].bias < table["straight_through"].bias


def test_reinmax_is_exact_where_f_is_quadratic():
    base = standard_problem()
    source = torch.Generator().manual_seed(1)
    a, b = torch.randn(6, 6, dtype=torch.float64, generator=source), torch.randn(6, dtype=torch.float64, generator=source)
    problem = Problem(base.x, lambda draws: ((draws @ a) * draws).sum(-1) + draws @ b)
    found = {
        name: measured(name, estimated(problem, evaluate_by(name), 1, 20_000, 0), problem.gradient())
        for name in ("reinmax", "straight_through")
    }
    assert found["reinmax"].deviation < DEVIATIONS < found["straight_through"].deviation


def evaluate_by(name: str) -> Any:
    return lambda x, f, **options: expectation(x, f, name, **options)


@pytest.mark.parametrize("seed", [0, 1])
def test_relax_is_unbiased_for_any_control_variate(seed: int):
    problem = standard_problem()
    control = lambda z: torch.sin(z).sum(-1) * z[..., 1] + z[..., 0] ** 2
    gradients = estimated(problem, lambda x, f, **options: relax(x, f, control, **options), 1, 20_000, seed)
    assert measured("relax", gradients, problem.gradient()).deviation < DEVIATIONS


def test_second_derivatives_of_reinforce_are_unbiased():
    problem = standard_problem(3)
    exact = torch.autograd.functional.hessian(lambda x: x.softmax(-1) @ problem.f(torch.eye(3, dtype=torch.float64)), problem.x)
    x = problem.x.expand(20_000, 3).clone().requires_grad_()
    value = reinforce(x, problem.f, samples=2, generator=0)
    (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    rows = torch.stack([torch.autograd.grad(gradient[:, i].sum(), x, retain_graph=True)[0] for i in range(3)], 1)
    error = (rows.mean(0) - exact).abs() / (rows.var(0) / len(rows)).sqrt()
    assert error.max() < DEVIATIONS


def test_what_f_depends_on_gets_its_gradient():
    """By every estimator: the mean of f's own gradient at one-hot draws, where draws are one-hot."""
    x = standard_problem().x.clone().requires_grad_()
    weights = torch.arange(6.0, dtype=torch.float64, requires_grad=True)
    f = lambda draws: (draws @ weights) ** 2
    for name, estimator in ESTIMATORS.items():
        options: dict[str, Any] = {"control": lambda z: f(z.softmax(-1))} if name == "relax" else {}
        value = expectation(x, f, name, samples=3000, generator=0, **options)
        (found,) = torch.autograd.grad(value, weights)
        if not (estimator.draws and estimator.relaxed):
            wanted = 2 * x.detach().softmax(-1) * weights.detach()
            torch.testing.assert_close(found, wanted, atol=0.15, rtol=0.15)


def test_rows_may_have_one_value_together():
    """Two rows and one f of both: the gradient is that of the sum over all pairs."""
    x = torch.tensor([[0.5, -0.5, 0.0], [1.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    table = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = x.softmax(-1)
    (exact,) = torch.autograd.grad(sum(p[0, i] * p[1, j] * table[i, j] for i, j in product(range(3), repeat=2)), x)
    f = lambda draws: torch.einsum("...i,...j,ij->...", draws[..., 0, :], draws[..., 1, :], table)
    for name in ("reinforce_leave_one_out", "rebar"):
        many = x.detach().expand(10_000, 2, 3).clone().requires_grad_()
        value = expectation(many, f, name, samples=2, generator=0)
        assert value.shape == (10_000,)
        (gradients,) = torch.autograd.grad(value.sum(), many)
        assert ((gradients.mean(0) - exact).abs() / (gradients.var(0) / 10_000).sqrt()).max() < DEVIATIONS


@pytest.mark.parametrize("exact", [0, 2, 6])
def test_the_sum_over_all_classes_is_exact(exact: int):
    problem = standard_problem()
    x = problem.x.clone().requires_grad_()
    value = sum_and_sample(x, problem.f, exact=exact, samples=20_000, generator=0)
    (gradient,) = torch.autograd.grad(value, x)
    atol = 1e-12 if exact == 6 else 0.2
    torch.testing.assert_close(gradient, problem.gradient(), atol=atol, rtol=0)


@pytest.mark.parametrize("name", [name for name, each in ESTIMATORS.items() if not each.relaxed and name != "relax"])
def test_no_option_draws_from_another_distribution(name: str):
    """`expectation` says E f(D), D from softmax(x), whatever else is asked."""
    x = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    drawn = lambda **options: expectation(x, lambda d: d @ torch.arange(3.0).double(), name, samples=50, generator=0, **options)
    for option in ({"temperature": 5.0}, {"conditionals": 3}, {"map": "sparsemax"}, {"draw": False}):
        with contextlib.suppress(TypeError):  # what is no option
            assert drawn(**option) == drawn()


def test_a_control_that_is_infinite_where_nothing_is_allowed_leaves_the_value():
    x = torch.zeros(2, 3, requires_grad=True)
    some = torch.tensor([[True] * 3, [False] * 3])
    value = relax(x, lambda draws: draws.sum(-1), lambda z: z.logsumexp(-1), where=some, generator=0)
    assert value.tolist() == [1.0, 0.0]
    assert torch.autograd.grad(value.sum(), x)[0].isfinite().all()


def test_masks_of_an_expectation():
    x, where = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True), torch.tensor([[True, True, False, True], [False] * 4])
    f = lambda draws: draws @ torch.tensor([1.0, 2.0, torch.nan, 3.0], dtype=torch.float64).nan_to_num(1e9)
    for name in ("reinforce", "sum_and_sample", "rebar"):
        value = expectation(x, f, name, samples=2000, where=where, generator=0)
        torch.testing.assert_close(value.detach(), torch.tensor([2.0, 0.0], dtype=torch.float64), atol=0.1, rtol=0)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        assert not gradient[~where].any()


def test_score_function_serves_other_distributions():
    mean = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    drawn = 1.0 + torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value = score_function(-((drawn - mean) ** 2) / 2, drawn**2)
    (slope,) = torch.autograd.grad(value, mean, create_graph=True)
    assert abs(slope.item() - 2.0) < 0.05
    assert abs(torch.autograd.grad(slope, mean)[0].item() - 2.0) < 0.2


def test_a_control_variate_gets_a_gradient_by_learn_alone():
    problem = standard_problem()
    x = problem.x.clone().requires_grad_()
    estimator = Relax(temperature=0.5).double()
    value = estimator(x, problem.f, samples=3, generator=0)
    estimator.learn(value, x)
    assert x.grad is None
    assert estimator.scale.grad is not None
    found = estimator.scale.grad.clone()
    value.backward()
    torch.testing.assert_close(estimator.scale.grad, found)
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    same = rebar(x, problem.f, temperature=0.5, scale=scale, samples=3, generator=0)
    torch.testing.assert_close(torch.autograd.grad(second_moment(same, x), scale)[0], found)
    step = 1e-5
    moments = [
        second_moment(rebar(x, problem.f, temperature=0.5, scale=1.0 + sign * step, samples=3, generator=0), x) for sign in (1, -1)
    ]
    torch.testing.assert_close((moments[0] - moments[1]).detach() / (2 * step), found, rtol=1e-5, atol=0)


def test_f_need_not_be_smooth_where_the_network_alone_learns():
    x = torch.zeros(5, 3, requires_grad=True)
    network = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(-2))
    estimator = Relax(network, scale=0.0)
    seen = []
    value = estimator(x, lambda draws: seen.append(draws) or (draws.argmax(-1) == 1).float(), samples=2, generator=0)
    estimator.learn(value.sum(), x)
    assert len(seen) == 1
    assert estimator.scale.grad is None
    assert network[0].weight.grad is not None
