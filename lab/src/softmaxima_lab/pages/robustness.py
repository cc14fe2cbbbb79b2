"""What maps, temperatures and detectors are worth against attacks, in tables, a picture and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.compare.differences import of_mean
from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import GRID, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies.robustness import BATCH, EPOCHS, EPS, RESTARTS, STEPS, TRAINING_STEPS, WIDTH
from softmaxima_lab.studies.robustness_detectors import ATTACKERS as KNOWING
from softmaxima_lab.studies.robustness_detectors import FALSE_ALARMS, ROWS, Detection
from softmaxima_lab.studies.robustness_peers import QUERIES
from softmaxima_lab.studies.robustness_study import PEER_SEEDS, Study, gains, run, steps, verdicts

ASIDE = 1.08  # by which points of one temperature stand aside, so that none is on another
COLOURS = ("#0072B2", "#D55E00", "#009E73")
CAPTION = (
    "Accuracy in % on the pictures that are tested, the mean over seeds ± its standard error, of seeds and of pictures. Gradients: "
    f"what withstands each of three attacks, on margin, DLR and cross-entropy of logits, of {STEPS} steps from {RESTARTS} points, "
    f"ε = {EPS:g} under ℓ∞ of pixels from 0 to 1. Black box: what withstands ART's Square, {QUERIES} queries. All: what withstands "
    f"all four. Certified: by interval bound propagation. One hidden layer of {WIDTH}, {EPOCHS} epochs of Adam in batches of "
    f"{BATCH}; adversarial: on margin attacks of {TRAINING_STEPS} steps; certified: half of the loss through intervals. On "
    "softmax: the gain in points over softmax at τ = 1 with an interval that holds at once with the others at 95 % (of seeds "
    "and of pictures, paired by both; Bonferroni); ↑ and ↓ where it leaves out 0. winsorized: cross-entropy with the winsorized "
    "logsumexp, not below 0."
)
AT_TEST_CAPTION = (
    f"Accuracy in % after one attack of {STEPS} steps from the pictures, on −log p_t through p or on logits; the decision is "
    "that of probabilities over τ. No gradient: the share of pictures where that through p is exactly 0."
)
PEERS_CAPTION = (
    "Accuracy in % that each attacker leaves of networks trained on softmax at τ = 1, at the same ε, with as many steps and "
    f"points, {PEER_SEEDS} seeds, ± as above; Square: {QUERIES} queries. s: its seconds for a plain network, the mean over seeds, "
    "without an error."
)
DETECTION_CAPTION = (
    f"Area under the ROC curve (0.5 is chance) | share caught in % at {100 * FALSE_ALARMS:g} % false alarms, of attacked pictures "
    f"that mislead a plainly trained network, ± as above, of pictures "
    f"at most. ms: the detector and probabilities over another temperature, for {ROWS} rows."
)


CLAIMS = {
    "worst-attack": "ε·sign(p − mean p) is the perturbation under ℓ∞ that raises logsumexp most",
    "temperature-defence": "a temperature is a defence, and a higher one a better one",
    "robust-30": "robust maps and sums gain 30 % of accuracy under attack",
    "masking": "accuracies under attack are those of robust networks, not of hidden gradients",
    "detector-1ms": "attacks are detected, and the temperature changed, within 1 ms",
}


def error(values: Sequence[float], pictures: float) -> float:
    """The standard error of a mean over seeds and pictures, of shares or of areas under a curve.

    Pictures: a number in [0, 1] of each with the mean a has at most the variance a (1 − a); and so an area under the ROC curve over
    the lesser of both counts (Birnbaum & Klose, 1957).
    """
    mean = fmean(values)
    return math.sqrt(of_mean(values).variance + mean * (1 - mean) / pictures) if len(values) > 1 else math.nan


def shown(values: Sequence[float], pictures: float, scale: float = 100, digits: int = 1) -> str:
    """A mean and its standard error."""
    return f"{scale * fmean(values):.{digits}f} ± {scale * error(values, pictures):.{digits}f}"


def trained_table(study: Study) -> str:
    """A line a way to train."""
    gained = {(gain.training, gain.what): gain.difference for gain in gains(study)}
    rows = []
    for each in study.trained:
        found = gained.get((each.training, each.name))
        mark = "" if found is None else " ↑" if found.better else " ↓" if found.worse else ""
        mark = f"{mark} masked" if each.masked else mark
        gain = "" if found is None else f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
        shares = (shown(each.accuracies[what], study.pictures) for what in ("clean", "gradients", "black box", "all", "certified"))
        rows.append([each.training, each.name, *shares, f"{gain}{mark}"])
    return table(["training", "loss", "clean", "gradients", "black box", "all", "certified", "on softmax"], rows, left=(0, 1))


def at_test_table(study: Study) -> str:
    """A line a temperature at test time, columns for each training."""
    kinds = tuple(dict.fromkeys(each.training for each in study.at_test))
    by = {(each.training, each.temperature): each for each in study.at_test}
    cells = lambda one: (
        shown(one.through_probabilities, study.pictures), shown(one.on_logits, study.pictures), f"{100 * fmean(one.blind):.1f}"
    )  # fmt: skip
    rows = [
        [f"{tau:g}", *(cell for kind in kinds for cell in cells(by[kind, tau]))]
        for tau in dict.fromkeys(each.temperature for each in study.at_test)
    ]
    heads = (f"{kind}, {what}" for kind in kinds for what in ("through p", "on logits", "no gradient"))
    return table(["τ at test", *heads], rows)


def peers_table(study: Study) -> str:
    """A line an attacker."""
    kinds = tuple(dict.fromkeys(each.training for each in study.attackers))
    by = {(each.training, each.name): each for each in study.attackers}
    rows = [
        [name, *(shown(by[kind, name].accuracies, study.pictures) for kind in kinds), f"{fmean(by[kinds[0], name].seconds):.2f}"]
        for name in dict.fromkeys(each.name for each in study.attackers)
    ]
    return table(["attacker", *kinds, "s"], rows)


def misled(study: Study, found: Detection) -> float:
    """How many pictures of the half that a detector is tested on are attacked with success."""
    return max(1.0, fmean(found.misled) * (study.pictures - study.pictures // 2))


def detection_table(study: Study) -> str:
    """A line a statistic, a column an attacker."""
    by = {(each.statistic, each.attacker): each for each in study.detections}
    cell = lambda one: f"{shown(one.areas, misled(study, one), 1, 2)} \\| {shown(one.caught, misled(study, one), 100, 0)}"
    rows = [
        [statistic, *(cell(by[statistic, attacker]) for attacker in KNOWING), f"{study.milliseconds[statistic]:.3f}"]
        for statistic in dict.fromkeys(each.statistic for each in study.detections)
    ]
    return table(["detector", *(f"attacker {attacker}" for attacker in KNOWING), "ms"], rows)


def sentences(study: Study) -> str:
    """The claims, and what is found of each, a line each."""
    return "\n".join(f"- **Claim: {CLAIMS[name]}.** Found: {said}." for name, said in verdicts(study).items())


def picture(study: Study) -> go.Figure:
    """Accuracy by loss, against the temperature at test time, and how well each attacker is seen."""
    titles = ("under all attacks, by loss", "by the temperature at test time", "area under the ROC curve")
    plot = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.09, column_widths=[0.4, 0.33, 0.27])
    for colour, training in zip(COLOURS, ("plain", "adversarial", "certified"), strict=True):
        own = [each for each in study.trained if each.training == training][::-1]
        errors = [100 * error(each.accuracies["all"], study.pictures) for each in own]
        plot.add_scatter(
            x=[100 * fmean(each.accuracies["all"]) for each in own], y=[each.name for each in own],
            error_x={"array": errors, "thickness": 1.5}, mode="markers",
            marker={"size": 8, "color": colour}, name=f"{training} training", row=1, col=1,
        )  # fmt: skip
    for colour, training in zip(COLOURS, ("plain", "adversarial"), strict=False):
        own = [each for each in study.at_test if each.training == training]
        for name, dash, aside in (("through_probabilities", "solid", 1 / ASIDE), ("on_logits", "dash", ASIDE)):
            plot.add_scatter(
                x=[each.temperature * aside for each in own], y=[100 * fmean(getattr(each, name)) for each in own],
                error_y={"array": [100 * error(getattr(each, name), study.pictures) for each in own], "thickness": 1},
                mode="lines+markers", line={"color": colour, "dash": dash, "width": 1.5}, marker={"size": 5},
                showlegend=training == "plain",
                name={"through_probabilities": "attack through probabilities", "on_logits": "the same attack on logits"}[name],
                row=1, col=2,
            )  # fmt: skip
    for place, symbol, statistic in ((-0.12, "circle", "margin"), (0.0, "square", "entropy"), (0.12, "diamond", "energy")):
        own = [each for each in study.detections if each.statistic == statistic]
        errors = [error(each.areas, misled(study, each)) for each in own]
        plot.add_scatter(
            x=[KNOWING.index(each.attacker) + place for each in own], y=[fmean(each.areas) for each in own],
            error_y={"array": errors}, mode="lines+markers", marker={"size": 8, "symbol": symbol},
            line={"color": "#666666", "width": 1}, name=f"detector by {statistic}", row=1, col=3,
        )  # fmt: skip
    chance = {"annotation_text": "chance", "annotation_position": "top left", "row": 1, "col": 3}
    plot.add_hline(y=0.5, line={"dash": "4px,3px", "color": "#999999", "width": 1}, **chance)  # type: ignore[arg-type]
    plot.update_yaxes(range=[0.45, 1.02], row=1, col=3)
    plot.update_xaxes(title="accuracy, %", **GRID, row=1, col=1)
    plot.update_xaxes(title="τ at test time", type="log", dtick=1, row=1, col=2)
    attackers = [attacker.replace(" ", "<br>", 1) for attacker in KNOWING]
    plot.update_xaxes(tickvals=list(range(len(KNOWING))), ticktext=attackers, row=1, col=3)
    plot.update_yaxes(title="accuracy, %", row=1, col=2)
    return styled(plot, 520, 160, 20, 40, 50, width=1200, legend={"orientation": "h", "y": -0.16})


def blocks(found: Study) -> list[Block]:
    """What docs/robust.md says of it."""
    says = "Accuracy under attack by loss and by temperature at test time, and what detectors see"
    seeds = f"{found.pictures} pictures, {len(found.trained[0].blind)} seeds."
    drawn = Picture("robust-study.png", picture(found), says)
    return [
        Block("robust-verdicts", (sentences(found),)),
        Block("robust-study", (drawn, trained_table(found)), f"{CAPTION} {seeds}"),
        Block("robust-test-time", (at_test_table(found),), f"{AT_TEST_CAPTION} {seeds}"),
        Block("robust-peers", (peers_table(found),), PEERS_CAPTION),
        Block("robust-detectors", (detection_table(found),), f"{DETECTION_CAPTION} {seeds}"),
    ]


ENTRY = Entry(
    "robustness",
    "trains on digits with every loss and attacks, in 8 minutes",
    blocks,
    lambda told: run(starting=told),
    "robust-study.json",
    Study,
    facts=lambda found: {"seeds": len(found.trained[0].blind), "epochs": EPOCHS, "eps": EPS, "verdicts": verdicts(found)},
    steps=steps,
    threads=1,
)
