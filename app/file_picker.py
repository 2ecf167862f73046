"""Files of prompts that a reader gives: each stays while other pages are looked at, until it is removed or another is given."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import streamlit as st
from access import rules
from messages import escape_markdown

MB = 10  # the largest file
state = st.session_state


@dataclass(frozen=True)
class GivenFile:
    """A file by its name and what is in it.

    Attributes
    ----------
    name : str
    content : bytes
    """

    name: str
    content: bytes = field(repr=False)

    @property
    def key(self) -> tuple[str, str]:
        """What distinguishes it from other files, for caches."""
        return self.name, hashlib.sha256(self.content).hexdigest()


def is_given(key: str) -> bool:
    """Whether :func:`choose_file` with this key has a file."""
    return state.get(f"_{key}-given") is not None


def choose_file(label: str, key: str, *others: str, words: str | None = None) -> GivenFile | None:
    """A file of prompts, or None; `others` are further endings that it may have."""
    place = f"_{key}-given"

    def keep() -> None:
        file = state[key]
        state[place] = None if file is None else GivenFile(file.name, file.getvalue())

    kinds = [*others, "jsonl", "ndjson", "json", *(["parquet"] if rules().paths else [])]  # a small one can unpack to gigabytes
    uploaded = st.file_uploader(label, kinds, key=key, help=words, max_upload_size=MB, on_change=keep)
    given = state.get(place)
    if given is not None and uploaded is None:  # given before another page was looked at
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(escape_markdown(given.name))
            st.button("Remove", key=f"{key}-remove", on_click=lambda: state.pop(place))
    return given
