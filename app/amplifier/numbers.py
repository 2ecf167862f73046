"""λ and what it could reject, what it leaves and what it passes: numbers of the rows of one token."""

from __future__ import annotations

import blocks
import streamlit as st
import xarray as xr
from background import cached_job
from messages import show_errors

from amplifier.section import heading, python, show
from diffscope import readings
from diffscope.figures import Figure
from diffscope.figures import amplifier_charts as charts
from diffscope.readings import effort
from diffscope.readings.amplifier import per_unit


@st.fragment
def show_gains(subject, cap, query: int) -> None:
    """λ and λ*, and what comes of the subtraction."""
    heading("lambda", "How much of the second map is subtracted, and how much should be, to leave least of the first?")
    with show_errors():
        key = (*subject.key, query)
        reading = cached_job(key, "gains", effort.of_gains(cap), lambda report: readings.amplifier(cap, query, ranks=False))
        if reading is None:
            return
        estimates = reading.estimates

        def shown(name: str, chart: str, figure: Figure, alt: str, choice: str = "") -> None:
            _show(subject, query, estimates[[name]], name, chart, figure, alt, choice)

        with blocks.columns("amplifier-lambdas", "amplifier-cmrr") as (left, right):
            with left:
                shown("lambda", "lambdas", charts.lambdas(estimates), "λ of every head, and where it began")
            with right:
                figure = charts.rejection_by_lambda(estimates)
                shown("cmrr", "rejection_by_lambda", figure, "What λ alone could reject, by head")
        shown(
            "lambda_star",
            "best_lambda",
            charts.best_lambda(estimates),
            f"λ* against {per_unit(estimates)} of every head, and the diagonal",
        )
        heading("gains", "What does the subtraction leave of irrelevant tokens, and what of the answer?")
        with blocks.columns("amplifier-residual", "amplifier-floor") as places:
            for place, name in zip(places, ("residual_over_floor", "residual_floor"), strict=True):
                with place:
                    figure = charts.residual(estimates, name)
                    shown(name, "residual", figure, f"{estimates[name].long_name}, by head, beside controls", name)
        for name in ("noise_gain", "signal_gain"):
            figure = charts.gain(estimates, name)
            shown(name, "gain", figure, f"{estimates[name].long_name}, by head, beside controls", name)


def _show(subject, query: int, data: xr.Dataset, name: str, chart: str, figure: Figure, alt: str, choice: str) -> None:
    """One variable: its chart, how to read it and what it says."""
    about = data[name].attrs
    arguments = f"reading.estimates, {choice!r}" if choice else "reading.estimates"
    code = python(
        subject,
        "from diffscope import readings",
        f"reading = readings.amplifier(cap, {query}, ranks=False)",
        f"print(reading.estimates[{name!r}].attrs['says'])",
        f"charts.{chart}({arguments}).save('{name}.pdf')",
    )
    show(name, figure, alt, data, code, about.get("reads", ""), about.get("says", ""))
