"""A trained cohort: for every arm its curve, the step at which it formed, and its answers on the length × distractors grid."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.figure import Chart
from diffscope.figures.line_screen import DASHES
from diffscope.figures.print_layout import canvas, finish_print

TITLE = "exact answers: in training, and in the end by length and number of distractors"

ROW = 0.27  # inches an arm takes in print
SEEDS = tuple(theme.SERIES)


def data(cohort: xr.Dataset) -> xr.Dataset:
    """Return what is drawn of a cohort: ``retrieval`` (arm, seed, step), ``formation``, ``finished`` (arm, seed) and the grid.

    ``grid`` (arm, length, distractors) is the mean over prompts, then over the seeds that are finished.
    """
    if not (isinstance(cohort, xr.Dataset) and {"retrieval", "formation", "exact_match", "finished"} <= set(cohort)):
        raise DiffscopeError("this figure is of a trained cohort; draw it with: diffscope figure FOLDER --kind cohort --out FILE")
    dataset = xr.Dataset(
        {
            "retrieval": cohort["retrieval"].dropna("step", how="all"),
            "formation": cohort["formation"],
            "finished": cohort["finished"],
            "grid": cohort["exact_match"].mean("prompt", skipna=False).mean("seed"),
        }
    )
    return dataset.assign_attrs(grid="mean over prompts, then seeds")


def _formed(data: xr.Dataset, arm: str) -> str:
    """Return the steps at which an arm formed, by seed: a dash where it did not, a question mark where the run is missing."""
    runs = data.sel(arm=arm)
    steps = zip(runs["formation"].values, runs["finished"].values)
    never = {0: "?", 1: "–"}
    return ", ".join(never[int(finished)] if np.isnan(step) else f"{step:.0f}" for step, finished in steps)


def _mean(curves: xr.DataArray) -> xr.DataArray:
    """Return the mean (step,) of the curves (seed, step) that there are, as far as all of them go."""
    known = curves.notnull()
    return curves.mean("seed").where((known | ~known.any("step")).all("seed"))


def _cells(data: xr.Dataset) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the grid with one row an arm and one column a cell, and the (length, distractors) of the columns."""
    flat = data["grid"].transpose("arm", "length", "distractors")
    cells = [(int(length), int(distractors)) for length in flat["length"].values for distractors in flat["distractors"].values]
    return flat.values.reshape(flat.sizes["arm"], -1), cells


def in_print(data: xr.Dataset, width: float, title: str | None = None):
    """Draw for print: one row an arm, its curves on the left, its answers on the right."""
    arms = [str(arm) for arm in data["arm"].values]
    figure = canvas(width, ROW * len(arms) + 0.75, w_pad=0.01, h_pad=0.005)
    grid = figure.add_gridspec(len(arms), 2, width_ratios=[1.0, 1.5])
    top = None
    for row, arm in enumerate(arms):
        curves = figure.add_subplot(grid[row, 0], sharex=top)
        cells = figure.add_subplot(grid[row, 1])
        top = top or curves
        _draw_curves(curves, data, arm)
        _draw_cells(cells, data, row)
        cells.set_yticks([0], [_formed(data, arm)])
        curves.tick_params(labelbottom=row == len(arms) - 1)
        if row == 0:
            curves.set_title("in training", loc="left")
            cells.set_title("in the end, % exact", loc="left")
            place = ((1.0, 1.0), (4, 3), "axes fraction", "offset points")
            cells.annotate("formed at", *place, size="small", annotation_clip=False)
    _name_cells(cells, data)
    curves.set_xlabel("step")
    finish_print(figure, title)
    return figure


def _draw_curves(ax, data: xr.Dataset, arm: str) -> None:
    """Draw exact answers by step, a curve a seed, and where each run formed."""
    for seed, colour in zip(data["seed"].values, SEEDS * len(data["seed"])):
        run = data.sel(arm=arm, seed=seed)
        ax.plot(data["step"].values, run["retrieval"].values, color=colour, lw=0.8)
        if not np.isnan(run["formation"]):
            ax.axvline(float(run["formation"]), color=theme.INK, lw=0.6, ls=":")
    ax.set_ylim(-0.05, 1.05)
    ax.set_xlim(0, data["step"].values[-1])
    ax.set_yticks([])
    ax.set_ylabel(for_print(arm), rotation=0, ha="right", va="center")


def _draw_cells(ax, data: xr.Dataset, row: int) -> None:
    """Draw one arm's answers, a cell a length and number of distractors."""
    values, cells = _cells(data)
    colours = theme.colour_map("blue", "linear")
    ax.imshow(values[row : row + 1], cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for column, value in enumerate(values[row]):
        ink = theme.PAPER if value > 0.6 else theme.INK
        ax.text(column, 0, "" if np.isnan(value) else f"{100 * value:.0f}", ha="center", va="center", color=ink, size="x-small")
    columns = data.sizes["distractors"]
    for edge in range(columns, len(cells), columns):
        ax.axvline(edge - 0.5, color=theme.PAPER, lw=1.5)
    ax.yaxis.tick_right()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xticks(range(len(cells)), [])


def _name_cells(ax, data: xr.Dataset) -> None:
    """Write the number of distractors under each cell, and the length under the middle of its cells."""
    _, cells = _cells(data)
    columns = data.sizes["distractors"]
    names = [
        f"{distractors}\n{length} tokens" if i % columns == columns // 2 else f"{distractors}\n"
        for i, (length, distractors) in enumerate(cells)
    ]
    ax.set_xticks(range(len(cells)), names)
    ax.set_xlabel("distractors")


def on_screen(data: xr.Dataset, title: str | None = None, height: int | None = None):
    """Draw for the screen: curves as means over seeds, as far as all of them go, with each seed behind; answers as one table."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    arms = [str(arm) for arm in data["arm"].values]
    values, cells = _cells(data)
    shown = [for_html(arm) for arm in arms]
    figure = make_subplots(rows=1, cols=2, column_widths=[0.45, 0.55], horizontal_spacing=0.12)
    for index, (arm, name) in enumerate(zip(arms, shown)):
        mean = _mean(data["retrieval"].sel(arm=arm)).values
        hue = theme.SERIES[index % len(theme.SERIES)]
        dash = ("solid", *DASHES)[index // len(theme.SERIES) % (1 + len(DASHES))]
        for seed in data["seed"].values:
            curve = data["retrieval"].sel(arm=arm, seed=seed).values
            look = dict(line={"color": hue, "width": 1, "dash": dash}, opacity=0.35, showlegend=False, hoverinfo="skip")
            figure.add_trace(go.Scatter(x=data["step"].values, y=curve, legendgroup=name, mode="lines", **look), 1, 1)
        words = f"{name}<br>step %{{x}}<br>%{{y:.1%}} exact, mean over seeds<extra></extra>"
        look = dict(line={"color": hue, "width": 2, "dash": dash}, hovertemplate=words)
        figure.add_trace(go.Scatter(x=data["step"].values, y=mean, name=name, legendgroup=name, mode="lines", **look), 1, 1)
    figure.add_trace(
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
    figure.update_layout(
        **theme.screen_layout(
            height=height or 120 + 24 * len(arms),
            margin={"l": 8, "r": 8, "t": 48, "b": 8},
            legend={"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top", "font": {"size": 10}},
            title={"text": for_html(TITLE if title is None else title), "x": 0},
        )
    )
    figure.update_xaxes(theme.screen_axis(title_text="step"), col=1)
    figure.update_yaxes(theme.screen_axis(tickformat=".0%", showgrid=True, gridcolor="#eef0f3"), col=1)
    figure.update_xaxes(theme.screen_axis(title_text="distractors"), col=2)
    figure.update_yaxes(theme.screen_axis(autorange="reversed"), col=2)
    return figure


CHART = Chart(on_screen, in_print)
