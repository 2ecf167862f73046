"""A board of verdicts as text to keep: Markdown and HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from diffscope.hypotheses.verdicts import Verdict, summary

COLUMNS = ("quantity", "estimate", "95 % interval", "without an effect", "p", "p (Holm)", "smallest that matters", "state")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px }
td, th { border-bottom: 1px solid #d0d5dd; padding: .3em .6em; text-align: left }
"""


def rows(verdict: Verdict) -> list[list[str]]:
    """One row a quantity of a test, as :data:`COLUMNS` names them."""
    table = []
    for name, estimate in verdict.estimates.items():
        quantity = verdict.test.quantities[name]
        table.append(
            [
                quantity.label,
                number(estimate.value),
                f"{number(estimate.low)} to {number(estimate.high)}",
                f"{number(estimate.null_low)} to {number(estimate.null_high)}",
                number(estimate.p),
                number(verdict.adjusted[name]) if name in verdict.adjusted else "not in the rule",
                number(quantity.margin),
                verdict.states[name] + (f" ({estimate.why})" if estimate.why else ""),
            ]
        )
    return table


def number(value: float) -> str:
    """Three digits, or a dash for what is undefined."""
    return "–" if not math.isfinite(value) else f"{value:.3g}"


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    """What was declared of a test, and what came of it, in words."""
    test = verdict.test
    return [
        ("Claim", test.claim),
        ("Source", test.source),
        ("Statistic", test.statistic),
        ("Controls", "; ".join(test.controls)),
        ("Rule", test.rule),
        ("Verdict", verdict.sentence),
    ]


def markdown(verdicts: Sequence[Verdict], title: str) -> str:
    """The board as Markdown: a table of verdicts, then every test with its numbers."""
    lines = [f"# {title}", "", summary(verdicts), "", "| test | verdict | claim |", "|---|---|---|"]
    lines += [f"| {verdict.test.id} | {_cell(verdict.shown)} | {_cell(verdict.test.claim)} |" for verdict in verdicts]
    for verdict in verdicts:
        lines += ["", f"## {verdict.test.id}: {verdict.shown}", ""]
        lines += [f"- {name}: {text}" for name, text in facts(verdict)]
        if verdict.estimates:
            lines += ["", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
            lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows(verdict)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(verdicts: Sequence[Verdict], title: str) -> str:
    """The same as one HTML page."""
    board = [(verdict.test.id, verdict.shown, verdict.test.claim) for verdict in verdicts]
    parts = [f"<h1>{html.escape(title)}</h1><p>{html.escape(summary(verdicts))}</p>"]
    parts.append(_table(("test", "verdict", "claim"), board))
    for verdict in verdicts:
        parts.append(f"<h2>{html.escape(verdict.test.id)}: {html.escape(verdict.shown)}</h2>")
        parts += [f"<p><b>{html.escape(name)}.</b> {html.escape(text)}</p>" for name, text in facts(verdict)]
        if verdict.estimates:
            parts.append(_table(COLUMNS, rows(verdict)))
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"{head}{''.join(parts)}\n"


def _table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><tr>{head}</tr>{cells}</table>"
