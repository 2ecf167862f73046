"""What the maps of every head are made of."""

from __future__ import annotations

import streamlit as st
from background import Measurement, cached_job
from messages import escape_markdown, show_errors
from url_state import bound

from amplifier.section import heading, python, show
from diffscope.figures import amplifier_charts as charts
from diffscope.readings import composition, effort, other_prompts

OTHERS = 6  # prompts that profiles are fitted to
WAYS = {
    "shapley": "what a part adds, mean over all orders",
    "added": "what a part adds, in the order of the legend",
}


def anatomy_of(subject, cap) -> Measurement:
    """Return the measurement of this section."""
    scope = subject.scope()

    def compute(report):
        return composition(cap, other_prompts(scope, cap, OTHERS), progress=report)

    return Measurement(subject.key, "what the maps are made of", effort.of_composition(cap), compute)


@st.fragment
def show_anatomy(subject, cap) -> None:
    """Show the parts of A2, and of A1 beside it, as stacked bars."""
    heading("anatomy", "Is the second map a pedestal, a comb of positions, a sink, a copy of the first, or content?")
    with show_errors():
        reading = cached_job(*anatomy_of(subject, cap))
        if reading is None:
            return
        way = st.selectbox(
            "Credit",
            list(WAYS),
            **bound("amplifier-shares", options=list(WAYS)),
            format_func=WAYS.get,
            width=420,
        )
        estimates = reading.estimates
        st.caption(
            escape_markdown(
                f"What distance explains is fitted to {estimates.attrs['others']} other prompts, of as many tokens at least."
            )
        )
        code = python(
            subject,
            "from diffscope.readings import composition\nfrom diffscope.readings import other_prompts",
            f"reading = composition(cap, other_prompts(scope, cap, {OTHERS}))",
            "print(reading)",
            f"charts.made_of(reading.estimates, {way!r}).save('made_of.pdf')",
        )
        alt = "Parts of the maps of every head, as stacked bars"
        show("anatomy", charts.made_of(estimates, way), alt, estimates, code, estimates[way].attrs["reads"], reading.sentence)
