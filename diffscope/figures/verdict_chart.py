"""A board of tests: every judged quantity with its interval, and a column of words for each account.

Quantities are shown in units of the smallest effect that matters, on an axis that is linear near 0 and logarithmic far from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.figure import Chart
from diffscope.figures.print_layout import canvas, screen_title, settle
from diffscope.hypotheses.accounts import ACCOUNTS, AGAINST, FOR, LEGEND, OPEN, SILENT

ROW = 0.27  # inches a quantity takes in print
ANOTHER = 0.09  # inches of each further line of its label
LETTER = 0.037  # inches of a letter of these labels
NAME = 0.075  # inches of a letter of a test's name
ACROSS = 0.92  # of the width of the axes that these labels have
LINE = 76  # characters of a label on the screen, which stands above its row in a line or two
COLUMN = 0.45  # inches that the words of an account take in print at most
SHARE = 0.12  # of the width of the figure, too
PIXELS = 58  # on screen
UNITS = "estimate, in units of the smallest effect that matters"
TICKS = np.array([-100, -10, -3, -1, 0, 1, 3, 10, 100])
KINDS = ("primary", "mechanism", "measurement")  # in the order in which they are drawn
PAINT = {  # of a word: its ink, its ground and its edge
    FOR: (theme.PAPER, theme.INK, theme.INK),
    AGAINST: (theme.INK, theme.PAPER, theme.INK),
    OPEN: (theme.INK, theme.UNSEEN, theme.UNSEEN),
    SILENT: (theme.MUTED, theme.PAPER, theme.PAPER),
}
CAPTION = (
    "Tests of the hypotheses: estimates with their 95 % intervals (lines), beside what there would be without an effect (grey "
    f"bars), in units of the smallest effect that matters. {LEGEND}"
)
INKS = {"above": theme.BLUES[6], "below": theme.ORANGES[5]}  # of an estimate that is positive or negative
NUMBERS = ("value", "low", "high", "null_low", "null_high")
NO_EFFECT = {  # the band of what does not matter
    "type": "rect",
    "xref": "x",
    "yref": "paper",
    "x0": float(np.arcsinh(-1)),
    "x1": float(np.arcsinh(1)),
    "y0": 0,
    "y1": 1,
    "layer": "below",
    "fillcolor": theme.UNSEEN,
    "line": {"width": 0},
}


def data(board: Sequence[Mapping]) -> xr.Dataset:
    """Return what is drawn of verdicts, also as dictionaries: one row a quantity that a rule uses, its numbers over what matters.

    Primary tests come first; ``group`` counts the verdicts, of which several may be of one test. Of a measurement, which has no
    rule, it is the first quantity. ``word`` (row, account) is what the test says of each account; empty of a measurement.
    DiffscopeError if these are no verdicts, or none of them has numbers.
    """
    verdicts = sorted(_dicts(board), key=lambda verdict: KINDS.index(verdict.get("kind", KINDS[1])))
    rows = [{"group": number} | row for number, verdict in enumerate(verdicts) for row in _rows(verdict)]
    if not rows:
        raise DiffscopeError("no test of this board has numbers to draw; every one needs something")
    names = [name for name in rows[0] if name != "words"]
    dataset = xr.Dataset({name: ("row", [row[name] for row in rows]) for name in names}, {"account": list(ACCOUNTS)})
    dataset["word"] = ("row", "account"), [row["words"] for row in rows]
    dataset.attrs = {"units": "the smallest effect that matters", "caption": CAPTION}
    return dataset


def _dicts(board: Sequence[Mapping]) -> list[Mapping]:
    try:
        verdicts = [verdict if isinstance(verdict, Mapping) else verdict.as_dict() for verdict in board]
    except (AttributeError, TypeError):
        verdicts = [{}]
    if not all({"estimates", "verdicts"} <= set(verdict) for verdict in verdicts):
        raise DiffscopeError("this figure is of verdicts: diffscope.hypotheses.test(…), or a board of a study")
    return verdicts


def _rows(verdict: Mapping) -> list[dict]:
    estimates = list(verdict["estimates"].values())
    shown = [estimate for estimate in estimates if estimate["in_rule"]] or estimates[:1]
    rows = []
    for estimate in shown:
        numbers = {name: np.nan if estimate[name] is None else estimate[name] / estimate["margin"] for name in NUMBERS}
        words = {
            "test": verdict["id"],
            "verdict": verdict["shown"],
            "words": [verdict["verdicts"].get(account, "") for account in ACCOUNTS],
            "label": estimate["label"],
            "state": estimate["state"],
        }
        rows.append(words | numbers)
    return rows


def _first(data: xr.Dataset) -> np.ndarray:
    """Return which rows begin a verdict."""
    return np.diff(data["group"].values, prepend=-1) != 0


def _names(data: xr.Dataset) -> list[str]:
    """Return the test of the rows that begin one, empty for the others."""
    return [str(test) if first else "" for test, first in zip(data["test"].values, _first(data))]


def _quantities(data: xr.Dataset) -> list[str]:
    """Return what each row is of; one in which nothing is drawn says why."""
    known = np.isfinite(data["value"].values)
    return [str(label) if drawn else f"{label}: not measured" for label, drawn in zip(data["label"].values, known)]


def _words(data: xr.Dataset) -> list[tuple[int, int, str]]:
    """Return row, column and word of what is said of accounts, once a test."""
    rows = np.flatnonzero(_first(data))
    return [
        (int(row), column, str(word))
        for row in rows
        for column, word in enumerate(data["word"].transpose("row", "account").values[row])
        if word
    ]


def _ink(state: str) -> str:
    return INKS.get(state, theme.MUTED)


def in_print(data: xr.Dataset, width: float, title: str | None = None, **_):
    count = data.sizes["row"]
    columns = min(COLUMN, SHARE * width) * data.sizes["account"]
    across = max(1.0, width - columns - NAME * max(map(len, _names(data))))
    room = int(across * ACROSS / LETTER)
    labels = [wrap(for_print(label), max(16, room)) for label in _quantities(data)]
    lines = max(map(len, labels))
    figure = canvas(width, (ROW + ANOTHER * (lines - 1)) * count + 0.7)
    ax, beside = figure.subplots(1, 2, sharey=True, width_ratios=(across, columns))
    x = {name: np.arcsinh(data[name].values) for name in NUMBERS}
    _bars(ax, x, data["state"].values)
    ax.axvspan(np.arcsinh(-1), np.arcsinh(1), color=theme.UNSEEN, zorder=0)
    for edge in np.flatnonzero(_first(data)[1:]):
        ax.axhline(edge + 0.5, color=theme.RULE, lw=0.4, zorder=0)
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_yticks(range(count), [for_print(name) for name in _names(data)])
    small = {"transform": ax.get_yaxis_transform(), "size": "xx-small", "color": theme.MUTED, "va": "top"}
    for row, label in enumerate(labels):
        ax.text(0.01, row - 0.45, "\n".join(label), **small)
    ax.tick_params(axis="y", length=0)
    reach = _reach(x)
    ax.set_xlim(-1.1 * reach, 1.05 * reach)
    ticks = TICKS[np.abs(np.arcsinh(TICKS)) <= reach]
    ax.set_xticks(np.arcsinh(ticks), [f"{tick:g}".replace("-", "−") for tick in ticks])
    ax.set_xlabel(UNITS)
    _columns(beside, data)
    if title:
        figure.suptitle(for_print(title), x=0.01, ha="left")
    settle(figure)
    return figure


def _columns(ax, data: xr.Dataset) -> None:
    """Draw the words of accounts, a column each, at the first row of every test."""
    accounts = data["account"].values
    ax.set_xlim(-0.5, len(accounts) - 0.5)
    ax.set_xticks(range(len(accounts)), accounts)
    ax.tick_params(length=0, labelleft=False, top=False, labeltop=True, labelbottom=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    for edge in np.flatnonzero(_first(data)[1:]):
        ax.axhline(edge + 0.5, color=theme.RULE, lw=0.4, zorder=0)
    for row, column, word in _words(data):
        ink, ground, edge = PAINT[word]
        box = {"boxstyle": "round,pad=0.25", "facecolor": ground, "edgecolor": edge, "linewidth": 0.7}
        ax.text(column, row, word, ha="center", va="center", size="x-small", color=ink, bbox=box)


def _reach(x: Mapping[str, np.ndarray]) -> float:
    """Return how far from 0 the axis goes on both sides."""
    return float(np.nanmax(np.abs([x[name] for name in NUMBERS]), initial=np.arcsinh(3)))


def _bars(ax, x: Mapping[str, np.ndarray], states: Sequence[str]) -> None:
    """Draw the range without an effect, the interval and the estimate of every row."""
    for row, state in enumerate(states):
        y = [row + 0.28] * 2
        ax.plot([x["null_low"][row], x["null_high"][row]], y, color=theme.RULE, lw=4, solid_capstyle="butt", zorder=1)
        ax.plot([x["low"][row], x["high"][row]], y, color=_ink(state), lw=1.2, zorder=2)
        ax.plot(x["value"][row], y[0], "o", ms=3, color=_ink(state), zorder=3)


def on_screen(data: xr.Dataset, title: str | None = None, height: int | None = None, **_):
    import plotly.graph_objects as go

    count = data.sizes["row"]
    rows = np.arange(count)
    x = {name: np.arcsinh(data[name].values) for name in NUMBERS}

    def bars(name, low, high, **line):
        ends = np.stack([x[low], x[high], np.full(count, np.nan)], 1).ravel()
        return go.Scatter(x=ends, y=np.repeat(rows, 3), mode="lines", line=line, hoverinfo="skip", showlegend=True, name=name)

    estimates = go.Scatter(
        x=x["value"],
        y=rows,
        mode="markers",
        marker={"size": 8, "color": [_ink(state) for state in data["state"].values]},
        text=_hover(data),
        hovertemplate="%{text}<extra></extra>",
        name="estimate",
    )
    figure = go.Figure()
    figure.add_trace(bars("without an effect", "null_low", "null_high", color=theme.RULE, width=9))
    figure.add_trace(bars("95 % interval", "low", "high", color=theme.INK, width=1.5))
    figure.add_trace(estimates)
    figure.update_layout(
        **theme.screen_layout(
            height=height or 84 + 50 * count + (24 if title else 0),
            margin={"l": 8, "r": 8 + (0 if _alone(data) else PIXELS * data.sizes["account"]), "t": 54 if title else 30, "b": 8},
            legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 11}},
            xaxis=theme.screen_axis(
                tickvals=np.arcsinh(TICKS),
                ticktext=[f"{tick:g}".replace("-", "−") for tick in TICKS],
                range=[-1.05 * _reach(x), 1.05 * _reach(x)],
                showgrid=True,
                title_text=UNITS,
            ),
            yaxis=theme.screen_axis(visible=False, range=[count - 0.6, -0.85]),
            shapes=[NO_EFFECT],
            annotations=_labels(data) if _alone(data) else [*_labels(data), *_badges(data)],
        )
    )
    if title:
        figure.update_layout(title=screen_title(title))
    return figure


def _alone(data: xr.Dataset) -> bool:
    """Return whether there is one verdict, whose words take no columns of a narrow screen."""
    return len(set(data["group"].values)) == 1


def _labels(data: xr.Dataset) -> list[dict]:
    """Return what stands above each row: of the first of a test its name, alone with its words, then the quantity."""
    place = {"xref": "paper", "x": 0.004, "xanchor": "left", "yanchor": "bottom", "align": "left", "showarrow": False}
    labels = []
    names = _names(data)
    if _alone(data):
        names[0] = f"{names[0]}: {data['verdict'].values[0]}"
    for row, (name, label) in enumerate(zip(names, _quantities(data))):
        first, *others = wrap(f"{name} · {label}" if name else label, LINE)
        words = f"<b>{for_html(name)}</b>{for_html(first[len(name) :])}"
        text = "<br>".join([words, *map(for_html, others)])
        labels.append({**place, "y": row - 0.2, "text": text, "font": {"size": 10.5, "color": theme.MUTED}})
    return labels


def _badges(data: xr.Dataset) -> list[dict]:
    """Return the words of accounts right of the axes, a column each under the account's name."""
    at = {"xref": "paper", "x": 1, "xanchor": "center", "showarrow": False}
    places = [(column + 0.5) * PIXELS + 4 for column in range(data.sizes["account"])]
    heads = [
        {**at, "yref": "paper", "y": 1, "yanchor": "bottom", "xshift": shift, "text": f"<b>{account}</b>", "font": {"size": 12}}
        for shift, account in zip(places, data["account"].values)
    ]
    words = []
    for row, column, word in _words(data):
        ink, ground, edge = PAINT[word]
        box = {"bgcolor": ground, "bordercolor": edge, "borderpad": 3, "font": {"size": 11, "color": ink}}
        words.append({**at, "y": row, "yanchor": "middle", "xshift": places[column], "text": word, **box})
    return [*heads, *words]


def _hover(data: xr.Dataset) -> list[str]:
    columns = zip(*(data[name].values for name in ("test", "verdict", "label", "state", "value", "low", "high")))
    return [
        f"<b>{for_html(test)}</b>: {for_html(verdict)}<br>{for_html(label)}<br>"
        f"{value:.3g} ({low:.3g} to {high:.3g}) times what matters: {for_html(state)}"
        for test, verdict, label, state, value, low, high in columns
    ]


CHART = Chart(on_screen, in_print)
