"""A board of verdicts, with what they are decided by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from diffscope import numbers
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.accounts import ACCOUNTS, LEGEND
from diffscope.hypotheses.report import in_order
from diffscope.hypotheses.sentence import whole, word
from diffscope.hypotheses.verdict import Verdict
from diffscope.tables.table import Column, Table

SECOND = ("by_answer", "by_answer_low", "by_answer_high")


def board(verdicts: Sequence[Verdict]) -> Table:
    """Tabulate every test: its question, its verdict, its quantities, and the answer that these give.

    Parameters
    ----------
    verdicts : sequence of Verdict
        What ``diffscope.hypotheses.test`` gave, or one board of a study.

    Returns
    -------
    Table
        ``data`` has a row a quantity, with the ``number`` of its verdict in the table, the interval, what would be without an
        effect, the answer to the question where it is asked of this quantity, p and corrected p, which is one of a whole primary
        test; a test that could not run has one row without a value. ``weighted_by`` says what heads count with, ``layers`` has
        the mean in each layer, and ``by_answer``, ``by_answer_low`` and ``by_answer_high`` the same with heads weighted by A1's
        mass on the answer. The table shows the two if any estimate is a mean over heads.

    Raises
    ------
    DiffscopeError
        They are no verdicts, or there are none.
    """
    listed = list(verdicts) if isinstance(verdicts, (list, tuple)) else []
    if not listed or not all(isinstance(verdict, Verdict) for verdict in listed):
        raise DiffscopeError("a board is a list of verdicts, as diffscope.hypotheses.test gives it; hand that over")
    records = [{"number": number} | each for number, verdict in enumerate(in_order(listed)) for each in _records(verdict)]
    columns = _columns(views=any(record["weighted_by"] for record in records))
    caption = (
        f"Verdicts of declared tests. {LEGEND} {_brackets(records)}Answer: yes or no "
        "if the whole 95 % interval lies on one side of 0; only for quantities that the question names. p is corrected within "
        "the tests of a kind: of a primary test it is one p, beside the verdict, of a mechanism test one for each quantity in "
        "the rule. n: models × prompts. A test without an estimate could not run."
    )
    reasons = dict.fromkeys(record["why"] for record in records if record["why"])
    notes = (f"Undefined. {'; '.join(reasons)}.",) if reasons else ()
    return Table.of("board", records, columns, caption, notes, group="number")


def _brackets(records: Sequence[dict]) -> str:
    """Say what intervals are over, and of which tests if that differs."""
    tests: dict[str, list[str]] = {}
    for record in records:
        if math.isfinite(record["low"]) and math.isfinite(record["high"]):
            tests.setdefault(record["interval"], []).append(record["test"])
    if not tests:
        return ""
    words = [f"{over} ({', '.join(dict.fromkeys(of))})" for over, of in tests.items()] if len(tests) > 1 else list(tests)
    return f"Brackets: 95 % interval, {'; '.join(words)}. "


def _records(verdict: Verdict) -> list[dict]:
    cost = verdict.a2_cost
    test = {
        "kind": verdict.test.kind,
        "test": verdict.test.id,
        "question": verdict.test.question,
        "verdict": verdict.shown,
        **{account: verdict.verdicts.get(account, "") for account in ACCOUNTS},
        "of": verdict.of if verdict.verdicts else "",
        "a2_cost": cost.value if cost else math.nan,
        "a2_cost_low": cost.low if cost else math.nan,
        "a2_cost_high": cost.high if cost else math.nan,
        "a2_cost_of": verdict.cost if verdict.verdicts else "",
        "p_of_test": verdict.p,
    }
    if not verdict.estimates:
        names = ("value", "low", "high", *SECOND, "null_low", "null_high", "p", "p_corrected")
        empty = {name: math.nan for name in names} | dict.fromkeys(("answer", "interval", "state", "why", "weighted_by"), "")
        return [{**test, "quantity": "", **empty, "layers": "", "seeds": 0, "prompts": 0}]
    return [
        {
            **test,
            "quantity": verdict.test.quantities[name].label,
            "value": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            **dict(zip(SECOND, estimate.by_answer or (math.nan,) * 3)),
            "layers": ", ".join(numbers.significant(layer, 2) for layer in estimate.layers),
            "weighted_by": estimate.weighted_by,
            "null_low": estimate.null_low,
            "null_high": estimate.null_high,
            "answer": word(estimate, verdict.test.asks[name]) if name in verdict.test.asks else "",
            "p": estimate.p,
            "p_corrected": math.nan if whole(verdict.test) else verdict.corrected.get(name, math.nan),
            "interval": estimate.interval or estimate.method,
            "seeds": estimate.seeds,
            "prompts": estimate.prompts,
            "state": verdict.states[name],
            "why": estimate.why,
        }
        for name, estimate in verdict.estimates.items()
    ]


def _columns(views: bool) -> list[Column]:
    """Return the columns: those of a test at its first quantity alone; `views` beside estimates that are means over heads."""
    second = [
        Column("by layer", lambda record: record["layers"] or numbers.ABSENT),
        Column("heads by A1's mass [95 %]", lambda record: numbers.with_interval(*(record[name] for name in SECOND))),
    ]
    return [
        Column("test", itemgetter("test"), once=True),
        Column("question", _question, once=True),
        *(Column(account, _account(account), once=True) for account in ACCOUNTS),
        Column("of; what A2 costs there", _heads, once=True),
        Column("quantity", lambda record: record["quantity"] or numbers.ABSENT),
        Column("estimate [95 %]", lambda record: numbers.with_interval(record["value"], record["low"], record["high"])),
        *(second if views else []),
        Column("answer", lambda record: record["answer"] or numbers.ABSENT),
        Column("p corrected", lambda record: numbers.significant(record["p_corrected"], 2)),
        Column("n", lambda record: f"{record['seeds']} × {record['prompts']}" if record["seeds"] else numbers.ABSENT),
    ]


def _question(record: Mapping[str, Any]) -> str:
    """Return a test's question, with the p of the whole test if it has one."""
    p = record["p_of_test"]
    return record["question"] + ("" if math.isnan(p) else f" (p {numbers.significant(p, 2)})")


def _account(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda record: record[name] or numbers.ABSENT


def _heads(record: Mapping[str, Any]) -> str:
    """Say of which heads a verdict is and what A2 costs there, or else the verdict."""
    there = filter(None, (record["of"], record["a2_cost_of"] and f"A2: {record['a2_cost_of']}"))
    return "; ".join(there) or record["verdict"]
