"""A study as Markdown to keep: one of its boards, how its arms were trained and formed, and what their evidence holds besides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from diffscope.display import pipe_table
from diffscope.hypotheses import report
from diffscope.hypotheses.sentence import number
from diffscope.hypotheses.study import Study

ABSENT = "–"


def markdown(study: Study, board: str) -> str:
    """The board of this name, with what the whole study has beside it."""
    title = f"Noise cancellation, sparsification, or signed heads: the {study.facts['recipe']} cohort, {board}"
    parts = [
        report.markdown(study.boards[board], title),
        runs(study),
        rates(study.facts.get("training", {})),
        _described(study),
    ]
    return "\n".join(filter(None, parts))


def runs(study: Study) -> str:
    """Which seeds of every arm are there, how many formed, and when."""
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


def rates(training: dict[str, Any]) -> str:
    """What every learning rate came to that was tried."""
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


def _described(study: Study) -> str:
    """What the evidence of runs holds besides: whole models first, then layers, then λ along the training."""
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
    """Values with their intervals and how many seeds they are of, in cells."""
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
