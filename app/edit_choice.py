"""One edit, of a few, chosen by the reader, for a model that is looked at with and without it."""

from __future__ import annotations

import streamlit as st
from edit_table import KINDS, Written
from kept import kept_option, kept_options, kept_value
from place import heads_of, strongest

ABLATED = "heads ablated"
VALUE = "λ = …"
#: what is chosen, by its words: the name of the edit and what it is given
EDITS = {
    "no A₂": ("zero_a2", ()),
    "λ × 0.5": ("scale_lambda", (0.5,)),
    "λ × 2": ("scale_lambda", (2.0,)),
    VALUE: ("set_lambda", ()),
    "A₂ uniform": ("uniform_a2", ()),
    "|D|": ("absolute_d", ()),
    ABLATED: ("ablate_heads", ()),
}


def choose_edits(cap, key: tuple) -> tuple[Written, ...]:
    """What is changed, chosen in the sidebar: one edit, or one a layer where heads are ablated."""
    options = [words for words, (name, _) in EDITS.items() if cap.differential or not KINDS[name].second]
    with st.sidebar:
        chosen = st.selectbox("Edit", options, **kept_option("compare-edit", options))
        if chosen == ABLATED:
            return _choose_heads(cap, key)
        name, values = EDITS[chosen]
        if chosen == VALUE:
            values = (st.slider("λ", 0.0, 2.0, step=0.05, **kept_value("compare-lambda", 1.0)),)
    return (Written(KINDS[name], values),)


def _choose_heads(cap, key: tuple) -> tuple[Written, ...]:
    """Heads to ablate; to begin with, the one that gives the answer most."""
    places = {f"L{layer}H{head}": (layer, head) for layer in cap.layer_numbers for head in range(heads_of(cap, layer))}
    layer, head = strongest(cap, key)
    options = kept_options("compare-ablated", list(places), [f"L{layer}H{head}"])
    heads = st.multiselect("Heads to ablate", list(places), **options, placeholder="choose heads")
    by_layer: dict[int, list[int]] = {}
    for name in heads:
        layer, head = places[name]
        by_layer.setdefault(layer, []).append(head)
    kind = KINDS["ablate_heads"]
    return tuple(Written(kind, (), (layer,), tuple(sorted(each))) for layer, each in sorted(by_layer.items()))
