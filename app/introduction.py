"""What a page looks at, in a line: the model, what it was trained on, and what the prompt asks."""

from __future__ import annotations

import numpy as np
import streamlit as st
from catalog import cards, trained_on
from messages import escape_markdown

from diffscope.figures import theme
from diffscope.figures.escaping import short_name

MECHANISM = """
A head of standard attention has one map: how much each token looks at each token before it.

A head of **differential attention** has two, A₁ and A₂, and uses their difference D = A₁ − λ·A₂. λ is a number that is learned.

If both maps share noise, the subtraction can cancel it. If they do not, A₂ can instead make D sparse, or carry signal with a
minus sign: D may be negative, as no standard map is.

diffscope shows which of these a head does. Blue is positive (A₁ adds), orange is negative (λ·A₂ takes away).
"""
BINS = 16  # a side of the small pictures
PARTS = ("A1", "lambda_A2", "D")
BLUE, ORANGE = theme.BLUES[6], theme.ORANGES[6]


def show_introduction(subject, cap) -> None:
    """Show one line on the model and the prompt."""
    st.markdown(f"{about_model(subject.model, cap)} {about_prompt(subject, cap)}".strip())


def explain_mechanism(cap, layer: int, head: int) -> None:
    """Show what differential attention is, behind a link."""
    with st.popover("What is differential attention?", type="tertiary"):
        if cap.differential:
            st.html(picture(cap, layer, head))
            st.caption(f"Head {head} of layer {layer} on this prompt: the largest weight of each of {BINS} × {BINS} bins.")
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


def picture(cap, layer: int, head: int) -> str:
    """Return small pictures of A₁, λ·A₂ and D of a head as SVG."""
    maps = cap.pooled_maps(layer, [head], PARTS, size=BINS).isel(head=0)
    limit = max(float(np.nanmax(np.abs(maps[name].values))) for name in PARTS) or 1.0
    parts = []
    for number, name in enumerate(PARTS):
        left = 108 * number
        title = theme.TITLES[name].partition(" = ")[0]
        parts.append(f'<text x="{left + 40}" y="98">{title}</text>{_cells(maps[name].values, left, limit)}')
    signs = '<text x="94" y="45" font-size="17">−</text><text x="202" y="45" font-size="17">=</text>'
    style = "font-family='system-ui, sans-serif' font-size='13' fill='currentColor' text-anchor='middle'"
    return f'<svg viewBox="0 0 300 104" width="300" role="img" aria-label="A₁ − λ·A₂ = D" {style}>{signs}{"".join(parts)}</svg>'


def _cells(values: np.ndarray, left: float, limit: float) -> str:
    """Return the cells of one map, (query, key), 80 units a side; what no query sees is left out."""
    high, wide = (80 / count for count in values.shape)
    return "".join(
        f'<rect x="{left + wide * key:.1f}" y="{high * query:.1f}" width="{wide:.1f}" height="{high:.1f}" '
        f'fill="{BLUE if weight >= 0 else ORANGE}" fill-opacity="{(abs(weight) / limit) ** 0.5:.2f}"/>'
        for (query, key), weight in np.ndenumerate(values)
        if np.isfinite(weight)
    )
