"""Noise injected into the scores of both maps: what heads reject of it, and what it costs the answer."""

from __future__ import annotations

from typing import NamedTuple

import blocks
import streamlit as st
from background import cached_job
from messages import escape_markdown, show_errors
from question import ask, in_python
from url_state import bound

from amplifier.section import python, show
from diffscope.figures import amplifier_charts as charts
from diffscope.instruments.injection import DRAWS
from diffscope.numbers import head_name
from diffscope.readings import effort, noise_cost, rejection, rejection_sentence

SIGMAS = (0.1, 0.2, 0.5, 1.0, 2.0)
FIRST_SIGMA = "0.5"
MODES = {"common": "the same on both maps (common)", "differential": "opposite on the two (differential)"}
PLACES = ("all layers", "this layer", "this head")
state = st.session_state


class Noise(NamedTuple):
    """What is injected: on which keys, how strong, in which mode, in which layers and heads, and which draw."""

    span: str
    sigma: float
    mode: str
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
        mode = st.selectbox("Sign", list(MODES), **bound("amplifier-mode", options=list(MODES)), format_func=MODES.get, width=270)
        place = st.selectbox("Where", PLACES, **bound("amplifier-in", options=PLACES), width=130)
        draw = st.number_input("Random draw", 0, 10_000, **bound("amplifier-draw"), width=110)
    layers = None if place == PLACES[0] else layer
    heads = head if place == PLACES[2] else None
    return Noise(span, float(sigma), mode, layers, heads, int(draw))


def show_rejection(subject, cap, layer: int, head: int, query: int, noise: Noise) -> None:
    """CMRR by injection of all heads at the chosen strength, and of the chosen head at all."""
    seconds = effort.of_rejection(cap, len(SIGMAS), DRAWS)
    key = (*subject.key, query, noise.span)
    reading = cached_job(
        key,
        "rejection by injection",
        seconds,
        lambda report: rejection(cap, query, span=noise.span, sigmas=SIGMAS, draws=DRAWS, progress=report),
    )
    if reading is None:
        return
    estimates = reading.estimates
    data = estimates[["cmrr_injected", "cmrr_injected_error", "cmrr_ceiling", "equal_maps"]]
    lines = (f"reading = rejection(cap, {query}, span={noise.span!r}, sigmas={SIGMAS})",)
    imports = "from diffscope.readings import rejection, rejection_sentence"
    with blocks.columns("amplifier-rejected", "amplifier-by-sigma") as (left, right):
        with left:
            show(
                "rejected",
                charts.rejected(estimates, noise.sigma),
                f"CMRR by injection of every head at σ = {noise.sigma:g}, beside controls and ceiling",
                data,
                python(
                    subject,
                    imports,
                    *lines,
                    f"print(rejection_sentence(reading.estimates, {noise.sigma}))",
                    f"charts.rejected(reading.estimates, {noise.sigma}).save('rejected.pdf')",
                ),
                estimates["cmrr_injected"].attrs["reads"],
                rejection_sentence(estimates, noise.sigma),
            )
        with right:
            show(
                "by-sigma",
                charts.rejected_by_sigma(estimates, layer, head),
                f"CMRR by injection of {head_name(layer, head)} over σ, beside controls and ceiling",
                data.drop_vars("equal_maps").sel(layer=layer, head=head),
                python(
                    subject, imports, *lines, f"charts.rejected_by_sigma(reading.estimates, {layer}, {head}).save('by_sigma.pdf')"
                ),
                f"The chosen head over the strength of noise; bars are standard errors over {DRAWS} draws.",
            )


def show_answer(subject, cap, noise: Noise, distractors: tuple[str, ...]) -> None:
    """Show what one draw, and many over all strengths, cost the answer's log-odds."""
    question = ask(subject, cap, distractors)
    scope = subject.scope()
    common = {"span": noise.span, "layers": noise.layers, "heads": noise.heads}
    key = (subject.key, question.key, *common.values())
    single = cached_job(
        (*key, noise.sigma, noise.draw),
        "what this draw costs the answer",
        effort.of_runs(scope, cap.n_tokens, 3),
        lambda report: noise_cost(scope, question, sigmas=[noise.sigma], draws=1, seed=noise.draw, **common),
    )
    if single is not None:
        st.markdown(escape_markdown(single.sentence))
    runs = effort.of_runs(scope, cap.n_tokens, 2 * DRAWS * len(SIGMAS))
    reading = cached_job(
        key,
        "what noise costs the answer",
        runs,
        lambda report: noise_cost(scope, question, sigmas=SIGMAS, progress=report, **common),
    )
    if reading is None:
        return
    estimates = reading.estimates
    given = ", ".join(f"{name}={value!r}" for name, value in common.items())
    show(
        "lost",
        charts.lost(estimates),
        "Log-odds of the answer lost to common and to opposite noise, over σ",
        estimates.drop_vars("log_odds"),
        python(
            subject,
            "from diffscope.readings import noise_cost\nfrom diffscope.readings import question",
            f"reading = noise_cost(scope, {in_python(subject, cap, question)}, sigmas={SIGMAS}, {given})",
            "print(reading)",
            "charts.lost(reading.estimates).save('lost.pdf')",
        ),
        estimates["log_odds_lost"].attrs["reads"],
        reading.sentence,
    )
