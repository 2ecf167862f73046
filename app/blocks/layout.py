"""Columns of a page: in a row if there is room for all, else below one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import streamlit as st


@contextmanager
def columns(*names: str, least: int | Sequence[int] = 320) -> Iterator[list]:
    """Put containers side by side, each at least `least` pixels wide; a name is a key of the page, given once.

    With a width for each, what is left over is divided in their proportion.
    """
    widths = [least] * len(names) if isinstance(least, int) else least
    rules = [
        f"div:has(> .st-key-part-{name}){{flex:{wide} 1 {wide}px;min-width:min({wide}px,100%)}}"
        for name, wide in zip(names, widths)
    ]
    st.html(f"<style>{''.join(rules)}</style>")
    with st.container(horizontal=True, gap="medium"):
        yield [st.container(key=f"part-{name}") for name in names]
