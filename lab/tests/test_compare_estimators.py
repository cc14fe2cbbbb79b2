"""`compare estimators`: what the VAE is, what gradients are worth, what is compared, said and written."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from softmaxima.sampling.estimators import ESTIMATORS
from softmaxima_lab.compare import estimators
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.engine import Reached, Run, compare, difference, summary
from softmaxima_lab.compare.estimators import (
    COMPARISON,
    PIXELS,
    Finding,
    Result,
    Task,
    Training,
    at_least_steps_to,
    mean_of,
    steps_to,
    target,
    vae_task,
)
from softmaxima_lab.compare.estimators_claims import COUNT, FAILS, HOLDS, OPEN, ORDERS, claims
from softmaxima_lab.compare.estimators_gradients import worth
from softmaxima_lab.compare.estimators_plan import CANDIDATES, LEFT_OUT, RELAXED, SOFTMAX, UNBIASED, Candidate, planned
from softmaxima_lab.compare.pixels import digits
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.compare.vae import VAE, Estimated
from softmaxima_lab.pages.compare_estimators import claim_cells, columns

BY_NAME = {candidate.name: candidate for candidate in CANDIDATES}
SOME = planned(["Gumbel-softmax 0.5", "RELAX"])
TINY = Settings(seeds=2, steps=6, quick=True)


def task(entries: Sequence[Candidate] = SOME) -> Task:
    return vae_task(digits(), tuple(entries))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def few_draws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators, "QUICK_BATCHES", 2)
        patch.setattr(estimators, "SAMPLES", 4)
        yield


# The network ----------------------------------------------------------------------------------------------------------------


def small() -> tuple[VAE, Tensor]:
    """Two latent variables of three classes, of weights that make them matter, none too rare to be drawn, and one picture."""
    torch.manual_seed(0)
    vae = VAE(torch.full((5,), 0.5), latents=2, classes=3, hidden=6)
    for network, scale in ((vae.encoder, 2), (vae.decoder, 5)):
        for parameter in network.parameters():
            parameter.data.mul_(scale)
    return vae, torch.tensor([[1.0, 0.0, 1.0, 1.0, 0.0]])


def enumerated(vae: VAE, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(q, log p(x | D), log p(x)) of one picture, over all D, with the gradient."""
    every = torch.tensor(list(itertools.product(range(3), repeat=2)))
    draws = functional.one_hot(every, 3).float().unsqueeze(1)  # [9, 1, 2, 3]
    q = (vae.encoder(x).softmax(-1) * draws).sum(-1).prod(-1).squeeze(-1)
    logits = vae.decoder(draws).squeeze(1)
    likelihood = (x * functional.logsigmoid(logits) + (1 - x) * functional.logsigmoid(-logits)).sum(-1)
    return q, likelihood, likelihood.logsumexp(0) - math.log(9)


def exact(vae: VAE, x: Tensor) -> Tensor:
    """The ELBO of one picture, by the sum over all D."""
    q, likelihood, _ = enumerated(vae, x)
    return (q * (likelihood - math.log(9) - q.log())).sum()


def test_bounds_are_those_of_the_sum_over_all_draws() -> None:
    vae, x = small()
    log_p = float(enumerated(vae, x)[2].detach())
    elbo, bound = (float(of) for of in vae.bounds(x, 20_000, 0))
    assert elbo == pytest.approx(float(exact(vae, x).detach()), abs=0.05)
    assert bound == pytest.approx(log_p, abs=0.05)
    assert elbo < log_p - 0.1  # or the two say the same
    several = torch.stack([vae.bounds(x, 4, seed)[1] for seed in range(400)]).mean()
    assert elbo < float(several) < log_p


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda candidate: candidate.name)
def test_what_claims_no_bias_has_none_and_one_hot_draws_have_the_elbo(candidate: Candidate) -> None:
    vae, x = small()
    weights = list(vae.encoder.parameters())
    flat = lambda value: torch.cat([g.flatten() for g in torch.autograd.grad(value, weights)])
    truth, elbo = flat(-exact(vae, x)), float(exact(vae, x).detach())
    estimated = Estimated(vae, candidate)
    generator = torch.Generator().manual_seed(0)
    values = [estimated.negative(x.expand(400, -1), generator).mean() for _ in range(60)]
    gradients = torch.stack([flat(value) for value in values])
    own = torch.stack(values).detach()
    deviation = (gradients.mean(0) - truth).abs() / (gradients.std(0) / math.sqrt(60) + 1e-6)
    unbiased = candidate != SOFTMAX and ESTIMATORS[candidate.map].unbiased
    assert (float(deviation.max()) < 5) == unbiased
    apart = abs(float(own.mean()) + elbo) / (float(own.std()) / math.sqrt(60) + 1e-6)
    assert (apart < 5) == (candidate.kind not in (SOFTMAX.kind, RELAXED))


def test_every_estimator_of_expectation_is_compared_or_left_out() -> None:
    assert {candidate.map for candidate in CANDIDATES} - {"softmax"} == ESTIMATORS.keys() - LEFT_OUT.keys()


def test_only_what_learns_has_a_gradient_of_its_own() -> None:
    vae, x = small()
    for candidate in CANDIDATES:
        estimated = Estimated(vae, candidate)
        estimated.negative(x, torch.Generator().manual_seed(0), learns=True).mean()
        own = [parameter.grad is not None for parameter in estimated.control.parameters()] if estimated.control else []
        assert bool(own) == (candidate.name == "RELAX")
        assert all(own)
        assert all(parameter.grad is None for parameter in vae.parameters())


# What a gradient is worth ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bias", "of_batches", "of_draws"), [(0.0, 1.0, 2.0), (1.5, 0.5, 0.5), (0.0, 1.0, 0.0), (2.0, 0.0, 1.0)])
def test_what_a_known_gradient_is_worth(bias: float, of_batches: float, of_draws: float) -> None:
    """g = m + bias u + batch noise + noise of draws, ĝ = m + the same batch noise + its own, in 8 dimensions."""
    n, random = 3000, torch.Generator().manual_seed(0)
    noise = lambda: torch.randn(n, 8, generator=random)
    m, u = torch.full((8,), 0.5), torch.eye(8)[0]
    batch, draws, reference = of_batches * noise(), {draw: of_draws * noise() for draw in (1, 2)}, 0.3 * noise()
    found = worth(lambda number, draw: m + bias * u + batch[number] + draws[draw][number], m + batch + reference)
    size, scale = float((m + bias * u).norm()), float(m.norm())
    assert found["snr"] == pytest.approx(size / math.sqrt(8 * (of_batches**2 + of_draws**2)), rel=0.1)
    expected = size / math.sqrt(8) / of_draws if of_draws else math.inf
    assert found["snr of draws"] == pytest.approx(expected, rel=0.1)
    assert found["bias"] == pytest.approx(bias / scale, abs=0.1)


def test_a_bias_relative_to_nothing_is_infinite_and_what_was_not_measured_is_blank() -> None:
    around_0 = torch.tensor([[1.0], [-1.0]])
    assert worth(lambda number, draws: torch.tensor([float(draws)]), around_0)["bias"] == math.inf
    finding = said({"softmax": -29.0, "REINFORCE": -20.0, PIXELS: -26.0}, {"softmax": math.inf}, {})
    cells = {column.short: column.cell(finding.of("softmax")) for column in columns(finding)}
    assert (cells["SNR"], cells["of draws"]) == ("∞", "")


# The experiment -------------------------------------------------------------------------------------------------------------


def test_one_estimator_under_two_names_is_no_better_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other draws, so that chance makes a difference."""

    class Other(Training):
        def __init__(self, given: Task, candidate: Candidate, seed: int, steps: int) -> None:
            super().__init__(given, candidate, seed, steps)
            self.generator.manual_seed(seed + (1000 if candidate.name == "again" else 2000))

    monkeypatch.setattr(estimators, "Training", Other)
    again = [replace(BY_NAME["ReinMax"], name=name) for name in ("softmax", "again")]
    finding = compare(COMPARISON, [task([again[0], UNBIASED, again[1]])], Settings(seeds=3, steps=20, quick=True)).findings[0]
    for question in finding.task.questions:
        gain = finding.gain(finding.of("again"), question)
        assert gain.mean != 0
        assert (gain.better, gain.worse) == (False, False)
    assert all(verdict.taken is None or verdict.taken.name != "again" for verdict in finding.verdicts)


def test_weights_that_are_no_numbers_give_no_bound_and_no_loss() -> None:
    vae, x = small()
    next(vae.parameters()).data.fill_(math.nan)
    assert all(bool(bound.isnan().all()) for bound in vae.bounds(x, 2, 0))
    for candidate in CANDIDATES:
        assert math.isnan(float(Estimated(vae, candidate).negative(x, torch.Generator(), learns=True).mean().detach()))


def test_pixel_frequencies_are_the_likelihood_of_counts() -> None:
    given = task()
    rows = compare(COMPARISON, [given], replace(TINY, seeds=1)).findings[0].of(PIXELS)
    p = (given.x.sum(0) + 1) / (len(given.x) + 2)
    expected = -functional.binary_cross_entropy(p.expand_as(given.held), given.held, reduction="none").sum(-1).mean()
    assert rows.elbo == pytest.approx(float(expected), rel=1e-5)


# What it says ---------------------------------------------------------------------------------------------------------------


def said(elbo: dict[str, float], snr: dict[str, float], steps: dict[str, float]) -> Finding:
    """Of estimators that reach such an ELBO, up to a little chance, with such an SNR, and half of it after so many steps."""
    random = np.random.default_rng(0)

    def run(name: str) -> Run:
        batches = tuple((elbo[name] + random.normal(0, 0.01, 16)).tolist())
        besides = {"snr": snr.get(name, 1.0) * (1 + random.normal(0, 0.01)), "own": elbo[name]}
        curve = {"taken": (0.0, steps.get(name, 50.0) + random.normal(0, 1), 1000.0), "curve": (-30.0, elbo[name], elbo[name])}
        kinds = {"elbo": batches, "bound": batches}
        means = {**{kind: float(np.mean(batches)) for kind in kinds}, **besides}
        return Run(Reached(means, kinds, dict.fromkeys(kinds, 500), curve), 1.0, 1.0)

    done = [("digits", {name: run(name) for name in elbo}) for _ in range(5)]
    return summary(COMPARISON, [task([BY_NAME[name] for name in elbo if name != PIXELS])], Settings(seeds=5), done).findings[0]


AS_SAID = {
    "softmax": -85.3,
    "Gumbel-softmax 1": -83.1,
    "Gumbel-softmax 0.5": -82.5,
    "REINFORCE": -83.0,
    "REBAR": -81.9,
    PIXELS: -86.0,
}
SNR = {"softmax": 12.5, "Gumbel-softmax 1": 3.2, "Gumbel-softmax 0.5": 1.8, "REBAR": 8.7}
STEPS = {"softmax": 100.0, "Gumbel-softmax 1": 167.0, "Gumbel-softmax 0.5": 250.0, "REBAR": 111.0}


def test_what_is_said_holds_where_it_is_what_is_measured_and_only_there() -> None:
    assert sum(len(order) - 1 for order in ORDERS.values()) == COUNT == 9
    slow = {name: steps * 2 for name, steps in STEPS.items()}
    held = claims(said(AS_SAID, SNR, slow))
    assert {claim.verdict for claim in held if claim.measure != "steps to converge"} == {HOLDS}
    other = claims(said({**AS_SAID, "REBAR": -85.0}, {**SNR, "REBAR": 1.0, "Gumbel-softmax 0.5": 3.2}, slow))
    by = {(claim.measure, claim.better, claim.worse): claim.verdict for claim in other}
    assert by["ELBO", "REBAR", "Gumbel-softmax 0.5"] == FAILS
    assert by["ELBO", "Gumbel-softmax 0.5", "Gumbel-softmax 1"] == HOLDS
    assert by["gradient SNR", "REBAR", "Gumbel-softmax 1"] == FAILS
    assert by["gradient SNR", "Gumbel-softmax 1", "Gumbel-softmax 0.5"] == OPEN


def test_a_gain_in_snr_is_the_logarithm_of_a_ratio() -> None:
    finding = said(AS_SAID, SNR, STEPS)
    (gain,) = (c.gain for c in claims(finding) if (c.measure, c.better, c.worse) == ("gradient SNR", "softmax", "REBAR"))
    ratios = np.divide(finding.of("softmax").by_seed("snr"), finding.of("REBAR").by_seed("snr"))
    half = stats.t.isf(0.025 / COUNT, 4) * np.std(np.log(ratios), ddof=1) / math.sqrt(5)
    assert (gain.mean, gain.reach) == pytest.approx((np.log(ratios).mean(), half))


def test_convergence_is_told_of_what_gets_there() -> None:
    finding = said(
        {"softmax": -29.0, "REINFORCE": -20.0, "ReinMax": -20.0, PIXELS: -26.0}, {}, {"REINFORCE": 300.0, "ReinMax": 100.0}
    )
    assert target(finding) == pytest.approx(-23.0, abs=0.1)
    assert set(steps_to(finding.of("softmax"), target(finding))) == {math.inf}
    assert np.mean(steps_to(finding.of("REINFORCE"), -25.0)) == pytest.approx(150, abs=3)
    cells = {column.short: [column.cell(result) for result in finding.trained] for column in columns(finding)}
    assert "never" in cells["steps"]
    assert all(len(claim_cells(claim)) == 3 for claim in claims(finding))


def test_convergence_is_reached_where_it_stays() -> None:
    steps = lambda *curve: steps_to(_with_curves([curve]), -22.0)[0]
    assert steps(-26.0, -24.0, -20.0, -20.0) == pytest.approx(150.0)
    assert steps(-26.0, -20.0, -24.0, -20.0) == pytest.approx(250.0)  # not with the first time
    assert steps(-26.0, -20.0, -24.0, -24.0) == math.inf
    assert at_least_steps_to(_with_curves([(-26.0, -26.0, -26.0, -26.0)]), -22.0) == [300.0]


def _with_curves(curves: list[tuple[float, ...]]) -> Result:
    taken = (0.0, 100.0, 200.0, 300.0)
    runs = [Run(Reached({}, {}, {}, {"taken": taken, "curve": curve}), 1.0, 1.0) for curve in curves]
    return Result("one", None, tuple(runs))


def test_who_never_converges_is_told_by_its_steps_and_an_interval() -> None:
    assert not mean_of([325.0, 0.0], COUNT).better  # of two seeds one gets there
    levels = {"softmax": -29.0, "Gumbel-softmax 1": -25.0, "Gumbel-softmax 0.5": -20.0, "REBAR": -20.0, PIXELS: -26.0}
    many = {(c.better, c.worse): c for c in claims(said(levels, {}, {})) if c.measure == "steps to converge"}
    assert many["softmax", "REBAR"].verdict == FAILS
    assert "softmax never there" in many["softmax", "REBAR"].told


def test_the_best_is_taken_and_what_cannot_be_told_from_it_is_named() -> None:
    levels = {"softmax": -29.0, "REINFORCE": -22.0, "ReinMax": -20.0, "REBAR": -20.001, PIXELS: -26.0}
    verdict = said(levels, {}, {}).verdicts[0]
    assert verdict.headline in ("Take ReinMax", "Take REBAR")
    assert verdict.reason.endswith(f"of all pairs: {'REBAR' if 'ReinMax' in verdict.headline else 'ReinMax'}.")


def test_what_cannot_be_told_from_the_best_is_so_of_all_pairs() -> None:
    """Six of four estimators: by as much less as three would show, it is named, and by what six show it is not."""
    best, pairs = -20.0, 6

    def at(fall: float) -> tuple[Difference, Difference, str]:
        finding = said({"softmax": -29.0, "REINFORCE": -22.0, "ReinMax": best, "REBAR": best - fall, PIXELS: -26.0}, {}, {})
        taken, other, question = finding.of("ReinMax"), finding.of("REBAR"), finding.task.questions[0]
        assert finding.verdicts[0].headline == "Take ReinMax"
        three, six = (difference(taken, other, question, comparisons) for comparisons in (3, pairs))
        return three, six, finding.verdicts[0].reason

    found = [at(fall) for fall in np.arange(0.0, 0.01, 0.0005)]
    assert any(three.better and not six.better for three, six, _ in found)
    for _, six, reason in found:
        assert reason.endswith("of all pairs: REBAR." if not six.better else "It is better than every other, of all pairs.")


def test_what_could_have_been_shown_is_told_where_nothing_looks_better() -> None:
    verdict = said({"softmax": -20.0, "REINFORCE": -22.0, "ReinMax": -22.0, PIXELS: -26.0}, {}, {}).verdicts[0]
    assert verdict.headline == "Stay with softmax"
    assert re.search(r"Yet for half of the estimators only a gain above 0\.\d+ nats would have shown\.", verdict.reason)
