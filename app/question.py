"""The answer that the prompt asks for, among the answers that compete with it."""

from __future__ import annotations

import streamlit as st
from messages import escape_markdown
from url_state import bound

from diffscope.errors import PromptError
from diffscope.numbers import stretches
from diffscope.readings import Question, encode_question, question
from diffscope.tasks import Prompt
from diffscope.tasks.log_odds import check_told_apart


def answer_of(subject, cap) -> str:
    """Return the answer's text: what the reader wrote, else the tokens that are marked as it; empty if none is known."""
    return subject.answer if subject.answer.strip() else marked_answer(cap)


def marked_answer(cap) -> str:
    """Return the text of the tokens that are marked as the answer, at the first place of several; empty if none are."""
    places = stretches(cap.spans.get("answer", ()))
    return "".join(cap.tokens[slice(*places[0])]).strip() if places else ""


def encoded_question(subject, cap, distractors: tuple[str, ...]) -> Prompt | None:
    """Return the prompt with the tokens of its answer and its distractors; None if no answer is known."""
    answer = answer_of(subject, cap)
    if not answer:
        return None
    prompt = encode_question(subject.scope(), cap, answer, distractors)
    check_told_apart(prompt)
    return prompt


ODDS = "The answer's odds are against these; without any, against {}."


def choose_distractors(subject, cap, about: str = ODDS.format("the other numbers of the prompt")) -> tuple[str, ...]:
    """Return the distractors that the reader gives; `about` says what they are for."""
    text = st.text_input(
        "Distractors",
        **bound("distractors"),
        placeholder=", ".join(subject.distractors) or "other answers, with commas between them",
        help=about,
    )
    return distractors_in(text, subject, answer_of(subject, cap))


def distractors_in(text: str, subject, answer: str) -> tuple[str, ...]:
    """Return distractors with commas between them; without any, those that the prompt is known to state. None is the answer."""
    own = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    return tuple(other for other in own or subject.distractors if other.strip() != answer.strip())


def question_of(subject, cap, distractors: tuple[str, ...]) -> Question:
    """Return the answer and its distractors as tokens."""
    answer = answer_of(subject, cap)
    if not answer:
        raise PromptError("log-odds are of an answer, and none is known; give it, or mark it in the prompt")
    return question(subject.scope(), cap, answer, distractors)


def ask(subject, cap, distractors: tuple[str, ...]) -> Question:
    """Return the question, and show a line with its distractors."""
    chosen = question_of(subject, cap, distractors)
    words = f"Distractors: {', '.join(chosen.distractors)}."
    if chosen.left_out:
        words += f" Left out, since they begin like another: {', '.join(chosen.left_out)}."
    st.caption(escape_markdown(words))
    return chosen


def in_python(subject, cap, chosen: Question) -> str:
    """Return the question as Python writes it."""
    return f"readings.question(scope, cap, {answer_of(subject, cap)!r}, {list(chosen.distractors)!r})"
