"""What a page shows when its browser has drawn the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import streamlit as st

KNOWN = "_charts-known"  # whether the browser of this session has read what draws charts
DRAWN = """
export default function ({ setTriggerValue }) {
  const told = requestAnimationFrame(() => requestAnimationFrame(() => setTriggerValue("drawn", true)));
  return () => cancelAnimationFrame(told);
}
"""


@cache
def _drawn():
    return st.components.v2.component("diffscope_drawn", js=DRAWN)


def _know() -> None:
    st.session_state[KNOWN] = True


@st.fragment
def show_later(show: Callable[[], object], key: str) -> None:
    """Show charts or tables when what stands above is drawn.

    A browser takes most of a second to read what draws them, and draws nothing meanwhile. In a session that has read it they
    are shown at once.
    """
    if st.session_state.get(KNOWN):
        show()
    else:
        _drawn()(key=key, on_drawn_change=_know)
