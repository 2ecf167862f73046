"""Quantities by layer: λ with its initial value, and the error of the capture beside its tolerance."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.figure import Chart
from diffscope.figures.print_layout import canvas, finish_print, finish_screen, log_axis
from diffscope.figures.selection import edited, one_prompt


def lambdas_data(cap, prompt: int = 0) -> xr.Dataset:
    """λ by layer: mean, smallest and largest over heads and queries, and the initial value where there is one."""
    cap = one_prompt(cap, prompt)
    if not cap.differential:
        raise DiffscopeError("standard attention has no λ")
    lam = cap.lam
    others = [dim for dim in lam.dims if dim != "layer"]
    dataset = xr.Dataset({"lam": lam.mean(others), "lowest": lam.min(others), "highest": lam.max(others)})
    if np.isfinite(cap.lam_init.values).any():
        dataset["lam_init"] = cap.lam_init
    return dataset.drop_attrs(deep=False).assign_attrs(model=cap.model_name, edits=edited(cap))


def fidelity_data(cap) -> xr.Dataset:
    """Error of the rebuilt attention output and its tolerance, by layer."""
    one_prompt(cap, 0)
    dataset = cap.fidelity[["error", "tolerance"]]
    return dataset.drop_attrs(deep=False).assign_attrs(model=cap.model_name, edits=edited(cap))


LINES = {
    "lam": ("λ", {"color": theme.MAP_COLOURS["A1"], "dash": "solid", "marker": "o"}),
    "lam_init": ("λ at initialisation", {"color": theme.MUTED, "dash": "dash", "marker": None}),
    "error": ("error", {"color": theme.MAP_COLOURS["A1"], "dash": "solid", "marker": "o"}),
    "tolerance": ("tolerance", {"color": theme.ORANGES[6], "dash": "dash", "marker": None}),
}
HEADINGS = {"lam": "λ by layer", "error": "relative error of the rebuilt attention output"}


def _spread(data: xr.Dataset) -> bool:
    return "lowest" in data and bool(np.nanmax(data["highest"].values - data["lowest"].values, initial=0) > 1e-6)


def on_screen(data: xr.Dataset, title: str | None = None, height: int = 240, selected: int | None = None):
    """The drawing for the screen; `selected` is a layer to mark."""
    import plotly.graph_objects as go

    layers = data["layer"].values
    figure = go.Figure()
    if _spread(data):
        band = np.r_[data["highest"].values, data["lowest"].values[::-1]]
        look = {"fill": "toself", "fillcolor": "rgba(33,113,181,0.15)", "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(go.Scatter(x=np.r_[layers, layers[::-1]], y=band, name="heads and tokens", hoverinfo="skip", **look))
    for name, (words, look) in LINES.items():
        if name in data:
            figure.add_trace(
                go.Scatter(
                    x=layers,
                    y=data[name].values,
                    name=words,
                    mode="lines+markers" if look["marker"] else "lines",
                    line={"color": look["color"], "dash": look["dash"], "width": 2},
                    marker={"size": 6},
                    hovertemplate=f"layer %{{x}}<br>{words} %{{y:.4g}}<extra></extra>",
                )
            )
    mark = {"type": "line", "xref": "x", "yref": "paper", "x0": selected, "x1": selected, "y0": 0, "y1": 1, "layer": "below"}
    finish_screen(
        figure,
        HEADINGS["lam" if "lam" in data else "error"] if title is None else title,
        height=height,
        legend="left",
        shapes=[] if selected is None else [mark | {"line": {"color": theme.RULE, "width": 8}}],
        xaxis=theme.screen_axis(title_text="layer", tickformat="d", **({"dtick": 1} if len(layers) <= 16 else {})),
        yaxis=theme.screen_axis(
            showgrid=True, gridcolor="#eef0f3", type="log" if "error" in data else "linear", exponentformat="power"
        ),
    )
    return figure


def in_print(data: xr.Dataset, width: float, title: str | None = None):
    """The drawing for print."""
    from matplotlib.ticker import MaxNLocator

    layers = data["layer"].values
    figure = canvas(width, max(1.5, width * 0.5))
    ax = figure.subplots()
    if _spread(data):
        look = {"color": theme.MAP_COLOURS["A1"], "alpha": 0.15, "lw": 0, "label": "heads and tokens"}
        ax.fill_between(layers, data["lowest"].values, data["highest"].values, **look)
    for name, (words, look) in LINES.items():
        if name in data:
            style = "-" if look["dash"] == "solid" else "--"
            ax.plot(layers, data[name].values, color=look["color"], ls=style, marker=look["marker"], ms=2.6, label=words)
    if "error" in data:
        log_axis(ax.yaxis)
    ax.yaxis.grid(True)
    ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    ax.set_xlabel("layer")
    figure.legend(loc="outside lower left", ncols=3, columnspacing=1.2)
    finish_print(figure, HEADINGS["lam" if "lam" in data else "error"] if title is None else title)
    return figure


CHART = Chart(on_screen, in_print)
