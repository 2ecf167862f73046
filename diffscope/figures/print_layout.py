"""What the drawings of all figures begin and end with, in print and on screen."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Literal

import numpy as np

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print

MOST_HEIGHT = 200.0  # inches of a printed figure; matplotlib's pictures end at six times as much on a screen
WIDER = 1.1  # than its axes a title may be
NARROWEST = 8  # letters of a line, however little room there is
FINE = 720  # dots an inch at which the words of a legend are measured
LINE = 2.0  # times the size of its letters a line of a legend is long, so that a broken one is seen to be
PAD = 0.6  # the same between a line and its words
BETWEEN = 1.2  # and between columns
COLUMNS = 6
MOST_ROWS = 2  # of a legend, before its letters are smaller
ROW = 0.15  # inches
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def finish_screen(
    figure,
    title: str,
    *,
    height: int,
    legend: Literal["left", "right"] | None = None,
    shapes=(),
    xaxis: dict,
    yaxis: dict,
    **layout,
) -> None:
    """Give a plotly figure of one pair of axes its size, margins, title and legend above the axes, in place of any layout."""
    top = (26 if legend else 8) + (22 if title else 0)
    layout |= {"hovermode": "closest", "margin": {"l": 8, "r": 8, "t": top, "b": 8}}
    if legend:
        x = 0 if legend == "left" else 1
        font = {"size": 11}
        layout["legend"] = {"orientation": "h", "x": x, "xanchor": legend, "y": 1.02, "yanchor": "bottom", "font": font}
    if title:
        layout["title"] = screen_title(title)
    # At once: plotly takes ten times as long to change a layout, and readers wait for it from click to click.
    figure.layout = theme.screen_layout(height=height, shapes=list(shapes), xaxis=xaxis, yaxis=yaxis, **layout)
    figure.layout.template = None


def screen_title(title: str) -> dict:
    """Return the title of a plotly figure, above everything else."""
    return {"text": for_html(title), "x": 0, "y": 0.98, "yanchor": "top", "font": {"size": 13}}


def screen_bar(**look) -> dict:
    """Return the bar of colours of a plotly figure."""
    return {"thickness": 8, "len": 1.0, "outlinewidth": 0, "tickfont": {"size": 10, "color": theme.MUTED}} | look


def finish_print(figure, title: str | None) -> None:
    """Give a matplotlib figure its title and its final layout."""
    if title:
        figure.suptitle(for_print(title), x=0.01, ha="left")
    settle(figure)


def log_axis(axis) -> None:
    """Make an axis of a matplotlib drawing logarithmic, all its ticks in one form: numbers, or powers of ten as plain text.

    Matplotlib writes powers as mathematics, which stays what it is in a figure whose texts are no mathematics.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value, *axis.get_view_interval())))
    axis.set_minor_formatter(NullFormatter())


def _power(value: float, low: float, high: float) -> str:
    """Return a tick of a logarithmic axis from `low` to `high`."""
    if low >= 1e-3 and high <= 1e4:
        return f"{value:g}"
    exponent = round(np.log10(value))
    digits = str(abs(exponent)).translate(RAISED)
    return f"10{'⁻' if exponent < 0 else ''}{digits}"


def canvas(width: float, height: float, w_pad: float = 0.02, h_pad: float = 0.02):
    """Return an empty matplotlib figure that belongs to no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if height > MOST_HEIGHT:
        raise DiffscopeError(
            f"the figure would be {height:,.0f} inches high, and {MOST_HEIGHT:g} are drawn; draw fewer panels, or less width"
        )
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=w_pad, h_pad=h_pad, wspace=0.02, hspace=0.02)
    FigureCanvasAgg(figure)
    return figure


def trim(figure, axes, tries: int = 3) -> None:
    """Choose the height at which axes of fixed aspect fill the room they were given.

    `axes` is the grid of axes (row, column). What is too high leaves white above and below the
    axes, what is too low leaves it left and right; both show as a difference between the box
    that the layout gave and the box that the aspect left.
    """
    axes = np.atleast_2d(axes)
    for ax in axes.flat:
        ax.set_anchor("SW")  # where its labels are, for which the layout leaves room as if the axes took all of theirs
    wrap_texts(figure)
    for _ in range(tries):
        figure.get_layout_engine().execute(figure)
        for ax in axes.flat:
            ax.apply_aspect()
        width, height = figure.get_size_inches()
        change = 0.0
        for row in axes:
            seen = [ax for ax in row if ax.get_visible()]
            if not seen:
                continue
            box = seen[0].get_position(original=True)  # what the layout gave
            left = seen[0].get_position()  # what the aspect left of it
            ratio = left.height * height / (left.width * width)
            change += (left.height - box.height) * height + (box.width - left.width) * width * ratio
        if abs(change) < 0.02:
            break
        figure.set_size_inches(width, max(0.8, height + change))
    settle(figure)


def settle(figure) -> None:
    """Lay out once more and keep it so: what is drawn later stays where it is."""
    wrapped = wrap_texts(figure)
    parted = part_ticks(figure)
    if wrapped or parted:  # laying out takes most of the time that a drawing takes
        figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")


def wrap_texts(figure) -> bool:
    """Lay out, and put titles and names of axes on several lines where they are longer than what they stand at.

    Returns whether any was.
    """
    wrapped = False
    figure.get_layout_engine().execute(figure)
    places = [(figure._suptitle, figure.bbox.width * 0.99)] if figure._suptitle else []
    lone = sum(bool(ax.get_xlabel()) for ax in figure.axes) == 1  # of several axes: it may stand below its neighbours, too
    for ax in figure.axes:
        box = ax.get_window_extent()
        below = max(box.width, figure.bbox.width / 2) if lone else box.width
        places += [(ax.title, box.width * WIDER), (ax.xaxis.label, below), (ax.yaxis.label, box.height)]
    for text, room in places:
        if _length(text) > room and "\n" not in text.get_text():
            _wrap(text, room)
            wrapped = True
    return wrapped


def _length(text) -> float:
    """Return how many pixels a text takes in the direction of its lines."""
    extent = text.get_window_extent()
    return extent.height if text.get_rotation() == 90 else extent.width


def lines_of(words: str, letters: int) -> list[str]:
    """Return a text on lines of at most so many letters, none of which begins with the dot between two parts."""
    return [line.removeprefix("· ") for line in textwrap.wrap(words, letters)]


def _wrap(text, room: float) -> None:
    """Put a text on lines of as many letters as fit the room, in pixels, but no fewer than NARROWEST."""
    words = text.get_text()
    letters = max(NARROWEST, int(len(words) * room / _length(text)))
    while True:
        text.set_text("\n".join(lines_of(words, letters)))
        if letters <= NARROWEST or _length(text) <= room:
            return
        letters -= 1


def part_ticks(figure) -> bool:
    """Turn the names below axes upright where they touch, and name fewer places where they still do; whether any did."""
    parted = False
    for ax in figure.axes:
        low, high = sorted(ax.get_xlim())
        ticks = zip(ax.get_xticks(), ax.get_xticklabels())
        labels = [label for at, label in ticks if low <= at <= high and label.get_text() and label.get_visible()]
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
        if len(boxes) < 2 or ax.xaxis.get_scale() == "log" or labels[0].get_rotation():
            continue
        if min(right.x0 - left.x1 for left, right in itertools.pairwise(boxes)) > 0:
            continue
        apart = (boxes[-1].x0 + boxes[-1].x1 - boxes[0].x0 - boxes[0].x1) / 2 / (len(boxes) - 1)
        every = math.ceil(1.1 * max(box.height for box in boxes) / apart)
        named = [(at, label.get_text()) for at, label in zip(ax.get_xticks(), ax.get_xticklabels()) if low <= at <= high]
        places, names = zip(*named[::every])  # those beyond the ends would widen the axis
        ax.set_xticks(places, names, rotation=90)
        parted = True
    return parted


def legend_below(figure, handles: Sequence, labels: Sequence[str], width: float) -> None:
    """Draw a legend below all axes of a figure so many inches wide; none if nothing has a name."""
    if any(labels):
        size, columns = _legend_layout(labels, width)
        look = {"columnspacing": BETWEEN, "handlelength": LINE, "handletextpad": PAD, "fontsize": size}
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, **look)


def legend_height(labels: Sequence[str], width: float) -> float:
    """Return how many inches a legend of more than one row takes beyond that one."""
    return ROW * (math.ceil(len(labels) / _legend_layout(labels, width)[1]) - 1) if labels else 0.0


def entry_widths(labels: Sequence[str], size: float | None = None) -> list[float]:
    """Return how many inches each entry of a legend is wide, with its line; `size` is of its letters, in points."""
    from matplotlib import rcParams
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    size = rcParams["legend.fontsize"] if size is None else size
    measure = RendererAgg(1, 1, FINE).get_text_width_height_descent
    font = FontProperties(size=size)
    return [measure(label, font, False)[0] / FINE + (LINE + PAD) * size / 72 if label else 0.0 for label in labels]


def _legend_layout(labels: Sequence[str], width: float) -> tuple[float, int]:
    """Return the size of a legend's letters in points, one less if that saves a third row, and the number of its columns."""
    from matplotlib import rcParams

    size = float(rcParams["legend.fontsize"])
    columns, fewer = (_columns(entry_widths(labels, points), width, points) for points in (size, size - 1))
    smaller = math.ceil(len(labels) / columns) > MOST_ROWS >= math.ceil(len(labels) / fewer)
    return (size - 1, fewer) if smaller else (size, columns)


def _columns(entries: Sequence[float], width: float, size: float) -> int:
    """Return how many columns of entries fit; matplotlib fills one after the other, the first ones with one more."""
    letter = size / 72
    for count in range(min(COLUMNS, len(entries)), 1, -1):
        longest = [max(part) for part in np.array_split(entries, count)]
        if sum(longest) + ((count - 1) * BETWEEN + 1) * letter <= width:
            return count
    return 1
