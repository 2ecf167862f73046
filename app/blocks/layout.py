"""Columns of a page: in a row if there is room for all, else below one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st


@contextmanager
def columns(*names: str, least: int = 320) -> Iterator[list]:
    """Containers side by side, each at least `least` pixels wide; a name is a key of the page, given once."""
    parts = ",".join(f"div:has(> .st-key-part-{name})" for name in names)
    st.html(f"<style>{parts}{{flex:1 1 {least}px;min-width:min({least}px,100%)}}</style>")
    with st.container(horizontal=True, gap="medium"):
        yield [st.container(key=f"part-{name}") for name in names]
