"""One edit, of a few, chosen by the reader; and what a model attends with under it."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st
from kept import kept_option, kept_value
from place import strongest

from diffscope import edits

ABLATED = "heads ablated"
VALUE = "λ = …"
#: what is chosen, by its words: the function of ``diffscope.edits`` and what it takes
EDITS = {
    "no A₂": ("zero_a2", ()),
    "λ × 0.5": ("scale_lambda", (("factor", 0.5),)),
    "λ × 2": ("scale_lambda", (("factor", 2.0),)),
    VALUE: ("set_lambda", ()),
    "A₂ uniform": ("uniform_a2", ()),
    "|D|": ("absolute_d", ()),
    ABLATED: ("ablate_heads", ()),
}
OF_ANY_ATTENTION = ("|D|", ABLATED)  # the others need a second map


class Change(NamedTuple):
    """An edit by its function and what it takes, so that it can be compared, kept and written down."""

    function: str
    arguments: tuple[tuple[str, object], ...] = ()

    def edit(self) -> edits.Edit:
        """The edit."""
        return getattr(edits, self.function)(**dict(self.arguments))

    def code(self) -> str:
        """Python that gives it."""
        return f"diffscope.edits.{self.function}({', '.join(f'{name}={value!r}' for name, value in self.arguments)})"


def choose_changes(cap, key: tuple) -> tuple[Change, ...]:
    """What is changed, chosen in the sidebar: one edit, of as many layers as it takes."""
    options = list(EDITS) if cap.differential else list(OF_ANY_ATTENTION)
    with st.sidebar:
        chosen = st.selectbox("Edit", options, **kept_option("compare-edit", options))
        if chosen == VALUE:
            value = st.slider("λ", 0.0, 2.0, step=0.05, **kept_value("compare-lambda", 1.0))
            return (Change("set_lambda", (("value", value),)),)
        if chosen == ABLATED:
            return _choose_heads(cap, key)
    return (Change(*EDITS[chosen]),)


def _choose_heads(cap, key: tuple) -> tuple[Change, ...]:
    """Heads to ablate; to begin with, the one that finds the answer."""
    places = {f"L{layer}H{head}": (layer, head) for layer in cap.layer_numbers for head in range(cap.n_heads)}
    layer, head = strongest(cap, key)
    usual = kept_value("compare-ablated", [f"L{layer}H{head}"])
    heads = st.multiselect("Heads to ablate", list(places), **usual, placeholder="choose heads")
    by_layer: dict[int, list[int]] = {}
    for layer, head in map(places.__getitem__, heads):
        by_layer.setdefault(layer, []).append(head)
    return tuple(
        Change("ablate_heads", (("layers", layer), ("heads", tuple(sorted(each))))) for layer, each in sorted(by_layer.items())
    )


@st.cache_resource(show_spinner="Capturing under the edit", max_entries=8)
def edited_capture(key: tuple, _subject, changes: tuple[Change, ...]):
    """What every layer attends with under edits, which nobody else sees; `key` says of what."""
    scope = _subject.scope()
    with scope.edit(*(change.edit() for change in changes)):
        return scope.capture(_subject.prompt, spans=_subject.spans)
