"""Numbers and logits of all heads: what the subtraction leaves and passes, and what each branch adds to the answer."""

from __future__ import annotations

import blocks
import streamlit as st
from amplifier import logits, numbers
from messages import show_errors
from selection import init_selection
from sidebar import choose_subject
from url_state import bound

PARTS = {"Numbers": numbers.show, "Logits": logits.show}

with show_errors():
    subject = choose_subject()
    if subject is not None:
        cap = subject.capture()
        init_selection(cap, subject.key)
        blocks.show_facts(cap)
        options = list(PARTS)
        part = st.segmented_control(
            "Part", options, **bound("amplifier-part", options=options), required=True, label_visibility="collapsed"
        )
        st.page_link("app_pages/change.py", label="Noise is injected on the page Change")
        PARTS[part](subject, cap)
