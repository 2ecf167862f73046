"""Tests of the hypotheses: primaries large, others as rows that open where they stand, and all of their estimates on one axis.

A test is shown whether or not it was run: its question, how it asks and by which rule is declared beforehand. Directly beside a
question stand its answer and the numbers that the answer is derived from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import pandas as pd
import streamlit as st
from messages import escape_markdown, show_errors

from blocks.show import export_menu, folded, show_chart, show_table
from diffscope import figures
from diffscope.hypotheses.accounts import ACCOUNTS, AGAINST, FOR, OPEN, SILENT

NOT_YET = "not run yet"
MARKS = {FOR: "✓ ", AGAINST: "✗ ", OPEN: "? ", SILENT: ""}
GRID = (
    "<style>.st-key-primaries{display:grid;gap:1rem;grid-template-columns:minmax(0,1fr)}"
    "@media(min-width:1100px){.st-key-primaries{grid-template-columns:repeat(2,minmax(0,1fr))}}"
    "@media(min-width:2200px){.st-key-primaries{grid-template-columns:repeat(4,minmax(0,1fr))}}</style>"
)


def badge(verdict) -> str:
    """Return the word of each account, as Markdown, or that a test was measured or not run; colours are for maps and models."""
    if verdict is None:
        return f":gray-badge[{NOT_YET}]"
    if not verdict.verdicts:
        return f":gray-badge[{'not run' if verdict.lacks else 'measured'}]"
    words = {account: f"{ACCOUNTS[account]} {MARKS[word]}{word}" for account, word in verdict.verdicts.items()}
    decided = {account for account, word in verdict.verdicts.items() if word in (FOR, AGAINST)}
    return " ".join(f":gray-badge[{f'**{said}**' if account in decided else said}]" for account, said in words.items())


def show_primaries(verdicts: Mapping, code: str = "") -> None:
    """The primary tests side by side, each with its estimates against what there would be without an effect.

    Parameters
    ----------
    verdicts : mapping of str to Verdict
        Those that were run, by id.
    code : str
        Python that gives the board as ``board``.
    """
    from diffscope.hypotheses.tests import PRIMARIES as ids

    st.html(GRID)
    with st.container(key="primaries"):
        for id in ids:
            with st.container(border=True, key=f"primary-{id}"):
                _show_primary(id, verdicts.get(id), code)


def _show_primary(id: str, verdict, code: str) -> None:
    """Question and answer in two lines; numbers, power and method in a row that opens."""
    from diffscope.hypotheses import TESTS
    from diffscope.hypotheses.shipped import power_of

    test = TESTS[id]
    st.markdown(f"**{escape_markdown(test.question)}** {answered(verdict)}")
    st.markdown(f"{badge(verdict)} {_p(verdict)}")

    @st.fragment
    def details() -> None:
        with folded("Numbers, method and source", f"primary-{id}-method") as is_open:
            if not is_open:
                return
            _say_where(verdict)
            if verdict is not None and verdict.estimates:
                _show_judged(verdict)
                show_estimates([verdict], key=f"primary-{id}")
            st.caption(escape_markdown(f"Power: {power_of(id)}."))
            show_details(test, verdict, code, plot=False)

    details()


def _say_where(verdict) -> None:
    """Of which heads and queries the words are, and what the second map costs there."""
    if verdict is None or not verdict.verdicts:
        return
    cost = f" · What A2 costs there: {verdict.cost}" if verdict.cost else ""
    st.caption(escape_markdown(f"Of {verdict.of}{cost}"))


def _p(verdict) -> str:
    """The p of a whole test, in words."""
    from diffscope.hypotheses.sentence import CORRECTIONS

    if verdict is None or math.isnan(verdict.p):
        return ""
    return f":small[p {_number(verdict.p)} of the whole test, after {CORRECTIONS[verdict.test.kind]}]"


def _show_judged(verdict) -> None:
    """The quantities that the rule uses, in large figures."""
    for name in verdict.corrected:
        estimate = verdict.estimates[name]
        interval = f"95 % {_number(estimate.low)} to {_number(estimate.high)}"
        null = f"without an effect {_number(estimate.null_low)} to {_number(estimate.null_high)}"
        st.metric(
            escape_markdown(verdict.test.quantities[name].label),
            _number(estimate.value),
            f"{interval} · {null}" if not estimate.why else estimate.why,
            delta_color="off",
            delta_arrow="off",
        )


def _number(value: float) -> str:
    """A number as a sentence prints it, with a minus sign."""
    from diffscope.hypotheses.sentence import number

    return number(value)


def show_test(test, verdict=None, code: str = "") -> None:
    """A row that opens: what a test asks, the answer with its numbers, then how it asks, all numbers, and its source.

    Parameters
    ----------
    test : Test
    verdict : Verdict, optional
        What came of it, where it was run.
    code : str
        Python that gives the board as ``board``.
    """

    @st.fragment
    def row() -> None:
        name = f"{badge(verdict)} {escape_markdown(test.question)} {answered(verdict)}".rstrip()
        with folded(name, f"test-{test.id}") as is_open:
            if is_open:
                show_details(test, verdict, code)

    row()


def answered(verdict) -> str:
    """The answer to a test's question, as Markdown: its words, and the numbers and intervals that they are derived from."""
    if verdict is None:
        return ""
    words = " · ".join(f"**{word}:** {escape_markdown(numbers)}" for word, numbers in verdict.answers.items())
    asked = [verdict.test.quantities[name].label for name in verdict.test.asks if name in verdict.estimates]
    return f"{words} :gray[{escape_markdown(asked[0])}]" if len(asked) == 1 else words


def show_details(test, verdict=None, code: str = "", plot: bool = True) -> None:
    """What was declared of a test, what came of it, and where its question is from; parameters as of :func:`show_test`."""
    measured = verdict is not None and bool(verdict.estimates)
    _say("Name", test.id)
    _say("Method", test.statistic if verdict is None else verdict.statistic)
    _say("Control", "; ".join(test.controls))
    if measured and plot:
        show_estimates([verdict], key=f"test-{test.id}")
    _say("Rule", test.rule)
    if plot:
        _say_where(verdict)
    _say("Verdict", NOT_YET if verdict is None else verdict.sentence)
    if not measured:
        _say("Limits", test.limits)
    st.markdown(f"**Source.** {linked(test.source)}")
    if measured:
        show_numbers(verdict, code)


def _say(name: str, words: str) -> None:
    if words:
        st.markdown(f"**{name}.** {escape_markdown(words)}")


def linked(source: str) -> str:
    """A test's source as Markdown, with links to what it cites."""
    from diffscope.hypotheses import tests

    return "".join(
        f"[{escape_markdown(part)}]({address})" if address else escape_markdown(part) for part, address in tests.linked(source)
    )


def show_numbers(verdict, code: str = "") -> None:
    """Every quantity of a test, by layer where there are layers."""
    from diffscope.hypotheses import report

    show_table(pd.DataFrame(report.rows(verdict), columns=list(report.COLUMNS)))
    layers = [
        {"quantity": verdict.test.quantities[name].label}
        | {f"layer {number}": report.number(value) for number, value in enumerate(estimate.layers)}
        for name, estimate in verdict.estimates.items()
        if estimate.layers
    ]
    if layers:
        st.caption(
            "by attention layer, counted from 0 at the input; mean over prompts, heads as they count, and seeds (not judged)"
        )
        show_table(layers)
    id = verdict.test.id
    figure = partial(figures.board, [verdict])
    of_one = f"figure = diffscope.figures.board([verdict for verdict in board if verdict.test.id == {id!r}])\n"
    export_menu(id, figure=figure, data=lambda: figure().data, code=code and code + of_one)


def show_estimates(board, key: str = "board") -> None:
    """Every judged quantity with its interval, beside what there would be without an effect."""
    if not any(verdict.estimates for verdict in board):
        return
    with show_errors():
        tests = ", ".join(verdict.test.id for verdict in board if verdict.estimates)
        show_chart(figures.board(board), f"Estimates beside what there would be without an effect: {tests}", key=f"{key}-chart")
