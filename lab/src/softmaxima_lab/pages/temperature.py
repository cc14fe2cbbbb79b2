"""Pictures of what a temperature does to a row of scores, and of how schedules go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from softmaxima.maps import REGISTRY
from softmaxima.temperature import CosineTemperature, ExponentialTemperature, GeometricTemperature, LinearTemperature
from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import ABOVE, GRID, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00")
SCORES = (2.0, 1.0, 0.5, 0.0, -1.0)
MAPS = {"softmax": {}, "entmax15": {}, "sparsemax": {}, "elastic_softmax": {"beta": 1.5}}
STEPS = 100
SCHEDULES = {
    "ExponentialTemperature(2, 0.97, 0.3)": lambda: ExponentialTemperature(2.0, 0.97, 0.3),
    "GeometricTemperature(2, 0.1, 80)": lambda: GeometricTemperature(2.0, 0.1, 80),
    "LinearTemperature(2, 0.1, 80)": lambda: LinearTemperature(2.0, 0.1, 80),
    "CosineTemperature(2, 0.1, 80)": lambda: CosineTemperature(2.0, 0.1, 80),
}


def curves() -> go.Figure:
    """The probabilities of five scores against τ, a panel a map; of elastic softmax, the mass that is left for none of them too."""
    from plotly.subplots import make_subplots

    plot = make_subplots(1, len(MAPS), shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=list(MAPS))
    tau = np.geomspace(0.05, 20, 200)
    x = torch.tensor(SCORES, dtype=torch.float64).expand(len(tau), -1)
    for column, (name, params) in enumerate(MAPS.items(), 1):
        p = REGISTRY[name](x, temperature=torch.from_numpy(tau)[:, None], **params)
        for score, values, colour in zip(SCORES, p.T.tolist(), COLOURS, strict=True):
            line = {"color": colour, "width": 2, "simplify": False}
            called = f"x = {score:g}".replace("-", "−")
            plot.add_scatter(x=tau, y=values, mode="lines", name=called, line=line, showlegend=column == 1, row=1, col=column)
        if REGISTRY[name].properties.mass != "one":
            line = {"color": "#444", "width": 1.5, "dash": "4px,3px", "simplify": False}
            plot.add_scatter(x=tau, y=(1 - p.sum(-1)).tolist(), mode="lines", name="none", line=line, row=1, col=column)
    ticks = {"tickvals": [0.1, 1, 10], "ticktext": ["0.1", "1", "10"]}
    plot.update_xaxes(type="log", title="τ", **GRID, **ticks)
    plot.update_yaxes(**GRID, range=[-0.02, 1.02])
    return styled(plot, 330, 40, 20, 70, 50, legend=ABOVE)


def schedules() -> go.Figure:
    """τ against the steps of training, a line a schedule."""
    import plotly.graph_objects as go

    plot = go.Figure()
    for (name, make), colour in zip(SCHEDULES.items(), COLOURS, strict=False):
        schedule = make()
        plot.add_scatter(
            x=list(range(STEPS + 1)), y=[schedule.at(step) for step in range(STEPS + 1)], mode="lines", name=name,
            line={"color": colour, "width": 2},
        )  # fmt: skip
    plot.update_xaxes(title="steps", **GRID)
    plot.update_yaxes(title="τ", type="log", **GRID, tickvals=[0.1, 0.2, 0.5, 1, 2])
    return styled(plot, 330, 50, 20, 20, 50, width=760)


ENTRY = Entry(
    "temperature",
    "draws probabilities and schedules against τ, in seconds",
    lambda found: [
        Block(
            "temperature",
            (Picture("temperature.png", curves(), "Probabilities of five scores against the temperature, by map"),),
            note="",
        ),
        Block("schedules", (Picture("schedules.png", schedules(), "Temperature against steps, by schedule"),), note=""),
    ],
    run=lambda told: None,
)
