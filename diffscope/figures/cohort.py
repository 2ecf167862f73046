"""A trained cohort: for every arm its curve, the step at which it formed, and its answers on the length × distractors grid."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import register
from diffscope.figures.canvas import canvas, settle
from diffscope.figures.escaping import for_html, for_print

ROW = 0.27  # inches an arm takes in print
SEEDS = ("#08519c", "#4292c6", "#9ecae1", "#6baed6", "#08306b")


def data(cohort: xr.Dataset) -> xr.Dataset:
    """What is drawn of a cohort's dataset: ``retrieval`` (arm, seed, step), ``formation``, ``finished`` (arm, seed) and the grid.

    ``grid`` (arm, length, distractors) is the mean over prompts, then over the seeds that are finished.
    """
    if not (isinstance(cohort, xr.Dataset) and {"retrieval", "formation", "exact_match", "finished"} <= set(cohort)):
        raise DiffscopeError("this figure is of a trained cohort; draw it with: diffscope train RECIPE --report --figure FILE")
    made = xr.Dataset(
        {
            "retrieval": cohort["retrieval"].dropna("step", how="all"),
            "formation": cohort["formation"],
            "finished": cohort["finished"],
            "grid": cohort["exact_match"].mean("prompt", skipna=False).mean("seed"),
        }
    )
    made.attrs = {"figure": "cohort", "grid": "mean over prompts, then seeds"}
    return made


def _formed(data: xr.Dataset, arm: str) -> str:
    """The steps at which an arm formed, by seed: a dash where it did not, a question mark where the run is missing."""
    one = data.sel(arm=arm)
    said = {0: "?", 1: "–"}
    steps = zip(one["formation"].values, one["finished"].values)
    return ", ".join(said[int(finished)] if np.isnan(step) else f"{step:.0f}" for step, finished in steps)


def _cells(data: xr.Dataset) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The grid with one row an arm and one column a cell, and the (length, distractors) of the columns."""
    flat = data["grid"].transpose("arm", "length", "distractors")
    cells = [(int(length), int(distractors)) for length in flat["length"].values for distractors in flat["distractors"].values]
    return flat.values.reshape(flat.sizes["arm"], -1), cells


def in_print(data: xr.Dataset, width: float, title: str | None = None, **_):
    arms, steps = [str(arm) for arm in data["arm"].values], data["step"].values
    values, cells = _cells(data)
    columns = data.sizes["distractors"]
    made = canvas(width, ROW * len(arms) + 0.75, w_pad=0.01, h_pad=0.005)
    grid = made.add_gridspec(len(arms), 2, width_ratios=[1.0, 1.5])
    colours, top = theme.colour_map("blue", "linear"), None
    for row, arm in enumerate(arms):
        curves, cell = made.add_subplot(grid[row, 0], sharex=top), made.add_subplot(grid[row, 1])
        top = top or curves
        for seed, colour in zip(data["seed"].values, SEEDS * len(data["seed"])):
            one = data.sel(arm=arm, seed=seed)
            curves.plot(steps, one["retrieval"].values, color=colour, lw=0.8)
            if not np.isnan(one["formation"]):
                curves.axvline(float(one["formation"]), color=theme.ORANGES[5], lw=0.6)
        curves.set_ylim(-0.05, 1.05)
        curves.set_xlim(0, steps[-1])
        curves.set_yticks([])
        curves.set_ylabel(for_print(arm), rotation=0, ha="right", va="center")
        curves.tick_params(labelbottom=row == len(arms) - 1)
        cell.imshow(values[row : row + 1], cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        for column, value in enumerate(values[row]):
            ink = theme.PAPER if value > 0.6 else theme.INK
            said = "" if np.isnan(value) else f"{100 * value:.0f}"
            cell.text(column, 0, said, ha="center", va="center", color=ink, size="x-small")
        for edge in range(columns, len(cells), columns):
            cell.axvline(edge - 0.5, color=theme.PAPER, lw=1.5)
        cell.set_yticks([0], [_formed(data, arm)])
        cell.yaxis.tick_right()
        cell.tick_params(length=0)
        cell.spines[:].set_visible(False)
        last = row == len(arms) - 1
        middle = columns // 2
        names = [
            f"{distractors}\n{length} tokens" if i % columns == middle else f"{distractors}\n"
            for i, (length, distractors) in enumerate(cells)
        ]
        cell.set_xticks(range(len(cells)), names if last else [])
        if row == 0:
            curves.set_title("exact answers in training", loc="left")
            cell.set_title("exact answers in the end, %", loc="left")
            cell.annotate(
                "formed at step", (1.0, 1.0), (4, 3), "axes fraction", "offset points", size="small", annotation_clip=False
            )
    curves.set_xlabel("step")
    cell.set_xlabel("distractors")
    if title:
        made.suptitle(title, x=0.01, ha="left")
    settle(made)
    return made


def on_screen(data: xr.Dataset, title: str | None = None, height: int | None = None, **_):
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    arms = [str(arm) for arm in data["arm"].values]
    values, cells = _cells(data)
    shown = [for_html(arm) for arm in arms]
    made = make_subplots(rows=1, cols=2, column_widths=[0.45, 0.55], horizontal_spacing=0.12)
    for index, (arm, name) in enumerate(zip(arms, shown)):
        mean = data["retrieval"].sel(arm=arm).mean("seed").values
        hue = f"hsl({round(360 * index / len(arms))}, 60%, 45%)"
        for seed in data["seed"].values:
            curve = data["retrieval"].sel(arm=arm, seed=seed).values
            look = dict(line={"color": hue, "width": 1}, opacity=0.35, showlegend=False, hoverinfo="skip")
            made.add_trace(go.Scatter(x=data["step"].values, y=curve, legendgroup=name, mode="lines", **look), 1, 1)
        words = f"{name}<br>step %{{x}}<br>%{{y:.1%}} exact, mean over seeds<extra></extra>"
        look = dict(line={"color": hue, "width": 2}, hovertemplate=words)
        made.add_trace(go.Scatter(x=data["step"].values, y=mean, name=name, legendgroup=name, mode="lines", **look), 1, 1)
    made.add_trace(
        go.Heatmap(
            z=values,
            x=[[f"{length} tokens" for length, _ in cells], [str(distractors) for _, distractors in cells]],
            y=[f"{name} ({_formed(data, arm)})" for arm, name in zip(arms, shown)],
            colorscale=theme.colour_scale("blue", "linear"),
            zmin=0,
            zmax=1,
            texttemplate="%{z:.0%}",
            showscale=False,
            hovertemplate="%{y}<br>%{x}<br>%{z:.1%} exact<extra></extra>",
        ),
        1,
        2,
    )
    made.update_layout(
        **theme.screen_layout(
            height=height or 120 + 24 * len(arms),
            margin={"l": 8, "r": 8, "t": 48, "b": 8},
            legend={"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top", "font": {"size": 10}},
            title={"text": title or "exact answers: in training, and in the end by length and number of distractors", "x": 0},
        )
    )
    made.update_xaxes(theme.screen_axis(title_text="step"), col=1)
    made.update_yaxes(theme.screen_axis(tickformat=".0%", showgrid=True, gridcolor="#eef0f3"), col=1)
    made.update_xaxes(theme.screen_axis(title_text="distractors"), col=2)
    made.update_yaxes(theme.screen_axis(autorange="reversed"), col=2)
    return made


register(
    "cohort",
    "every arm of a trained cohort: curves, formation, answers by length and distractors",
    data=data,
    plotly=on_screen,
    matplotlib=in_print,
)
