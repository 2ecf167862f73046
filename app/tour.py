"""What a first visitor is told, in four captions that one click takes away."""

import streamlit as st

CAPTIONS = (
    "**Heads.** Each cell is a head. Its colour says how much of what is asked above it does at the last token. Click one.",
    "**Maps.** A₁ is what the head looks at, λ·A₂ what is taken away, D what is left. Point to read, scroll to zoom, click to "
    "lock a token.",
    "**The sentence** above the maps says what the head does there, and what the same number is where nothing is expected.",
    "**Other pages.** Compare two models, change one and see what it says then, and read what tests say of the question: does it "
    "cancel noise, is it sparse, or does it carry signal with a minus sign?",
)


def offer_tour() -> None:
    """Show four captions above the page until they are dismissed.

    That they are is kept in the address, on every page, as ``tour=off``: a page that is loaded again begins without them.
    """
    if st.session_state.get("_toured") or st.query_params.get("tour") == "off":
        st.session_state["_toured"] = True
        st.query_params["tour"] = "off"
        return
    with st.container(border=True, key="tour"):
        for column, words in zip(st.columns(len(CAPTIONS)), CAPTIONS):
            column.caption(words)
        st.button("Got it", key="toured", on_click=lambda: st.session_state.update(_toured=True))
