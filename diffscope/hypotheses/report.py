"""A board of verdicts as text to keep: Markdown and HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from diffscope.hypotheses.verdicts import Verdict, together

COLUMNS = ("quantity", "estimate", "95 % interval", "without an effect", "p", "p (Holm)", "smallest that matters", "state")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px }
td, th { border-bottom: 1px solid #d0d5dd; padding: .3em .6em; text-align: left }
"""


def rows(verdict: Verdict) -> list[list[str]]:
    """One row a quantity of a test, as :data:`COLUMNS` names them."""
    made = []
    for name, found in verdict.estimates.items():
        quantity, adjusted = verdict.test.quantities[name], verdict.adjusted.get(name, math.nan)
        made.append(
            [
                quantity.label,
                number(found.value),
                f"{number(found.low)} to {number(found.high)}",
                f"{number(found.null_low)} to {number(found.null_high)}",
                number(found.p),
                number(adjusted) if name in verdict.adjusted else "not in the rule",
                number(quantity.margin),
                verdict.states[name] + (f" ({found.why})" if found.why else ""),
            ]
        )
    return made


def number(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.3g}"


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    """What was declared of a test, in words."""
    test = verdict.test
    said = [("Claim", test.claim), ("Source", test.source), ("Statistic", test.statistic), ("Controls", "; ".join(test.controls))]
    return [*said, ("Rule", test.rule), ("Verdict", verdict.sentence)]


def markdown(verdicts: Sequence[Verdict], title: str) -> str:
    """The board as Markdown: a table of verdicts, then every test with its numbers."""
    lines = [f"# {title}", "", together(verdicts), "", "| test | verdict | claim |", "|---|---|---|"]
    lines += [f"| {one.test.id} | {_cell(one.verdict)} | {_cell(one.test.claim)} |" for one in verdicts]
    for one in verdicts:
        lines += ["", f"## {one.test.id}: {one.verdict}", ""]
        lines += [f"- {name}: {said}" for name, said in facts(one)]
        if one.estimates:
            lines += ["", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
            lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows(one)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(verdicts: Sequence[Verdict], title: str) -> str:
    """The same as one HTML page."""

    def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
        return f"<table><tr>{''.join(f'<th>{html.escape(name)}</th>' for name in head)}</tr>{cells}</table>"

    parts = [f"<h1>{html.escape(title)}</h1><p>{html.escape(together(verdicts))}</p>"]
    parts.append(table(("test", "verdict", "claim"), [(one.test.id, one.verdict, one.test.claim) for one in verdicts]))
    for one in verdicts:
        parts.append(f"<h2>{html.escape(one.test.id)}: {html.escape(one.verdict)}</h2>")
        parts += [f"<p><b>{html.escape(name)}.</b> {html.escape(said)}</p>" for name, said in facts(one)]
        if one.estimates:
            parts.append(table(COLUMNS, rows(one)))
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"{head}{''.join(parts)}\n"
