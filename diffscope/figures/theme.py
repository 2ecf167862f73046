"""One look for every figure: colours, fonts and widths, as plain dictionaries.

Nothing here touches global state. Matplotlib styles are dictionaries that `styled` applies
for the time of one drawing; plotly styles are layout dictionaries.

The colours carry the arithmetic: what A1 adds is blue, what λ·A2 takes away is orange, and D
runs from orange through white (always exactly zero) to blue. Both stay apart under the common
forms of colour blindness. In grey print what is darker than the middle grey is above zero: the
orange side of D ends there, the blue side goes on to nearly black.

Blue and orange mean nothing else. Models, heads and everything else that is told apart have the
colours of ``SERIES``, and a marker each. Controls are grey.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator

import numpy as np

from diffscope.attention.maps import MAPS
from diffscope.errors import DiffscopeError
from diffscope.figures import typeface

INK = "#1f2430"
MUTED = "#667085"
RULE = "#d0d5dd"
PAPER = "#ffffff"
UNSEEN = "#eef0f3"  # keys that a query cannot see: neither positive, negative nor zero

BLUES = ["#ffffff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b"]
ORANGES = ["#ffffff", "#feedde", "#fdd0a2", "#fdae6b", "#fd8d3c", "#f16913", "#d94801", "#a63603", "#7f2704"]

TAKEN = ORANGES[:6]  # of D below zero

#: the colour of each map where it is a line or a bar
MAP_COLOURS = {"A": BLUES[6], "A1": BLUES[6], "A2": ORANGES[5], "lambda_A2": ORANGES[5], "D": INK, "share": BLUES[6]}
#: the same by what maps, and what they give out, are called in print
SYMBOL_COLOURS = {
    f"{before}{symbol}{of}": MAP_COLOURS[name]
    for name, symbol in {"A": "A", **{name: entry.symbol for name, entry in MAPS.items()}}.items()
    for before in ("", "−", "own ")
    for of in ("", "·V")
}
#: which scale each map is drawn with
SCALES = {"A": "blue", "A1": "blue", "A2": "orange", "lambda_A2": "orange", "D": "diverging", "share": "blue"}
#: names as they are printed
TITLES = {"A": "A"} | {name: entry.title for name, entry in MAPS.items()}

SPAN_COLOURS = {
    "answer": "#009e73",
    "needles": "#cc79a7",
    "query": "#56606f",
    "context": "#b0b7c3",
    "irrelevant": "#b0b7c3",
    "sink": "#000000",
}
#: colours of models, and of lines and bars that are neither maps, spans nor controls: none is blue or orange, and each is darker
#: or lighter than the one before
SERIES = ["#4b3a78", "#4aa99d", "#a0456b", "#b5aa48", "#8d7bc4", "#6b5a52", "#86c2b8"]
#: the colours of what everything is compared with
CONTROLS = [MUTED, "#98a2b3", "#c0c7d1"]
#: colours of spans whose names have no meaning of their own
OTHER_SPANS = ["#7b61c9", "#b8860b", "#00838f", "#a61e4d", "#8d6e63", "#7a9a01"]

#: text widths in inches: one column, full width (equal where the venue has one column)
VENUES = {
    "icml": (3.25, 6.75),
    "neurips": (5.5, 5.5),
    "iclr": (5.5, 5.5),
    "acl": (3.03, 6.30),
    "cvpr": (3.25, 6.875),
    "aaai": (3.3, 6.975),
    "tmlr": (6.5, 6.5),
}
#: figure text in points: one point smaller than the captions of these venues
SIZE = 8

WEB_FONT = "'Source Sans', 'Source Sans 3', 'Source Sans Pro', Inter, -apple-system, 'Segoe UI', Roboto, sans-serif"

# ---------------------------------------------------------------- colour scales


def _stops(ramp: list[str], contrast: str) -> list[tuple[float, str]]:
    """Return positions from 0 to 1 for the colours of a ramp.

    With `contrast="sqrt"` a value's colour follows the root of its share of the maximum, so
    that weights of a few per cent can be seen beside a sink of 0.9. Values are not changed.
    """
    last = len(ramp) - 1
    power = 2.0 if contrast == "sqrt" else 1.0
    return [((i / last) ** power, colour) for i, colour in enumerate(ramp)]


def colour_scale(kind: str, contrast: str = "linear") -> list[tuple[float, str]]:
    """Return (position, colour) stops of a scale: "blue" and "orange" start at zero, "diverging" has zero at 0.5."""
    if kind == "blue":
        return _stops(BLUES, contrast)
    if kind == "orange":
        return _stops(ORANGES, contrast)
    lower = [(0.5 - p / 2, colour) for p, colour in reversed(_stops(TAKEN, contrast))]
    upper = [(0.5 + p / 2, colour) for p, colour in _stops(BLUES, contrast)]
    return lower + upper[1:]


def scale_of(name: str, values: np.ndarray) -> str:
    """Return the colour scale of a map: with two sides where values are below 0, as those of λ·A2 are where λ is."""
    return "diverging" if (values < 0).any() else SCALES[name]


def colour_limits(kind: str, top: float) -> tuple[float, float]:
    """Return limits that keep zero where the scale has it, whatever the data."""
    top = float(top) if top > 0 else 1.0
    return (-top, top) if kind == "diverging" else (0.0, top)


def colour_map(kind: str, contrast: str = "linear", empty: str = UNSEEN):
    """Return the same scale as a matplotlib colour map, which is not registered; `empty` is the colour of what has no value."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list(f"diffscope-{kind}", colour_scale(kind, contrast), N=4096)
    return colours.with_extremes(bad=empty)


def model_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each model."""
    return dict(zip(names, itertools.cycle(SERIES)))


def control_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a grey for the controls of each model."""
    return dict(zip(names, itertools.cycle(CONTROLS)))


def darkness(colour: str) -> float:
    """Return how dark a colour is in grey print, from 0 for white to 1 for black."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return 1 - (0.299 * red + 0.587 * green + 0.114 * blue)


def span_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each span of a prompt, none twice as long as there are enough.

    A name has the same colour in every prompt unless a span before it has that colour, so one that is added changes no other.
    """
    colours: dict[str, str] = {}
    for name in names:
        at = sum(map(ord, name)) % len(OTHER_SPANS)
        own = [*OTHER_SPANS[at:], *OTHER_SPANS[:at]]
        free = [colour for colour in own if colour not in colours.values()]
        colours[name] = SPAN_COLOURS.get(name) or colours.get(name) or (free or own)[0]
    return colours


# ---------------------------------------------------------------- print


def width(venue: str | None = None, wide: bool = True) -> float:
    """Return inches of a venue's full width, or of one column."""
    name = (venue or "neurips").lower()
    if name not in VENUES:
        raise DiffscopeError(f"there is no venue {venue!r}; choose from {', '.join(sorted(VENUES))}, or give width= in inches")
    return VENUES[name][1 if wide else 0]


def print_style() -> dict:
    """Return rcParams of a printed figure, as a plain dictionary."""
    return {
        "font.family": typeface.families(),
        "font.size": SIZE,
        "axes.titlesize": SIZE,
        "axes.labelsize": SIZE - 1,
        "xtick.labelsize": SIZE - 2,
        "ytick.labelsize": SIZE - 2,
        "legend.fontsize": SIZE - 1,
        "legend.frameon": False,
        "legend.handlelength": 1.4,
        "figure.titlesize": SIZE,
        "text.color": INK,
        "text.parse_math": False,  # a token may contain dollar signs
        "axes.unicode_minus": True,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.linewidth": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": False,
        "grid.color": RULE,
        "grid.linewidth": 0.4,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.major.width": 0.5,
        "ytick.major.width": 0.5,
        "xtick.major.size": 2.0,
        "ytick.major.size": 2.0,
        "xtick.major.pad": 1.5,
        "ytick.major.pad": 1.5,
        "lines.linewidth": 1.1,
        "patch.linewidth": 0.0,
        "hatch.linewidth": 0.5,
        "figure.facecolor": PAPER,
        "figure.dpi": 150,
        "savefig.facecolor": PAPER,
        "savefig.bbox": None,  # a tight box would change the width a venue asks for
        "savefig.dpi": 600,
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "svg.fonttype": "none",
        "svg.hashsalt": "diffscope",
        "pgf.rcfonts": False,  # LaTeX has the paper's own
    }


_drawing = threading.RLock()  # rcParams belong to the process: one drawing at a time


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Apply the print style for the time of one drawing, and nothing of a style that is set for the process."""
    import matplotlib

    usual = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    with _drawing, matplotlib.rc_context(usual | print_style()):
        yield


# ---------------------------------------------------------------- screen


def screen_layout(**more) -> dict:
    """Return a plotly layout, as a plain dictionary."""
    base = {
        "template": None,
        "font": {"family": WEB_FONT, "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": PAPER,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": RULE,
            "align": "left",
            "font": {"family": WEB_FONT, "size": 12, "color": INK},
        },
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yanchor": "top", "font": {"size": 11}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": MUTED, "activecolor": INK},
    }
    base.update(more)
    return base


def screen_axis(**more) -> dict:
    """Return a plotly axis, as a plain dictionary."""
    base = {
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "linecolor": RULE,
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 3,
        "tickcolor": RULE,
        "tickfont": {"size": 10, "color": MUTED},
        "automargin": True,
        "title": {"font": {"size": 11, "color": MUTED}, "standoff": 6},
    }
    base.update(more)
    return base


# ---------------------------------------------------------------- dark pages

NIGHT = "#0e1117"
#: what stands for each colour of the screen on a dark page
ON_DARK = {
    INK: "#e6e8ec",
    MUTED: "#9aa4b2",
    RULE: "#3b4252",
    PAPER: NIGHT,
    UNSEEN: "#262b35",
    BLUES[6]: "#6baed6",
    BLUES[7]: "#6baed6",
    ORANGES[7]: "#fdae6b",
    SERIES[0]: "#b3a3e6",
    SERIES[2]: "#d98aa8",
    SERIES[4]: "#6f5bb5",
    SERIES[5]: "#b8a59b",
}


def on_dark(figure):
    """Return a plotly figure for a dark page: light text, and scales that begin at the page's dark."""
    import plotly.graph_objects as go

    return go.Figure(_darkened(figure.to_dict()))


def _darkened(part):
    if isinstance(part, dict):
        return {key: _darkened(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return _dark_scale(part) if _is_scale(part) else [_darkened(value) for value in part]
    return ON_DARK.get(part, part) if isinstance(part, str) else part


def _is_scale(part) -> bool:
    """Return whether these are the (position, colour) stops of a colour scale."""
    return len(part) > 1 and all(isinstance(stop, (list, tuple)) and len(stop) == 2 and isinstance(stop[1], str) for stop in part)


def _dark_scale(stops) -> list[list]:
    """Return a scale that begins at the page's dark and ends at the lightest colour that differs from its neighbours."""
    shades = {}
    for ramp in (BLUES, ORANGES):
        night = [NIGHT, *ramp[3:][::-1]]
        for number, colour in enumerate(ramp):
            at = number / (len(ramp) - 1) * (len(night) - 1)
            shades[colour] = _between(night[int(at)], night[min(int(at) + 1, len(night) - 1)], at % 1)
    return [[position, shades.get(colour, colour)] for position, colour in stops]


def _between(first: str, second: str, share: float) -> str:
    """Return the colour that is so far on the way from one to another."""
    parts = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in (first, second)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(*parts))
