"""Where the reader looks: a layer, a head and a token, the same on every page."""

from __future__ import annotations

import math
import re

import streamlit as st
from cache import measured
from catalog import without_step
from url_state import bound

from diffscope.errors import check_index

INDEX = re.compile(r"\d{1,6}", re.ASCII)
state = st.session_state


def default_head(cap, key: tuple) -> tuple[int, int]:
    """Return where to begin: the head with the most of the answer at the last token."""
    mass = mass_on_answer(cap, key, cap.n_tokens - 1)
    if mass is None:
        return cap.layer_numbers[cap.n_layers // 2], 0
    shares = mass.sel(normalisation="share").fillna(-1.0)
    best = shares.isel(shares.argmax(...))  # from where it stands to what the model calls it
    return int(best["layer"]), int(best["head"])


def mass_on_answer(cap, key: tuple, query: int):
    """Return what the row of D of each head has on the answer, by normalisation; None if no answer is marked."""
    if "answer" not in cap.key_spans:
        return None
    return measured(cap, key, "span_mass", (query,))["span_mass"].sel(map="D", span="answer").isel(query=-1)


def init_selection(cap, key: tuple, prefix: str = "") -> None:
    """Begin with the head that attends to the answer most, and leave layer, head and token where the reader puts them.

    Another prompt begins again; another answer does if the reader chose no other head.
    `prefix` begins the keys of a page's second capture, which has a layer and a head of its own.
    """
    model = (without_step(cap.model_name), tuple(cap.layer_numbers), cap.n_heads)  # of all checkpoints the same
    best = default_head(cap, key)
    places = [f"{prefix}layer", f"{prefix}head"]
    now = tuple(state.get(place) for place in places)
    if None in now and (named := _named(cap, places)):
        select(*named, prefix)
        now = named
    prompt, answer = tuple(cap.ids), tuple(cap.spans.get("answer", ()))
    known = now[0] in cap.layer_numbers and now[1] in range(cap.n_heads)
    before = state.get(f"_{prefix}model")
    if before is None:
        begin = not set(places) & set(st.query_params)  # an address that names a head is followed
    elif before != model:
        begin = now == state[f"_{prefix}best"] or not known
    else:
        told, given = state[f"_{prefix}asked"]
        begin = None in now or told != prompt or (given != answer and now == state[f"_{prefix}best"])
    if begin or None in now:
        select(*best, prefix)
    state[f"_{prefix}model"], state[f"_{prefix}asked"] = model, (prompt, answer)
    state[f"_{prefix}best"] = best
    if not prefix:
        _follow_token(cap)


def _named(cap, places: list[str]) -> tuple[int, int] | None:
    """Return the layer and head that the address names, which are chosen in a part of the page that may not be shown."""
    texts = [st.query_params.get(place, "") for place in places]
    layer, head = (int(text) if INDEX.fullmatch(text) else -1 for text in texts)
    return (layer, head) if layer in cap.layer_numbers and head in range(heads_of(cap, layer)) else None


def _follow_token(cap) -> None:
    """Begin with the row of the last token, and leave the token where the reader puts it."""
    last = cap.n_tokens - 1
    asked = st.query_params.get("query", "")
    if state.get("query") is None and INDEX.fullmatch(asked):  # this page has no widget that would read the address
        state["query"] = int(asked)
    if "_last" not in state:
        begin = not asked
    else:
        begin = state.get("query") == state["_last"]
    if begin or state.get("query") is None or state["query"] > last:
        state["query"] = last
    state["_last"] = last


def choose_head(cap, prefix: str = "") -> tuple[int, int]:
    """Return layer and head of the maps; their widgets have no default, so that the address always names the head.

    Raises
    ------
    DiffscopeError
        An address names a layer or a head that is not there.
    """
    numbers = cap.layer_numbers
    step = math.gcd(*(number - numbers[0] for number in numbers)) or 1  # over layers without attention
    words = ("Second layer", "Second head") if prefix else ("Layer", "Head")
    layer = st.number_input(words[0], numbers[0], numbers[-1], None, step=step, **bound(f"{prefix}layer", named=True), width=110)
    last = heads_of(cap, numbers[-1] if layer is None else layer) - 1
    if state.get(f"{prefix}head") is not None and state[f"{prefix}head"] > last:  # of a layer with more heads
        state[f"{prefix}head"] = last
    head = st.number_input(words[1], 0, last, None, step=1, **bound(f"{prefix}head", named=True), width=110)
    if layer is None or head is None:
        layer, head = state[f"_{prefix}best"]
    check_index("layer", layer, cap.layer_numbers)
    check_index("head", head, range(cap.n_heads))
    return layer, head


def heads_by_layer(cap) -> dict[int, int]:
    """Return how many heads each layer has, by its number."""
    return {number: heads_of(cap, number) for number in cap.layer_numbers}


def choose_query(cap, label: str = "Token") -> int:
    """Return the token whose row is read."""
    last = cap.n_tokens - 1
    query = st.number_input(label, 0, last, None, step=1, **bound("query", named=True), width=160)
    return last if query is None else query


def select(layer: int, head: int, prefix: str = "") -> None:
    """Choose a head."""
    state[f"{prefix}layer"] = layer
    state[f"{prefix}head"] = head


def heads_of(cap, layer: int) -> int:
    """Return how many heads a layer has; if there is no such layer, how many the layer with most has."""
    return cap.layer(layer).n_heads if layer in cap.layer_numbers else cap.n_heads
