"""Files of prompts that a reader gives: each stays while other pages are looked at, until it is removed or another is given.

What they hold is in no address.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import streamlit as st
from access import rules
from messages import escape_markdown
from uploads import File

from diffscope.errors import DiffscopeError, PromptError

MB = 10  # the largest file
LONGEST_NAME = 100  # of a file that is kept for a moment
FORMAT = (
    "A line a prompt. `prompt` is the text and `answer` what comes next, with the space before it. `spans` name parts of the "
    "prompt by their text, or by ranges of characters `[[start, stop], …]`: tests need the span `answer`, where the text states "
    "it; `needles` are what is said about other things, and `query` is the question. `distractors` are other answers."
)
state = st.session_state


def is_given(key: str) -> bool:
    """Whether :func:`choose_file` with this key has a file."""
    return state.get(f"_{key}-given") is not None


def choose_file(label: str, key: str, *others: str) -> File | None:
    """A file of prompts, or None; `others` are further endings that it may have."""
    place = f"_{key}-given"

    def keep() -> None:
        file = state[key]
        state[place] = None if file is None else File(file.name, file.getvalue())

    kinds = [*others, "jsonl", "ndjson", "json", *(["parquet"] if rules().paths else [])]  # a small one can unpack to gigabytes
    uploaded = st.file_uploader(label, kinds, key=key, help=FORMAT, max_upload_size=MB, on_change=keep)
    given = state.get(place)
    if given is not None and uploaded is None:  # given before another page was looked at
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(escape_markdown(given.name))
            st.button("Remove", key=f"{key}-remove", on_click=lambda: state.pop(place))
    return given


@st.cache_resource(show_spinner=False, max_entries=16)
def own_prompts(name: str, content: bytes) -> tuple:
    """The prompts of a file that a person gave, by its name and what is in it; its errors name the file as the person does.

    A text is one prompt.
    """
    from diffscope.tasks import TextPrompt

    prompts = (TextPrompt("", _text(name, content), {}, None),) if name.lower().endswith(".txt") else _listed(name, content)
    most = rules().characters
    for prompt in prompts:
        if len(prompt.text) > most:
            words = f"the prompt {prompt.name!r}" if prompt.name else "the prompt"
            raise PromptError(f"{words} has {len(prompt.text):,} characters, and {most:,} are taken here; shorten it")
    return prompts


def _text(name: str, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")  # without a byte order mark
    except UnicodeDecodeError:
        raise PromptError(f"{name} is not UTF-8 text; save it as UTF-8") from None
    if not text.strip():
        raise PromptError(f"{name} is empty; give at least one token of text")
    return text


def _listed(name: str, content: bytes) -> tuple:
    from diffscope.tasks import read_prompts

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / re.sub(r"[\x00-\x1f/\\]", "_", name)[-LONGEST_NAME:]
        path.write_bytes(content)
        try:
            return read_prompts(path)
        except DiffscopeError as error:
            raise type(error)(str(error).replace(f"{folder}{os.sep}", "")) from None
