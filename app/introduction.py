"""What a page looks at, in a line: the model, what it was trained on, and what the prompt asks."""

from __future__ import annotations

import streamlit as st
from catalog import cards, trained_on
from messages import escape_markdown

from diffscope.figures.escaping import short_name
from diffscope.numbers import head_name
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
        if cap.layers[cap.layer_numbers.index(layer)].differential:
            st.html(equation(cap, layer, head))
            st.caption(f"{head_name(layer, head)} on this prompt: the largest weight of each of {BINS} × {BINS} bins.")
        st.markdown(MECHANISM)


def about_model(name: str, cap) -> str:
    """Return what a model is and was trained on, as Markdown."""
    card = cards().get(name.partition("@")[0], {})
    kind = "differential attention" if cap.differential else "standard attention"
    if any(layer.correction is not None for layer in cap.layers):
        kind += " with DEX"
    size = f"{card['parameters'] / 1e6:.1f} M parameters, " if "parameters" in card else ""
    trained = escape_markdown(trained_on(card))
    shape = f"{cap.n_layers} layers × {cap.n_heads} heads"
    return f"**{escape_markdown(short_name(cap.model_name))}**: {size}{shape} of {kind}{trained and f', {trained}'}."


def about_prompt(subject, cap) -> str:
    """Return what a prompt asks for, as Markdown."""
    length = f"{cap.n_tokens} tokens"
    if "answer" not in cap.spans:
        return f"This prompt has {length} and no marked answer."
    return (
        f"This prompt ({length}) asks for “{escape_markdown(subject.answer)}”."
        if subject.answer
        else f"This prompt has {length}."
    )
