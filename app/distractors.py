"""Other answers, against which the odds of the right one are said."""

from __future__ import annotations

import streamlit as st
from kept import kept


def choose_distractors(subject) -> tuple[str, ...]:
    """The reader's distractors, with commas between them; by default those that the prompt is known to state."""
    text = st.text_input(
        "Distractors",
        **kept("distractors"),
        placeholder=", ".join(subject.distractors) or "other answers, with commas between them",
        help="The answer's odds are against these; without any, against all else that the model may say.",
    )
    own = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    return own or tuple(subject.distractors)
