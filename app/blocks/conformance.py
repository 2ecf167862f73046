"""What a check of a model's attention found, layer by layer."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from messages import escape_markdown

WORDS = {
    "pass": "✓ read rightly",
    "warn": "✓ read rightly, with a remark",
    "undecided": "? not decided",
    "fail": "× does not fit",
}


def show_check(report):
    """What came out, each layer with its verdict, and whatever does not simply pass."""
    st.markdown(f"**{escape_markdown(report.sentence)}**")
    st.caption(escape_markdown(f"Family {report.family}: {report.why}. Attention: {report.attention}, {report.dtype}."))
    rows = [
        {
            "layer": row["layer"],
            "verdict": WORDS[row["verdict"]],
            "what is read": row["reading"],
            "error": row["error"],
            "allowed": row["tolerance"],
            "remark": "; ".join(row["remarks"]),
        }
        for row in report.rows()
    ]
    number = st.column_config.NumberColumn(format="%.1e")
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        height=36 + 28 * min(len(rows), 16),
        row_height=28,
        column_config={"error": number, "allowed": number},
    )
    for finding in report.findings:
        if finding.verdict != "pass":
            layers = f" (layers {', '.join(map(str, finding.layers))})" if finding.layers else ""
            st.markdown(f"- **{WORDS[finding.verdict]}**: {escape_markdown(f'{finding.check}{layers}: {finding.says}')}")
    with st.expander("What was looked at, and how it differs from the paper's V1"):
        for finding in report.findings:
            if finding.verdict == "pass":
                st.markdown(f"- {escape_markdown(f'{finding.check}: {finding.says}')}")
        st.markdown(escape_markdown("By design: " + ("; ".join(report.differences) or "no difference")))
