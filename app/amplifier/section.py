"""What every section has: charts that are explained and can be taken away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import blocks
import streamlit as st
import xarray as xr
from messages import escape_markdown

from diffscope.figures import Figure
from diffscope.figures.escaping import short_name


def python(subject, imports: str, *lines: str) -> str:
    """Return Python that reads the subject, as a section's chart does."""
    return "\n".join([subject.code(), f"from diffscope.figures import amplifier_charts as charts\n{imports}\n", *lines, ""])


#: what a section is about, by the anchor of it
SECTIONS = {
    "signal": "Signal and noise",
    "lambda": "λ and λ*",
    "gains": "Residual and gains",
    "ranks": "Effective ranks",
    "noise": "Noise injected",
    "anatomy": "What the maps are made of",
    "logits": "What each branch does to the logits",
    "scores": "Why a head looks there",
}


def heading(name: str, question: str) -> None:
    """Show the title of a section, and what it asks."""
    st.subheader(escape_markdown(SECTIONS[name]), anchor=name)
    st.caption(escape_markdown(question))


@contextmanager
def folded(name: str, label: str) -> Iterator[bool]:
    """Put what is shown into a row that opens; yield whether it is open, since what is closed is not drawn."""
    row = st.expander(label, key=f"amplifier-more-{name}", on_change="rerun")
    with row:
        yield bool(row.open)


def show(name: str, figure: Figure, alt: str, data: xr.Dataset, code: str, reads: str = "", says: str = "") -> None:
    """Show what a chart says here, the chart, how to read it, and the export menu."""
    file = f"{short_name(data.attrs['model'])}-{name}"
    parts = {"says": says, "caption": reads, "data": lambda: data, "code": code}
    blocks.show_figure(figure, alt, key=f"amplifier-{name}", name=file, **parts)
