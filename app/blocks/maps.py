"""The maps of one head, linked, and one row of them."""

from __future__ import annotations

from functools import cache

import streamlit as st
from words import in_words

from blocks.charts import show_chart
from diffscope import figures
from diffscope.figures import attention_view, token_strip

MOST = 1024  # tokens a side of a window of exact values


@cache
def _view():
    return st.components.v2.component("diffscope_attention", js=attention_view.streamlit_module())


def show_view(cap, layer: int, head: int, on_move=None, on_lock=None, key: str = "view"):
    """A1, A2, λ·A2 and D of one head (the one map of a standard head), linked: zoom, crosshair, locked tokens.

    Before the next run `on_move(layers, heads)` is called when an arrow key asks for another head, and `on_lock(rows, columns)`
    when tokens are locked or unlocked.
    """

    def moved():
        step = state().get("head")
        if step and on_move is not None:
            on_move(int(step["layer"]), int(step["head"]))

    def locked():
        tokens = state().get("locked") or {}
        if on_lock is not None:
            on_lock([int(row) for row in tokens.get("rows", [])], [int(column) for column in tokens.get("columns", [])])

    def state():
        return st.session_state.get(key) or {}

    with in_words():
        data = attention_view.buffer(cap, layer, head, window=_window(cap, state().get("window")))
        _view()(data=data, key=key, on_locked_change=locked, on_window_change=_nothing, on_head_change=moved)


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


def show_row(cap, layer: int, head: int, query: int, keys=None):
    """One query's row as signed bars over the keys, and as the prompt on the colours of D."""
    with in_words():
        figure = figures.row(cap, layer=layer, head=head, query=query, keys=keys)
        alt = f"Row of query {query} in layer {layer}, head {head}"
        show_chart(figure, alt, key="row-chart")
        return figure
    return None


@cache
def _strip():
    return st.components.v2.component("diffscope_tokens", js=token_strip.streamlit_module())


def show_text(cap, layer: int, head: int, query: int, on_query=None, on_mark=None, key: str = "strip"):
    """The prompt with each token on the colour of what a query gives it.

    Before the next run `on_query(position)` is called when a token is clicked, and `on_mark(name, first, last)` when tokens are
    selected and named.
    """

    def state():
        return st.session_state.get(key) or {}

    def clicked():
        if on_query is not None and state().get("query") is not None:
            on_query(int(state()["query"]))

    def marked():
        mark = state().get("marked")
        if on_mark is not None and mark:
            on_mark(str(mark["name"]), int(mark["first"]), int(mark["last"]))

    with in_words():
        data = token_strip.data(cap, layer, head, query, markable=on_mark is not None)
        _strip()(data=data, key=key, on_query_change=clicked, on_marked_change=marked)
