"""Plotly charts on light and dark pages."""

from __future__ import annotations

import streamlit as st

from diffscope.figures import Figure, theme

QUIET = {"displaylogo": False, "displayModeBar": False, "doubleClick": False}


def show_chart(figure, alt: str, key: str, **options):
    """A figure of diffscope, or the plotly drawing of one, in the colours of the page; `alt` says what it shows."""
    drawing = figure.plotly() if isinstance(figure, Figure) else figure
    if st.context.theme.type == "dark":
        drawing = theme.on_dark(drawing)
    return st.plotly_chart(drawing, theme=None, config=QUIET, key=key, alt=alt, **options)
