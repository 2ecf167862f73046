"""A board of tests: every judged quantity with its interval, beside what there would be without an effect.

All are shown in units of the smallest effect that matters, on an axis that is linear near 0 and logarithmic far from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import register
from diffscope.figures.canvas import canvas, settle
from diffscope.figures.escaping import for_html, for_print

ROW = 0.27  # inches a quantity takes in print
TICKS = np.array([-100, -10, -3, -1, 0, 1, 3, 10, 100])
INKS = {"above": theme.BLUES[7], "below": theme.ORANGES[7]}
NUMBERS = ("value", "low", "high", "null_low", "null_high")


def data(board: Sequence[Mapping]) -> xr.Dataset:
    """What is drawn of verdicts as dictionaries: one row a quantity that a rule uses, its numbers over what matters.

    Of a test that predicts nothing it is the first quantity.
    """
    rows = [row for verdict in _dicts(board) for row in _rows(verdict)]
    if not rows:
        raise DiffscopeError("no test of this board has numbers to draw; every one needs something")
    made = xr.Dataset({name: ("row", [row[name] for row in rows]) for name in rows[0]})
    made.attrs = {"figure": "board", "units": "the smallest effect that matters"}
    return made


def _dicts(board: Sequence[Mapping]) -> list[Mapping]:
    try:
        made = [one if isinstance(one, Mapping) else one.as_dict() for one in board]
        assert all("estimates" in one for one in made)
    except (AttributeError, AssertionError, TypeError):
        raise DiffscopeError("this figure is of verdicts: diffscope.hypotheses.test(…), or a board of a study") from None
    return made


def _rows(verdict: Mapping) -> list[dict]:
    estimates = verdict["estimates"]
    chosen = {name: row for name, row in estimates.items() if row["in_rule"]} or dict(list(estimates.items())[:1])
    made = []
    for row in chosen.values():
        numbers = {name: np.nan if row[name] is None else row[name] / row["margin"] for name in NUMBERS}
        made.append(
            {"test": verdict["id"], "verdict": verdict["verdict"], "label": row["label"], "state": row["state"]} | numbers
        )
    return made


def _first(data: xr.Dataset) -> np.ndarray:
    """Which rows begin a test."""
    tests = data["test"].values
    return np.r_[True, tests[1:] != tests[:-1]]


def _names(data: xr.Dataset) -> list[str]:
    return [
        f"{test}: {verdict}" if first else ""
        for test, verdict, first in zip(data["test"].values, data["verdict"].values, _first(data))
    ]


def _ink(state: str) -> str:
    return INKS.get(state, theme.MUTED)


def in_print(data: xr.Dataset, width: float, title: str | None = None, **_):
    count = data.sizes["row"]
    made = canvas(width, ROW * count + 0.7)
    ax = made.subplots()
    x = {name: np.arcsinh(data[name].values) for name in NUMBERS}
    for row, state in enumerate(data["state"].values):
        at = [row + 0.15] * 2
        ax.plot([x["null_low"][row], x["null_high"][row]], at, color=theme.RULE, lw=4, solid_capstyle="butt", zorder=1)
        ax.plot([x["low"][row], x["high"][row]], at, color=_ink(state), lw=1.2, zorder=2)
        ax.plot(x["value"][row], at[0], "o", ms=3, color=_ink(state), zorder=3)
    ax.axvspan(np.arcsinh(-1), np.arcsinh(1), color=theme.UNSEEN, zorder=0)
    for edge in np.flatnonzero(_first(data)[1:]):
        ax.axhline(edge + 0.5, color=theme.RULE, lw=0.4, zorder=0)
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_yticks(range(count), [for_print(name) for name in _names(data)])
    for row, label in enumerate(data["label"].values):
        ax.text(
            0.01,
            row - 0.24,
            for_print(label),
            transform=ax.get_yaxis_transform(),
            size="xx-small",
            color=theme.MUTED,
            va="center",
        )
    ax.tick_params(axis="y", length=0)
    reach = np.nanmax(np.abs([x[name] for name in NUMBERS]), initial=np.arcsinh(3))
    ax.set_xlim(-1.1 * reach, 1.05 * reach)
    shown = TICKS[np.abs(np.arcsinh(TICKS)) <= reach]
    ax.set_xticks(np.arcsinh(shown), [f"{tick:g}" for tick in shown])
    ax.set_xlabel("estimate, in units of the smallest effect that matters")
    if title:
        made.suptitle(for_print(title), x=0.01, ha="left")
    settle(made)
    return made


def on_screen(data: xr.Dataset, title: str | None = None, height: int | None = None, **_):
    import plotly.graph_objects as go

    count, made = data.sizes["row"], go.Figure()
    x = {name: np.arcsinh(data[name].values) for name in NUMBERS}
    rows = np.arange(count)

    def bars(low, high, **line):
        ends = np.stack([low, high, np.full(count, np.nan)], 1).ravel()
        look = dict(mode="lines", line=line, hoverinfo="skip", showlegend=True)
        return dict(x=ends, y=np.repeat(rows, 3), **look)

    made.add_trace(go.Scatter(name="without an effect", **bars(x["null_low"], x["null_high"], color=theme.RULE, width=9)))
    made.add_trace(go.Scatter(name="95 % interval", **bars(x["low"], x["high"], color=theme.INK, width=1.5)))
    said = [
        f"<b>{for_html(test)}</b>: {for_html(verdict)}<br>{for_html(label)}<br>"
        f"{value:.3g} ({low:.3g} to {high:.3g}) times what matters: {for_html(state)}"
        for test, verdict, label, state, value, low, high in zip(
            *(data[name].values for name in ("test", "verdict", "label", "state", "value", "low", "high"))
        )
    ]
    made.add_trace(
        go.Scatter(
            x=x["value"],
            y=rows,
            mode="markers",
            marker={"size": 8, "color": [_ink(state) for state in data["state"].values]},
            text=said,
            hovertemplate="%{text}<extra></extra>",
            name="estimate",
        )
    )
    labels = [
        f"<b>{for_html(name)}</b><br>" * bool(name) + for_html(label) for name, label in zip(_names(data), data["label"].values)
    ]
    made.update_layout(
        **theme.screen_layout(
            height=height or 110 + 34 * count,
            margin={"l": 8, "r": 8, "t": 48, "b": 8},
            title={"text": for_html(title or "estimates, in units of the smallest effect that matters"), "x": 0},
            legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 11}},
            xaxis=theme.screen_axis(tickvals=np.arcsinh(TICKS), ticktext=[f"{tick:g}" for tick in TICKS], showgrid=True),
            yaxis=theme.screen_axis(tickvals=rows, ticktext=labels, range=[count - 0.5, -0.5]),
            shapes=[
                {
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
            ],
        )
    )
    return made


register(
    "board",
    "tests of the hypotheses: estimates, intervals and what there would be without an effect",
    data=data,
    plotly=on_screen,
    matplotlib=in_print,
)
