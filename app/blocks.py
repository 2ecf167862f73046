"""What the pages are made of. Each block takes a capture and works in anybody's Streamlit app.

>>> import streamlit as st, diffscope, blocks                    # doctest: +SKIP
>>> cap = diffscope.load("mini-diff").capture("The code is 7421.")   # doctest: +SKIP
>>> blocks.show_view(cap, layer=3, head=1)                       # doctest: +SKIP
"""

from __future__ import annotations

import weakref
from functools import cache, partial

import pandas as pd
import streamlit as st
from sources import in_words, plain

from diffscope import figures
from diffscope.figures import attention_view
from diffscope.figures.escaping import visible
from diffscope.figures.heads import on_screen
from diffscope.figures.token_html import token_html
from diffscope.files import to_json

MOST = 1024  # tokens a side of a window of exact values
QUIET = {"displaylogo": False, "displayModeBar": False}


@cache
def _view():
    return st.components.v2.component("diffscope_attention", js=attention_view.streamlit_module())


def show_view(
    cap,
    layer: int,
    head: int,
    on_move=None,
    on_lock=None,
    key: str = "view",
    *,
    group: str = "",
    state: dict | None = None,
    on_state=None,
):
    """A1, A2, λ·A2 and D of one head (the one map of a standard head), linked: zoom, crosshair, locked tokens; or as lines.

    Before the next run `on_move(layers, heads)` is called when an arrow key asks for another head, `on_lock(rows, columns)` when
    tokens are locked or unlocked, and `on_state(state)` when it is looked at in another way, where it was given a `state`, be it
    empty, when it appeared. Views of one `group` share their colours and, of the same tokens, what is looked at.
    """

    def moved():
        step = held().get("head")
        if step and on_move is not None:
            on_move(int(step["layer"]), int(step["head"]))

    def locked():
        tokens = held().get("locked") or {}
        if on_lock is not None:
            on_lock([int(row) for row in tokens.get("rows", [])], [int(column) for column in tokens.get("columns", [])])

    def looked():
        if on_state is not None:
            on_state(held().get("state") or {})

    def held():
        return st.session_state.get(key) or {}

    first = f"_{key}-state"
    if key not in st.session_state:
        st.session_state[first] = state  # later ones come from the view itself; with them all its data would be sent again
    with in_words():
        place = held().get("window") or {}
        data = attention_view.buffer(
            cap,
            layer,
            head,
            window=_window(cap, place),
            lines=True if place.get("lines") else None,
            maps=_maps(cap, layer, head, key),
            group=group,
            state=st.session_state.get(first),
        )
        changes = {"locked": locked, "window": _nothing, "head": moved, "state": looked}
        _view()(data=data, key=key, **{f"on_{name}_change": change for name, change in changes.items()})


def _maps(cap, layer: int, head: int, key: str):
    """The whole maps of a head: they stay the same while one looks at windows of them, so the session keeps the last ones."""
    name = f"_{key}-maps"
    last, place, maps = st.session_state.get(name) or (None, None, None)
    if last is None or last() is not cap or place != (layer, head):
        maps = attention_view.whole_maps(cap, layer, head)
        st.session_state[name] = (weakref.ref(cap), (layer, head), maps)
    return maps


def _nothing() -> None:
    """What has changed is read from the session."""


def _window(cap, place) -> tuple[slice, slice] | None:
    """The part of the maps that the view asks for, within the prompt."""
    if not place:
        return None
    n = cap.n_tokens
    top, left, size = (max(0, int(place[name])) for name in ("top", "left", "size"))
    if top >= n or left >= n or size > MOST:
        return None  # of another prompt, or not of the view
    return slice(top, min(n, top + size)), slice(left, min(n, left + size))


def show_heads(data, selected: tuple[int, int] | None, on_pick=None, key: str = "heads-chart"):
    """A statistic by layer and head. `on_pick(layer, head)` is called before the next run when a cell is clicked."""

    def picked():
        points = (st.session_state.get(key) or {}).get("selection", {}).get("points", [])
        last = f"_{key}-last"
        # a second click on the same cell takes the selection away: it means that cell again
        place = (int(points[0]["y"]), int(points[0]["x"])) if points else st.session_state.get(last)
        st.session_state[last] = place
        if place is not None and on_pick is not None:
            on_pick(*place)

    with in_words():
        st.plotly_chart(
            on_screen(data, selected=selected),
            theme=None,
            config=QUIET | {"doubleClick": False},
            key=key,
            on_select=picked,
            selection_mode="points",
            alt=f"{data.attrs['long_name']} by layer and head",
        )


def show_lambda(cap, layer: int | None = None):
    """λ by layer, beside the value it was initialised at."""
    if not cap.differential:
        st.caption("Standard attention: one map a head, no λ.")
        return
    with in_words():
        chart = figures.lambdas(cap).plotly(selected=layer)
        st.plotly_chart(chart, theme=None, config=QUIET, key="lambda-chart", alt="λ by layer")


def show_next(cap):
    """The model's most probable next tokens."""
    rows = [{"next token": visible(str(token)), "probability": float(p)} for token, p in cap.next]
    st.dataframe(
        pd.DataFrame(rows, columns=["next token", "probability"]),
        hide_index=True,
        height=36 + 28 * min(len(rows), 6),
        row_height=28,
        column_config={"probability": st.column_config.ProgressColumn(format="%.3f", min_value=0.0, max_value=1.0)},
    )


def show_fidelity(cap):
    """Whether the maps shown are the ones that the model used, and by how much at worst."""
    table = figures.fidelity(cap).data.to_dataframe()[["error", "tolerance"]]
    faithful = bool((table["error"] <= table["tolerance"]).all())
    worst = f"{table['error'].max():.1e}"
    facts = cap.fidelity.attrs
    notes = [f"{about.capitalize()}: {facts[about]}" for about in ("warnings", "edits") if about in facts]
    with st.popover(
        f"{'faithful' if faithful else 'NOT faithful'} · error {worst}{' · see note' if notes else ''}",
        help=("From what was captured, each layer's attention output is rebuilt and compared with the model's own."),
    ):
        st.caption(
            "Error of each layer's attention output, rebuilt from the capture, relative to what was subtracted, and the largest "
            "that the model's number format explains."
        )
        for note in notes:
            st.text(note)
        for reason, layers in cap.undecided.items():
            st.text(f"Not decided in layers {', '.join(map(str, layers))}: {reason}.")
        st.dataframe(table.style.format("{:.1e}"), height=36 + 28 * min(len(table), 10), row_height=28)


def show_row(cap, layer: int, head: int, query: int, keys=None):
    """One query's row as signed bars over the keys, and as the prompt on the colours of D."""
    with in_words():
        figure = figures.row(cap, layer=layer, head=head, query=query, keys=keys)
        alt = f"Row of query {query} in layer {layer}, head {head}"
        st.plotly_chart(figure.plotly(), theme=None, config=QUIET, key="row-chart", alt=alt)
        return figure
    return None


def show_text(row):
    """The prompt with each token on the colour of its weight; `row` is the figure that `show_row` returned."""
    st.html(token_html(row.data))


def download_maps(cap, layer: int, head: int, name: str):
    """Buttons that draw the maps of one head when they are pressed: for print, and as a page to explore them in."""
    figure = partial(figures.maps, cap, layer=layer, head=head)
    later = {"on_click": "ignore"}
    st.download_button("Maps as PDF", lambda: figure().to_bytes(".pdf"), f"{name}.pdf", "application/pdf", key="pdf", **later)
    page = partial(attention_view.page, cap, layer, head)
    st.download_button("as HTML", lambda: page().encode(), f"{name}.html", "text/html", key="html", **later)


def as_json(data) -> bytes:
    """Labelled data as a JSON document."""
    return to_json(data.to_dict()).encode()


def show_verdicts(board):
    """Verdicts side by side: test, verdict, claim."""
    from diffscope.hypotheses.rules import ACCOUNTS

    rows = [
        {
            "test": verdict.test.id,
            "verdict": ACCOUNTS.get(verdict.shown, verdict.shown),
            "claim": verdict.test.claim,
        }
        for verdict in board
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=36 + 28 * len(rows), row_height=28)


def show_estimates(board):
    """Every judged quantity with its interval, beside what there would be without an effect."""
    if not any(verdict.estimates for verdict in board):
        return
    with in_words():
        chart = figures.board(board).plotly()
        st.plotly_chart(chart, theme=None, config=QUIET, key="board-chart", alt="Estimates of the tests")


def show_verdict(verdict):
    """One test in full: what was declared, what was measured, by layer where there are layers."""
    from diffscope.hypotheses import report

    for name, words in report.facts(verdict):
        st.markdown(f"**{name}.** {plain(words)}")
    if not verdict.estimates:
        return
    table = pd.DataFrame(report.rows(verdict), columns=list(report.COLUMNS))
    st.dataframe(table, hide_index=True, height=36 + 28 * len(table), row_height=28)
    layers = [
        {"quantity": verdict.test.quantities[name].label}
        | {f"layer {number}": report.number(value) for number, value in enumerate(estimate.layers)}
        for name, estimate in verdict.estimates.items()
        if estimate.layers
    ]
    if layers:
        st.caption("by layer, mean over prompts, heads and seeds (not judged)")
        st.dataframe(pd.DataFrame(layers), hide_index=True, height=36 + 28 * len(layers), row_height=28)
