"""What the model says next."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from diffscope.figures.escaping import visible


def show_next(cap):
    """The model's most probable next tokens."""
    rows = [{"next token": visible(str(token)), "probability": float(p)} for token, p in cap.next]
    st.dataframe(
        pd.DataFrame(rows, columns=["next token", "probability"]),
        hide_index=True,
        height=36 + 28 * min(len(rows), 6),
        row_height=28,
        column_config={"probability": st.column_config.ProgressColumn(format="%.3f", min_value=0.0, max_value=1.0)},
    )
