"""What the subtraction gains in signal-to-noise ratio, where the answer and the text around it are exchanged."""

from __future__ import annotations

from functools import partial

import streamlit as st
from background import CancellableScope, Measurement, cached_job
from messages import escape_markdown, show_errors

from amplifier.section import folded, heading, python, show
from diffscope.errors import PromptError
from diffscope.figures import amplifier_charts as charts
from diffscope.instruments.snr import DRAWS
from diffscope.readings import effort, signal_to_noise

CHARTS = {
    "snr_gain": (charts.gained, "gained", "Signal-to-noise gain of every head, beside other second maps"),
    "snr": (charts.heard, "heard", "Signal-to-noise ratio of A₁·V, λA₂·V and D·V of every head"),
    "signal_change": (charts.gained_by_side, "gained_by_side", "What the subtraction does to signal and noise of every head"),
}


def signal_of(subject, cap, query: int, distractors: tuple[str, ...]) -> Measurement:
    """Return the measurement of this section."""
    if not cap.spans.get("answer"):
        raise PromptError("signal is what another answer changes, and none is known; mark it in the prompt")
    scope = subject.scope()
    named = {name: list(at) for name, at in cap.prompts[0].spans.items()}
    others = _others(cap, distractors)

    def compute(report):
        watched = CancellableScope(scope, partial(report, 0, 1))
        return signal_to_noise(watched, cap.ids, spans=named, answers=others, query=query, progress=report)

    seconds = effort.of_signal_to_noise(scope, cap.n_tokens, DRAWS)
    return Measurement((*subject.key, query, tuple(others or ())), "signal and noise", seconds, compute)


def _others(cap, distractors: tuple[str, ...]) -> list[str] | None:
    """Return other answers; None of a number, for which others are drawn."""
    is_number = "".join(cap.tokens[at] for at in cap.spans["answer"]).strip().isdigit()
    return None if is_number else list(distractors)


@st.fragment
def show_signal(subject, cap, query: int, distractors: tuple[str, ...]) -> None:
    """Show gain, ratios and both sides of the gain, by head."""
    heading("signal", "Does the answer stand out more of the text around it after the subtraction than before?")
    with show_errors():
        reading = cached_job(*signal_of(subject, cap, query, distractors))
        if reading is None:
            return
        others = _others(cap, distractors)
        estimates = reading.estimates
        st.markdown(f"**{escape_markdown(reading.sentence)}**")
        st.caption(
            escape_markdown(
                f"{estimates.attrs['answers']} answers, each in {estimates.attrs['fillers']} other texts of as many tokens: "
                f"{estimates.attrs['exchanged']} of {cap.n_tokens} tokens are exchanged. Bars are standard errors."
            )
        )
        first, *others_drawn = list(CHARTS) if cap.differential else ["snr"]
        _show(subject, query, others, estimates, first)
        if others_drawn:
            with folded("signal", "Ratios of A₁·V, λA₂·V and D·V, and what changes them") as is_open:
                for name in others_drawn if is_open else ():
                    _show(subject, query, others, estimates, name)


def _show(subject, query: int, others: list[str] | None, estimates, name: str) -> None:
    """Show one chart with how to read it."""
    chart, function, alt = CHARTS[name]
    variables = {
        "snr_gain": ["snr_gain", "snr_gain_error"],
        "snr": ["snr", "snr_error"],
        "signal_change": ["signal_change", "noise_change"],
    }[name]
    code = python(
        subject,
        "from diffscope import readings",
        "spans = {name: list(at) for name, at in cap.prompts[0].spans.items()}",
        f"reading = readings.signal_to_noise(scope, cap.ids, spans=spans, answers={others!r}, query={query})",
        "print(reading)",
        f"charts.{function}(reading.estimates).save('{name}.pdf')",
    )
    show(f"signal-{name}", chart(estimates), alt, estimates[variables], code, estimates[name].attrs["reads"])
