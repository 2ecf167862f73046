"""The edits that a reader has stacked: kept in the address, each with its controls and an undo."""

from __future__ import annotations

from functools import partial

import streamlit as st
from edit_catalog import ALL, KINDS, LAST, STAGE_WORDS, Choice, Source, Tokens, Written, first, read
from messages import escape_markdown
from selection import heads_of
from url_state import bound

from diffscope.errors import DiffscopeError

KEY = "edit"
NONE = "none"  # in an address: no edit at all
OPENING = "scale_lambda(0.0)"  # what happens without A2?
MOST = 64
state = st.session_state


def texts() -> tuple[str, ...]:
    """The stacked edits as the address has them."""
    return tuple(state.get(KEY, ()))


def begin(cap) -> None:
    """The edits of the address; without any, A2 is not subtracted, if there is one."""
    bound(KEY)  # of no widget, but it stays like one
    if KEY not in state:
        state[KEY] = st.query_params.get_all(KEY)[:MOST]
        state["_edits-chosen"] = bool(state[KEY])
    if not state["_edits-chosen"]:
        state[KEY] = [OPENING if cap.differential else NONE]
    _write()


def show_stack(cap, layer: int, head: int) -> list[Written]:
    """The stacked edits in the order in which they act, each with its controls; what is no edit is said and left out."""
    begin(cap)
    edits = []
    for number, text in enumerate(texts()):
        if text == NONE:
            continue
        try:
            edits.append((read(text), number))
        except DiffscopeError as error:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.warning(escape_markdown(str(error)), width="stretch")
                _undo(number, text)
    edits.sort(key=lambda edit: edit[0].stage)
    for edit, number in edits:
        with st.container(border=True, gap="small"):
            _show_edit(edit, number, cap)
    if len(edits) > 1:
        st.caption("They act in this order, that of the computation.")
    _offer(cap, layer, head)
    return [edit for edit, _ in edits]


def is_without_a2(edit: Written) -> bool:
    """Whether no head subtracts A2 under an edit."""
    return edit.kind.name in ("scale_lambda", "set_lambda") and edit.values == (0.0,) and not edit.layers and not edit.heads


def _show_edit(edit: Written, number: int, cap) -> None:
    """One edit in words, with an undo, and below it what it is given."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{escape_markdown(edit.words)}**{': without A₂' if is_without_a2(edit) else ''}", width="stretch")
        _undo(number, edit.words)
    names = [takes.name for takes in edit.kind.takes]
    keys = {name: f"change-{state.setdefault('_edits', 0)}-{number}-{name}" for name in (*names, *edit.kind.places)}
    changed = partial(_change, number, edit.kind.name, keys)
    if edit.kind.takes:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            for takes, value in zip(edit.kind.takes, edit.values):
                _control(takes, value, cap, keys[takes.name], changed)
    options = {"layers": cap.layer_numbers, "heads": list(range(cap.n_heads))}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for name in edit.kind.places:
            chosen = getattr(edit, name)
            numbers = sorted({*options[name], *chosen})
            st.multiselect(name.capitalize(), numbers, chosen, key=keys[name], on_change=changed, placeholder="all")


def _control(takes, value, cap, key: str, changed) -> None:
    """What an edit is given, as a widget."""
    options = {"key": key, "on_change": changed}
    if isinstance(takes, Tokens):
        names = list(dict.fromkeys([*cap.key_sets, LAST, *([ALL] if takes.may_be_all else []), value]))
        words = "A span of the prompt; or write tokens, such as 12-15."
        st.selectbox(takes.label, names, names.index(value), accept_new_options=True, help=words, width=150, **options)
    elif isinstance(takes, Choice):
        names = list(takes.options)
        st.selectbox(takes.label, names, names.index(value), width=130, **options)
    elif isinstance(takes, Source):
        words = "A prompt of as many tokens, which says the same at the same places but for what is to be compared."
        st.text_input(takes.label, value, help=words, width="stretch", **options)
    elif takes.typed:
        kind = int if takes.whole else float
        st.number_input(takes.label, kind(takes.low), kind(takes.high), value, step=kind(takes.step), width=110, **options)
    else:
        st.slider(takes.label, takes.low, takes.high, value, takes.step, width="stretch", **options)


def _change(number: int, name: str, keys: dict[str, str]) -> None:
    """Write what the controls of an edit say."""
    given = {part: state[key] for part, key in keys.items()}
    kind = KINDS[name]
    values = tuple(given[takes.name] for takes in kind.takes)
    edit = Written(kind, values, tuple(sorted(given["layers"])), tuple(sorted(given.get("heads", ()))))
    _keep([*texts()[:number], edit.text, *texts()[number + 1 :]])


def _undo(number: int, words: str) -> None:
    others = texts()[:number] + texts()[number + 1 :]
    st.button("Undo", key=f"change-undo-{number}", help=escape_markdown(f"Take back: {words}"), on_click=put, args=(others,))


def put(edits) -> None:
    """Stack other edits, of which the controls are made anew."""
    state["_edits"] = state.get("_edits", 0) + 1
    _keep(list(edits) or [NONE])


def _keep(edits: list[str]) -> None:
    state[KEY] = edits
    state["_edits-chosen"] = True
    _write()


def _write() -> None:
    if st.query_params.get_all(KEY) != state[KEY]:
        st.query_params[KEY] = state[KEY]


def _offer(cap, layer: int, head: int) -> None:
    """A choice of edits to add, and an end to all of them."""
    names = [name for name, kind in KINDS.items() if cap.differential or kind.declared.needs != "A2"]

    def add():
        name = state["change-add"]
        if name is None:
            return
        edit = first(name, cap)
        if name == "ablate_heads":
            edit = Written(edit.kind, edit.values, (layer,), (head,))
        state["change-add"] = None
        put([*(text for text in texts() if text != NONE), edit.text])

    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox(
            "Add an edit",
            names,
            None,
            key="change-add",
            on_change=add,
            format_func=lambda name: f"{KINDS[name].title} ({STAGE_WORDS[KINDS[name].declared.stage]})",
            placeholder="λ, A₂, norm, scores, heads …",
            disabled=len(texts()) >= MOST,
            width=300,
        )
        if len(texts()) > 1:
            st.button("Undo all", key="change-undo-all", on_click=put, args=((),))


def ablated(edits: list[Written], cap) -> set[tuple[int, int]]:
    """The heads that edits ablate, as (layer, head)."""
    return {
        (layer, head)
        for edit in edits
        if edit.kind.name == "ablate_heads"
        for layer in edit.layers or cap.layer_numbers
        for head in edit.heads or range(heads_of(cap, layer))
    }


def switch_head(edits: list[Written], cap, layer: int, head: int) -> None:
    """Ablate a head, or let it be again where it is ablated: one edit a layer."""
    off = ablated(edits, cap) ^ {(layer, head)}
    others = [text for text in texts() if text != NONE and not _ablates(text)]
    kind = KINDS["ablate_heads"]
    layers = sorted({layer for layer, _ in off})
    heads = {number: tuple(sorted(head for layer, head in off if layer == number)) for number in layers}
    put([*others, *(Written(kind, (), (number,), heads[number]).text for number in layers)])


def _ablates(text: str) -> bool:
    """Return whether a text of the address is an edit that ablates heads; one that cannot be read is none."""
    try:
        return read(text).kind.name == "ablate_heads"
    except DiffscopeError:
        return False
