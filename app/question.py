"""The answer that the prompt asks for, among the answers that compete with it."""

from __future__ import annotations

import streamlit as st
from edit_results import answer_of
from messages import escape_markdown
from url_state import bound

from diffscope.errors import PromptError
from diffscope.readings import Question, question


def choose_distractors(subject) -> tuple[str, ...]:
    """The reader's distractors, with commas between them; by default those that the prompt is known to state."""
    text = st.text_input(
        "Distractors",
        **bound("distractors"),
        placeholder=", ".join(subject.distractors) or "other answers, with commas between them",
        help="The answer's odds are against these; without any, against all else that the model may say.",
    )
    own = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    return own or tuple(subject.distractors)


def ask(subject, cap, distractors: tuple[str, ...]) -> Question:
    """The answer and its distractors as tokens, and a line that says which they are."""
    scope = subject.scope()
    answer = answer_of(subject, cap)
    if not answer:
        raise PromptError("log-odds are of an answer, and none is known; give it, or mark it in the prompt")
    chosen = question(scope, cap, answer, distractors)
    words = f"Distractors: {', '.join(chosen.distractors)}."
    if chosen.left_out:
        words += f" Left out, since they begin like another: {', '.join(chosen.left_out)}."
    st.caption(escape_markdown(words))
    return chosen


def in_python(subject, cap, chosen: Question) -> str:
    """The question as Python writes it."""
    return f"question(scope, cap, {answer_of(subject, cap)!r}, {list(chosen.distractors)!r})"
