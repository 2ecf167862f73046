"""Views of a capture: all heads, the maps of one head, linked, one row of them, the prompt, and λ."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from functools import partial

import streamlit as st
from messages import show_errors

from blocks.show import component, export_menu, show_chart
from diffscope import figures
from diffscope.figures.escaping import short_name
from diffscope.figures.inputs import layer_at
from diffscope.figures.rows import LARGEST
from diffscope.numbers import head_name
from diffscope.readings.reading import Part
from diffscope.views import attention as attention_view
from diffscope.views import heads as head_grid
from diffscope.views import tokens as token_strip

KEPT_MAPS = 8  # heads
HELD = "held"  # the key of the component that holds the views of other heads


def show_heads(
    data,
    selected: tuple[int, int] | None,
    on_pick=None,
    key: str = "heads",
    *,
    thumbnails=None,
    off=(),
    on_switch=None,
    heads=None,
    title: str = "",
):
    """Show a statistic by layer and head, as numbers on colours; with thumbnails as small pictures of every head's map.

    Before the next run `on_pick(layer, head)` is called when a head is clicked, and `on_switch(layer, head)` when one is to be
    switched off or on (a click with shift, or the key x). Heads in `off` are crossed out. `heads` says how many each layer has,
    where layers differ. `title` says what is shown, in words.
    """

    def pass_on(event: str, act) -> None:
        place = (st.session_state.get(key) or {}).get(event)
        if place and act is not None:
            act(int(place["layer"]), int(place["head"]))

    with show_errors():
        buffer = head_grid.buffer(data, thumbnails, selected, off, switching=on_switch is not None, heads=heads, title=title)
        component("heads", head_grid.COMPONENT.streamlit)(
            data=buffer,
            key=key,
            on_chosen_change=lambda: pass_on("chosen", on_pick),
            on_off_change=lambda: pass_on("off", on_switch),
        )


def show_view(
    cap,
    layer: int,
    head: int,
    on_head=None,
    on_lock=None,
    key: str = "view",
    *,
    group: str = "",
    state: dict | None = None,
    on_state=None,
    sentence: Sequence[Part] = (),
    query: int | None = None,
):
    """Show A1, A2, λ·A2 and D of one head (the one map of a standard head), linked: zoom, crosshair, locks; or as lines.

    Before the next run `on_head(layer, head)` is called when an arrow key asks for another head, `on_lock(rows, columns)` when
    tokens are locked or unlocked, and `on_state(state)` when it is looked at in another way, where it was given a `state`, be it
    empty, when it appeared. Views of one `group` share their colours and, of the same tokens, what is looked at.
    """

    def moved():
        place = held().get("head")
        if place and on_head is not None:
            on_head(int(place["layer"]), int(place["head"]))

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
    with show_errors():
        place = held().get("window") or {}
        attention = layer_at(cap, layer, head)
        data = attention_view.buffer(
            cap,
            layer,
            head,
            window=attention_view.window_of(place, attention.n_queries, attention.n_keys),
            lines=True if place.get("lines") else None,
            maps=_maps(cap, layer, head, key),
            group=group,
            state=st.session_state.get(first),
            sentence=sentence,
            query=query,
        )
        changes = {"locked": locked, "window": _nothing, "head": moved, "state": looked}
        component("attention", attention_view.COMPONENT.streamlit)(
            data=data, key=key, **{f"on_{name}_change": change for name, change in changes.items()}
        )


def _maps(cap, layer: int, head: int, key: str):
    """Return the whole maps of a head. The session keeps the last ones: windows do not change them, and heads are seen again."""
    name = f"_{key}-maps"
    last, kept = st.session_state.get(name) or (None, {})
    if last is None or last() is not cap.layers[0]:  # a capture with other spans has the same layers
        kept = {}
        st.session_state[name] = (weakref.ref(cap.layers[0]), kept)
    maps = kept.pop((layer, head), None)
    kept[layer, head] = attention_view.whole_maps(cap, layer, head) if maps is None else maps
    while len(kept) > KEPT_MAPS:
        del kept[next(iter(kept))]
    return kept[layer, head]


def hold_heads(bundle: bytes) -> None:
    """Let the page hold the views of all heads, so that it shows another one at once."""
    component("held", attention_view.HELD.streamlit)(data=bundle, key=HELD, on_wanted_change=_nothing)


@st.fragment
def hold_heads_beside(cap, layer: int, head: int, query: int, sentences, about: str) -> None:
    """Let the page fetch the heads beside the one that is shown ahead, one at a time, while nobody asks for anything else.

    `sentences` returns what is said of a head at the query, of what `about` names.
    """
    place = (st.session_state.get(HELD) or {}).get("wanted")
    wanted = [(int(place["layer"]), int(place["head"]))] if place else []
    with show_errors():
        bundle = attention_view.bundle(
            cap,
            [each for each in wanted if each in attention_view.places_of(cap)],
            sentences=sentences,
            maps=lambda layer, head: _maps(cap, layer, head, "view"),
            beside=(layer, head),
            about=about,
            query=query,
        )
        component("held", attention_view.HELD.streamlit)(data=bundle, key=HELD, on_wanted_change=_nothing)


def _nothing() -> None:
    """Do nothing: what has changed is read from the session."""


def show_row(cap, layer: int, head: int, query: int, most: int = LARGEST, *, key: str = "row-chart", height: int = 260):
    """Show one query's row as signed bars over the keys, `height` pixels high; `most` as of :func:`drawn_keys`."""
    with show_errors():
        keys = drawn_keys(layer_at(cap, layer, head), query, most)
        figure = figures.row(cap, layer=layer, head=head, query=query, keys=keys)
        alt = f"Row of query {query} in {head_name(layer, head)}"
        show_chart(figure.plotly(height=height), alt, key=key)
        return figure
    return None


def drawn_keys(attention, query: int, most: int) -> tuple[int, int] | None:
    """Return which keys of a query's row are drawn; None for all.

    Of a causal row with more than `most` keys these are the last ones that the query sees. In other rows any key may have the
    weight, and as many are drawn as a figure takes.
    """
    if attention.n_keys <= most:
        return None
    return (max(0, query - most + 1), query + 1) if attention.mask.kind in ("causal", "window") else (0, LARGEST)


def show_text(cap, layer: int, head: int, query: int, on_query=None, on_mark=None, marked: Collection[str] = ()):
    """Show the prompt with each token on the colour of what a query gives it.

    Before the next run `on_query(position)` is called when a token is clicked, and `on_mark(marks)` when tokens are selected and
    named. Each mark is a name, a first and a last position; marks of a moment before are among them, known or not. `marked` are
    the names of spans that were marked so before.
    """

    def state():
        return st.session_state.get("strip") or {}

    def clicked():
        if on_query is not None and state().get("query") is not None:
            on_query(int(state()["query"]))

    def named():
        marks = state().get("marked")
        if on_mark is not None and marks:
            on_mark([(str(each["name"]), int(each["first"]), int(each["last"])) for each in marks])

    with show_errors():
        data = token_strip.data(cap, layer, head, query, markable=on_mark is not None, marked=marked)
        component("tokens", token_strip.COMPONENT.streamlit)(
            data=data, key="strip", on_query_change=clicked, on_marked_change=named
        )


def show_lambda(cap, layer: int | None = None):
    """Show λ by layer, beside the value it was initialised at."""
    if not cap.differential:
        st.caption("Standard attention: one map a head, no λ.")
        return
    with show_errors():
        show_chart(figures.lambdas(cap).plotly(selected=layer), "λ by layer", key="lambda-chart")


def offer_maps(
    cap, layer: int, head: int, code: str, *, name: str = "", label: str = "Export the maps", subject: str = "cap", page=None
) -> None:
    """Offer the maps of a head for export; `code` is Python that gives the capture as `subject`."""
    export_menu(
        name or f"{short_name(cap.model_name)}-layer{layer}-head{head}",
        label=label,
        figure=partial(figures.maps, cap, layer=layer, head=head),
        page=page,
        data=partial(cap.maps, layer, [head]),
        code=code + f'\ndiffscope.figures.maps({subject}, layer={layer}, head={head}).save("maps.pdf")\n',
    )
