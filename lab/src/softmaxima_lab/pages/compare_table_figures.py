"""The figures of a comparison."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import torch
from plotly.colors import sample_colorscale
from torch import Tensor

from softmaxima.integrations.pairs import Pair
from softmaxima.maps import REGISTRY, find_map
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.fold_differences import difference
from softmaxima_lab.compare.measures import METRICS, Result
from softmaxima_lab.compare.table import Comparison
from softmaxima_lab.pages.comparison import front_figure, label_of
from softmaxima_lab.pages.figures import (
    GREY,
    Figure,
    Point,
    Priced,
    bar_above,
    colour_of,
    cost_plot,
    gain_plot,
    panel,
    panels,
    reading_of_gains,
    rows_layout,
    styles,
)
from softmaxima_lab.pages.reliability import reliability_panels


def figures(comparison: Comparison) -> tuple[Figure, ...]:
    """The figures of the page."""
    return (
        gain_figure(comparison),
        cost_figure(comparison),
        class_figure(comparison),
        reliability_figure(comparison),
        support_figure(comparison),
        curve_figure(comparison),
        simplex_figure(comparison),
    )


def _labels(comparison: Comparison) -> list[str]:
    return [label_of(comparison, result) for result in comparison.results]


def _trained(comparison: Comparison) -> list[Result]:
    """The results of pairs: all but the baseline's."""
    return [result for result in comparison.results if result.pair is not None]


def _map(result: Result) -> str:
    """The name of the map of a pair's result."""
    return result.pair.map if result.pair else ""


def styles_of(comparison: Comparison) -> dict[str, dict[str, str]]:
    """A colour and a symbol for each result."""
    return styles({result.name: result.pair and result.pair.map for result in comparison.results})


def gain_figure(comparison: Comparison) -> Figure:
    """Differences to softmax with their intervals."""
    metric, marks = comparison.metric, styles_of(comparison)
    points = [
        Point(label_of(comparison, result), marks[result.name], comparison.gain(result))
        for result in comparison.results
        if result is not comparison.softmax
    ]
    return Figure(
        "gain",
        f"Differences to softmax: {metric.words}",
        f"{reading_of_gains('pairs', 'folds')} Of what is the same as softmax on every row the "
        "bar is what so few rows leave open, and none of macro F1 and calibration error, which rows do not bound.",
        gain_plot(points, metric),
    )


def cost_figure(comparison: Comparison) -> Figure:
    """The Brier score against the time of a step; names of softmax and of those on the Pareto front."""
    marks, results = styles_of(comparison), [result for result in _trained(comparison) if math.isfinite(result.brier)]
    points = [
        Priced(
            result.name,
            label_of(comparison, result),
            marks[result.name],
            1000 * result.step_seconds,
            result.brier,
            result is comparison.softmax,
        )
        for result in results
    ]

    def gain(name: str, one: int, other: int) -> Difference:
        return difference(results[one], results[other], METRICS[name], comparison.settings.folds, len(results) - 1)

    def better(one: int, other: int) -> bool:
        return gain("brier", one, other).better

    def faster(one: int, other: int) -> bool:
        return gain("cost", one, other).low > METRICS["cost"].least_gain

    return front_figure(
        "cost",
        "Cost against quality",
        "To the left trains faster, further down has more accurate probabilities (a lower Brier score); both axes are logarithmic.",
        ("pair", "pairs", "folds"),
        cost_plot(points, "Brier score", ".4f", better, faster),
    )


CLASSES_SHOWN = 30
NAME_SHOWN = 18  # characters of a class's name


def rarest_first(comparison: Comparison) -> list[int]:
    """The classes that are shown, by index: in order of their rows that were held out, which figure and table name."""
    held_out = [counts.rows for counts in comparison.softmax.classes]
    return sorted(range(len(held_out)), key=held_out.__getitem__)[:CLASSES_SHOWN]


def class_figure(comparison: Comparison) -> Figure:
    """The recall of each class, the rarest first."""
    counted = rarest_first(comparison)
    classes = [(comparison.facts.classes[index][0], comparison.softmax.classes[index].rows) for index in counted]
    names, short = (
        [f"{html.escape(shown(name), quote=False)} ({rows})" for name, rows in classes]
        for shown in (str, _shortened([name for name, _ in classes]))
    )
    recalls = [[100 * result.classes[index].recall for index in counted] for result in comparison.results]
    precisions = [[100 * result.classes[index].precision for index in counted] for result in comparison.results]
    plot = go.Figure(
        go.Heatmap(
            x=names,
            y=_labels(comparison),
            z=recalls,
            customdata=precisions,
            zmin=0,
            zmax=100,
            colorscale=[[0, "#D55E00"], [0.5, "#f0e0c8"], [1, "#0072B2"]],
            colorbar=bar_above("recall"),
            xgap=1 if len(names) <= 15 else 0,  # gaps would hide narrow columns
            ygap=1,
            hovertemplate="%{y}, class %{x}: recall %{z:.1f} %, precision %{customdata:.1f} %<extra></extra>",
        ),
        rows_layout(len(comparison.results), xaxis={"type": "category", "automargin": True, "tickvals": names, "ticktext": short}),
    )
    plot.update_layout(height=rows_layout(len(comparison.results))["height"] + 150, margin_t=24)
    rest = (
        f" The {CLASSES_SHOWN} rarest of {len(comparison.facts.classes)}." if len(comparison.facts.classes) > CLASSES_SHOWN else ""
    )
    return Figure(
        "classes",
        "Class by class",
        "The share of each class's rows that were recognised (recall), the rarest class on the left, with the rows of it "
        "that were held out in brackets, in all folds together: "
        "where a high accuracy hides that a rare class is missed, it shows here." + rest,
        plot,
    )


def _alike(names: Sequence[str]) -> int:
    """How many letters all of several names begin with."""
    if len(names) < 2:
        return 0
    return next((n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), min(map(len, names)))


def _shortened(names: Sequence[str]) -> Callable[[str], str]:
    """What cuts names: what all long ones begin and end with first, then the middle, for names often differ at the end alone."""
    half = NAME_SHOWN // 2
    long = [name for name in names if len(name) > NAME_SHOWN]
    begin = _alike(long)
    end = _alike([name[begin:][::-1] for name in long])

    def cut(name: str) -> str:
        if len(name) <= NAME_SHOWN:
            return name
        if begin + end > half:
            name = "…" * (begin > 0) + name[begin : len(name) - end] + "…" * (end > 0)
        return name if len(name) <= NAME_SHOWN else f"{name[: half - 1].rstrip()}…{name[-half:].lstrip()}"

    return cut


def reliability_figure(comparison: Comparison) -> Figure:
    """Of each pair."""
    results = _trained(comparison)
    return reliability_panels([(label_of(comparison, result), result.bins, colour_of(_map(result))) for result in results])


def support_figure(comparison: Comparison) -> Figure:
    """How many classes get a non-zero probability."""
    classes, results = len(comparison.facts.classes), _trained(comparison)
    groups = support_groups(classes)
    colours = sample_colorscale(
        ["#0a4f8f", "#5ba3cf", "#c3cfdb"], [index / max(1, len(groups) - 1) for index in range(len(groups))]
    )
    plot = go.Figure(
        layout=rows_layout(
            len(results),
            barmode="stack",
            bargap=0.25,
            xaxis={"title": "rows, %", "range": [0, 100]},
        )
    )
    legend = {}
    for (name, sizes), colour in zip(groups.items(), colours, strict=True):
        shares = [100 * sum(result.support_rows[size] for size in sizes) / sum(result.support_rows) for result in results]
        if any(shares):
            legend[name] = colour
            plot.add_bar(
                x=shares,
                y=[label_of(comparison, result) for result in results],
                orientation="h",
                marker={"color": colour, "line": {"color": GREY, "width": 1}},  # of the palest, too, the outline shows
                hovertemplate="%{y}: %{x:.1f} % of rows<extra>" + name + "</extra>",
            )
    return Figure(
        "support",
        "Size of the support",
        "How many classes are left in the running: the share of rows by the number of classes whose probability is not zero.",
        plot,
        legend,
    )


def support_groups(classes: int) -> dict[str, range]:
    """Sizes of the support that share a colour."""
    groups = {"none": range(1), "1 class": range(1, 2), "2": range(2, 3), "3": range(3, 4), "4 or 5": range(4, 6)}
    groups = {name: sizes for name, sizes in groups.items() if sizes.stop <= classes}
    between = range(max(sizes.stop for sizes in groups.values()), classes)
    if between:
        groups[f"{between.start} to {between.stop - 1}" if len(between) > 1 else str(between.start)] = between
    return {**groups, f"all {classes}": range(classes, classes + 1)}


def drawn_maps(pairs: Sequence[Pair]) -> dict[str, Pair]:
    """The different maps among the pairs, by label, in the registry's order, as they are for three classes."""
    found: dict[str, Pair] = {}
    for pair in sorted(pairs, key=lambda pair: list(REGISTRY).index(pair.map)):
        label = pair.name.split(" · ")[0]
        params = dict(pair.params)
        if params.get("k", 0) > 2:  # all three of three classes would be softmax
            label = label.replace(str(params["k"]), "2")
            params["k"] = 2
        found.setdefault(label, Pair(label, pair.map, pair.loss, params))
    return found


def _probabilities(pair: Pair, scores: Tensor) -> Tensor:
    return find_map(pair.map)(scores, **pair.params)


def curve_figure(comparison: Comparison) -> Figure:
    """p₁ of scores (t, 0, −1)."""
    maps = drawn_maps([result.pair for result in comparison.results if result.pair is not None])
    t = torch.linspace(-4, 4, 321, dtype=torch.float64)
    scores = torch.stack((t, torch.zeros_like(t), -torch.ones_like(t)), -1)
    plot = panels(
        [html.escape(label, quote=False) for label in maps],
        xaxis={"range": [-4, 4], "tickvals": [-4, 0, 4], "tickfont": {"size": 11}},
        yaxis={"range": [-0.05, 1.05], "tickvals": [0, 0.5, 1], "ticktext": ["0", "½", "1"], "tickfont": {"size": 11}},
    )
    for number, pair in enumerate(maps.values(), 1):
        where = {"x": t.tolist(), "mode": "lines", **panel(number)}
        dashed = {"color": GREY, "width": 1.2, "dash": "dot"}
        plot.add_scatter(y=scores.softmax(-1)[:, 0].tolist(), line=dashed, hoverinfo="skip", **where)
        plot.add_scatter(
            y=_probabilities(pair, scores)[:, 0].tolist(),
            line={"color": colour_of(pair.map), "width": 2.5},
            hovertemplate="t = %{x:.2f}, p₁ = %{y:.3f}<extra></extra>",
            **where,
        )
    return Figure(
        "curves",
        "The maps: one score moves",
        "The first probability of the scores (t, 0, −1) as t goes from −4 to 4; the dotted line is softmax."
        + " Top-k keeps two here at the most, for all three would be softmax." * any("k" in pair.params for pair in maps.values()),
        plot,
    )


CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
MASSES = {"mass below 0.7": (0.0, 0.7), "mass 0.7 to 0.9": (0.7, 0.9), "mass above 0.9": (0.9, math.inf)}
LEGEND = {
    "support 1": "#D55E00",
    "support 2": "#B97F00",
    "support 3": "#3A93D0",
    "mass below 0.7": "#D0609A",
    "mass 0.7 to 0.9": "#9B62C8",
    "mass above 0.9": "#5A72D8",
}


def hexagon(reach: float = 3.0, steps: int = 12) -> Tensor:
    """A triangular grid [points, 3] of scores with Σx = 0 and |x_i| ≤ reach."""
    ticks = range(-steps, steps + 1)
    points = [(i, j, -i - j) for i in ticks for j in ticks if abs(i + j) <= steps]
    return torch.tensor(points, dtype=torch.float64) * (reach / steps)


def simplex_figure(comparison: Comparison) -> Figure:
    """The image of a grid of scores in the triangle of probabilities."""
    maps = drawn_maps([result.pair for result in comparison.results if result.pair is not None])
    across, up = (-0.08, 1.08), (-0.06, 0.94)  # the triangle and a margin
    plot = panels(
        [html.escape(label, quote=False) for label in maps],
        aspect=(up[1] - up[0]) / (across[1] - across[0]),
        xaxis={"range": across, "visible": False},
        yaxis={"range": up, "visible": False},
    )
    scores = hexagon()
    outline = CORNERS[[0, 1, 2, 0]]
    named: set[str] = set()
    for number, pair in enumerate(maps.values(), 1):
        where = panel(number)
        line = {"color": GREY, "width": 1}
        plot.add_scatter(x=outline[:, 0].tolist(), y=outline[:, 1].tolist(), mode="lines", line=line, hoverinfo="skip", **where)
        p = _probabilities(pair, scores)
        mass = p.sum(-1)
        places = (p / mass.clamp_min(1e-300)[:, None]) @ CORNERS
        for name, kept in _point_groups(pair, p, mass).items():
            plot.add_scatter(
                x=places[kept, 0].tolist(),
                y=places[kept, 1].tolist(),
                customdata=torch.cat((scores, p), -1)[kept].round(decimals=3).tolist(),
                hovertemplate="scores (%{customdata[0]}, %{customdata[1]}, %{customdata[2]})<br>"
                "probabilities (%{customdata[3]}, %{customdata[4]}, %{customdata[5]})<extra></extra>",
                mode="markers",
                marker={"size": 3.5, "color": LEGEND[name]},
                **where,
            )
            named.add(name)
    return Figure(
        "simplex",
        "The maps: where scores land",
        "Each dot is one of a regular grid of scores with sum 0, placed in the triangle of the probabilities of three classes "
        "(a corner is one class alone). Maps with a mass below 1 are drawn as p/Σp, coloured by the mass. Maps that do "
        "not ignore a shift of all scores give another picture for another sum.",
        plot,
        {name: colour for name, colour in LEGEND.items() if name in named},
    )


def _point_groups(pair: Pair, p: Tensor, mass: Tensor) -> dict[str, Tensor]:
    """Which points to draw alike: by mass where it can be below one, else by the size of the support. Names as in the legend."""
    if find_map(pair.map).properties.mass == "at most one":
        groups = {name: (mass >= low) & (mass < high) for name, (low, high) in MASSES.items()}
    else:
        support = (p > 0).sum(-1)
        groups = {f"support {size}": support == size for size in (1, 2, 3)}
    return {name: kept for name, kept in groups.items() if bool(kept.any())}
