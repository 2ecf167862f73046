"""Labelled values as lines, points, bars or stacked bars in print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import for_print
from diffscope.figures.line_data import (
    Factors,
    beyond,
    colours_of,
    dashes_of,
    ends_of,
    factors_of,
    has_single,
    hatch_numbers,
    marker_numbers,
    places_of,
    rounds_of,
    shown,
    spread,
    within_a_decade,
)
from diffscope.figures.print_layout import ROW, canvas, entry_widths, finish_print, legend_below, legend_height, log_axis

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.container import Container

LABELS = 18  # of categories that fit below a figure
TALLEST = 2.2  # inches of a row of panels
NARROWEST = 1.3  # inches of a panel: of narrower ones there are several rows
CHARACTER = 0.055  # inches of a label below a figure
TICK = 0.3  # inches from one numbered tick to the next
SLANTED = 0.3  # inches that turned labels take below a panel
MARKERS = ("o", "s", "D", "P", "X", "p")  # a colour each, for grey print; triangles are points beyond what is drawn
HATCHES = ("", "/////", ".....", "\\\\\\\\\\", "xxxxx", "-----")  # of bars that are as dark as others
Entries: TypeAlias = "list[tuple[Artist | Container, str]]"  # what a legend shows of lines and bars, and their words
IN_PRINT = {"solid": "-", "dash": "--", "dot": ":"}


def in_print(
    dataset: xr.Dataset,
    width: float,
    style: str = "lines",
    title: str | None = None,
    log: str = "",
    scale: str = "shared",
    highlight: Sequence[str] = (),
    extremes: Sequence[str] = (),
    others: str = "",
):
    """Draw for print; panels that would be too narrow beside each other stand in several rows.

    Parameters are as of ``on_screen``, and `others` names the series that are not highlighted.
    """
    panels = [str(name) for name in dataset["panel"].values]
    columns = min(len(panels), max(1, int(width / NARROWEST)))
    rows = math.ceil(len(panels) / columns)
    wide = width / columns
    tall = min(max(1.6, wide * 0.5), TALLEST)
    colours = colours_of(dataset)
    lines = [*dataset.attrs["references"], dataset.attrs["diagonal"]]
    factors = factors_of(dataset) if style == "lines" and not highlight else None
    series = [*factors[0], *factors[1]] if factors else highlight or colours
    named = [for_print(name) for name in [*series, others, *lines] if name]
    places, numbers = _places(dataset, style)
    turned = not numbers and "at" not in dataset and _turned(places, wide)
    tall += SLANTED if turned else 0.0
    free = rows * columns > len(panels) and _fits(named, wide, tall)
    figure = canvas(width, rows * tall + (0.0 if free else legend_height(named, width)))
    grid = figure.subplots(rows, columns, sharey=scale == "shared", squeeze=False)
    ticks = np.asarray(places, float) if numbers else np.arange(len(places), dtype=float)
    entries: Entries = []
    for number, ax in enumerate(grid.flat):
        if number >= len(panels):
            ax.set_axis_off()
            continue
        drawn = _bars_or_lines(ax, dataset.isel(panel=number), ticks, colours, style, highlight, extremes)
        references = _print_references(ax, dataset)
        entries = entries or [*references, *drawn]
        ax.set_title(for_print(panels[number]))
        if number >= len(panels) - columns:
            ax.set_xlabel(for_print(dataset.attrs["x"]))
        if not numbers and "at" not in dataset:
            _name_places(ax, places, wide)
        elif "at" not in dataset:
            _number_places(ax, ticks, wide, log)
        ax.yaxis.grid(True)
        for axis in (ax.xaxis if letter == "x" else ax.yaxis for letter in log):
            log_axis(axis)
            if axis is ax.yaxis and within_a_decade(dataset):
                axis.set_minor_formatter("{x:g}")
        if "x" in log and numbers:
            ax.set_xticks(ticks, [f"{place:g}" for place in ticks])
            ax.set_xticks([], minor=True)
    for row in grid:
        row[0].set_ylabel(for_print(dataset.attrs["y"]))
    handles, labels = _entries(entries, colours, factors)
    if others and highlight and len(colours) > len(highlight):
        handles, labels = [*handles, grid[0, 0].lines[0]], [*labels, for_print(others)]
    if free:
        grid[-1, -1].legend(handles, labels, loc="center")
    else:
        legend_below(figure, handles, labels, width)
    finish_print(figure, title)
    return figure


def _places(dataset: xr.Dataset, style: str) -> tuple[list, bool]:
    """Return where values stand along x, and whether these are numbers: bars stand side by side, whatever their numbers."""
    places, numbers = places_of(dataset)
    if numbers and style in ("bars", "stacked"):
        return [f"{place:g}" for place in places], False
    return places, numbers


def _fits(labels: Sequence[str], width: float, height: float) -> bool:
    """Return whether a legend fits the place of a panel so many inches wide and high."""
    return bool(labels) and max(entry_widths(labels)) <= 0.85 * width and ROW * len(labels) <= 0.7 * height


def _entries(drawn: Entries, series: Sequence[str], factors: Factors | None) -> tuple[list, list[str]]:
    """Return the lines of a legend and their words: with factors, a line for each first and each second part of a label."""
    from matplotlib.lines import Line2D

    if factors is None:
        return [handle for handle, _ in drawn], [label for _, label in drawn]
    firsts, seconds = factors
    handles_by_label = {label: handle for handle, label in drawn}
    others = {words: handle for words, handle in handles_by_label.items() if words not in set(map(for_print, series))}
    entries = {
        for_print(first): handles_by_label[for_print(name)]
        for first, name in firsts.items()
        if for_print(name) in handles_by_label
    }
    dashes = {for_print(second): Line2D([], [], color=ink, ls=IN_PRINT[dash]) for second, (ink, dash) in seconds.items()}
    together = entries | dashes | others
    return list(together.values()), list(together)


def _print_references(ax, dataset: xr.Dataset) -> Entries:
    """Draw the reference lines of one panel, and return them with their words."""
    look = {"color": theme.MUTED, "lw": 0.6}
    drawn = []
    if words := dataset.attrs["diagonal"]:
        drawn.append((*ax.plot(ends_of(dataset), ends_of(dataset), ls="--", **look), for_print(words)))
    for (words, value), line in zip(dataset.attrs["references"].items(), cycle(("--", ":", "-."))):
        drawn.append((ax.axhline(value, ls=line, **look), for_print(words)))
    return drawn


def _apart(ticks: np.ndarray, width: float) -> bool:
    """Return whether a tick at every place of a panel so many inches wide leaves room for its label."""
    if len(ticks) == 1:
        return True
    labels = max(len(f"{tick:g}") for tick in ticks) + 1
    return float(np.diff(np.sort(ticks)).min() / np.ptp(ticks)) * 0.8 * width > labels * CHARACTER


def _step(places: list, width: float) -> int:
    """Return of how many labels one is shown below a panel so many inches wide; 1 if there are few."""
    return math.ceil(len(places) * TALLEST / width / LABELS) if len(places) > LABELS / 2 else 1


def _turned(places: list, width: float) -> bool:
    """Return whether labels would touch if they were not turned."""
    labels = places[:: _step(places, width)]
    return max(map(len, labels)) * CHARACTER > 0.85 * width / len(labels)


def _number_places(ax, ticks: np.ndarray, width: float, log: str) -> None:
    """Write numbers below a panel so many inches wide: those of its places if there is room, else round ones."""
    from matplotlib.ticker import MaxNLocator

    if "x" not in log and _apart(ticks, width):
        ax.set_xticks(ticks, [f"{place:g}" for place in ticks])
        return
    most = min(12, max(3, int(width / TICK)))
    ax.xaxis.set_major_locator(MaxNLocator(most, integer=bool((ticks % 1 == 0).all()), steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter("{x:g}")


def _name_places(ax, places: list, width: float) -> None:
    """Write labels below a panel so many inches wide."""
    step = _step(places, width)
    labels = [for_print(place) for place in places[::step]]
    look = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if _turned(places, width) else {}
    ax.set_xticks(range(0, len(places), step), labels, **look)


def _bars_or_lines(
    ax,
    part: xr.Dataset,
    places: np.ndarray,
    colours: Mapping[str, str],
    style: str,
    highlight: Sequence[str],
    extremes: Sequence[str],
) -> Entries:
    """Draw all series of one panel, (series, x), and return what is drawn of those that a legend names."""
    drawn = []
    count = len(colours)
    markers = marker_numbers(colours, {} if highlight else rounds_of(part))
    dashes, hatches = dashes_of(part), hatch_numbers(colours)
    above = np.zeros(len(places))
    below = np.zeros(len(places))
    for number, (name, colour) in enumerate(colours.items()):
        series = part.isel(series=number)
        values = shown(series, "value")
        marker = MARKERS[markers[name] % len(MARKERS)]
        hatch = HATCHES[hatches[name] % len(HATCHES)]
        aside = (number - (count - 1) / 2) / count
        ends = {}
        if "low" in series and np.isfinite(spread(series)).any():
            ends = {"yerr": np.stack(spread(series))}
        label = for_print(name) if name else None
        numbers = "at" in series or places_of(series)[1]
        offset = 0.0 if style == "lines" or numbers else 0.4 * aside
        if name in extremes and ends:
            at = places + (0.8 * aside if style == "bars" else offset)
            _print_extremes(ax, series, at, theme.INK if style == "bars" else colour)
            ends = {}
        if has_single(series):
            single = shown(series, "points")
            at = np.repeat(_parted(places, aside) if numbers else places + offset, single.shape[1])
            ax.plot(at, single.ravel(), color=colour, ls="", marker="o", ms=2.4, mew=0, alpha=0.5)
        if style == "stacked":
            bottom = np.where(values < 0, below, above)
            look = {"color": colour, "edgecolor": theme.PAPER, "lw": 0.4, "hatch": hatch}
            handle = ax.bar(places, values, 0.8, bottom=bottom, label=label, **look)
            above += np.nan_to_num(np.maximum(values, 0))
            below += np.nan_to_num(np.minimum(values, 0))
        elif style == "bars":
            handle = ax.bar(
                places + 0.8 * aside,
                values,
                0.8 / count,
                label=label,
                **_filled(colour, hatch),
                error_kw={"lw": 0.6, "ecolor": theme.INK},
                **ends,
            )
        elif style == "lines":
            line = IN_PRINT[dashes[name]]
            look = {"ls": line, "marker": marker, "ms": 2.6 if line == "-" else 1.6, "elinewidth": 0.6}
            if highlight and name not in highlight:
                look |= {"lw": 0.6, "ms": 1.2, "alpha": 0.5}
            elif highlight:
                look |= {"lw": 1.6 if highlight[0] == name else 1.2, "zorder": 3}
            handle = ax.errorbar(places, values, color=colour, **look, **ends)
        else:
            hollow = {} if dashes[name] == "solid" else {"mfc": "none", "mew": 0.7}
            handle = _points(ax, series, places + offset, {"color": colour, "marker": marker} | hollow | ends)
        if label and (not highlight or name in highlight):
            drawn.append((handle, label))
    return drawn


def _filled(colour: str, hatch: str) -> dict:
    """Return how a bar is filled: that of a control is light with an edge, so that grey print tells it apart."""
    if colour in theme.CONTROLS:
        return {"color": theme.RULE, "edgecolor": colour, "lw": 0.6}
    return {"color": colour, "edgecolor": theme.PAPER, "lw": 0, "hatch": hatch}


def _print_extremes(ax, part: xr.Dataset, places: np.ndarray, colour: str) -> None:
    """Draw the ends of the ranges of one series as small points."""
    for end in shown(part, "value") + np.stack(spread(part)) * [[-1], [1]]:
        ax.plot(places, end, color=colour, ls="", marker="o", ms=2.8, mew=0.4, mec=theme.PAPER, zorder=3)


def _parted(places: np.ndarray, aside: float) -> np.ndarray:
    """Return numbered places, a little to the side so that points of several series do not cover each other."""
    return places + 0.12 * aside * np.diff(np.unique(places)).min(initial=np.inf) if len(places) > 1 else places


def _points(ax, part: xr.Dataset, places: np.ndarray, look: dict) -> Container:
    """Draw one series of one panel, (x,), as points, which are returned; those beyond what is drawn as triangles at its end."""
    values = shown(part, "value")
    places = part["at"].values if "at" in part else places
    side = np.nan_to_num(beyond(part))
    points = ax.errorbar(places, np.where(side == 0, values, np.nan), ls="", ms=2.6, elinewidth=0.6, **look)
    for arrow, outside in (("v", side < 0), ("^", side > 0)):
        ax.plot(places[outside], values[outside], color=look["color"], ls="", marker=arrow, ms=3.2, mfc="none", mew=0.7)
    return points
