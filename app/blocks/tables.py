"""What the model says next."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from diffscope.figures import theme
from diffscope.figures.escaping import for_html, visible


def show_next(cap):
    """The model's most probable next tokens."""
    if not cap.next:
        st.caption("Nothing is predicted here: these layers are not of a decoder of text.")
        return
    rows = [{"next token": visible(str(token)), "probability": float(p)} for token, p in cap.next]
    st.dataframe(
        pd.DataFrame(rows, columns=["next token", "probability"]),
        hide_index=True,
        height=36 + 28 * min(len(rows), 6),
        row_height=28,
        column_config={"probability": st.column_config.ProgressColumn(format="%.3f", min_value=0.0, max_value=1.0)},
    )


ROW = (
    "<tr><th scope=row>{text}</th><td>{before}</td><td>{after}</td>"
    "<td style='text-align:right;font-variant-numeric:tabular-nums'>{change}</td></tr>"
)
BAR = (
    "<div style='display:flex;align-items:center;gap:.4rem'>"
    "<div style='flex:1;height:.55rem;background:rgba(128,128,128,.18)'>"
    "<div style='width:{wide:.2f}%;height:100%;background:{colour}'></div></div>"
    "<span style='font-variant-numeric:tabular-nums'>{share}</span></div>"
)
TABLE = (
    "<style>.next-tokens{{width:100%;border-collapse:collapse;font-size:.875rem}}"
    ".next-tokens :is(th,td){{padding:.12rem .4rem;text-align:left;font-weight:400}}"
    ".next-tokens tbody th{{font-family:monospace;white-space:pre}}"
    ".next-tokens thead th{{opacity:.7}}.next-tokens thead th:last-child{{text-align:right}}"
    ".next-tokens tr{{border-bottom:1px solid rgba(128,128,128,.25)}}</style>"
    "<table class=next-tokens><thead><tr><th scope=col>next token</th><th scope=col style='width:33%'>before</th>"
    "<th scope=col style='width:33%'>after</th><th scope=col>change</th></tr></thead><tbody>{rows}</tbody></table>"
)
GREY = "rgba(128,128,128,.75)"


def show_both(tokens):
    """The most probable next tokens before and after a change, as ``diffscope.readings.predictions.next_tokens`` gives them."""
    after = theme.SERIES[0]
    colours = {"before": GREY, "after": theme.ON_DARK[after] if st.context.theme.type == "dark" else after}
    rows = []
    for number, text in enumerate(tokens["text"].values):
        row = tokens.isel(token=number)
        bars = {side: _bar(float(row["probability"].sel(side=side)), colour) for side, colour in colours.items()}
        change = f"{float(row['change']):+.3f}".replace("-", "−").replace("−0.000", "0.000").replace("+0.000", "0.000")
        rows.append(ROW.format(text=for_html(visible(text)), **bars, change=change))
    st.html(TABLE.format(rows="".join(rows)))


def _bar(probability: float, colour: str) -> str:
    return BAR.format(wide=100 * probability, share=f"{probability:.3f}", colour=colour)
