"""The report of a comparison of estimators: its tables, and one page with figures that needs no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.estimators import (
    COMPARISON,
    KL_WARMING,
    SAMPLES,
    SHARE,
    WATCHED,
    Finding,
    Result,
    Study,
    at_least_steps_to,
    mean_of,
    steps_to,
    target,
    vae_task,
)
from softmaxima_lab.compare.estimators_claims import HOLDS, OPEN, Claim, claims
from softmaxima_lab.compare.estimators_gradients import REFERENCE_SAMPLES
from softmaxima_lab.compare.estimators_plan import RELAXED, SOFTMAX, UNBIASED, USUAL, planned
from softmaxima_lab.compare.pixels import digits
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.pages import comparison_columns as shared
from softmaxima_lab.pages.columns import Column
from softmaxima_lab.pages.compare_estimators_figures import figures, picture
from softmaxima_lab.pages.comparison import Report, documented, training_in_words
from softmaxima_lab.pages.documents import Picture
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.pages.page import facts
from softmaxima_lab.wording import listed

EACH = "The mean over seeds ± half of its interval, so wide that those of all estimators hold together at 95 %."


def columns(finding: Finding) -> tuple[Column[Result], ...]:
    """Of the table of a task."""
    elbo, bound = finding.task.questions
    level, family = target(finding), len(finding.trained)

    def over_seeds(
        heading: str, short: str, measure: str, spare: int, meaning: str, best_first: str = "descending"
    ) -> Column[Result]:
        def cell(result: Result) -> str:
            known = result.candidate is not None and not any(map(math.isnan, result.by_seed(measure)))
            return plus_minus(mean_of(result.by_seed(measure), family)) if known else ""

        return Column(heading, short, cell, lambda result: result.mean(measure), spare, best_first, meaning=meaning)

    def steps(result: Result) -> str:
        return reaching(steps_to(result, level), at_least_steps_to(result, level), family) if result.candidate else ""

    return (
        shared.name_column("estimator"),
        shared.leading_column(
            finding,
            "ELBO, nats",
            "ELBO",
            "{:.2f}",
            f"A lower bound of log p of a held-out picture, by {SAMPLES} one-hot draws from its encoder, whatever was maximised.",
        ),
        shared.better_column(finding, elbo, elbo.metric.with_unit("better than softmax by"), "vs softmax", 0, shared.BETTER),
        shared.value_column(
            f"bound of {SAMPLES} draws, nats",
            "bound",
            "{:.2f}",
            lambda result: result.bound,
            6,
            "A tighter lower bound of the same, log (1/S) Σ p(x, D)/q(D): less of it is the encoder's fault.",
            "descending",
        ),
        shared.better_column(finding, bound, bound.metric.with_unit("bound better than softmax by"), "bound vs", 9, shared.ALIKE),
        shared.value_column(
            "its own objective, nats",
            "own",
            "{:.2f}",
            lambda result: result.mean("own"),
            4,
            "What it maximises, on the same pictures: where that is above the ELBO, what it decodes are no draws.",
            "descending",
        ),
        over_seeds(
            "gradient SNR",
            "SNR",
            "snr",
            1,
            "|E g| over the root of the variance of a step's gradient by the encoder's weights, over batches and draws, at the "
            f"weights that {UNBIASED.name} has half-way. {EACH}",
        ),
        over_seeds("SNR of the draws", "of draws", "snr of draws", 5, "The same without the variance over batches."),
        over_seeds(
            "relative bias of the gradient",
            "bias",
            "bias",
            2,
            f"|E g − E ĝ|/|E ĝ|, ĝ of {UNBIASED.name} with {REFERENCE_SAMPLES} draws on the same batches; without a bias it is "
            "around 0, by chance on either side.",
            "ascending",
        ),
        Column(
            "steps to converge",
            "steps",
            steps,
            lambda result: fmean(steps_to(result, level)),
            3,
            "ascending",
            meaning=f"Until the ELBO of {WATCHED} held-out pictures, those of the curves, is and stays {100 * SHARE:.0f} % of the "
            f"way from pixel frequencies to the best that is reached, that is {level:.2f} nats. {EACH} In brackets, how many seeds "
            "get there, where not all do: the others count with all steps, so that the mean is larger.",
        ),
        *shared.step_columns(finding, "estimators", "{:.1f}", 2),
    )


def plus_minus(found: Difference) -> str:
    """A mean with half of its interval, in as many digits as that tells; of what is infinite with any seed there is none."""
    if math.isnan(found.mean):
        return "∞"
    if not math.isfinite(found.low):
        return f"{found.mean:.2g} ± ∞".replace("-", "−")
    digits = max(0, 1 - math.floor(math.log10(found.reach))) if found.reach > 0 else 2
    return f"{round(found.mean, digits) + 0.0:.{digits}f} ± {found.reach:.{digits}f}".replace("-", "−")  # + 0.0: no −0


def reaching(steps: Sequence[float], at_least: Sequence[float], comparisons: int) -> str:
    """The mean of steps, and with how many seeds it gets there, where not with all."""
    there = sum(map(math.isfinite, steps))
    if not there:
        return "never"
    if there < len(steps):
        return f"> {fmean(at_least):.0f} ({there} of {len(steps)})"
    found = mean_of(steps, comparisons)
    return f"{found.mean:.0f} ± {found.reach:.0f}" if math.isfinite(found.reach) else f"{found.mean:.0f} ± ∞"


CAPTION = (
    "Pixel frequencies: how often each pixel is 1 where all are trained. softmax decodes probabilities in the place of draws, "
    "which is no estimate of the ELBO. The number behind a name is its temperature; ST is straight-through, one-hot forward with "
    f"a relaxed gradient. {UNBIASED.name} has the mean of the other draws for a baseline; REBAR and RELAX have control variates. "
    "Each step has four evaluations of the decoder a picture, softmax has one."
)


def last(finding: Finding, result: Result) -> list[str]:
    """How far what it maximises is above the ELBO, where that is no ELBO of draws."""
    if result.candidate is None or result.candidate.kind not in (SOFTMAX.kind, RELAXED):
        return []
    more = result.mean("own") - result.elbo
    return [f"what it maximises is {more:.2f} nats above the ELBO of draws, which decoding relaxed vectors makes it believe"]


def settings(study: Study) -> Mapping[str, str]:
    warming = (
        f"; the weight of KL rises to 1 in the first {100 * KL_WARMING:.0f} % of the steps. Both are one for all estimators, set "
        "by hand: one whose best are others is not shown at its best"
    )
    return {"Model": study.findings[0].task.model, "Training": training_in_words(study, warming)}


# What is said -----------------------------------------------------------------------------------------------------------

SAID = (
    "Said of Gumbel-softmax in a VAE, without data, a network or a source that are named, is an ELBO that is better from softmax "
    "to τ = 1, to τ = 0.5 and to a control variate (here REBAR), and an SNR of the gradient and a speed of convergence that are "
    "best of softmax, then with a control variate, then of τ = 1, and last of τ = 0.5; by which objective is not said, and here "
    "it is the ELBO of draws. The intervals hold for all of these claims together, at 95 %."
)


def claim_cells(claim: Claim) -> list[str]:
    """What is claimed, what was measured, and whether it holds."""
    fewer = claim.measure == "steps to converge"
    said = f"{claim.measure}: {claim.better} {'fewer than' if fewer else 'above'} {claim.worse}"
    if not math.isfinite(claim.gain.mean):
        return [said, "not measured with every seed", claim.verdict]
    if claim.measure == "gradient SNR":
        ends = (claim.gain.mean, claim.gain.low, claim.gain.high)
        mean, low, high = (f"{math.exp(each):.2f}" if math.isfinite(each) else "∞" if each > 0 else "0" for each in ends)
        return [said, f"{mean} times as much ({low} to {high})", claim.verdict]
    digits, unit = (0, "steps fewer") if fewer else (2, "nats")
    mean = f"{claim.gain.mean:+.{digits}f}".replace("-", "−")
    half = f"{claim.gain.reach:.{digits}f}" if math.isfinite(claim.gain.reach) else "∞"
    return [said, "; ".join(filter(None, (f"{mean} ± {half} {unit}", claim.told))), claim.verdict]


def claims_in_words(finding: Finding) -> str:
    """How many of the claims hold, and which do not."""
    found = claims(finding)
    if not found:
        return ""
    by = {verdict: [claim_cells(claim)[0] for claim in found if claim.verdict == verdict] for verdict in {c.verdict for c in found}}
    holds, undecided = len(by.get(HOLDS, [])), len(by.get(OPEN, []))
    fails = [words for verdict, all_words in by.items() if verdict not in (HOLDS, OPEN) for words in all_words]
    told = (
        f"Of {len(found)} claims that are made of Gumbel-softmax in a VAE, which report.html lists: hold {holds}, do not hold "
        f"{len(fails)}, open {undecided}."
    )
    return f"{told} What does not hold: {listed(fails)}." if fails else told


def claims_table(finding: Finding) -> str:
    """A line a claim."""
    return table(["what is said", "measured", "verdict"], map(claim_cells, claims(finding)), left=(0, 2))


def claims_section(finding: Finding) -> list[str]:
    """Of a page."""
    judged = {cells[0]: f"{cells[2]}: {cells[1]}" for cells in map(claim_cells, claims(finding))}
    return [facts(f"{finding.task.heading}: what is said, and what was measured", judged, [SAID])] if judged else []


REPORT = Report(
    COMPARISON,
    heading="Which estimator of a gradient?",
    lead="One categorical variational autoencoder, trained with every estimator, from the same weights, on the same batches.",
    columns=columns,
    figures=figures,
    caption=lambda finding: CAPTION,
    settings=settings,
    of_bar=lambda result: "They know no picture from another.",
    last=last,
    numbers="bounds",
    note=claims_in_words,
    sections=claims_section,
    besides=lambda finding: [SAID, claims_table(finding)],
)


ENTRY = documented(
    REPORT,
    "softmaxima compare estimators, in 10 minutes",
    lambda: [vae_task(digits(), planned(()))],
    Settings(*USUAL),
    "compare-estimators.json",
    lambda finding: [
        Picture(
            "compare-estimators.png", picture(finding), "ELBO against the steps, and the SNR of a step's gradient, by estimator"
        )
    ],
)
