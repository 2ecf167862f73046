"""Which head to look at next: the one whose second map the answer needs, beside one that does without, or one that finds it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import streamlit as st
from background import AT_ONCE, CancellableScope, Measurement, cached_job, results
from cache import measured
from messages import escape_markdown, show_errors
from question import answer_of, encoded_question
from selection import mass_on_answer, select

from diffscope import readings
from diffscope.errors import PromptError, SpanError
from diffscope.figures.escaping import readable, shorten, visible
from diffscope.numbers import head_name, percent
from diffscope.readings import effort
from diffscope.readings.head_sentence import MOST
from diffscope.readings.second_map import ALIKE, GIVEN, does_without, layers_sentence, place_sentence
from diffscope.readings.signs import of_it
from diffscope.stats.negative_mass import NEEDED, negative_mass

WHAT = "where A₂ works"
ABOUT = (
    "λ is set to 0 in one layer at a time, and the probability is that of the whole answer. A layer needs its A₂ if this is "
    f"{percent(GIVEN)} or more and falls by half or more, and needs none if it changes by {100 * ALIKE:.0f} points at most. "
    "Then λ is set to 0 in one head at a time. The token is one of the prompt, and is found by halving: A₂ is taken out of "
    "half of the head's rows, then out of half of those that cost more, until one row is left."
)
ROOM = "<style>.st-key-where{min-height:1.6rem}</style>"  # of a line, so that the maps stay where they are
Place = tuple[int, int, int]  # layer, head, query
state = st.session_state


def where_of(subject, cap) -> Measurement | None:
    """Return the measurement of where the answer needs A2; None without a model to run, a second map, or an answer to read."""
    if subject.saved or subject.kind or not cap.differential or not answer_of(subject, cap):
        return None
    scope = subject.scope()
    if not scope.runner.predicts:
        return None
    with suppress(PromptError, SpanError):  # the answer cannot be read: whoever asks for its log-odds says why
        asked = encoded_question(subject, cap, ())

        def compute(report):
            return readings.where_a2_works(CancellableScope(scope, partial(report, 0, 1)), asked, progress=report)

        return Measurement((subject.key, tuple(asked.answer)), WHAT, effort.of_a2(scope, cap), compute)
    return None


def keep_room(asked: Measurement | None) -> None:
    """Keep room for what is measured at once and not known yet."""
    if asked is not None and asked.seconds <= AT_ONCE and results(WHAT).get(asked.key) is None:
        st.html(ROOM)


def offer_heads(asked: Measurement | None, subject, cap, here: Place, line, bar) -> None:
    """Show in a line where A2 works, and offer in a bar the head that needs it or its control, else one that finds the answer."""
    estimates = None
    with line, show_errors():
        estimates = None if asked is None else show_where(asked)
    with bar:
        if estimates is None or "head" not in estimates.attrs:
            offer_better(subject, cap, *here)
        else:
            offer_contrast(estimates, subject, cap, here)


def show_where(asked: Measurement):
    """Show where A2 works; return the estimates, or None while there are none."""
    reading = cached_job(asked)
    if reading is None:
        return None
    words = _in_print(layers_sentence(reading.estimates))
    st.markdown(f"**Where A₂ works:** {words[:1].lower()}{words[1:]}", help=escape_markdown(ABOUT))
    return reading.estimates


def offer_contrast(estimates, subject, cap, here: Place) -> None:
    """Offer the head that needs its A2, or its control: of layers that need none, the head that gives the answer most."""
    found = estimates.attrs
    layer, head, query = found["layer"], found["head"], found.get("query", here[2])
    if (layer, head, query) != here:
        at = f" at token {query} {quoted(cap, query)}" if "query" in found else ""
        words = f"Show {head_name(layer, head)}{at}: its A₂ is needed"
        offer_place("needing", words, _in_print(place_sentence(estimates)), (layer, head, query))
        return
    last = cap.n_tokens - 1
    without = estimates["without_layer"]
    free = without["layer"][does_without(float(estimates["unedited"]), without)]
    shares = shares_on_answer(cap, subject.key, last)
    best = None if shares is None or not free.size else best_of(shares.sel(layer=free))
    if best is not None:
        place = best[:2]
        words = f"Show the control, {head_name(*place)} at the last token: layer {place[0]} needs no A₂"
        offer_place("control", words, f"It {amount_on_answer(cap, subject.key, last, *best)}.", (*place, last))


def offer_place(key: str, words: str, about: str, place: Place) -> None:
    """Offer a head at a token."""
    st.button(words, key=key, icon=":material/arrow_forward:", on_click=show_place, args=place, help=about)


def show_place(layer: int, head: int, query: int) -> None:
    """Look at a head and a token."""
    select(layer, head)
    state["query"] = query


def offer_better(subject, cap, layer: int, head: int, query: int) -> None:
    """Offer the head that gives the answer most, beside one that does not find it."""
    shares = shares_on_answer(cap, subject.key, query)
    best = None if shares is None else best_of(shares)
    if best is None:
        return
    here = float(shares.sel(layer=layer, head=head))
    if here >= MOST or best[2] <= here:
        return
    words = f"{head_name(*best[:2])} {amount_on_answer(cap, subject.key, query, *best)}"
    st.button(words, key="better", icon=":material/arrow_forward:", on_click=select, args=best[:2], help="Show this head")


def shares_on_answer(cap, key: tuple, query: int):
    """Return what each head gives to the answer, −1 of those that give nothing or take weight from it; None without an answer."""
    mass = mass_on_answer(cap, key, query)
    if mass is None:
        return None
    shares, net = (mass.sel(normalisation=name).fillna(-1.0) for name in ("share", "raw"))
    return shares.where(net >= 0, -1.0)


def best_of(shares) -> tuple[int, int, float] | None:
    """Return layer, head and share of the head that gives the answer most; None if none gives it anything."""
    best = shares.isel(shares.argmax(...))
    return (int(best["layer"]), int(best["head"]), float(best)) if float(best) > 0 else None


def amount_on_answer(cap, key: tuple, query: int, layer: int, head: int, share: float) -> str:
    """Return what the head that gives the answer most does, and how much it gives."""
    does = "finds the answer" if share >= MOST else "gives the answer most"
    return f"{does}: {percent(share)} of {weights_on_answer(cap, key, query, layer, head)}"


def weights_on_answer(cap, key: tuple, query: int, layer: int, head: int) -> str:
    """Return “A”, or “|D|” with how much of it is negative, as the head's sentence says it."""
    if cap.layer(layer).d_is_a1:
        return "A"
    mass, negative = (measured(cap, key, name, (query,)) for name in NEEDED)
    both = mass.assign(negative_share=negative["negative_share"])
    here = {"layer": layer, "head": head, "map": "D", "span": "answer"}
    share = both["span_mass"].sel(**here, normalisation="share").isel(query=-1)
    sign = of_it(float(share), float(negative_mass(both).sel(here).isel(query=-1)))
    return f"|D|, {sign}" if sign.endswith("negative") else "|D|"


def quoted(cap, query: int) -> str:
    """Quote a token of the prompt."""
    text = readable(cap.prompts[0])[query]
    return f"“{escape_markdown(shorten(visible(text.strip() or text)))}”"


def _in_print(sentence: str) -> str:
    return escape_markdown(sentence.replace("A2", "A₂"))
