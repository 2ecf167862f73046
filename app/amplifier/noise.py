"""Noise injected into the scores of both maps: what heads reject of it, and what it costs the answer."""

from __future__ import annotations

from typing import NamedTuple

import blocks
import streamlit as st
from background import Measurement, cached_job
from messages import escape_markdown, show_errors
from question import ask, in_python
from url_state import bound

from amplifier import Section
from diffscope.figures import amplifier_charts as charts
from diffscope.instruments.injection import DRAWS
from diffscope.numbers import head_name
from diffscope.readings import effort, noise_cost, rejection, rejection_sentence

SIGMAS = (0.1, 0.2, 0.5, 1.0, 2.0)
FIRST_SIGMA = "0.5"
PLACES = ("all layers", "this layer", "this head")
state = st.session_state


class Noise(NamedTuple):
    """What is injected: on which keys, how strong, in which layers and heads, and which draw."""

    span: str
    sigma: float
    layers: int | None
    heads: int | None
    draw: int


@st.fragment
def show_noise(subject, cap, layer: int, head: int, query: int, distractors: tuple[str, ...]) -> None:
    """Show rejection by head, and what noise costs the answer."""
    if (state["layer"], state["head"]) not in ((layer, head), (None, None)):
        st.rerun()  # an arrow key chose another head: what lies above names it
    st.caption("The same noise is added to both maps. Does the subtraction remove it?")
    with show_errors():
        noise = choose_noise(cap, layer, head)
        if cap.differential:
            show_rejection(subject, cap, layer, head, query, noise)
        else:
            st.caption("Standard attention has one map: noise cannot be common to two, and either mode is the same.")
    with show_errors():
        show_answer(subject, cap, noise, distractors)


def choose_noise(cap, layer: int, head: int) -> Noise:
    """Show the controls of the section, and return what they choose."""
    spans = sorted((name for name, keys in cap.key_sets.items() if keys), key=lambda name: name != "irrelevant")
    strengths = [f"{sigma:g}" for sigma in SIGMAS]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        span = st.selectbox("Noise on the keys of", spans, **bound("amplifier-keys", options=spans), width=170)
        sigma = st.select_slider(
            "σ of the noise, nats", strengths, **bound("amplifier-sigma", options=strengths, default=FIRST_SIGMA), width=220
        )
        place = st.selectbox("Where", PLACES, **bound("amplifier-in", options=PLACES), width=130)
        draw = st.number_input("Random draw", 0, 10_000, **bound("amplifier-draw"), width=110)
    layers = None if place == PLACES[0] else layer
    heads = head if place == PLACES[2] else None
    return Noise(span, float(sigma), layers, heads, int(draw))


def show_rejection(subject, cap, layer: int, head: int, query: int, noise: Noise) -> None:
    """CMRR by injection of all heads at the chosen strength, and of the chosen head at all."""
    reading = cached_job(
        Measurement(
            (*subject.key, query, noise.span),
            "rejection by injection",
            effort.of_rejection(cap, len(SIGMAS), DRAWS),
            lambda report: rejection(cap, query, span=noise.span, sigmas=SIGMAS, draws=DRAWS, progress=report),
        )
    )
    if reading is None:
        return
    estimates = reading.estimates
    data = estimates[["cmrr_injected", "cmrr_injected_error", "cmrr_ceiling", "equal_maps"]]
    python = f"reading = readings.rejection(cap, {query}, span={noise.span!r}, sigmas={SIGMAS})"
    section = Section(subject, python, estimates)
    with blocks.columns("amplifier-rejected", "amplifier-by-sigma") as (left, right):
        with left:
            section.show(
                "cmrr_injected",
                charts.rejected,
                noise.sigma,
                alt=f"CMRR by injection of every head at σ = {noise.sigma:g}, beside controls and ceiling",
                name="rejected",
                data=data,
                says=rejection_sentence(estimates, noise.sigma),
                prints=f"readings.rejection_sentence(reading.estimates, {noise.sigma})",
            )
        with right:
            section.show(
                "cmrr_injected",
                charts.rejected_by_sigma,
                layer,
                head,
                alt=f"CMRR by injection of {head_name(layer, head)} over σ, beside controls and ceiling",
                name="by-sigma",
                data=data.drop_vars("equal_maps").sel(layer=layer, head=head),
                reads=f"The chosen head over the strength of noise; bars are standard errors over {DRAWS} draws.",
            )


def show_answer(subject, cap, noise: Noise, distractors: tuple[str, ...]) -> None:
    """Show what one draw, and many over all strengths, cost the answer's log-odds."""
    question = ask(subject, cap, distractors)
    scope = subject.scope()
    common = {"span": noise.span, "layers": noise.layers, "heads": noise.heads}
    key = (subject.key, question.key, *common.values())
    single = cached_job(
        Measurement(
            (*key, noise.sigma, noise.draw),
            "what this draw costs the answer",
            effort.of_runs(scope, cap.n_tokens, 3),
            lambda report: noise_cost(scope, question, sigmas=[noise.sigma], draws=1, seed=noise.draw, **common),
        )
    )
    if single is not None:
        st.markdown(escape_markdown(single.sentence))
    reading = cached_job(
        Measurement(
            key,
            "what noise costs the answer",
            effort.of_runs(scope, cap.n_tokens, 2 * DRAWS * len(SIGMAS)),
            lambda report: noise_cost(scope, question, sigmas=SIGMAS, progress=report, **common),
        )
    )
    if reading is None:
        return
    given = ", ".join(f"{name}={value!r}" for name, value in common.items())
    asked = in_python(subject, cap, question)
    python = f"reading = readings.noise_cost(scope, {asked}, sigmas={SIGMAS}, {given})"
    Section(subject, python, reading.estimates).show(
        "log_odds_lost",
        charts.lost,
        alt="Log-odds of the answer lost to common and to opposite noise, over σ",
        name="lost",
        data=reading.estimates.drop_vars("log_odds"),
        says=reading.sentence,
    )
