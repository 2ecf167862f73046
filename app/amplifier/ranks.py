"""Effective ranks of whole maps, in a definition that the reader chooses."""

from __future__ import annotations

import streamlit as st
from background import Measurement, cached_job
from messages import escape_markdown, show_errors
from url_state import bound

from amplifier.section import heading, python, show
from diffscope.figures import amplifier_charts as charts
from diffscope.readings import RANK_DEFINITIONS, effort, ranks, ranks_sentence


def ranks_of(subject, cap) -> Measurement:
    """Return the measurement of this section."""
    return Measurement(subject.key, "effective ranks", effort.of_ranks(cap), lambda report: ranks(cap, progress=report))


@st.fragment
def show_ranks(subject, cap) -> None:
    """Show ranks beside their controls."""
    heading("ranks", "Are the maps simpler than maps that attend to nothing, or to the same weights elsewhere?")
    with show_errors():
        reading = cached_job(*ranks_of(subject, cap))
        if reading is None:
            return
        definition = st.selectbox(
            "Definition",
            list(RANK_DEFINITIONS),
            **bound("amplifier-definition", options=list(RANK_DEFINITIONS)),
            format_func=lambda name: f"{name}: {RANK_DEFINITIONS[name]}",
            width=420,
        )
        estimates = reading.estimates
        about = estimates["effective_rank"].attrs
        code = python(
            subject,
            "from diffscope.readings import ranks",
            "reading = ranks(cap)",
            "print(reading)",
            f"charts.ranks(reading.estimates, {definition!r}).save('ranks.pdf')",
        )
        data = estimates[["effective_rank", "effective_rank_error"]]
        alt = f"{definition} of the maps of every head, beside the uniform map and permuted rows"
        show("ranks", charts.ranks(estimates, definition), alt, data, code, about["reads"], ranks_sentence(estimates, definition))
        for note in ("estimated", "unknown"):
            if note in about:
                st.caption(escape_markdown(f"{note.capitalize()}: {about[note]}."))
