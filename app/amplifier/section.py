"""What every section has: charts that are explained and can be taken away."""

from __future__ import annotations

import blocks
import streamlit as st
import xarray as xr
from messages import escape_markdown

from diffscope.figures.base import Figure
from diffscope.figures.panels import short_name


def python(subject, imports: str, *lines: str) -> str:
    """Python that reads the subject, as a section's chart does."""
    return "\n".join([subject.code(), f"from diffscope.figures import amplifier_charts as charts\n{imports}\n", *lines, ""])


#: what the page asks, by the anchor of its section
SECTIONS = {
    "signal": "Signal and noise",
    "lambda": "λ and λ*",
    "gains": "Residual and gains",
    "ranks": "Effective ranks",
    "noise": "Noise injected",
    "anatomy": "What the maps are made of",
    "logits": "What each branch does to the logits",
}
WRAPPED = "<style>div:has(> [class*=st-key-says-]){flex:1 1 16rem;min-width:0;width:auto}</style>"


def contents(sections) -> None:
    """Where the sections are; and what is said beside a button wraps rather than pushing that below."""
    st.html(WRAPPED)
    st.markdown(" · ".join(f"[{escape_markdown(SECTIONS[name])}](#{name})" for name in sections))


def heading(name: str, question: str) -> None:
    """The title of a section, and what it asks."""
    st.subheader(escape_markdown(SECTIONS[name]), anchor=name)
    st.caption(escape_markdown(question))


def show(name: str, figure: Figure, alt: str, data: xr.Dataset, code: str, reads: str = "", says: str = "") -> None:
    """A chart, how to read it, what it says here, and what can be taken away of it."""
    blocks.show_chart(figure, alt, key=f"amplifier-{name}")
    if reads:
        st.caption(escape_markdown(reads))
    with st.container(horizontal=True, vertical_alignment="top"):
        if says:
            with st.container(key=f"says-{name}"):
                st.markdown(escape_markdown(says))
        file = f"{short_name(data.attrs['model'])}-{name}"
        blocks.export_menu(file, figure=lambda: figure, data=lambda: data, code=code)
