"""Numbers of all heads: λ, gains, signal, ranks and the parts of the maps."""

from __future__ import annotations

from functools import partial

import blocks
import streamlit as st
from background import CancellableScope, Measurement, cached_job
from messages import escape_markdown, show_errors
from question import choose_distractors, marked_answer
from selection import choose_query
from url_state import bound

from amplifier import Section, heading
from diffscope import readings
from diffscope.errors import PromptError
from diffscope.figures import amplifier_charts as charts
from diffscope.instruments.snr import DRAWS
from diffscope.readings import RANK_DEFINITIONS, effort
from diffscope.readings.gains import per_unit

STANDARD = (
    "Standard attention has one map and subtracts nothing: it has no λ and no gains. Its signal and noise, its ranks and what "
    "its maps are made of can be asked."
)
#: charts of signal and noise: what each shows, and of which variables
SIGNAL = {
    charts.gained: ("Signal-to-noise gain of every head, beside other second maps", ["snr_gain", "snr_gain_error"]),
    charts.heard: ("Signal-to-noise ratio of A₁·V, λA₂·V and D·V of every head", ["snr", "snr_error"]),
    charts.gained_by_side: (
        "What the subtraction does to signal and noise of every head",
        ["signal_change", "noise_change"],
    ),
}
EXCHANGED = "Signal is what changes if the answer is exchanged for these."
OTHERS = 6  # prompts that profiles are fitted to
WAYS = {
    "shapley": "what a part adds, mean over all orders",
    "added": "what a part adds, in the order of the legend",
}


def show_numbers(subject, cap) -> None:
    """Show signal, λ, gains, ranks and the parts of A2, each with its verdict, one chart, and the rest folded."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        query = choose_query(cap)
        distractors = choose_distractors(subject, cap, EXCHANGED) if _is_exchanged_for_given(cap) else ()
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
    question = "How much of the second map is subtracted, and how much should be, to leave least of the first?"
    heading("λ and λ*", question, "lambda")
    with show_errors():
        reading = cached_job(gains_of(subject, cap, query))
        if reading is None:
            return
        estimates = reading.estimates
        section = Section(subject, f"reading = readings.amplifier(cap, {query}, ranks=False)", estimates)

        def shown(quantity: str, alt: str = "") -> None:
            name = charts.QUANTITIES[quantity].variable
            about = estimates[name].attrs
            section.show(
                name,
                charts.by_quantity,
                quantity,
                alt=alt or f"{about['long_name']}, by head, beside controls",
                says=about.get("says", ""),
                prints=f"reading.estimates[{name!r}].attrs['says']",
            )

        shown("best_lambda", f"λ* against {per_unit(estimates)} of every head, and the diagonal")
        with blocks.folded("λ by layer, and what it could reject", "amplifier-more-lambda") as is_open:
            if is_open:
                shown("lambda", "λ of every head, and where it began")
                shown("cmrr", "What λ alone could reject, by head")
        heading("Residual and gains", "What does the subtraction leave of irrelevant tokens, and what of the answer?", "gains")
        shown("noise_gain")
        with blocks.folded("What is left, against the least possible; gain of the answer", "amplifier-more-gains") as is_open:
            if is_open:
                for quantity in ("residual", "floor", "signal_gain"):
                    shown(quantity)


def signal_of(subject, cap, query: int, distractors: tuple[str, ...]) -> Measurement:
    """Return the measurement of signal and noise, where the answer and the text around it are exchanged."""
    if not cap.spans.get("answer"):
        raise PromptError("signal is what another answer changes, and none is known; mark it in the prompt")
    scope = subject.scope()
    named = {name: list(at) for name, at in cap.prompts[0].spans.items()}
    others = _other_answers(cap, distractors)

    def compute(report):
        watched = CancellableScope(scope, partial(report, 0, 1))
        return readings.signal_to_noise(watched, cap.ids, spans=named, answers=others, query=query, progress=report)

    seconds = effort.of_signal_to_noise(scope, cap.n_tokens, DRAWS)
    return Measurement((*subject.key, query, tuple(others or ())), "signal and noise", seconds, compute)


def _other_answers(cap, distractors: tuple[str, ...]) -> list[str] | None:
    """Return other answers; None of a number, for which others are drawn."""
    return list(distractors) if _is_exchanged_for_given(cap) else None


def _is_exchanged_for_given(cap) -> bool:
    """Whether the answer is a text that is no number, so that the reader has to give others."""
    answer = marked_answer(cap)
    return bool(answer) and not answer.isdigit()


@st.fragment
def show_signal(subject, cap, query: int, distractors: tuple[str, ...]) -> None:
    """Show gain, ratios and both sides of the gain, by head."""
    question = "Does the answer stand out more of the text around it after the subtraction than before?"
    heading("Signal and noise", question, "signal")
    with show_errors():
        reading = cached_job(signal_of(subject, cap, query, distractors))
        if reading is None:
            return
        estimates = reading.estimates
        st.markdown(f"**{escape_markdown(reading.sentence)}**")
        about = (
            f"{estimates.attrs['answers']} answers, each in {estimates.attrs['fillers']} other texts of as many tokens: "
            f"{estimates.attrs['exchanged']} of {cap.n_tokens} tokens are exchanged. Bars are standard errors."
        )
        st.caption(escape_markdown(about))
        given = f"answers={_other_answers(cap, distractors)!r}, query={query}"
        python = (
            "spans = {name: list(at) for name, at in cap.prompts[0].spans.items()}\n"
            f"reading = readings.signal_to_noise(scope, cap.ids, spans=spans, {given})"
        )
        section = Section(subject, python, estimates)

        def shown(chart) -> None:
            alt, variables = SIGNAL[chart]
            section.show(variables[0], chart, alt=alt, name=f"signal-{variables[0]}", data=estimates[variables])

        first, *others = SIGNAL if cap.differential else [charts.heard]
        shown(first)
        if others:
            with blocks.folded("Ratios of A₁·V, λA₂·V and D·V, and what changes them", "amplifier-more-signal") as is_open:
                for chart in others if is_open else ():
                    shown(chart)


def ranks_of(subject, cap) -> Measurement:
    """Return the measurement of effective ranks of whole maps."""
    return Measurement(subject.key, "effective ranks", effort.of_ranks(cap), lambda report: readings.ranks(cap, progress=report))


@st.fragment
def show_ranks(subject, cap) -> None:
    """Show ranks in a definition that the reader chooses, beside their controls."""
    question = "Are the maps simpler than maps that attend to nothing, or to the same weights elsewhere?"
    heading("Effective ranks", question, "ranks")
    with show_errors():
        reading = cached_job(ranks_of(subject, cap))
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
        Section(subject, "reading = readings.ranks(cap)", estimates).show(
            "effective_rank",
            charts.ranks,
            definition,
            alt=f"{definition} of the maps of every head, beside the uniform map and permuted rows",
            name="ranks",
            data=estimates[["effective_rank", "effective_rank_error"]],
            says=readings.ranks_sentence(estimates, definition),
        )
        about = estimates["effective_rank"].attrs
        for note in ("estimated", "unknown"):
            if note in about:
                st.caption(escape_markdown(f"{note.capitalize()}: {about[note]}."))


def anatomy_of(subject, cap) -> Measurement:
    """Return the measurement of what the maps of every head are made of."""
    scope = subject.scope()

    def compute(report):
        return readings.composition(cap, readings.other_prompts(scope, cap, OTHERS), progress=report)

    return Measurement(subject.key, "what the maps are made of", effort.of_composition(cap), compute)


@st.fragment
def show_anatomy(subject, cap) -> None:
    """Show the parts of A2, and of A1 beside it, as stacked bars."""
    question = "Is the second map a pedestal, a comb of positions, a sink, a copy of the first, or content?"
    heading("What the maps are made of", question, "anatomy")
    with show_errors():
        reading = cached_job(anatomy_of(subject, cap))
        if reading is None:
            return
        ways = list(WAYS)
        way = st.selectbox("Credit", ways, **bound("amplifier-shares", options=ways), format_func=WAYS.get, width=420)
        estimates = reading.estimates
        fitted = f"{estimates.attrs['others']} other prompts, of as many tokens at least"
        st.caption(escape_markdown(f"What distance explains is fitted to {fitted}."))
        python = f"reading = readings.composition(cap, readings.other_prompts(scope, cap, {OTHERS}))"
        alt = "Parts of the maps of every head, as stacked bars"
        section = Section(subject, python, estimates)
        section.show(way, charts.made_of, way, alt=alt, name="anatomy", data=estimates, says=reading.sentence)
