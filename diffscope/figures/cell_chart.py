"""Labelled values as cells of a table, coloured, with their numbers in them."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.figure import Chart
from diffscope.figures.labelled import along_title, by_role, in_roles, values_title
from diffscope.figures.print_layout import canvas, finish_print, screen_bar, screen_title
from diffscope.numbers import SMALLEST, minus, significant

ROLES = ("panel", "y", "x")
DARK = 0.5  # from white to black: on cells so dark numbers are light
NARROWEST = 0.24  # inches of a printed cell with a number
WITH_ERROR = 0.34  # and of one with its error
TITLED = 1.5  # inches of a panel that has a title of its own below
CHARACTER = 0.055  # inches of a label
FEW = 16  # rows: of more each is lower
HIGHEST = 8.0  # inches of a printed figure
LABEL = 0.12  # inches from one label of a row to the next
NUMBERED = 400  # cells: of more the numbers would not be read


def data(values: xr.DataArray, x: str, y: str, panels: str | None = None, error: xr.DataArray | None = None) -> xr.Dataset:
    """Return values (panel, y, x) and their errors; parameters as of ``diffscope.figures.cells``."""
    chosen = by_role(values, {"x": x, "y": y, "panel": panels})
    about = {
        "model": str(values.attrs.get("model", "")),
        "x": along_title(values, x),
        "y": along_title(values, y),
        "value": values_title(values),
    }
    arrays = {"value": values} if error is None else {"value": values, "error": error}
    drawn = {name: in_roles(array, chosen, ROLES) for name, array in arrays.items()}
    return xr.Dataset(drawn).drop_attrs().assign_attrs(about)


def _colours(dataset: xr.Dataset) -> tuple[str, tuple[float, float]]:
    """Return one scale of all panels: its name and its ends."""
    values = dataset["value"].values
    finite = values[np.isfinite(values)]
    kind = "diverging" if (finite < 0).any() else "blue"
    return kind, theme.colour_limits(kind, float(np.abs(finite).max(initial=0.0)))


def _labels(dataset: xr.Dataset, dim: str) -> list[str]:
    return [f"{label:g}" if isinstance(label, float) else str(label) for label in dataset[dim].values.tolist()]


def _number(value: float, decimals: int) -> str:
    """Write a number with so many decimals, or with three digits if it is larger."""
    if not np.isfinite(value):
        return minus(f"{value:.0f}").replace("inf", "∞").replace("nan", "")
    return minus(f"{value:z.{decimals}f}") if abs(value) < 10 else significant(value)


def _decimals(values: np.ndarray, errors: np.ndarray) -> int:
    """Return how many decimals all cells have: two, or as many as leave the largest value two digits and each error one."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    least = float(errors[np.isfinite(errors) & (errors >= 10.0**SMALLEST)].min(initial=1.0))  # smaller ones have a power of ten
    return max(2, -math.floor(math.log10(least)), 1 - math.floor(math.log10(largest)) if largest else 2)


def _error(error: float, decimals: int) -> str:
    """Write an error with so many decimals, or with a power of ten if these would leave nothing of it."""
    return significant(error, 1) if 0 < error < 10.0**-decimals else _number(error, decimals)


def _numbers(panel: xr.Dataset, between: str) -> list[list[str]]:
    """Return what stands in the cells of a panel (y, x): its number, and below it the error."""
    errors = panel["error"].values if "error" in panel else np.full(panel["value"].shape, np.nan)
    decimals = _decimals(panel["value"].values, errors)
    return [
        [
            _number(value, decimals) + (f"{between}± {_error(error, decimals)}" if np.isfinite([value, error]).all() else "")
            for value, error in zip(*row)
        ]
        for row in zip(panel["value"].values, errors)
    ]


def on_screen(dataset: xr.Dataset, title: str | None = None, contrast: str = "linear"):
    """Draw for the screen; `contrast` as of ``diffscope.figures.maps``."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = [str(name) for name in dataset["panel"].values]
    titles = [for_html(name) for name in panels] if any(panels) else None
    parts = [_with_columns(dataset, number) for number in range(len(panels))]
    widths = [part.sizes["x"] for part in parts]
    figure = make_subplots(
        cols=len(panels), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03, column_widths=widths
    )
    kind, (low, high) = _colours(dataset)
    rows = [for_html(label) for label in _labels(dataset, "y")]
    place = f"{for_html(dataset.attrs['y'])} %{{y}}, {for_html(dataset.attrs['x'])} %{{x}}"
    bar = screen_bar(xpad=6, ypad=0, nticks=4, ticklen=2)
    for column, part in enumerate(parts):
        cells = go.Heatmap(
            z=part["value"].values,
            x=[for_html(label) for label in _labels(part, "x")],
            y=rows,
            zmin=low,
            zmax=high,
            xgap=1.5,
            ygap=1.5,
            colorscale=[list(stop) for stop in theme.colour_scale(kind, contrast)],
            showscale=column == 0,
            colorbar=bar,
            text=_numbers(part, "<br>"),
            texttemplate="%{text}" if dataset["value"].size <= NUMBERED else "",
            hovertemplate=f"{place}<br><b>%{{z:.4g}}</b><extra></extra>",
        )
        figure.add_trace(cells, row=1, col=column + 1)
    figure.update_xaxes(**theme.screen_axis(title_text=for_html(dataset.attrs["x"]), type="category", showline=False, ticks=""))
    figure.update_yaxes(**theme.screen_axis(type="category", autorange="reversed", showline=False, ticks=""))
    figure.update_yaxes(title_text=for_html(dataset.attrs["y"]), col=1)
    top = 8 + (22 if title else 0) + (20 if titles else 0)
    tall = (44 if "error" in dataset else 34) * len(rows) if len(rows) <= FEW else max(34 * FEW, 14 * len(rows))
    tall += top + 50
    figure.update_layout(**theme.screen_layout(height=tall, margin={"l": 8, "r": 8, "t": top, "b": 8}))
    figure.update_layout(plot_bgcolor="rgba(0,0,0,0)")
    if title:
        figure.update_layout(title=screen_title(title))
    figure.update_annotations(font={"size": 11, "color": theme.MUTED})
    return figure


def _with_columns(dataset: xr.Dataset, panel: int) -> xr.Dataset:
    """Return a panel (y, x) without the last numbered columns that only other panels have, such as heads of another model."""
    known = dataset["value"].notnull().any("y").values  # (panel, x)
    numbered = np.array([str(label).isdigit() for label in dataset["x"].values])  # not the column of all heads behind them
    last = max(np.flatnonzero(known[panel] & numbered), default=len(numbered))
    absent = known.any(0) & ~known[panel] & numbered & (np.arange(len(numbered)) > last)
    return dataset.isel(panel=panel, x=~absent)


def in_print(dataset: xr.Dataset, width: float, title: str | None = None, contrast: str = "linear"):
    """Draw for print; `contrast` as of ``diffscope.figures.maps``."""
    from matplotlib.colors import to_hex

    panels = [str(name) for name in dataset["panel"].values]
    tall = min(HIGHEST, 0.8 + (0.36 if "error" in dataset else 0.25) * dataset.sizes["y"])
    figure = canvas(width, tall)
    kind, (low, high) = _colours(dataset)
    parts = [_with_columns(dataset, number) for number in range(len(panels))]
    counts = [part.sizes["x"] for part in parts]
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=counts)[0]
    rows = [for_print(label) for label in _labels(dataset, "y")]
    room = 0.85 * width / sum(counts)
    every = math.ceil(LABEL * len(rows) / (tall - 0.8))
    step = math.ceil(CHARACTER * (max(map(len, _labels(dataset, "x"))) + 1) / room)
    for number, (ax, name, part) in enumerate(zip(axes, panels, parts)):
        values = part["value"].values
        columns = [for_print(label) for label in _labels(part, "x")]
        colours = theme.colour_map(kind, contrast, empty=theme.PAPER)
        image = ax.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
        if dataset["value"].size <= NUMBERED and room >= NARROWEST:
            texts = _numbers(part if room >= WITH_ERROR else part.drop_vars("error", errors="ignore"), "\n")
            for (y, x), value in np.ndenumerate(values):
                colour = theme.PAPER if theme.darkness(to_hex(image.to_rgba(value))) > DARK else theme.INK
                ax.text(x, y, texts[y][x], ha="center", va="center", size="x-small", color=colour)
        ax.set_xticks(range(0, len(columns), step), columns[::step])
        ax.set_yticks(range(0, len(rows), every), rows[::every])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_title(for_print(name))
        if width / len(panels) >= TITLED or number == len(panels) // 2:
            ax.set_xlabel(for_print(dataset.attrs["x"]))
    axes[0].set_ylabel(for_print(dataset.attrs["y"]))
    bar = figure.colorbar(image, ax=list(axes), fraction=0.05, pad=0.02, aspect=20)
    bar.outline.set_visible(False)
    label = for_print(dataset.attrs["value"])
    if title is None and CHARACTER * len(label) > 2 * (tall - 0.6):  # more than two lines along the bar
        title, label = label, ""
    bar.set_label(label)
    finish_print(figure, title)
    return figure


CHART = Chart(on_screen, in_print)
