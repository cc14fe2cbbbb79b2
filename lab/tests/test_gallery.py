"""The examples of docs/gallery.md, each held to what is known of its model, by sums over all states where these are few."""

from __future__ import annotations

import functools
import itertools
import json
import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import softmaxima as sm
from conftest import normal
from softmaxima_lab.pages.gallery import TABLES

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@functools.cache
def example(name: str) -> dict[str, Any]:
    """Its names, without its `main` having run."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


# Maximum entropy -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [1.2, 2.0, 3.5, 4.5, 5.9])
def test_dice_of_most_entropy_are_the_root_of_a_polynomial(mean: float):
    names, faces = example("maximum_entropy"), torch.arange(1.0, 7.0, dtype=torch.float64)
    fitted = names["fit"](faces.unsqueeze(-1), torch.tensor([mean], dtype=torch.float64))
    p = sm.softmax(fitted.weights @ faces.unsqueeze(0))
    assert float(p @ faces) == pytest.approx(mean, abs=1e-10)
    torch.testing.assert_close(p, names["dice"](mean), rtol=1e-8, atol=1e-10)


def test_jaynes_dice_are_those_of_his_paper():
    found = example("maximum_entropy")["dice"](4.5)
    assert found.numpy() == pytest.approx([0.05435, 0.07877, 0.11416, 0.16545, 0.23977, 0.34749], abs=5e-6)


def test_no_distribution_with_the_same_means_has_more_entropy():
    names, faces = example("maximum_entropy"), torch.arange(1.0, 7.0, dtype=torch.float64)
    best = names["dice"](4.5)
    entropy = lambda p: -torch.special.xlogy(p, p).sum(-1)
    null = torch.linalg.svd(torch.stack((torch.ones(6, dtype=torch.float64), faces)))[2][2:]  # directions that keep Σp and the mean
    others = best + 0.01 * normal(200, 4) @ null
    assert bool((others >= 0).all())
    assert float((others @ faces - 4.5).abs().max()) < 1e-12
    assert bool((entropy(others) < entropy(best)).all())


def test_the_gap_bounds_what_is_left_to_gain_and_goes_to_zero():
    names = example("maximum_entropy")
    features, _ = names["table"]()
    p = sm.softmax(normal(len(features), scale=0.5))
    means = p @ features
    fitted = names["fit"](features, means)
    dual = lambda w: float(sm.logsumexp(features @ w) - w @ means)
    least = dual(fitted.weights)
    for steps, gap in list(enumerate(fitted.gaps))[:5]:
        reached = dual(names["fit"](features, means, steps).weights)
        assert -1e-12 <= reached - least <= float(gap) + 1e-12
    assert abs(float(fitted.gaps[-1])) < 1e-12


def test_the_covariance_of_the_features_is_the_second_derivative():
    names = example("maximum_entropy")
    features, _ = names["table"]()
    means = sm.softmax(normal(len(features))) @ features
    fitted = names["fit"](features, means)
    dual = lambda w: sm.logsumexp(features @ w) - w @ means
    torch.testing.assert_close(fitted.covariance, torch.func.hessian(dual)(fitted.weights), rtol=1e-9, atol=1e-11)


def test_standard_errors_hold_the_known_weights(capsys: pytest.CaptureFixture):
    found = example("maximum_entropy")["main"](draws=3000, repeats=100)
    assert abs(found["within"] - 0.95) < 0.02  # of 2100; repeats of one weight are independent
    assert np.mean(np.array(found["scatter"]) / np.array(found["errors"])) == pytest.approx(1, abs=0.06)
    assert "Newton" in capsys.readouterr().out


# Tagging -------------------------------------------------------------------------------------------------------------------------


def enumerated(unary: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(log Z, marginals [T, S], the best sequence) of one sentence, from every sequence on its own."""
    length, tags = unary.shape
    sequences = list(itertools.product(range(tags), repeat=length))
    scores = torch.stack(
        [
            sum((unary[t, y[t]] for t in range(length)), torch.zeros((), dtype=torch.float64))
            + sum(transitions[y[t - 1], y[t]] for t in range(1, length))
            for y in sequences
        ]
    )
    p = scores.exp() / scores.exp().sum()
    shares = torch.zeros(length, tags, dtype=torch.float64)
    for y, each in zip(sequences, p, strict=True):
        shares[torch.arange(length), torch.tensor(y)] += each
    return scores.exp().sum().log(), shares, torch.tensor(sequences[int(scores.argmax())])


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6])
def test_a_chain_is_the_sum_over_all_its_sequences(length: int):
    names = example("tagging")
    unary, transitions = normal(2, length, 3), normal(3, 3, seed=1)
    found = zip(
        names["by_halves"](unary, transitions), names["in_order"](unary, transitions), names["marginals"](unary, transitions),
        names["best"](unary, transitions), unary, strict=True,
    )  # fmt: skip
    for halves, ordered, shares, best, one in found:
        value, expected, sequence = enumerated(one, transitions)
        torch.testing.assert_close(torch.stack((halves, ordered)), value.expand(2))
        torch.testing.assert_close(shares, expected, rtol=1e-9, atol=1e-12)
        assert torch.equal(best, sequence)


def forward_backward(unary: Tensor, transitions: Tensor) -> Tensor:
    """Marginals [T, S] by the textbook's two passes, of probabilities."""
    length = len(unary)
    emit, step = unary.exp(), transitions.exp()
    alpha, beta = [emit[0]], [torch.ones(unary.shape[1], dtype=torch.float64)]
    for t in range(1, length):
        alpha.append(emit[t] * (alpha[-1] @ step))
        beta.insert(0, step @ (emit[length - t] * beta[0]))
    product = torch.stack(alpha) * torch.stack(beta)
    return product / product.sum(-1, keepdim=True)


@pytest.mark.parametrize("seed", range(10))
def test_no_sequence_is_better_than_the_best_where_several_are(seed: int):
    """Of whole scores, many are tied."""
    generator = torch.Generator().manual_seed(seed)
    whole = lambda *shape: torch.randint(-1, 2, shape, generator=generator).double()
    unary, transitions = whole(20, 5, 3), whole(3, 3)
    transitions[0, 1] = -math.inf
    found = example("tagging")["best"](unary, transitions)
    every = torch.cartesian_prod(*[torch.arange(3)] * 5)
    score = lambda u, y: u.gather(-1, y.unsqueeze(-1)).sum((-2, -1)) + transitions[y[..., :-1], y[..., 1:]].sum(-1)
    largest = torch.stack([score(u.expand(len(every), -1, -1), every).max() for u in unary])
    assert torch.equal(score(unary, found), largest)


@pytest.mark.parametrize("map", ["softmax", "entmax15", "sparsemax"])
def test_a_forbidden_transition_is_one_of_very_low_score(map: str):
    names = example("tagging")
    unary, transitions = normal(2, 6, 4), normal(4, 4, seed=1)
    transitions[0, 1:] = -math.inf
    transitions[:, 2] = -math.inf  # nothing leads to tag 2
    found = names["in_order"](unary, transitions, map), names["marginals"](unary, transitions, map)
    low = transitions.clamp_min(-1e4)
    torch.testing.assert_close(found[0], names["in_order"](unary, low, map))
    torch.testing.assert_close(found[1], names["marginals"](unary, low, map))
    learning = transitions.requires_grad_()
    (slope,) = torch.autograd.grad(names["in_order"](unary, learning, map).sum(), learning)
    assert bool((slope[0, 1:] == 0).all())
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("length", [7, 32, 33])
def test_halves_are_forward_and_backward(length: int):
    unary, transitions = normal(1, length, 4), normal(4, 4, seed=1)
    found = example("tagging")["marginals"](unary, transitions)[0]
    torch.testing.assert_close(found, forward_backward(unary[0], transitions), rtol=1e-10, atol=1e-13)


def test_scores_of_any_size_and_forbidden_transitions_leave_numbers():
    names = example("tagging")
    unary, transitions = normal(3, 17, 4, scale=1e4), normal(4, 4, seed=1, scale=1e4)
    transitions[0, 1] = transitions[2, 2] = -math.inf
    shares = names["marginals"](unary, transitions)
    torch.testing.assert_close(shares.sum(-1), torch.ones(3, 17, dtype=torch.float64))


def walked(unary: Tensor, transitions: Tensor, map: str) -> tuple[Tensor, Tensor]:
    """(value, shares [T, S]): v from left to right, and the walk that goes back by the map's probabilities, tag by tag."""
    length, tags = unary.shape
    omega = {
        "softmax": lambda p: float(torch.special.xlogy(p, p).sum()),
        "sparsemax": lambda p: float((p.square().sum() - 1) / 2),
        "entmax15": lambda p: float((p.pow(1.5).sum() - 1) / 0.75),
    }[map]
    choose, smooth = getattr(sm, map), lambda x, p: float(p @ x) - omega(p)
    v, back = [unary[0]], []
    for t in range(1, length):
        policy = torch.stack([choose(v[-1] + transitions[:, s]) for s in range(tags)])  # [to, from]
        reached = [smooth(v[-1] + transitions[:, s], policy[s]) + float(unary[t, s]) for s in range(tags)]
        v.append(torch.tensor(reached, dtype=torch.float64))
        back.append(policy)
    last = choose(v[-1])
    shares = [last]
    for policy in reversed(back):
        shares.insert(0, shares[0] @ policy)
    return torch.tensor(smooth(v[-1], last), dtype=torch.float64), torch.stack(shares)


@pytest.mark.parametrize("map", ["softmax", "entmax15", "sparsemax"])
def test_the_slope_of_a_sparse_chain_is_its_walk(map: str):
    names = example("tagging")
    unary, transitions = normal(2, 6, 4), normal(4, 4, seed=1)
    value, shares = names["in_order"](unary, transitions, map), names["marginals"](unary, transitions, map)
    for i in range(2):
        expected, its_shares = walked(unary[i], transitions, map)
        torch.testing.assert_close(value[i], expected)
        torch.testing.assert_close(shares[i], its_shares, rtol=1e-9, atol=1e-12)
    assert map == "softmax" or bool((shares == 0).any())
    inputs = unary.requires_grad_(), transitions.requires_grad_()
    assert gradcheck(lambda u, a: names["in_order"](u, a, map), inputs)


def test_sparse_chains_depend_on_how_they_are_grouped_as_is_said():
    """max_Ω(max_Ω(a, b), c) of sparsemax is not max_Ω(a, max_Ω(b, c)); of softmax it is."""
    max_omega = example("tagging")["max_omega"]
    a, b, c = (torch.tensor([v], dtype=torch.float64) for v in (0.0, 0.3, 0.5))
    both = lambda x, y, of: max_omega(torch.stack((x, y), 1), of)
    grouped = {m: (both(both(a, b, m), c, m).item(), both(a, both(b, c, m), m).item()) for m in ("softmax", "sparsemax")}
    assert grouped["softmax"][0] == pytest.approx(grouped["softmax"][1], abs=1e-14)
    assert abs(grouped["sparsemax"][0] - grouped["sparsemax"][1]) > 1e-3


def test_trained_chains_come_near_the_best_tagger():
    found = example("tagging")["main"](sentences=200, tests=300, steps=40)["taggers"]
    assert all(found[name]["less"] <= 4 * found[name]["error"] for name in found)  # nobody tags better than the truth
    for map in ("softmax", "entmax15", "sparsemax"):
        assert found[f"{map} chain"]["right"] > found["truth, without its chain"]["right"] + 0.08
        assert found[f"{map} chain"]["less"] > -0.015
    assert found["sparsemax chain"]["support"] < found["entmax15 chain"]["support"] < found["softmax chain"]["support"] == 5


# A partition function by annealing ------------------------------------------------------------------------------------------------


def test_the_sum_over_visible_states_is_that_over_all_states():
    names = example("partition_function")
    model = names["machine"](visible=5, hidden=4, seed=3)
    energies = [
        model.visible @ v + model.hidden @ h + v @ model.weights @ h
        for v in torch.tensor(list(itertools.product([0.0, 1.0], repeat=5)), dtype=torch.float64)
        for h in torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    ]
    expected = math.log(math.fsum(math.exp(each) for each in energies))
    assert names["exact_log_partition"](model, block=7) == pytest.approx(expected, rel=1e-13)


def test_gibbs_steps_leave_the_distribution_as_it_is():
    names = example("partition_function")
    model = names["machine"](visible=3, hidden=2, seed=1)
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.float64)
    p = sm.softmax(model.log_f(states, 0.7))
    generator = torch.Generator().manual_seed(0)
    draws = states[torch.multinomial(p, 200_000, replacement=True, generator=generator)]
    after = model.gibbs(draws, 0.7, generator)
    frequencies = torch.bincount((after @ torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).long(), minlength=8) / len(draws)
    assert float(((frequencies - p) / (p * (1 - p) / len(draws)).sqrt()).abs().max()) < 4


def test_annealed_estimates_are_unbiased_and_their_intervals_hold_the_truth():
    names = example("partition_function")
    model, generator = names["machine"](visible=10, hidden=8), torch.Generator().manual_seed(5)
    exact = names["exact_log_partition"](model)
    effective = []
    for steps in (3, 30):
        found = names["estimate"](model, names["log_weights"](model, steps, 100 * 300, generator).view(300, 100))
        ratio = (found.value - exact).exp()
        assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / 300**0.5
        effective.append(float(found.effective.mean()))
    holds = ((found.lower <= exact) & (exact <= found.upper)).double().mean()
    assert float(holds) >= 0.9
    assert effective[0] < effective[1] <= 100


def test_effective_chains_are_those_of_the_definition():
    names = example("partition_function")
    model, log_w = names["machine"](), normal(7, 50)
    found, w = names["estimate"](model, log_w), log_w.exp()
    torch.testing.assert_close(found.effective, w.sum(-1).square() / w.square().sum(-1))
    torch.testing.assert_close(found.value, w.mean(-1).log() + 28 * math.log(2))
    share = w.std(-1) / 50**0.5 / w.mean(-1)
    torch.testing.assert_close(torch.expm1(found.upper - found.value), 1.96 * share)


def test_an_interval_needs_two_chains():
    names = example("partition_function")
    with pytest.raises(ValueError, match=r"^estimate: .*at least 2 chains, got 1"):
        names["estimate"](names["machine"](), torch.zeros(3, 1, dtype=torch.float64))


# The Ising model on a torus -------------------------------------------------------------------------------------------------------


def test_sixteen_spins_are_the_sum_over_65536_states():
    names, beta = example("ising_torus"), 0.37
    states = names["spins"](16).view(-1, 4, 4)
    energies = -(states * (states.roll(1, 1) + states.roll(1, 2))).sum((1, 2))
    p = torch.softmax(-beta * energies, 0)
    mean = p @ energies
    expected = torch.logsumexp(-beta * energies, 0), mean, beta**2 * (p @ (energies - mean).square())
    assert names["per_spin"](4, 2, beta) == pytest.approx([float(each) / 16 for each in expected], rel=1e-12)


def kaufman(width: int, height: int, beta: float) -> float:
    """log Z of a finite torus: Kaufman (1949), Phys. Rev. 76, 1232, eq. 67 ff."""
    gamma = [2 * beta + math.log(math.tanh(beta))]
    for k in range(1, 2 * width):
        c = math.cosh(2 * beta) ** 2 / math.sinh(2 * beta) - math.cos(math.pi * k / width)
        gamma.append(math.acosh(c))
    odd, even = gamma[1::2], gamma[0::2]
    product = lambda function, of: math.prod(2 * function(height * each / 2) for each in of)
    total = product(math.cosh, odd) + product(math.sinh, odd) + product(math.cosh, even) + product(math.sinh, even)
    return width * height / 2 * math.log(2 * math.sinh(2 * beta)) + math.log(total / 2)


@pytest.mark.parametrize("beta", [0.2, 0.43, 0.6])
@pytest.mark.parametrize(("width", "doublings"), [(4, 2), (5, 3), (8, 3)])
def test_a_finite_torus_is_that_of_kaufman(width: int, doublings: int, beta: float):
    found = example("ising_torus")["log_partition"](width, doublings, torch.tensor(beta, dtype=torch.float64))
    assert float(found) == pytest.approx(kaufman(width, 2**doublings, beta), rel=1e-12)


def test_a_wide_torus_is_that_of_onsager_far_from_the_critical_point():
    names = example("ising_torus")
    for beta in (0.2, 0.7):
        assert names["per_spin"](8, 6, beta) == pytest.approx(names["onsager"](beta), rel=2e-3)


def test_onsagers_energy_and_heat_are_the_derivatives_of_his_sum():
    onsager = example("ising_torus")["onsager"]
    for beta in (0.25, 0.4, 0.55):
        below, at, above = (onsager(b) for b in (beta - 1e-4, beta, beta + 1e-4))
        assert at[1] == pytest.approx((below[0] - above[0]) / 2e-4, rel=1e-6)
        assert at[2] == pytest.approx(beta**2 * (below[1] - above[1]) / 2e-4, rel=1e-5)
    critical = onsager(example("ising_torus")["CRITICAL"])
    assert critical[0] == pytest.approx(math.log(2) / 2 + 2 * 0.9159655941772190 / math.pi, abs=1e-12)  # Catalan's constant
    assert critical[1] == pytest.approx(-math.sqrt(2), abs=1e-6)


def test_the_central_charge_is_one_half():
    names = example("ising_torus")
    critical = torch.tensor(names["CRITICAL"], dtype=torch.float64)
    value = float(names["log_partition"](8, 9, critical)) / (8 * 2**9)
    assert (value - names["onsager"](float(critical))[0]) * 6 * 64 / math.pi == pytest.approx(0.5, rel=0.015)


# Codes of classes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5])
def test_bits_that_are_no_blocks_are_refused(length: int):
    names = example("class_codes")
    width = names["bits"](length)
    codes = set(itertools.product((0, 1), repeat=width)) - {
        tuple(names["encode"](block)) for block in itertools.product(range(3), repeat=length)
    }
    for code in (*codes, (0,) * (width + 1), (2,) * width if width else (1,)):
        with pytest.raises(ValueError, match=f"^decode: .*no block of {length} symbols"):
            names["decode"](code, length)
    with pytest.raises(ValueError, match=r"^encode: symbols must be 0, 1 or 2, got 3"):
        names["encode"]([0, 3])


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 8])
def test_blocks_of_symbols_come_back_from_their_bits(length: int):
    names = example("class_codes")
    blocks = list(itertools.product(range(3), repeat=length))
    codes = [tuple(names["encode"](block)) for block in blocks]
    assert len(set(codes)) == len(blocks)
    assert {len(code) for code in codes} == {math.ceil(length * math.log2(3))}
    assert [tuple(names["decode"](code, length)) for code in codes] == blocks


def test_bits_a_symbol_come_near_log_2_of_3_from_above():
    bits = example("class_codes")["bits"]
    assert [bits(length) for length in (1, 2, 3, 5, 12, 41)] == [2, 4, 5, 8, 20, 65]
    assert all(0 < bits(length) - length * math.log2(3) < 1 for length in range(1, 400))


def test_no_classifier_is_right_more_often_than_is_said():
    """The best classifier takes the nearest corner; how often it is right, by two million draws."""
    names = example("class_codes")
    x, y, _, _ = names["triangle"](0, rows=2_000_000, held=0)
    angles = 2 * math.pi * torch.arange(3) / 3
    corners = 3 / math.sqrt(3) * torch.stack([angles.cos(), angles.sin()], 1)
    right = (x @ corners.T).argmax(1) == y
    assert float(right.double().mean()) == pytest.approx(names["most"](), abs=4 * 0.32 / 2e6**0.5)
    assert torch.pdist(corners).tolist() == pytest.approx([3.0] * 3)


def test_bits_say_codes_of_no_class_and_softmax_is_nearly_as_right_as_can_be():
    names = example("class_codes")
    runs = [names["compared"](names["triangle"](seed), names["THREE"], 0, seed) for seed in range(3)]
    for run in runs:
        assert run["softmax"] > names["most"]() - 0.012
        assert run["bits"] < run["softmax"] - 0.02
        assert run["nearest code"] < run["softmax"] - 0.02
        assert 0.005 < run["no class"] < run["mass on none"]
    digits = names["compared"](names["digits"](0), names["random_codes"](10, 4, 0), 0, 0)
    assert digits["bits"] <= digits["nearest code"] < digits["softmax"] - 0.1


# Click rates ----------------------------------------------------------------------------------------------------------------------


def test_scores_less_log_r_are_the_log_odds_of_a_click():
    """Bayes' rule, of frequencies: of views with the rate p, r of the others being kept."""
    p, r = 0.03, 0.02
    kept = p / (p + (1 - p) * r)
    assert math.log(kept / (1 - kept)) + math.log(r) == pytest.approx(math.log(p / (1 - p)))


def test_corrected_rates_are_those_of_the_truth_and_one_number_changes_no_order():
    names = example("click_rates")
    truth, rates, temperature = names["learnt"](0, 100_000)
    found = {name: names["choice"](truth, rate, 7, users=300).measured() for name, rate in rates.items()}
    logged, one, each, tempered, scaled = (found[name] for name in names["MODELS"])
    assert logged["ten best"] == pytest.approx(one["ten best"], rel=1e-6)
    assert each["ten best"] == pytest.approx(tempered["ten best"], rel=1e-6) == pytest.approx(scaled["ten best"], rel=1e-6)
    assert each["ten best"] > logged["ten best"] + 0.1
    assert each["auction"] > max(logged["auction"], one["auction"]) + 0.1
    assert each["calibration error"] < one["calibration error"] / 2 < logged["calibration error"] / 4
    assert each["regret"] < one["regret"] / 2
    assert logged["charged"] > 2
    assert each["charged"] < 1.5
    assert scaled["charged"] == pytest.approx(1, abs=0.2)
    assert scaled["calibration error"] < each["calibration error"]
    assert 0.5 < temperature < 1.5


def test_the_truth_itself_has_no_error_and_no_regret():
    names = example("click_rates")
    truth = names["world"](torch.Generator().manual_seed(0))
    found = names["choice"](truth, truth.rate, 7, users=50).measured()
    assert found["calibration error"] < 1e-9
    assert abs(found["regret"]) < 1e-9
    assert found["ten best"] == found["auction"] == pytest.approx(1, abs=1e-9)
    assert found["charged"] == pytest.approx(1, abs=1e-9)


# The page ------------------------------------------------------------------------------------------------------------------------


def test_the_page_names_every_example():
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert all(f"examples/{name}.py" in page for name in TABLES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(TABLES))
def test_the_examples_return_what_the_page_shows(name: str):
    """But for digits that are a processor's own."""
    found = json.loads(json.dumps(example(name)["main"]()))
    numbers = lambda text: [
        float(part) for part in text.replace("−", "-").split() if part.lstrip("-").replace(".", "", 1).isdigit()
    ]
    page = json.loads((ROOT / "docs" / "gallery.json").read_text())["results"][name]
    page |= {"milliseconds": found["milliseconds"]} if name == "tagging" else {}
    assert numbers(TABLES[name](found)) == pytest.approx(numbers(TABLES[name](page)), rel=0.05, abs=0.02)
