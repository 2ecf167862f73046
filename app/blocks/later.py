"""What a page shows when its browser has drawn the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import streamlit as st

KNOWN = "_charts-known"  # whether the browser of this session has read what draws charts
LATER = "later"  # the key of all that is shown later
PATIENCE = 4.0  # seconds after which it is taken to have drawn what stands above, although it does not say so
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
    """Show all of them: what two tell at once would be taken as told by one of them."""
    st.session_state[KNOWN] = True
    st.rerun(LATER)


@st.fragment(key=LATER)
def show_later(show: Callable[[], object], key: str) -> None:
    """Show charts or tables when what stands above is drawn, or after a few seconds.

    A browser takes most of a second to read what draws them, and draws nothing meanwhile. In a session that has read it they
    are shown at once.
    """
    if st.session_state.get(KNOWN):
        show()
        return
    _drawn()(key=key, on_drawn_change=_know)
    asked = time.monotonic()

    @st.fragment(run_every=PATIENCE)
    def wait() -> None:
        if time.monotonic() - asked > PATIENCE / 2:  # not its first run, which is this one
            st.session_state[KNOWN] = True
            st.rerun()

    wait()
