"""Why a head looks where it looks: what earlier parts make up the score of one cell of A1 or A2."""

from __future__ import annotations

from functools import partial

import streamlit as st
from background import CancellableScope, Measurement, cached_job
from messages import show_errors
from selection import choose_head, choose_query
from url_state import bound

from amplifier.section import folded, heading
from amplifier.section import show as show_reading
from diffscope import figures
from diffscope.attribution import score_attribution
from diffscope.numbers import head_name
from diffscope.readings import effort, score_parts

KEY = "cell-key"  # in the address, and where a click in the maps leaves it
RUNS = 3
READS = (
    "A cell is what a part of the query times a part of the key adds to the score, before the softmax and counted from the "
    "mean of the row. It says what the score is made of, and not what the head would look at without a part."
)
state = st.session_state


def score_of(subject, cap, layer: int, head: int, query: int, key: int, name: str) -> Measurement:
    """Return the measurement of this section: a reading of one score."""
    scope = subject.scope()
    cell = (layer, head, query, key)

    def compute(report):
        watched = CancellableScope(scope, partial(report, 0, 1))
        return score_parts(score_attribution(watched, list(cap.prompts[0].ids), *cell, map=name, against="row"))

    return Measurement(
        (subject.key, "score", *cell, name), "what the score is made of", effort.of_runs(scope, cap.n_tokens, RUNS), compute
    )


@st.fragment
def show_score(subject, cap) -> None:
    """Show what the score of the locked cell is made of, and let another cell be chosen."""
    heading("scores", "Why does a head look at a token?")
    with folded("scores", "What the score of one cell is made of") as is_open:
        if is_open:
            with show_errors():
                _show_cell(subject, cap)


def _show_cell(subject, cap) -> None:
    """Show the choice of a cell, and what its score is made of."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, head = choose_head(cap)
        query = choose_query(cap, "Query")
        key = _choose_key(cap, query)
        names = ["A1", "A2"] if cap.differential else ["A1"]
        name = st.selectbox("Map", names, **bound("cell-map", options=names, default=names[0]), width=90)
    reading = cached_job(*score_of(subject, cap, layer, head, query, key, name))
    if reading is None:
        return
    lines = (
        "from diffscope import figures, readings",
        "from diffscope.attribution import score_attribution",
        f"ids = {list(cap.prompts[0].ids)}",
        f"parts = score_attribution(scope, ids, {layer}, {head}, {query}, {key}, map={name!r}, against='row')",
        "print(readings.score_parts(parts))",
        "figures.score_parts(parts).save('score.pdf')",
    )
    alt = f"What the score of token {key} at token {query} in {name} of {head_name(layer, head)} is made of"
    code = "\n".join([subject.code(), *lines, ""])
    show_reading("score", figures.score_parts(reading), alt, reading.estimates, code, READS, reading.sentence)


def _choose_key(cap, query: int) -> int:
    """Return the key of the cell: what was locked in the maps, else the answer's first token, as far as the query sees it."""
    first = min(cap.spans.get("answer", (0,)))
    if state.get(KEY) is not None and state[KEY] > query:
        state[KEY] = query
    key = st.number_input("Key", 0, query, None, step=1, **bound(KEY, default=min(first, query), named=True), width=110)
    return min(first, query) if key is None else key
