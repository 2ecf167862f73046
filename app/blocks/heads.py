"""Layers and heads: a statistic of each, λ, and whether their maps are the model's own."""

from __future__ import annotations

from functools import cache

import streamlit as st
from messages import escape_markdown, show_errors

from blocks.show import show_chart
from diffscope import figures
from diffscope.figures.escaping import short_name
from diffscope.views import heads as head_grid


@cache
def _grid():
    return st.components.v2.component("diffscope_heads", js=head_grid.COMPONENT.streamlit)


def show_heads(
    data,
    selected: tuple[int, int] | None,
    on_pick=None,
    key: str = "heads",
    *,
    thumbnails=None,
    off=(),
    on_switch=None,
    title: str = "",
):
    """Show a statistic by layer and head, as numbers on colours; with thumbnails as small pictures of every head's map.

    Before the next run `on_pick(layer, head)` is called when a head is clicked, and `on_switch(layer, head)` when one is to be
    switched off or on (a click with shift, or the key x). Heads in `off` are crossed out. `title` says what is shown, in words.
    """

    def pass_on(event: str, act) -> None:
        place = (st.session_state.get(key) or {}).get(event)
        if place and act is not None:
            act(int(place["layer"]), int(place["head"]))

    with show_errors():
        buffer = head_grid.buffer(data, thumbnails, selected, off, switching=on_switch is not None, title=title)
        _grid()(
            data=buffer,
            key=key,
            on_chosen_change=lambda: pass_on("chosen", on_pick),
            on_off_change=lambda: pass_on("off", on_switch),
        )


def show_lambda(cap, layer: int | None = None):
    """Show λ by layer, beside the value it was initialised at."""
    if not cap.differential:
        st.caption("Standard attention: one map a head, no λ.")
        return
    with show_errors():
        show_chart(figures.lambdas(cap).plotly(selected=layer), "λ by layer", key="lambda-chart")


def show_facts(cap, name: str = ""):
    """Show one line on a model and its capture, under the model's name or another, with whether the maps are the model's own."""
    counts = f"{cap.n_layers} layers × {cap.n_heads} heads · {cap.n_tokens} tokens"
    family = "" if name else f"{cap.family} · "
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**{escape_markdown(name or short_name(cap.model_name))}** · {escape_markdown(family)}{counts}", width="content"
        )
        show_fidelity(cap)


def show_fidelity(cap):
    """Show whether the maps are the ones that the model used, and how far they are off at worst."""
    table = figures.fidelity(cap).data.to_dataframe()[["error", "tolerance"]]
    faithful = bool((table["error"] <= table["tolerance"]).all())
    worst = f"{table['error'].max():.0e}".replace("e-0", "e-")
    verdict = "✓ Rebuilds the model's own output to" if faithful else "✗ Does not rebuild the model's own output: off by"
    facts = cap.fidelity.attrs
    notes = [f"{about.capitalize()}: {facts[about]}" for about in ("warnings", "edits") if about in facts]
    with st.popover(
        f"{verdict} {worst}{' · see note' if notes else ''}",
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
