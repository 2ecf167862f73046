"""A board of verdicts as text to keep: Markdown and HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from diffscope import display
from diffscope.accounts import ACCOUNTS, LEGEND
from diffscope.hypotheses.conclusion import of_kind, summary
from diffscope.hypotheses.rules import Quantity
from diffscope.hypotheses.sentence import decided, number, second_view, whole
from diffscope.hypotheses.shipped import power_of
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.tests import KINDS, PRIMARIES
from diffscope.hypotheses.verdict import Verdict

COLUMNS = (
    "quantity",
    "estimate",
    "95 % interval",
    "by layer",
    "heads by A1's mass on the answer",
    "of",
    "without an effect",
    "p (sign flips or untrained models)",
    "p (Student's t)",
    "p corrected",
    "smallest that matters",
    "state",
    "without one seed or head",
    "note",
)
WORDS = (*ACCOUNTS, "of which heads and queries", "what A2 costs there")
HEADINGS = {  # of the cells of a test after its id
    "primary": ("question", "answer", "p after Holm", *WORDS),
    "mechanism": ("question", "answer", *WORDS),
    "measurement": ("question", "answer"),
}
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
                ", ".join(map(number, estimate.layers)),
                second_view(estimate),
                estimate.interval or estimate.method,
                f"{number(estimate.null_low)} to {number(estimate.null_high)}",
                number(estimate.p),
                number(estimate.p_t),
                _corrected(verdict, name),
                number(quantity.margin),
                verdict.states[name] + (f" ({estimate.why})" if estimate.why else ""),
                left_out(estimate, quantity),
                estimate.note,
            ]
        )
    return table


def _corrected(verdict: Verdict, name: str) -> str:
    """The corrected p of a quantity; of the whole test it stands at the verdict, and nowhere else."""
    if name not in verdict.corrected:
        return "not in the rule"
    return "of the whole test: see the verdict" if whole(verdict.test) else number(verdict.corrected[name])


def left_out(estimate: Estimate, quantity: Quantity) -> str:
    """From where to where an estimate and its p go without one seed, and without one head, and what decides."""
    words = []
    for unit in ("seed", "head"):
        rest = [left for left in estimate.leave_one_out if left.unit == unit]
        if rest:
            values, p = ([getattr(left, of) for left in rest] for of in ("value", "p"))
            of_p = f", p {number(min(p))} to {number(max(p))}" if all(map(math.isfinite, p)) else ""
            words.append(f"{unit}s: {number(min(values))} to {number(max(values))}{of_p}")
    return "; ".join(filter(None, (*words, decided(estimate, quantity))))


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    """What was declared of a test, and what came of it, in words."""
    test = verdict.test
    planted = [("Power", f"{power_of(test.id)}, spread as pilots were")] if test.id in PRIMARIES else []
    return [
        ("Question", test.question),
        ("Answer", verdict.answer),
        ("Source", test.source),
        ("Statistic", verdict.statistic),
        ("Controls", "; ".join(test.controls)),
        ("Rule", test.rule),
        *([("Of", verdict.of), *([("What A2 costs there", verdict.cost)] if test.inside else [])] if verdict.verdicts else []),
        *planted,
        ("Verdict", verdict.sentence),
    ]


def markdown(verdicts: Sequence[Verdict], title: str, notes: Sequence[str] = ()) -> str:
    """The board as Markdown: notes on models, verdicts, primaries first, tests with their numbers, what they say together."""
    lines = [f"# {title}", *(f"\n{note}." for note in notes), "", LEGEND]
    for kind, words in KINDS.items():
        listed = of_kind(verdicts, kind)
        if listed:
            lines += ["", display.pipe_table((words, *HEADINGS[kind]), map(_line, listed)).rstrip()]
    for verdict in in_order(verdicts):
        lines += ["", f"## {verdict.test.id}: {verdict.judged}", ""]
        lines += [f"- {name}: {text}" for name, text in facts(verdict)]
        if verdict.estimates:
            lines += ["", display.pipe_table(COLUMNS, rows(verdict)).rstrip()]
    lines += ["", "## Together", "", summary(verdicts)]
    return "\n".join(lines) + "\n"


def _line(verdict: Verdict) -> tuple[str, ...]:
    """A test in a line, as :data:`HEADINGS` names its cells after its id."""
    cells = (verdict.test.id, verdict.test.question, verdict.answer)
    if verdict.test.kind == "measurement":
        return cells
    words = tuple(verdict.verdicts.get(account, "") for account in ACCOUNTS)
    there = (verdict.of, verdict.cost) if verdict.verdicts else ("", "")
    p = (number(verdict.p),) if verdict.test.kind == "primary" else ()
    return *cells, *p, *words, *there


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Primary tests, then mechanism tests, then measurements."""
    return [verdict for kind in KINDS for verdict in of_kind(verdicts, kind)]


def page(verdicts: Sequence[Verdict], title: str, notes: Sequence[str] = ()) -> str:
    """The same as one HTML page."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(note)}.</p>" for note in notes),
        f"<p>{html.escape(LEGEND)}</p>",
    ]
    for kind, words in KINDS.items():
        board = [_line(verdict) for verdict in of_kind(verdicts, kind)]
        parts += [display.table((words, *HEADINGS[kind]), board)] if board else []
    for verdict in in_order(verdicts):
        parts.append(f"<h2>{html.escape(verdict.test.id)}: {html.escape(verdict.judged)}</h2>")
        parts += [f"<p><b>{html.escape(name)}.</b> {html.escape(text)}</p>" for name, text in facts(verdict)]
        if verdict.estimates:
            parts.append(display.table(COLUMNS, rows(verdict)))
    parts += ["<h2>Together</h2>", *(f"<p>{html.escape(paragraph)}</p>" for paragraph in summary(verdicts).split("\n\n"))]
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"{head}{''.join(parts)}\n"
