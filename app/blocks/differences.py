"""What differs most between two captures, as a list."""

from __future__ import annotations

import pandas as pd
import streamlit as st

ROWS = 12  # that are seen without scrolling


def show_differences(estimates, key: str = "differences"):
    """What :func:`diffscope.readings.comparison.differences` found, the largest first."""
    names = [estimates.attrs[side] for side in ("first", "second")]
    where = {"layer": estimates["layer"].values}
    if "head" in estimates.coords:
        where["head"] = estimates["head"].values
    columns = {
        **where,
        "what": estimates["what"].values,
        names[0]: estimates["first"].values,
        names[1]: estimates["second"].values,
        "difference": estimates["difference"].values,
        "in spreads of heads": estimates["standardised"].values,
    }
    table = pd.DataFrame(columns)
    config = {name: st.column_config.NumberColumn(format="%.3g") for name in (*names, "difference")}
    config["in spreads of heads"] = st.column_config.NumberColumn(
        format="%.2f", help="difference / spread over the heads of all layers"
    )
    st.dataframe(
        table,
        hide_index=True,
        height=36 + 28 * min(len(table), ROWS),
        row_height=28,
        column_config=config,
        key=key,
        alt="What differs most, the largest first",
    )
