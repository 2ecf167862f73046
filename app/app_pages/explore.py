"""Explore: one prompt, every layer and head; the maps of one head; one token's row."""

from __future__ import annotations

from functools import partial

import blocks
import streamlit as st
from amplifier.logits import KEY, OF_PROMPT, show_logits
from amplifier.numbers import show_numbers
from cache import all_heads, sentence_of, thumbnails
from introduction import explain_mechanism, show_introduction
from messages import as_call, escape_markdown, show_errors
from offered_heads import keep_room, offer_heads, where_of
from selection import choose_head, choose_query, heads_by_layer, init_selection, select
from sidebar import choose_subject
from statistic_picker import LETTERS, choose_statistic, label_of, signs_of, title_of
from url_state import bound, save_view_state, token_ids, view_state

from diffscope import figures
from diffscope.attention.maps import short_title
from diffscope.attention.maps import title_of as map_title
from diffscope.figures.escaping import readable, shorten, visible
from diffscope.numbers import capital
from diffscope.stats import STATISTICS
from diffscope.stats.statistic import in_signs
from diffscope.views import attention as attention_view

#: on a narrow page the head that is looked at stands above all heads
MAPS_FIRST = "<style>@media (max-width: 1150px){div:has(> .st-key-part-maps){order:-1}}</style>"
AHEAD = 4096  # tokens up to which the heads beside the one that is shown are fetched ahead
state = st.session_state


def show_capture(subject, cap) -> None:
    """Show a capture below the choice of model and prompt: its maps, numbers of all heads, or what they add to the logits."""
    init_selection(cap, subject.key)
    show_introduction(subject, cap)
    part = st.segmented_control("Part", [*PARTS], **bound("part", options=[*PARTS]), required=True, label_visibility="collapsed")
    if cap.key_prompts is not None and part != "Maps":
        st.info(f"The part {part} is not made for cross-attention. Choose the part Maps, or in the sidebar other layers.")
        return
    PARTS[part](subject, cap)


def show_maps(subject, cap) -> None:
    """Show all heads and the maps of one, λ, and what the model says next."""
    show_heads_and_maps(subject, cap)
    blocks.show_later(partial(show_lambda_and_next, cap), "later-lambda")


def show_lambda_and_next(cap) -> None:
    """Show λ and what the model says next."""
    with blocks.columns("lambda", "next") as (left, right):
        with left:
            blocks.show_lambda(cap)
        with right:
            blocks.show_next(cap)


@st.fragment
def show_heads_and_maps(subject, cap) -> None:
    """Show all heads, the maps of one and the row of one token; a click on a head or a token draws only these again."""
    if state.pop("_marked", False):
        st.rerun()  # the capture has other spans
    with show_errors():
        asked = where_of(subject, cap)
        keep_room(asked)
        line = st.container(key="where")
        bar = st.container(horizontal=True, vertical_alignment="center")
        with bar:
            layer, head, query, statistic = choose(subject, cap)
        st.html(MAPS_FIRST)
        with blocks.columns("heads", "maps", least=(260, 560)) as (left, right):
            with right:  # the maps are sent before what is slower
                blocks.show_view(
                    cap,
                    layer,
                    head,
                    on_head=select,
                    on_lock=partial(read_locked, cap),
                    state=view_state("view", cap),
                    on_state=partial(save_view_state, "view"),
                    sentence=sentence_of(cap, subject.key, query, layer, head),
                    query=query,
                )
            with left:
                show_grid(subject, cap, layer, head, statistic)
        with bar:
            blocks.show_fidelity(cap)
            explain_mechanism(cap, layer, head)
        show_token(subject, cap, layer, head, query)
        offer(subject, cap, layer, head, query, statistic)
        if attention_view.is_small(cap):
            blocks.hold_heads(all_heads(cap, subject.key, query))
        elif cap.n_tokens <= AHEAD:
            said = partial(sentence_of, cap, subject.key, query)
            blocks.hold_heads_beside(cap, layer, head, query, said, f"token {query} {hash(subject.key)}")
        offer_heads(asked, subject, cap, (layer, head, query), line, bar)  # last, since it may run the model


def show_token(subject, cap, layer: int, head: int, query: int) -> None:
    """Show what one token attends to: as the prompt on colours, and as bars."""
    token = escape_markdown(shorten(visible(readable(cap.prompts[0])[query])))
    colours = ": A₁ adds (blue), λ·A₂ takes away (orange), D is what is left." if cap.differential else "."
    if cap.key_prompts is not None:  # what it attends to are no queries, whose rows could be read
        st.caption(f"What token {query} “{token}” attends to{colours} Click a cell to read its query's row.")
        blocks.show_later(partial(blocks.show_row, cap, layer, head, query), "later-row")
        return
    st.caption(f"What token {query} “{token}” attends to{colours} Click a token to read its row; drag over tokens to name them.")
    marked = [span.partition(":")[0] for span in state.get("spans") or []]  # one more after each mark, so that it is answered
    on_mark = None if subject.saved or subject.kind else mark
    blocks.show_text(cap, layer, head, query, on_query=partial(read_row, cap), on_mark=on_mark, marked=marked)
    blocks.show_later(partial(blocks.show_row, cap, layer, head, query), "later-row")


def choose(subject, cap):
    """Return the layer, head and token that are looked at, and the statistic of the grid; None if it cannot be shown."""
    statistic = None
    with st.popover(f"Measure: {escape_markdown(label_of(cap))}", help="Which head, which token, and what colours the heads"):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            layer, head = choose_head(cap)
            query = choose_query(cap)
        with show_errors():
            statistic = choose_statistic(cap, subject.key, query)
        if statistic is not None:
            define(statistic)
    return layer, head, query, statistic


def show_grid(subject, cap, layer: int, head: int, statistic) -> None:
    """Show every head as a small picture of D, or as a number."""
    pictures = st.toggle(f"Pictures of {short_title(map_title('D', cap.layers))}", **bound("pictures", default=True))
    small = thumbnails(cap, subject.key[:-1], "D") if pictures else None  # whatever the spans
    values = None if statistic is None else statistic.over_heads
    if values is None and small is None:
        return
    title = title_of(statistic, cap) if statistic else ""
    blocks.show_heads(values, (layer, head), on_pick=select, thumbnails=small, heads=heads_by_layer(cap), title=title)
    if statistic is not None and (signs := signs_of(statistic, cap, subject.key)):
        st.caption(escape_markdown(signs))


def define(statistic) -> None:
    """Show the formula of a statistic, and what its letters stand for."""
    words = STATISTICS[statistic.name]
    undefined = f" Undefined: {words.undefined}."
    about = f"{in_signs(words.formula)}. {in_signs(LETTERS)}.{undefined} Source: {words.source}."
    st.caption(escape_markdown(f"{capital(words.description)}."), help=escape_markdown(about))


def mark(marks: list[tuple[str, int, int]]) -> None:
    """Make tokens that were named in the strip spans of the prompt."""
    state["_marked"] = True
    named = [f"{name}:{first}-{last}" for name, first, last in marks]
    state["spans"] = [*dict.fromkeys([*(state.get("spans") or []), *named])]


def read_row(cap, query: int) -> None:
    """Read the row of a token that was clicked."""
    if 0 <= query < cap.n_tokens:
        state["query"] = query


def read_locked(cap, rows: list[int], columns: list[int]) -> None:
    """Read the row that was locked in the maps; its key is the one whose score the part Logits explains."""
    if rows:
        read_row(cap, rows[-1])
    if columns:
        state[KEY], state[OF_PROMPT] = columns[-1], token_ids(cap)


def offer(subject, cap, layer: int, head: int, query: int, statistic) -> None:
    """Offer the maps and the statistic over heads for export."""
    page = partial(attention_view.page, cap, layer, head, sentences=partial(sentence_of, cap, subject.key, query), query=query)
    with st.container(horizontal=True):
        blocks.offer_maps(cap, layer, head, subject.code(), page=page)
        if statistic is None:
            return
        asked = statistic.name
        choices = {"statistic": asked, "query": statistic.query, "where": statistic.where}
        blocks.export_menu(
            asked,
            label="Export the statistic",
            figure=partial(figures.heads, cap, measured=statistic.measured, **choices),
            data=lambda: statistic.over_heads,
            code=subject.code() + f"\ndataset = cap.measure([{asked!r}])\n" + as_call("diffscope.figures.heads", "cap", choices),
        )


PARTS = {"Maps": show_maps, "Numbers": show_numbers, "Logits": show_logits}

with show_errors():
    subject = choose_subject(two_sides=True)
    if subject is not None:
        show_capture(subject, subject.capture())
