"""Layers and heads: a statistic of each, λ, and whether their maps are the model's own."""

from __future__ import annotations

import streamlit as st
from words import in_words

from blocks.charts import show_chart
from diffscope import figures
from diffscope.figures.heads import on_screen


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
        alt = f"{data.attrs['long_name']} by layer and head"
        show_chart(on_screen(data, selected=selected), alt, key=key, on_select=picked, selection_mode="points")


def show_lambda(cap, layer: int | None = None):
    """λ by layer, beside the value it was initialised at."""
    if not cap.differential:
        st.caption("Standard attention: one map a head, no λ.")
        return
    with in_words():
        show_chart(figures.lambdas(cap).plotly(selected=layer), "λ by layer", key="lambda-chart")


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
