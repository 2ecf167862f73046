"""Widget state that survives page changes and is stored in the URL.

A widget that is made with ``**bound("layer")`` has its value in the page's address, so that the address brings the view back, and
keeps it while the user is on another page. Streamlit by itself forgets widgets that are not on the page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import streamlit as st
from streamlit.errors import StreamlitAPIException

PANEL, OPENED = "open", "model"  # what an address says while the panel that opens a model lies over the page
OF_PANEL = "your_model-"  # begins the keys of that panel, whatever the page
LONGEST = 8000  # characters of a value in an address
state = st.session_state


def bound(key: str, *, default: Any = None, options: Sequence | None = None, several: bool = False, named: bool = False) -> dict:
    """Return the arguments that bind a widget to the URL.

    Parameters
    ----------
    key : str
        Of the widget, and of its value in the address. A value that is too long for an address is kept in the session alone.
    default
        The value if neither the session nor the address has one.
    options : sequence, optional
        What can be chosen. The address has the option itself, whatever words it is shown in; a value that is no option becomes
        the default.
    several : bool
        Whether several options can be chosen. Unknown ones are dropped.
    named : bool
        Whether the address has the value before the user changes it, so that it does not depend on what is chosen at first.
    """
    _keys_of_pages().setdefault(state.get("_page", ""), set()).add(key)
    arguments = _bound(key, default, options, several, named)
    if key in state:
        state.setdefault("_kept", {})[key] = state[key]
    return arguments


def _bound(key: str, default: Any, options: Sequence | None, several: bool, named: bool) -> dict:
    if options is None:
        if default is not None and key not in state and key not in st.query_params:
            state[key] = default
    elif several:
        chosen = state.get(key, st.query_params.get_all(key) or default or ())
        state[key] = [option for option in options if option in chosen]
    else:
        return _bound_option(key, options, options[0] if default is None else default)
    value = state.get(key)
    if not fits_address(value):
        return {"key": key}
    if named and value is not None and key not in st.query_params:
        with suppress(StreamlitAPIException):  # the page before has bound it, and has just been left
            st.query_params[key] = in_address(value)
    return {"key": key, "bind": "query-params"}


def _bound_option(key: str, options: Sequence, default: Any) -> dict:
    if key not in state:
        state[key] = {str(option): option for option in options}.get(st.query_params.get(key, ""), default)
    elif state[key] not in options:
        state[key] = default
    st.query_params[key] = str(state[key])
    return {"key": key}


def fits_address(value) -> bool:
    """Return whether a widget's value can stand in an address; servers refuse long ones."""
    parts = in_address(value)
    return sum(len(quote(part)) for part in ([parts] if isinstance(parts, str) else parts)) <= LONGEST


def token_ids(cap) -> list[tuple[int, ...]]:
    """Return the ids of the tokens of a capture, on both sides."""
    return [tuple(prompt.ids) for prompt in cap.all_prompts]


def view_state(name: str, cap) -> dict:
    """Return the state of a view of a capture's maps, as the address has it, or as it was when the user left it.

    What is not a state the view drops by itself. If the prompt is another than before, locked tokens and the window are dropped.
    """
    ids = token_ids(cap)
    before = state.get(f"_{name}-ids", ids)
    state[f"_{name}-ids"] = ids
    try:
        look = dict(json.loads(st.query_params[name])) if name in st.query_params else state.get(f"_{name}-look", {})
    except (ValueError, TypeError, RecursionError):
        return {}
    if before != ids:
        look = {part: value for part, value in look.items() if part not in ("window", "locked")}
    save_view_state(name, look)
    return look


def save_view_state(name: str, look: dict) -> None:
    """Put the state of a view of maps into the address."""
    state[f"_{name}-look"] = look
    if look:
        st.query_params[name] = json.dumps(look, separators=(",", ":"))
    else:
        st.query_params.pop(name, None)


def restore(page: str) -> None:
    """Keep the values of other pages' widgets, and put those of this page into its address; before any widget is made."""
    pages = _keys_of_pages()
    for key in set().union(*pages.values()):
        if key in state:
            state[key] = state[key]
    before = state.get("_page")
    state["_page"] = page
    if before in (None, page):
        return
    for key, value in state.get("_kept", {}).items():  # Streamlit forgets some if a fragment alone ran before the page was left
        state.setdefault(key, value)
    everywhere = {key for key in pages.get(before, set()) if not key.startswith(f"{before}-")}
    for key in everywhere | pages.get(page, set()):
        if state.get(key) is not None and fits_address(state[key]) and not key.startswith(OF_PANEL):
            with suppress(StreamlitAPIException):  # a widget of this page has written it already
                st.query_params[key] = in_address(state[key])


def in_address(value) -> str | list[str]:
    """Return a widget's value as it stands in an address; of several values each."""
    return [str(part) for part in value] if isinstance(value, (list, tuple)) else str(value)


def _keys_of_pages() -> dict[str, set[str]]:
    return state.setdefault("_bound", {})
