"""Every map has the properties that it claims: mass, order, shift, sparsity, continuity, simplex."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softmaxima as sm
from conftest import Case, chosen, normal, rows

pytestmark = pytest.mark.gpu


@given(x=rows())
def test_probabilities_are_not_negative(case: Case, x: torch.Tensor):
    p = case.probabilities(x)
    assert bool(((p >= 0) & (p <= 1 + 1e-12)).all())


@given(x=rows())
def test_mass_is_as_claimed(case: Case, x: torch.Tensor):
    mass, largest = case.probabilities(x).sum(-1), case.largest_mass(x)
    whole = (mass - largest).abs() < 1e-11
    less: dict[Any, torch.Tensor] = {"at most one": mass <= largest, "zero or one": mass == 0}
    assert bool((whole | less.get(case.claims.mass, whole)).all())


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_mass_below_one_does_occur_where_claimed(case: Case, scale: float):
    if case.claims.mass == "at most one":
        x = -normal(50, 5, scale=scale).abs() - 20.0
        assert float(case.probabilities(x).sum(-1).min()) < 1 - 1e-9


@given(x=rows())
def test_order_is_kept_where_claimed(case: Case, x: torch.Tensor):
    if case.claims.order_preserving:
        p = case.probabilities(x)
        higher = x.unsqueeze(-1) > x.unsqueeze(-2)
        rises = p.unsqueeze(-1) >= p.unsqueeze(-2) - 1e-14
        assert bool((rises | ~higher).all())


@given(x=rows(), shift=st.floats(-10, 10))
def test_shift_does_not_matter_where_claimed(case: Case, x: torch.Tensor, shift: float):
    if case.claims.shift_invariant and case.claims.continuous:
        torch.testing.assert_close(case(x + shift), case(x), atol=1e-11, rtol=1e-12)
    if case.claims.locally_shift_invariant:
        away_from_0 = torch.where(x < 0, x - 20, x + 20)
        torch.testing.assert_close(case(away_from_0 + shift), case(away_from_0), atol=1e-11, rtol=1e-12)


def test_shift_matters_where_invariance_is_not_claimed(case: Case):
    if not case.claims.shift_invariant:
        x = torch.cat((normal(20, 5), normal(20, 5) - 10.0))
        assert float((case.probabilities(x + 1.0) - case.probabilities(x)).abs().max()) > 1e-7


def test_zeros_on_finite_scores_occur_exactly_where_sparsity_is_claimed(case: Case):
    p = case.probabilities(normal(200, 12, scale=20.0))
    softmax_like = case.params.get("alpha") == 1.0 or case.params.get("p") == 1.0
    softmax_like |= case.params.get("noise", "uniform") not in ("uniform", "normal")
    if not softmax_like:
        assert bool((p == 0).any()) == case.claims.sparse


def test_small_steps_move_p_little_where_continuity_is_claimed(case: Case):
    if case.claims.continuous:
        x = normal(500, 6)
        step = 1e-7 * normal(500, 6, seed=1)
        moved = (case.probabilities(x + step) - case.probabilities(x)).abs().max()
        assert float(moved) < 1e-5


@given(x=rows(masks=False))
def test_masked_score_gets_nothing_and_the_others_never_see_it(case: Case, x: torch.Tensor):
    generator = torch.Generator().manual_seed(0)
    where = torch.rand(x.shape, generator=generator) < 0.6
    where[:, 0] = True
    masked = case(x, where=where)
    assert bool((masked[~where] == case.nothing).all())
    torch.testing.assert_close(masked, case(x.masked_fill(~where, -math.inf)), atol=0, rtol=0)
    for row in range(x.shape[0]):
        kept = where[row]
        torch.testing.assert_close(masked[row][kept], case(x[row][kept]), atol=1e-13, rtol=1e-13)


def test_lowest_index_wins_ties_of_the_selecting_maps():

    x = torch.tensor([1.0, 2.0, 2.0, 1.0, 2.0])
    assert sm.topk_softmax(x, k=2).nonzero().flatten().tolist() == [1, 2]
    assert sm.topk_softmax(x, k=4).nonzero().flatten().tolist() == [0, 1, 2, 4]
    assert sm.topp_softmax(torch.zeros(8), p=0.5).nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert sm.topp_softmax(torch.tensor([-0.0, 0.0, -0.0, 0.0]), p=0.5).nonzero().flatten().tolist() == [0, 1]


def test_min_p_keeps_what_vllm_keeps_and_all_of_equal_scores():
    """By its code (vllm/v1/sample/logits_processor/builtin.py): p_i < p · max p is left out, of logits over the temperature."""

    x = torch.cat((normal(200, 40, scale=3.0), normal(1, 40).round().expand(2, -1)))
    for share, tau in ((0.1, 1.0), (0.05, 0.7), (0.3, 2.5), (0.0, 1.0), (1.0, 1.0)):
        logits = x / tau
        probable = torch.softmax(logits, -1)
        invalid = probable < probable.amax(-1, keepdim=True) * share
        expected = torch.softmax(logits.masked_fill(invalid, -math.inf), -1)
        torch.testing.assert_close(sm.minp_softmax(x, p=share, temperature=tau), expected, atol=1e-13, rtol=0)
    ties = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0])
    assert sm.minp_softmax(ties, p=1.0).tolist() == [0.0, 0.5, 0.0, 0.5, 0.0]
    assert bool((sm.minp_softmax(ties, p=0.2) > 0).all())
    each = sm.minp_softmax(x[:3], p=torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64))  # one a request
    torch.testing.assert_close(each, torch.cat([sm.minp_softmax(x[i : i + 1], p=p) for i, p in enumerate((0.0, 0.5, 1.0))]))


def test_entmax_is_continuous_in_alpha_through_softmax_and_sparsemax():

    x = normal(20, 8)
    for alpha, other in ((1.0, sm.softmax(x)), (1.5, sm.entmax15(x)), (2.0, sm.sparsemax(x))):
        torch.testing.assert_close(sm.entmax(x, alpha=alpha), other, atol=1e-13, rtol=0)
        for near in (alpha + 1e-9, alpha - 1e-9):
            torch.testing.assert_close(sm.entmax(x, alpha=near), other, atol=1e-7, rtol=0)
    small = [float((sm.entmax(x, alpha=1 + h) - sm.softmax(x)).abs().max()) / h for h in (1e-3, 1e-6, 1e-9, 1e-12)]
    assert max(small) < 2 * min(small) + 1e-2  # the difference quotient does not blow up


def test_entmax_below_one_gives_every_score_a_share():
    x = normal(6, 7).requires_grad_()
    alpha = torch.tensor([[0.1], [0.5], [0.99], [1.0], [1.2], [2.0]], dtype=torch.float64, requires_grad=True)
    p = sm.entmax(x, alpha=alpha)
    torch.testing.assert_close(
        p, torch.stack([sm.entmax(row, alpha=a) for row, a in zip(x, alpha.flatten().tolist(), strict=True)])
    )
    beta = alpha[:3].detach() - 1
    levels = beta * x[:3].detach() - p[:3].detach() ** beta  # λ, of each score
    torch.testing.assert_close(levels, levels[:, :1].expand_as(levels), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(p.sum(-1), torch.ones(6, dtype=torch.float64))
    labels = torch.arange(6)
    assert torch.autograd.gradcheck(lambda x, alpha: sm.entmax(x, alpha=alpha), (x, alpha))
    assert torch.autograd.gradcheck(lambda x, alpha: sm.entmax_loss(x, labels, alpha=alpha), (x, alpha))
    assert torch.autograd.gradgradcheck(lambda x: sm.entmax(x, alpha=0.5), (x,))
    for module, expected in (
        (sm.Entmax(alpha=0.5), lambda x: sm.entmax(x, alpha=0.5)),
        (sm.EntmaxLoss(alpha=0.5), lambda x: sm.entmax_loss(x, labels, alpha=0.5)),
    ):
        given = (x, labels) if isinstance(module, sm.EntmaxLoss) else (x,)
        torch.testing.assert_close(module(*given), expected(x))


@pytest.mark.parametrize("alpha", chosen([1.0001, 1.01, 1.1, 1.3, 1.7, 1.9, 2.2, 3.0, 5.0, 20.0]))
@pytest.mark.parametrize("n", [1, 2, 50, 5000])
def test_entmax_sums_to_one_for_every_alpha(alpha: float, n: int):

    for scale in (0.0, 1e-3, 1.0, 30.0):
        p = sm.entmax(normal(5, n, scale=scale), alpha=alpha)
        torch.testing.assert_close(p.sum(-1), torch.ones(5, dtype=torch.float64), atol=1e-11, rtol=0)
