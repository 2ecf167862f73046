"""What a page looks at, in a line: the model, what it was trained on, and what the prompt asks."""

from __future__ import annotations

import streamlit as st
from catalog import cards, step_of, without_step
from messages import escape_markdown
from question import answer_of

from diffscope.cards import size_of, trained_on
from diffscope.figures.escaping import short_name, shorten, visible
from diffscope.numbers import counted, head_name, layers_by_heads, percent, stretches
from diffscope.views.equation import BINS, equation

MECHANISM = """
A head of standard attention has one map: how much each token looks at each token before it.

A head of **differential attention** has two, A₁ and A₂, and uses their difference D = A₁ − λ·A₂. λ is a number that is learned.

If both maps share noise, the subtraction can cancel it. If they do not, A₂ can instead make D sparse, or carry signal with a
minus sign: D may be negative, as no standard map is.

diffscope shows which of these a head does. Blue is positive (A₁ adds), orange is negative (λ·A₂ takes away).
"""


def show_introduction(subject, cap) -> None:
    """Show one line on the model and the prompt."""
    st.markdown(f"{about_model(subject.model, cap)} {about_prompt(subject, cap)}".strip())


def explain_mechanism(cap, layer: int, head: int) -> None:
    """Show what differential attention is, behind a link."""
    with st.popover("What is differential attention?", type="tertiary"):
        if cap.layer(layer).differential:
            st.html(equation(cap, layer, head))
            st.caption(
                f"{head_name(layer, head)} on this prompt: the largest weight of each bin, at most {BINS} × {BINS} of them."
            )
        st.markdown(MECHANISM)


def about_model(name: str, cap) -> str:
    """Return what a model is and was trained on, as Markdown."""
    base = without_step(name)
    card = cards().get(base, {})
    kind = "differential attention" if cap.differential else "standard attention"
    if any(layer.correction is not None for layer in cap.layers):
        kind += " with DEX"
    size = size_of(card) and f"{size_of(card)}, "
    trained = escape_markdown(trained_on(card))
    if trained and name != base:  # a checkpoint
        trained = f"after {step_of(name)} steps of being {trained}"
    shape = layers_by_heads(cap.n_layers, cap.n_heads)
    return f"**{escape_markdown(short_name(cap.model_name))}**: {size}{shape} of {kind}{trained and f', {trained}'}."


def about_prompt(subject, cap) -> str:
    """Return what a prompt asks for and what the model says next, as Markdown."""
    if cap.key_prompts is not None:
        return f"Its prompt of {counted(cap.n_tokens, 'token')} looks at {counted(len(cap.key_tokens), 'token')} of another side."
    length = counted(cap.n_tokens, "token")
    if "answer" not in cap.spans:
        asked = f"This prompt has {length} and no marked answer."
    elif answer := answer_of(subject, cap):
        asked = f"This prompt ({length}) asks for “{escape_markdown(answer)}”."
    else:
        asked = f"This prompt has {length}."
    return f"{asked} {says_next(cap)}".strip()


def says_next(cap) -> str:
    """Return the likeliest next token beside the answer's first one, as Markdown; empty if the model predicts none."""
    if not cap.next:
        return ""
    likeliest, most = cap.next[0]
    says = f"The model says {_quoted(likeliest)} next ({percent(most)})"
    if not len(cap.spans.get("answer", ())):
        return f"{says}."
    start, stop = stretches(cap.spans["answer"])[0]  # an answer may be marked where it stands again
    first = cap.tokens[start]
    name = "the answer" if stop - start == 1 else f"the first of the answer's {stop - start} tokens"
    if _alike(likeliest, first):
        return f"{says}, which is {name}."
    of_it = "" if stop - start == 1 else f", which is {name}"
    chance = next((p for token, p in cap.next if _alike(token, first)), None)
    if chance is None:
        return f"{says}; {_quoted(first)}{of_it}{of_it and ','} is not among its {len(cap.next)} likeliest tokens."
    return f"{says} rather than {_quoted(first)} ({percent(chance)}){of_it}."


def _alike(token: str, other: str) -> bool:
    """Return whether two tokens are one text, but for spaces around it: an answer may stand at the begin of its line."""
    return token == other or token.strip() == other.strip() != ""


def _quoted(token: str) -> str:
    return f"“{escape_markdown(shorten(visible(str(token))))}”"
