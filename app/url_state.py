"""What stays: the values of widgets, in the address and from page to page.

A widget that is made with ``**kept("layer")`` has its value in the page's address, so that the address brings the view back, and
keeps it while the reader is on another page. Streamlit by itself forgets widgets that are not on the page.
"""

from __future__ import annotations

import json
from contextlib import suppress
from urllib.parse import quote

import streamlit as st
from streamlit.errors import StreamlitAPIException

LONGEST = 8000  # characters of a value in an address
state = st.session_state


def kept(key: str) -> dict:
    """The arguments of a widget that stays, under this key; in the address as long as its value is not too long for one."""
    _of_pages().setdefault(state.get("_page", ""), set()).add(key)
    return {"key": key, "bind": "query-params"} if fits_address(state.get(key)) else {"key": key}


def fits_address(value) -> bool:
    """Whether a widget's value can stand in an address; servers refuse long ones."""
    parts = in_address(value)
    return sum(len(quote(part)) for part in ([parts] if isinstance(parts, str) else parts)) <= LONGEST


def kept_value(key: str, first) -> dict:
    """The same for a widget that begins with a value, where neither the session nor the address has one."""
    if key not in state and key not in st.query_params:
        state[key] = first
    return kept(key)


def kept_option(key: str, options, first=None) -> dict:
    """The same for a choice among options that are shown in other words: the address has the option itself."""
    _of_pages().setdefault(state.get("_page", ""), set()).add(key)
    named = {str(option): option for option in options}
    usual = options[0] if first is None else first
    if key not in state:
        state[key] = named.get(st.query_params.get(key, ""), usual)
    elif state[key] not in options:
        state[key] = usual
    st.query_params[key] = str(state[key])
    return {"key": key}


def kept_options(key: str, options, first) -> dict:
    """The same for a choice of several among options: what is none of them is left out."""
    chosen = state.get(key, st.query_params.get_all(key) or first)
    state[key] = [option for option in options if option in chosen]
    return kept(key)


def looked_at(name: str) -> dict:
    """How a view of maps is looked at, as the address says, or as it was when the reader left it.

    What is no such thing the view leaves out by itself.
    """
    try:
        look = dict(json.loads(st.query_params[name])) if name in st.query_params else state.get(f"_{name}-look", {})
    except (ValueError, TypeError, RecursionError):
        return {}
    keep_look(name, look)
    return look


def keep_look(name: str, look: dict) -> None:
    """Put into the address how a view of maps is looked at."""
    state[f"_{name}-look"] = look
    if look:
        st.query_params[name] = json.dumps(look, separators=(",", ":"))
    else:
        st.query_params.pop(name, None)


def carry(page: str) -> None:
    """Keep what other pages have, and put into the address of a page what it had; before any widget is made."""
    pages = _of_pages()
    for key in set().union(*pages.values()):
        if key in state:
            state[key] = state[key]
    before = state.get("_page")
    state["_page"] = page
    if before in (None, page):
        return
    everywhere = {key for key in pages.get(before, set()) if not key.startswith(f"{before}-")}
    for key in everywhere | pages.get(page, set()):
        if state.get(key) is not None and fits_address(state[key]):
            with suppress(StreamlitAPIException):  # a widget of this page has written it already
                st.query_params[key] = in_address(state[key])


def in_address(value) -> str | list[str]:
    """A widget's value as it stands in an address; of several values each."""
    return [str(part) for part in value] if isinstance(value, (list, tuple)) else str(value)


def _of_pages() -> dict[str, set[str]]:
    return state.setdefault("_kept", {})
