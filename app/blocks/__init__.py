"""What the pages are built of. Each block takes a capture, or labelled data, and works in anybody's Streamlit app.

>>> import streamlit as st, diffscope, blocks                    # doctest: +SKIP
>>> cap = diffscope.load("mini-diff").capture("The code is 7421.")   # doctest: +SKIP
>>> blocks.show_view(cap, layer=2, head=1)                       # doctest: +SKIP
"""

from blocks.conformance import show_check
from blocks.differences import show_differences
from blocks.exports import export_menu, saved, show_figure
from blocks.heads import show_facts, show_fidelity, show_heads, show_lambda
from blocks.later import show_later
from blocks.layout import columns
from blocks.maps import hold_heads, hold_heads_beside, show_row, show_text, show_view
from blocks.show import show_chart
from blocks.tables import show_both, show_next
from blocks.verdicts import show_details, show_estimates, show_primaries, show_test

__all__ = [
    "columns",
    "export_menu",
    "hold_heads",
    "hold_heads_beside",
    "saved",
    "show_both",
    "show_chart",
    "show_check",
    "show_details",
    "show_differences",
    "show_estimates",
    "show_facts",
    "show_fidelity",
    "show_figure",
    "show_heads",
    "show_lambda",
    "show_later",
    "show_next",
    "show_primaries",
    "show_row",
    "show_test",
    "show_text",
    "show_view",
]
