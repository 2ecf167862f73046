"""What the pages are built of. Each block takes a capture, or labelled data, and works in anybody's Streamlit app.

>>> import streamlit as st, diffscope, blocks                    # doctest: +SKIP
>>> cap = diffscope.load("mini-diff").capture("The code is 7421.")   # doctest: +SKIP
>>> blocks.show_view(cap, layer=2, head=1)                       # doctest: +SKIP
"""

from blocks.show import columns, export_menu, folded, saved, show_chart, show_figure, show_later, show_table
from blocks.tables import show_both, show_check, show_differences, show_facts, show_fidelity, show_next
from blocks.verdicts import show_details, show_estimates, show_primaries, show_test
from blocks.views import hold_heads, hold_heads_beside, offer_maps, show_heads, show_lambda, show_row, show_text, show_view
