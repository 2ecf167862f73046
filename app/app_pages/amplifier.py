"""Amplifier: what the subtraction leaves and passes, taken literally: signal, gains, ranks, rejection, anatomy, logits."""

from __future__ import annotations

import streamlit as st
from amplifier.anatomy import show_anatomy
from amplifier.logits import show_branches
from amplifier.noise import show_noise
from amplifier.numbers import show_gains
from amplifier.ranks import show_ranks
from amplifier.section import SECTIONS, contents
from amplifier.signal import show_signal
from messages import escape_markdown, show_errors
from place import choose_head, choose_query, follow
from question import choose_distractors
from sidebar import choose_subject

from diffscope.errors import check_index
from diffscope.figures.panels import short_name

STANDARD = (
    "Standard attention has one map and subtracts nothing: it has no λ, nothing to reject, and no gains. Its signal and "
    "noise, its ranks, what its maps are made of, what noise costs its answer and what its heads add to the logits can be asked."
)


def show_amplifier(subject, cap) -> None:
    """The page below the choice of model and prompt."""
    follow(cap, subject.key)
    st.markdown(
        f"**{escape_markdown(short_name(cap.model_name))}** · {escape_markdown(cap.family)} · {cap.n_layers} layers × {cap.n_heads} heads · "
        f"{cap.n_tokens} tokens"
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, head = choose_head(cap)
        query = choose_query(cap)
        distractors = choose_distractors(subject)
    contents(name for name in SECTIONS if cap.differential or name not in ("lambda", "gains"))
    check_index("layer", layer, cap.layer_numbers)
    check_index("head", head, range(cap.n_heads))
    if not cap.differential:
        st.info(STANDARD)
    show_signal(subject, cap, query, distractors)
    if cap.differential:
        show_gains(subject, cap, query)
    show_ranks(subject, cap)
    show_noise(subject, cap, layer, head, query, distractors)
    show_anatomy(subject, cap)
    show_branches(subject, cap, distractors)


with show_errors():
    subject = choose_subject()
    if subject is not None:
        show_amplifier(subject, subject.capture())
