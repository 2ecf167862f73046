"""Explore: one prompt, every layer and head; the maps of one head; one token's row."""

from __future__ import annotations

from functools import partial

import blocks
import streamlit as st
from choices import choose_subject
from kept import keep_look, kept, looked_at
from place import choose_head, choose_query, follow, move, select
from sources import thumbnails
from statistic import choose_statistic, signs_of
from words import as_call, in_words, plain

from app.questions import LETTERS
from diffscope import figures, readings
from diffscope.errors import check_index
from diffscope.figures.escaping import readable, shorten, visible
from diffscope.figures.panels import short_name
from diffscope.stats import STATISTICS
from diffscope.views import attention as attention_view

BARS = 4096  # keys of a row that are drawn as bars
HELP = (
    "Irrelevant tokens: all but the answer, the question and the first token. Overlap: what two maps share there; 0 is "
    "nothing, 1 the same, and only what they share can cancel. Control: the same with the second map of another head of the "
    "layer. Above 1 times A1's mass, the subtraction adds weight instead of taking it away."
)
state = st.session_state


def show_capture(subject, cap) -> None:
    """The page below the choice of model and prompt."""
    follow(cap, subject.key)
    show_facts(cap)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, head = choose_head(cap)
        statistic = None
        with in_words():
            statistic = choose_statistic(cap, subject.key)
    check_index("layer", layer, cap.layer_numbers)
    check_index("head", head, range(cap.n_heads))
    above = st.container()
    show_head(subject, cap, layer, head)  # first, since charts take a browser longer than the maps
    with above, blocks.beside("heads", "lambda", "next") as (left, middle, right):
        with left:
            if statistic is not None:
                pictures = st.toggle("Pictures of D", **kept("pictures"))
                small = thumbnails(cap, subject.key, "D") if pictures else None
                blocks.show_heads(statistic.over_heads, (layer, head), on_pick=select, thumbnails=small)
                define(statistic)
                if signs := signs_of(statistic, cap, subject.key):
                    st.caption(plain(signs))
        with middle:
            blocks.show_lambda(cap, layer)
        with right:
            blocks.show_next(cap)
    offer(subject, cap, layer, head, statistic)


def show_facts(cap) -> None:
    """One line on the model and the capture."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"**{plain(short_name(cap.model_name))}** · {plain(cap.family)} · {cap.n_layers} layers × {cap.n_heads} heads · "
            f"{cap.n_tokens} tokens",
            width="content",
        )
        blocks.show_fidelity(cap)


def define(statistic) -> None:
    """What is shown, by its formula, and what its letters stand for."""
    words = STATISTICS[statistic.name]
    undefined = f" Undefined: {words.undefined}."
    st.caption(plain(f"{words.description}."), help=plain(f"{words.formula}. {LETTERS}.{undefined} Source: {words.source}."))


@st.fragment
def show_head(subject, cap, layer: int, head: int) -> None:
    """The maps of one head and one token's row; a click here draws only these again."""
    row = st.container()
    before = (layer, head)
    if None not in (state["layer"], state["head"]):
        layer, head = state["layer"], state["head"]
    blocks.show_view(
        cap,
        layer,
        head,
        on_move=partial(move, cap, layer, head),
        on_lock=partial(read_locked, cap),
        state=looked_at("view"),
        on_state=partial(keep_look, "view"),
    )
    if (layer, head) != before or state.pop("_marked", False):
        st.rerun()  # what lies above shows the head and the spans too, and need not be waited for
    query = choose_query(cap)
    with row, in_words():
        st.markdown(plain(readings.of_head(cap, layer, head, query).sentence), help=HELP)
    token = plain(shorten(visible(readable(cap.prompts[0])[query])))
    colours = ": A₁ adds (blue), λ·A₂ takes away (orange), D is what is left." if cap.differential else "."
    st.caption(f"What token {query} “{token}” attends to{colours}")
    keys = None if cap.n_tokens <= BARS else (max(0, query - BARS + 1), query + 1)
    blocks.show_text(cap, layer, head, query, on_query=partial(read_row, cap), on_mark=None if subject.saved else mark)
    blocks.show_row(cap, layer, head, query, keys)


def mark(name: str, first: int, last: int) -> None:
    """Tokens that were named in the strip are a span of the prompt from now on."""
    state["_marked"] = True
    state["spans"] = [*(state.get("spans") or []), f"{name}:{first}-{last}"]


def read_row(cap, query: int) -> None:
    """A token that is clicked is the one whose row is read."""
    if 0 <= query < cap.n_tokens:
        state["query"] = query


def read_locked(cap, rows: list[int], columns: list[int]) -> None:
    """A row that is locked in the maps is the one that is read below."""
    if rows:
        read_row(cap, rows[-1])


def offer(subject, cap, layer: int, head: int, statistic) -> None:
    """What can be taken away: the maps and the statistic over heads."""
    name = f"{short_name(cap.model_name)}-layer{layer}-head{head}"
    with st.container(horizontal=True):
        blocks.take_away(
            name,
            label="Export the maps",
            figure=partial(figures.maps, cap, layer=layer, head=head),
            page=partial(attention_view.page, cap, layer, head),
            data=partial(cap.maps, layer, [head]),
            code=subject.code() + f'\ndiffscope.figures.maps(cap, layer={layer}, head={head}).save("maps.pdf")\n',
        )
        if statistic is None:
            return
        asked = statistic.name
        choices = {"statistic": asked, "query": statistic.query, "where": statistic.where}
        blocks.take_away(
            asked,
            label="Export the statistic",
            figure=partial(figures.heads, cap, measured=statistic.measured, **choices),
            data=lambda: statistic.over_heads,
            code=subject.code() + f"\ndataset = cap.measure([{asked!r}])\n" + as_call("diffscope.figures.heads", "cap", choices),
        )


with in_words():
    subject = choose_subject()
    if subject is not None:
        show_capture(subject, subject.capture())
