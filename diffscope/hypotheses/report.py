"""Write a board of verdicts, and a whole study, as a report: in Markdown, a board also in HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from diffscope import render as display
from diffscope.hypotheses.accounts import ACCOUNTS, LEGEND
from diffscope.hypotheses.conclusion import of_kind, summary
from diffscope.hypotheses.rules import Quantity
from diffscope.hypotheses.sentence import decided, number, second_view, whole
from diffscope.hypotheses.shipped import power_of
from diffscope.hypotheses.statistics import STUDENTS_T, Estimate
from diffscope.hypotheses.study import Study
from diffscope.hypotheses.tests import KINDS, PRIMARIES
from diffscope.hypotheses.verdict import Verdict
from diffscope.render import pipe_table

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
    """Return the estimates of a test, one row a quantity, with the cells of :data:`COLUMNS`."""
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
                *map(number, _by_test(estimate)),
                _corrected(verdict, name),
                number(quantity.margin),
                verdict.states[name] + (f" ({estimate.why})" if estimate.why else ""),
                left_out(estimate, quantity),
                estimate.note,
            ]
        )
    return table


def _by_test(estimate: Estimate) -> tuple[float, float]:
    """Return the p of sign flips or of untrained models, and that of Student's t; NaN of the one that was not computed."""
    return (math.nan, estimate.p) if estimate.method == STUDENTS_T else (estimate.p, estimate.p_t)


def _corrected(verdict: Verdict, name: str) -> str:
    """Return the corrected p of a quantity in words; a p of the whole test is shown with the verdict, and nowhere else."""
    if name not in verdict.corrected:
        return "not in the rule"
    return "of the whole test: see the verdict" if whole(verdict.test) else number(verdict.corrected[name])


def left_out(estimate: Estimate, quantity: Quantity) -> str:
    """Return the range of an estimate and its p without one seed, and without one head, and which of them change its state."""
    words = []
    for unit in ("seed", "head"):
        rest = [left for left in estimate.leave_one_out if left.unit == unit]
        if rest:
            values, p = ([getattr(left, of) for left in rest] for of in ("value", "p"))
            of_p = f", p {number(min(p))} to {number(max(p))}" if all(map(math.isfinite, p)) else ""
            words.append(f"{unit}s: {number(min(values))} to {number(max(values))}{of_p}")
    return "; ".join(filter(None, (*words, decided(estimate, quantity))))


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    """Return what a test declares, and its result, as pairs of a heading and a text."""
    test = verdict.test
    power = [("Power", f"{power_of(test.id)}, spread as pilots were")] if test.id in PRIMARIES else []
    return [
        ("Question", test.question),
        ("Answer", verdict.answer),
        ("Source", test.source),
        ("Statistic", verdict.statistic),
        ("Controls", "; ".join(test.controls)),
        ("Rule", test.rule),
        *([("Of", verdict.of), *([("What A2 costs there", verdict.cost)] if test.inside else [])] if verdict.verdicts else []),
        *power,
        ("Verdict", verdict.sentence),
    ]


def markdown(verdicts: Sequence[Verdict], title: str, notes: Sequence[str] = ()) -> str:
    """Write a board as Markdown: notes on models, verdicts with primaries first, every test with its numbers, and a summary."""
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
    """Return the row of a test: its id, and the cells of :data:`HEADINGS`."""
    cells = (verdict.test.id, verdict.test.question, verdict.answer)
    if verdict.test.kind == "measurement":
        return cells
    words = tuple(verdict.verdicts.get(account, "") for account in ACCOUNTS)
    there = (verdict.of, verdict.cost) if verdict.verdicts else ("", "")
    p = (number(verdict.p),) if verdict.test.kind == "primary" else ()
    return *cells, *p, *words, *there


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Sort verdicts: primary tests, then mechanism tests, then measurements."""
    return [verdict for kind in KINDS for verdict in of_kind(verdicts, kind)]


def page(verdicts: Sequence[Verdict], title: str, notes: Sequence[str] = ()) -> str:
    """Write a board as one HTML page, with the parts of :func:`markdown`."""
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


ABSENT = "–"


def study_markdown(study: Study, board: str) -> str:
    """Write a board of a study as Markdown, with the runs, the learning rates, and the descriptive means of the study."""
    title = f"Noise cancellation, sparsification, or signed heads: the {study.facts['recipe']} cohort, {board}"
    parts = [
        markdown(study.boards[board], title),
        runs_section(study),
        rates_section(study.facts.get("training", {})),
        _descriptives_section(study),
    ]
    return "\n".join(filter(None, parts))


def runs_section(study: Study) -> str:
    """Write the section on runs: the seeds of every arm, how many formed the lookup circuit, and when."""
    training = study.facts.get("training", {})
    formation = {row["arm"]: row for row in study.survival}
    rows = []
    for arm, seeds in study.facts["arms"].items():
        formed = formation.get(arm, {})
        rate, parameters = (training.get(name, {}).get(arm) for name in ("rate", "parameters"))
        cells = [formed.get(name) for name in ("runs", "formed", "median", "restricted_mean", "p")]
        rows.append((arm, _seeds(seeds), rate, parameters and f"{parameters:,.0f}", *cells))
    headers = ("arm", "seeds", "learning rate", "parameters", "runs", "formed", "median step", "restricted mean", "p (log-rank)")
    failed = training.get("failed")
    note = f"\nRuns that broke off: {failed}.\n" if failed else ""
    return (
        "## Runs\n\nSteps until the lookup circuit forms; a run in which it never does counts with the steps that it was given, "
        "and an arm that goes on from another's formed model has none of its own. "
        f"p: against DIFF, not corrected.\n\n{_table(headers, rows)}{note}"
    )


def _seeds(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or ABSENT


def rates_section(training: dict[str, Any]) -> str:
    """Write the section on learning rates: the loss and the formation of every run that chose one; empty without them."""
    if "tuning_area" not in training:
        return ""
    tried = training["rates_tried"]
    rows = []
    for arm, areas in training["tuning_area"].items():
        if all(area is None for of_rate in areas for area in of_rate):
            continue
        formed = training["tuning_formation"][arm]
        cells = [", ".join(_outcome(*run) for run in zip(*of_rate)) for of_rate in zip(areas, formed)]
        rows.append((arm, training["rate"].get(arm), *cells))
    headers = ("arm", "chosen", *(f"{rate:g}" for rate in tried))
    return (
        "## Learning rates\n\nOf each tuning seed the mean over steps of the loss that is lowered, in nats (a dash: it "
        "diverged, or is missing), and in brackets the step at which the lookup circuit formed. The rate with the least mean "
        "loss was taken.\n\n"
        f"{_table(headers, rows)}"
    )


def _outcome(area: float | None, formed: float | None) -> str:
    return f"{_cell(area)} ({'never' if formed is None else f'{formed:g}'})"


def _descriptives_section(study: Study) -> str:
    """Write the section of descriptive means: whole models first, then layers, then λ over the training."""
    if not study.described:
        return ""
    parts = [
        "## Described\n\nMeans over the seeds in which the lookup circuit formed, with 95 % intervals (Student's t over seeds), "
        "and the number of seeds; not corrected and not judged. By layer heads are weighted by what they cost the answer, "
        "and beside it by A1's mass on it, but alike where it says so, for λ, and for the parts of maps, which are Shapley "
        "shares. Losses without a head are of all heads of an arm, of which some have twice as many.\n"
    ]
    wholes = [row for row in study.described if row["layer"] is None]
    parts.append(_pivot(wholes, "quantity", "arm"))
    for arm in dict.fromkeys(row["arm"] for row in study.described):
        layers = [row for row in study.described if row["arm"] == arm and row["layer"] is not None]
        ends = [row for row in layers if row["step"] == "end"]
        along = [row for row in layers if row["quantity"] == "λ"]
        parts += [f"### {arm}, by layer\n\n{_pivot(ends, 'quantity', 'layer')}"] if ends else []
        parts += [f"### {arm}, λ by step and layer\n\n{_pivot(along, 'step', 'layer')}"] if along else []
    return "\n".join(parts)


def _pivot(rows: Sequence[dict[str, Any]], down: str, across: str) -> str:
    """Write a table of values, each with its interval and its number of seeds, one column for each value of `across`."""
    columns = list(dict.fromkeys(row[across] for row in rows))
    lines = list(dict.fromkeys(row[down] for row in rows))
    cells = {(row[down], row[across]): _interval(row) for row in rows}
    body = [(line, *(cells.get((line, column)) for column in columns)) for line in lines]
    return _table((down, *(f"{across} {column}" if across == "layer" else column for column in columns)), body)


def _interval(row: dict[str, Any]) -> str:
    ends = "" if row["low"] is None else f" ({_cell(row['low'])} to {_cell(row['high'])})"
    return f"{_cell(row['value'])}{ends}; {row['seeds']}"


def _table(headers: Iterable[Any], rows: Iterable[Sequence[Any]]) -> str:
    return pipe_table([_cell(header) for header in headers], ([_cell(cell) for cell in row] for row in rows))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ABSENT
    if isinstance(value, float):
        return number(value) if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
