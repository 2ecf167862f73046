"""A board of tests: verdicts side by side, their estimates, and one test in full."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from words import in_words, plain

from blocks.charts import show_chart
from diffscope import figures


def show_verdicts(board):
    """Verdicts side by side: test, verdict, claim."""
    from diffscope.hypotheses.rules import ACCOUNTS

    rows = [
        {
            "test": verdict.test.id,
            "verdict": ACCOUNTS.get(verdict.shown, verdict.shown),
            "claim": verdict.test.claim,
        }
        for verdict in board
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=36 + 28 * len(rows), row_height=28)


def show_estimates(board):
    """Every judged quantity with its interval, beside what there would be without an effect."""
    if not any(verdict.estimates for verdict in board):
        return
    with in_words():
        show_chart(figures.board(board), "Estimates of the tests", key="board-chart")


def show_verdict(verdict):
    """One test in full: what was declared, what was measured, by layer where there are layers."""
    from diffscope.hypotheses import report

    for name, words in report.facts(verdict):
        st.markdown(f"**{name}.** {plain(words)}")
    if not verdict.estimates:
        return
    table = pd.DataFrame(report.rows(verdict), columns=list(report.COLUMNS))
    st.dataframe(table, hide_index=True, height=36 + 28 * len(table), row_height=28)
    layers = [
        {"quantity": verdict.test.quantities[name].label}
        | {f"layer {number}": report.number(value) for number, value in enumerate(estimate.layers)}
        for name, estimate in verdict.estimates.items()
        if estimate.layers
    ]
    if layers:
        st.caption("by layer, mean over prompts, heads and seeds (not judged)")
        st.dataframe(pd.DataFrame(layers), hide_index=True, height=36 + 28 * len(layers), row_height=28)
