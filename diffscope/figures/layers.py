"""Quantities by layer: λ with its initial value, and the error of the capture beside its tolerance."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import register
from diffscope.figures.canvas import canvas, settle
from diffscope.figures.escaping import for_html, for_print

# ---------------------------------------------------------------- data


def lambda_data(cap, prompt: int = 0) -> xr.Dataset:
    """λ by layer: mean, smallest and largest over heads and queries, and the initial value where there is one."""
    lam = cap.lam
    if not cap.differential:
        raise DiffscopeError("standard attention has no λ")
    if "prompt" in lam.dims:
        lam = lam.isel(prompt=prompt)
    others = [dim for dim in lam.dims if dim != "layer"]
    made = xr.Dataset({"lam": lam.mean(others), "lowest": lam.min(others), "highest": lam.max(others)})
    start = getattr(cap, "lam_init", None)
    if start is not None:
        values = np.array([np.nan if v is None else float(v) for v in np.asarray(start).ravel()], dtype=float)
        if np.isfinite(values).any():
            made["lam_init"] = ("layer", values)
    if "layer" not in made.coords:
        made = made.assign_coords(layer=np.arange(made.sizes["layer"]))
    made.attrs = {"figure": "lambda", "model": str(getattr(cap, "model_name", "") or "")}
    return made


def fidelity_data(cap) -> xr.Dataset:
    """Error of the rebuilt attention output and its tolerance, by layer."""
    made = cap.fidelity[["error", "tolerance"]]
    if "prompt" in made.dims:
        made = made.max("prompt")
    if "layer" not in made.coords:
        made = made.assign_coords(layer=np.arange(made.sizes["layer"]))
    made = made.copy()
    made.attrs = {"figure": "fidelity", "model": str(getattr(cap, "model_name", "") or "")}
    return made


# ---------------------------------------------------------------- lines over layers

LINES = {
    "lam": ("λ", {"color": theme.MAP_COLOURS["A1"], "dash": "solid", "marker": "o"}),
    "lam_init": ("λ at initialisation", {"color": theme.MUTED, "dash": "dash", "marker": None}),
    "error": ("error", {"color": theme.MAP_COLOURS["A1"], "dash": "solid", "marker": "o"}),
    "tolerance": ("tolerance", {"color": theme.ORANGES[6], "dash": "dash", "marker": None}),
}
WORDS = {"lambda": "λ by layer", "fidelity": "relative error of the rebuilt attention output"}


def _spread(data: xr.Dataset) -> bool:
    return "lowest" in data and bool(np.nanmax(data["highest"].values - data["lowest"].values, initial=0) > 1e-6)


def on_screen(data: xr.Dataset, title: str | None = None, height: int = 240, selected: int | None = None, **_):
    import plotly.graph_objects as go

    layers = data["layer"].values
    made = go.Figure()
    if _spread(data):
        made.add_trace(
            go.Scatter(
                x=np.r_[layers, layers[::-1]],
                y=np.r_[data["highest"].values, data["lowest"].values[::-1]],
                fill="toself",
                fillcolor="rgba(33,113,181,0.15)",
                line={"width": 0},
                hoverinfo="skip",
                name="heads and tokens",
                mode="lines",
            )
        )
    for name, (words, look) in LINES.items():
        if name in data:
            made.add_trace(
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
    shapes = (
        []
        if selected is None
        else [
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": selected,
                "x1": selected,
                "y0": 0,
                "y1": 1,
                "layer": "below",
                "line": {"color": theme.RULE, "width": 8},
            }
        ]
    )
    line = WORDS[data.attrs["figure"]] if title is None else title
    made.update_layout(
        **theme.screen_layout(
            height=height,
            shapes=shapes,
            hovermode="closest",
            margin={"l": 8, "r": 8, "t": 48 if line else 26, "b": 8},
            xaxis=theme.screen_axis(title_text="layer", tickformat="d", **({"dtick": 1} if len(layers) <= 16 else {})),
            yaxis=theme.screen_axis(
                showgrid=True, gridcolor="#eef0f3", type="log" if "error" in data else "linear", exponentformat="power"
            ),
            legend={
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "font": {"size": 11},
            },
        )
    )
    if line:
        made.update_layout(title={"text": for_html(line), "x": 0, "y": 0.98, "yanchor": "top", "font": {"size": 13}})
    return made


def in_print(data: xr.Dataset, width: float, title: str | None = None, **_):
    from matplotlib.ticker import MaxNLocator

    layers = data["layer"].values
    made = canvas(width, max(1.5, width * 0.5))
    ax = made.subplots()
    if _spread(data):
        ax.fill_between(
            layers,
            data["lowest"].values,
            data["highest"].values,
            color=theme.MAP_COLOURS["A1"],
            alpha=0.15,
            lw=0,
            label="heads and tokens",
        )
    for name, (words, look) in LINES.items():
        if name in data:
            ax.plot(
                layers,
                data[name].values,
                color=look["color"],
                ls="-" if look["dash"] == "solid" else "--",
                marker=look["marker"],
                ms=2.6,
                label=words,
            )
    if "error" in data:
        ax.set_yscale("log")
    ax.yaxis.grid(True)
    ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    ax.set_xlabel("layer")
    line = WORDS[data.attrs["figure"]] if title is None else title
    if line:
        made.suptitle(for_print(line), x=0.01, ha="left")
    made.legend(loc="outside lower left", ncols=3, columnspacing=1.2)
    settle(made)
    return made


register("lambda", "λ by layer, with its initial value", data=lambda_data, plotly=on_screen, matplotlib=in_print, wide=False)
register(
    "fidelity",
    "error of the capture by layer, beside its tolerance",
    data=fidelity_data,
    plotly=on_screen,
    matplotlib=in_print,
    wide=False,
)
