"""The answer that the prompt asks for, among the answers that compete with it."""

from __future__ import annotations

import streamlit as st
from kept import kept
from words import plain

from diffscope.readings.question import Question, question


def choose_distractors() -> None:
    """Other answers that one might give, of which the sections ask."""
    st.text_input(
        "Distractors",
        **kept("distractors"),
        placeholder="by default other numbers of the prompt",
        help="Other answers, with commas between them. Log-odds and branches are of the answer against these.",
    )


def asked(subject, cap) -> Question:
    """The answer and its distractors as tokens, and a line that says which they are."""
    own = [part for part in st.session_state.get("distractors", "").split(",") if part.strip()]
    chosen = question(subject.scope(), cap, own)
    words = f"Distractors: {', '.join(chosen.distractors)}."
    if chosen.left_out:
        words += f" Left out, since they begin like another: {', '.join(chosen.left_out)}."
    st.caption(plain(words))
    return chosen
