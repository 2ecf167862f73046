"""Numbers of all heads: λ, gains, signal, ranks and the parts of the maps."""

from __future__ import annotations

import streamlit as st
import xarray as xr
from background import Measurement, cached_job
from messages import show_errors
from question import choose_distractors
from selection import choose_query

from amplifier.anatomy import show_anatomy
from amplifier.ranks import show_ranks
from amplifier.section import folded, heading, python
from amplifier.section import show as show_reading
from amplifier.signal import show_signal
from diffscope import readings
from diffscope.figures import amplifier_charts as charts
from diffscope.readings import effort
from diffscope.readings.gains import per_unit

STANDARD = (
    "Standard attention has one map and subtracts nothing: it has no λ and no gains. Its signal and noise, its ranks and what "
    "its maps are made of can be asked."
)


def show(subject, cap) -> None:
    """Show signal, λ, gains, ranks and the parts of A2, each with its verdict, one chart, and the rest folded."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        query = choose_query(cap)
        distractors = choose_distractors(subject)
    if cap.differential:
        show_gains(subject, cap, query)
    else:
        st.info(STANDARD)
    show_signal(subject, cap, query, distractors)
    show_ranks(subject, cap)
    show_anatomy(subject, cap)


def gains_of(subject, cap, query: int) -> Measurement:
    """Return the measurement of λ and gains, of one token's rows."""
    key = (*subject.key, query)
    return Measurement(key, "gains", effort.of_gains(cap), lambda report: readings.amplifier(cap, query, ranks=False))


@st.fragment
def show_gains(subject, cap, query: int) -> None:
    """Show λ and λ*, and what comes of the subtraction."""
    heading("lambda", "How much of the second map is subtracted, and how much should be, to leave least of the first?")
    with show_errors():
        reading = cached_job(*gains_of(subject, cap, query))
        if reading is None:
            return
        estimates = reading.estimates

        def shown(quantity: str, alt: str) -> None:
            _show(subject, query, estimates, quantity, alt)

        shown("best_lambda", f"λ* against {per_unit(estimates)} of every head, and the diagonal")
        with folded("lambda", "λ by layer, and what it could reject") as is_open:
            if is_open:
                shown("lambda", "λ of every head, and where it began")
                shown("cmrr", "What λ alone could reject, by head")
        heading("gains", "What does the subtraction leave of irrelevant tokens, and what of the answer?")

        def against_control(quantity: str) -> None:
            shown(quantity, f"{estimates[charts.QUANTITIES[quantity].variable].long_name}, by head, beside controls")

        against_control("noise_gain")
        with folded("gains", "What is left, against the least possible; gain of the answer") as is_open:
            if is_open:
                for quantity in ("residual", "floor", "signal_gain"):
                    against_control(quantity)


def _show(subject, query: int, estimates: xr.Dataset, quantity: str, alt: str) -> None:
    """Show one quantity: its chart, how to read it and what it says."""
    name = charts.QUANTITIES[quantity].variable
    about = estimates[name].attrs
    code = python(
        subject,
        "from diffscope import readings",
        f"reading = readings.amplifier(cap, {query}, ranks=False)",
        f"print(reading.estimates[{name!r}].attrs['says'])",
        f"charts.by_quantity(reading.estimates, {quantity!r}).save('{name}.pdf')",
    )
    figure = charts.by_quantity(estimates, quantity)
    show_reading(name, figure, alt, estimates[[name]], code, about.get("reads", ""), about.get("says", ""))
