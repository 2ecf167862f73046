"""What others have published, beside what a study measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from diffscope import numbers
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.claims import Claim, Compared, Measured, compare, read_claims
from diffscope.hypotheses.study import ALL, WEIGHTS, Study
from diffscope.tables.table import Column, Table

ENDS = ("value", "low", "high")
SECOND = ("by_answer", "by_answer_low", "by_answer_high")
CAPTION = (
    "Published claims beside this study. Brackets: 95 % intervals, not corrected for the number of claims, so that of "
    "twenty intervals of nothing one has a sign. Same sign, other sign: the whole interval is on the claimed side of 0, or "
    "on the other. Within, outside: of a claimed range, which is often ± the smallest effect that matters, the whole "
    "interval is within it, or outside. Open: none of these. Untrained: where the mean of as many models would lie if they "
    "had random weights; where that shows as much, training has no part in a sign. Seeds in brackets: of those whose "
    "weights are at hand, on other prompts. Heads are weighted by what they cost the answer; the answer is of that, and "
    "beside it stands the same by A1's mass on the answer."
)


def claims(study: Study) -> Table:
    """Tabulate every published claim with the quantities of a study that bear on it, and their signs.

    Parameters
    ----------
    study : Study
        What ``diffscope.open`` opened, or a study that was run.

    Returns
    -------
    Table
        ``data`` has a row a quantity; a claim that cannot be asked has one row without a value.

    Raises
    ------
    DiffscopeError
        It is no study.
    """
    if not isinstance(study, Study):
        raise DiffscopeError(f"this table is of a study, as diffscope.open opens it, not of a {type(study).__name__}")
    sources, published = read_claims()
    compared = compare(published, {name: study.boards[name] for name in (ALL, WEIGHTS) if name in study.boards})
    records = [record for each in compared for record in _records(each, sources)]
    columns = _columns({each.claim.id: each.claim for each in compared})
    named = "; ".join(f"{short}: {source}" for short, source in sources.items())
    return Table.of("claims", records, columns, CAPTION, (f"Sources. {named}.",), group="claim")


def _columns(claims: Mapping[str, Claim]) -> list[Column]:
    """Return the columns: what is said of a claim at its first quantity alone; `claims` by name."""
    return [
        Column("source", lambda record: claims[record["claim"]].source, once=True),
        Column("claim", itemgetter("says"), once=True),
        Column("published", itemgetter("published"), once=True),
        Column("quantity", lambda record: record["quantity"] or numbers.ABSENT),
        Column("claimed", lambda record: record["claimed"] if record["quantity"] else numbers.ABSENT),
        Column("here [95 %]", lambda record: numbers.with_interval(*(record[name] for name in ENDS))),
        Column("heads by A1's mass [95 %]", lambda record: numbers.with_interval(*(record[name] for name in SECOND))),
        Column("untrained", _untrained),
        Column("seeds", _seeds),
        Column("answer", _answer),
        Column("limits", lambda record: claims[record["claim"]].limits, once=True),
    ]


def _untrained(record: Mapping[str, Any]) -> str:
    """Return where models with random weights lie, if there are any."""
    ends = record["null_low"], record["null_high"]
    return numbers.ABSENT if all(map(math.isnan, ends)) else " to ".join(numbers.significant(end, 2) for end in ends)


def _seeds(record: Mapping[str, Any]) -> str:
    """Return how many seeds there are, in brackets if they are those whose weights are at hand."""
    if all(math.isnan(record[name]) for name in (*ENDS, *SECOND)):  # there is no estimate
        return numbers.ABSENT
    return f"({record['seeds']})" if record["board"] == WEIGHTS else str(record["seeds"])


def _answer(record: Mapping[str, Any]) -> str:
    """Return the answer, with its reason if it is of a quantity."""
    return f"{record['answer']}: {record['why']}" if record["quantity"] and record["why"] else record["answer"]


def _records(compared: Compared, sources: Mapping[str, str]) -> list[dict]:
    """Return one record for each quantity that bears on a claim, or one for a claim that cannot be asked."""
    claim = compared.claim
    about = {
        "claim": claim.id,
        "source": sources[claim.source],
        "says": claim.says,
        "published": claim.published,
    }
    if not compared.measured:
        nothing = {"test": "", "quantity": "", "claimed": "", **_numbers(None), "answer": compared.answer, "why": claim.limits}
        return [{**about, **nothing}]
    return [
        {
            **about,
            "test": measured.bearing.test,
            "quantity": measured.bearing.declared.label,
            "claimed": measured.bearing.claimed,
            **_numbers(measured),
            "answer": measured.answer,
            "why": measured.why,
        }
        for measured in compared.measured
    ]


def _numbers(measured: Measured | None) -> dict[str, float | int | str]:
    """Return the estimate and what it is of; of untrained models if there are any."""
    estimate = None if measured is None else measured.estimate
    ends = {name: math.nan if estimate is None else getattr(estimate, name) for name in ENDS}
    nulls = {
        name: getattr(estimate, name) if estimate is not None and estimate.untrained else math.nan
        for name in ("null_low", "null_high")
    }
    by_answer = estimate.by_answer if estimate is not None and estimate.by_answer else (math.nan,) * 3
    second = dict(zip(SECOND, by_answer))
    counts = {name: 0 if estimate is None else getattr(estimate, name) for name in ("seeds", "prompts")}
    over = "" if estimate is None else estimate.interval or estimate.method
    return {**ends, **second, **nulls, **counts, "interval": over, "board": "" if measured is None else measured.board}
