"""How a reader gives a model of their own: by its folder, its id on the hub, its files, or out of the list."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import streamlit as st
from access import rules
from catalog import SessionModel, cards, session_models
from messages import escape_markdown
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx
from uploads import File, accept
from url_state import bound

from diffscope.errors import DiffscopeError, ModelNotFound

FOLDER = "a folder"
HUB = "the hub"
UPLOAD = "an upload"
LISTED = "the list"
WORDS = {
    FOLDER: ("Its folder", "/path/to/model", "A folder with config.json, weights as .safetensors, and the tokenizer's files."),
    HUB: ("Its id on the hub", "OWNER/NAME", "First only headers of its files are fetched, to say how large it is."),
}
CALLED = "my-model"
READ = (
    "Read are config.json, weights as .safetensors, and the tokenizer's files, as save_pretrained writes them: of any decoder of "
    "transformers, and of the published implementations of differential attention. Then each layer is checked against the "
    "model's own output."
)
state = st.session_state


def choose() -> tuple[str, SessionModel] | None:
    """What a model is called, and the model; None while something is missing, which is said."""
    sources = [UPLOAD, *([FOLDER] if rules().paths else []), *([HUB] if rules().hub else []), LISTED]
    first = FOLDER if FOLDER in sources and "your_model-folder" in st.query_params else UPLOAD
    st.caption(READ)
    source = st.radio("Your model is in", sources, horizontal=True, **bound("your_model-source", default=first))
    if source == UPLOAD:
        return _uploaded()
    if source == LISTED:
        name = st.selectbox("Model", [*cards(), *session_models()], **bound("your_model-listed"))
    else:
        label, example, words = WORDS[source]
        key = "your_model-folder" if source == FOLDER else "your_model-id"
        name = st.text_input(label, **bound(key), placeholder=example, on_change=lambda: state.update(_typed=state[key])).strip()
        if not name:
            st.caption(words)
        elif source == FOLDER and not os.path.isdir(os.path.expanduser(name)):
            raise ModelNotFound(f"there is no folder {name!r}; give an id of the hub as one")
        elif source == HUB and name not in (
            state.get("_typed", "").strip(),
            *session_models(),
        ):  # an address alone fetches nothing
            st.caption(f"The address of this page names {escape_markdown(name)}.")
            if not st.button("Look it up on the hub", key="your_model-fetch"):
                return None
            state["_typed"] = name
    return (name, session_models().get(name, SessionModel(name))) if name else None


def _uploaded() -> tuple[str, SessionModel] | None:
    """A model from files; those before are removed as soon as there are others, and not when another page was looked at."""
    files = st.file_uploader(
        "Its files: .safetensors, config.json, and those of its tokenizer",
        accept_multiple_files=True,
        key="your_model-files",
        on_change=lambda: state.update(_given=True),
        help=f"At most {rules().upload_bytes / 2**20:,.0f} MiB in all. Nothing is unpacked and no code is run. The files are "
        "removed when this session ends.",
    )
    name = st.text_input("Name", **bound("your_model-name", default=CALLED), max_chars=40).strip() or CALLED
    label = f"{name} (uploaded)"
    if state.pop("_given", False) or (files and label != state.get("_label")):
        discard()
        if files:
            _keep(label, [File(file.name, file.getvalue()) for file in files])
    if state.get("_refusal"):
        st.warning(escape_markdown(state["_refusal"]))
    upload = state.get("_upload")
    if upload is None or not upload.there:
        st.button(f"Try it with {next(iter(cards()))}", key="your_model-try", on_click=try_example) if cards() else None
        return None
    label = state["_label"]
    if not files:  # given before another page was looked at
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(escape_markdown(label))
            st.button("Remove", key="your_model-remove", on_click=discard)
    return label, session_models().get(label, SessionModel(str(upload.folder), upload))


def try_example() -> None:
    """Choose the first model of the list."""
    state["your_model-source"] = LISTED
    state["your_model-listed"] = next(iter(cards()))


def discard() -> None:
    """Remove the upload before, and what was said of it."""
    state.pop("_refusal", None)
    before = state.pop("_upload", None)
    if before is not None:
        before.remove()


def this_session() -> Callable[[], bool]:
    """What says whether the page of this session is still open."""
    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        return lambda: True
    return partial(runtime.get_instance().is_active_session, context.session_id)


def _keep(label: str, files: list[File]) -> None:
    """Keep an upload, or why it was refused."""
    state["_label"] = label
    try:
        state["_upload"] = accept(files, label.removesuffix(" (uploaded)"), rules().upload_bytes, this_session())
    except DiffscopeError as error:
        state["_refusal"] = str(error)
