"""What is said of a capture, a comparison or a check in lines and tables."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from messages import escape_markdown

from blocks.show import show_table
from diffscope import figures
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, short_name, visible
from diffscope.numbers import counted, layers_by_heads, numbered

WORDS = {
    "pass": "✓ read rightly",
    "warn": "✓ read rightly, with a remark",
    "undecided": "? not decided",
    "fail": "× does not fit",
}
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


def show_facts(cap, name: str = ""):
    """Show one line on a model and its capture, under the model's name or another, with whether the maps are the model's own."""
    counts = f"{layers_by_heads(cap.n_layers, cap.n_heads)} · {counted(cap.n_tokens, 'token')}"
    family = "" if name else f"{cap.family} · "
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**{escape_markdown(name or short_name(cap.model_name))}** · {escape_markdown(family)}{counts}", width="content"
        )
        show_fidelity(cap)


def show_fidelity(cap):
    """Show whether the maps are the ones that the model used, and how far they are off at worst."""
    table = figures.fidelity(cap).data.to_dataframe()[["error", "tolerance"]]
    faithful = bool((table["error"] <= table["tolerance"]).all())
    worst = f"{table['error'].max():.0e}".replace("e-0", "e-")
    verdict = "✓ Rebuilds the model's own output to" if faithful else "✗ Does not rebuild the model's own output: off by"
    facts = cap.fidelity.attrs
    notes = [f"{about.capitalize()}: {facts[about]}" for about in ("warnings", "edits") if about in facts]
    with st.popover(
        f"{verdict} {worst}{' · see note' if notes else ''}",
        help=("From what was captured, each layer's attention output is rebuilt and compared with the model's own."),
    ):
        st.caption(
            "Error of each layer's attention output, rebuilt from the capture, relative to what was subtracted, and the largest "
            "that the model's number format explains."
        )
        for note in notes:
            st.text(note)
        for reason, layers in cap.undecided.items():
            st.text(f"Not decided in {numbered('layer', layers)}: {reason}.")
        number = st.column_config.NumberColumn(format="%.1e")
        show_table(table, 10, hide_index=False, column_config=dict.fromkeys(table, number))


def show_next(cap):
    """The model's most probable next tokens."""
    if not cap.next:
        st.caption("Nothing is predicted here: these layers are not of a decoder of text.")
        return
    rows = [{"next token": visible(str(token)), "probability": float(p)} for token, p in cap.next]
    bar = st.column_config.ProgressColumn(format="%.3f", min_value=0.0, max_value=1.0)
    show_table(rows, 6, column_config={"probability": bar})


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
    show_table(table, 12, column_config=config, key=key, alt="What differs most, the largest first")


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
    show_table(rows, 16, column_config={"error": number, "allowed": number})
    for finding in report.findings:
        if finding.verdict != "pass":
            layers = f" ({numbered('layer', finding.layers)})" if finding.layers else ""
            st.markdown(f"- **{WORDS[finding.verdict]}**: {escape_markdown(f'{finding.check}{layers}: {finding.says}')}")
    with st.expander("What was looked at, and how it differs from the paper's V1"):
        for finding in report.findings:
            if finding.verdict == "pass":
                st.markdown(f"- {escape_markdown(f'{finding.check}: {finding.says}')}")
        st.markdown(escape_markdown("By design: " + ("; ".join(report.differences) or "no difference")))
