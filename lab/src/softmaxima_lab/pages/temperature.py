"""Pictures of what a temperature does to a row of scores, and of how schedules go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from softmaxima.maps import REGISTRY
from softmaxima.temperature import CosineTemperature, ExponentialTemperature, GeometricTemperature, LinearTemperature

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
FONT = {"family": "Helvetica, Arial, sans-serif", "size": 12}


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
    plot.update_xaxes(type="log", title="τ", gridcolor="#e6e6e6", showgrid=True, **ticks)
    plot.update_yaxes(gridcolor="#e6e6e6", showgrid=True, range=[-0.02, 1.02])
    plot.update_layout(
        template="simple_white", width=1000, height=330, margin={"l": 40, "r": 20, "t": 70, "b": 50}, font=FONT,
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1, "yref": "container", "yanchor": "top"},
    )  # fmt: skip
    return plot


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
    plot.update_xaxes(title="steps", gridcolor="#e6e6e6", showgrid=True)
    plot.update_yaxes(title="τ", type="log", gridcolor="#e6e6e6", showgrid=True, tickvals=[0.1, 0.2, 0.5, 1, 2])
    plot.update_layout(template="simple_white", width=760, height=330, margin={"l": 50, "r": 20, "t": 20, "b": 50}, font=FONT)
    return plot
