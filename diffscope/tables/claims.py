"""What others have published, beside what a study measured."""

from __future__ import annotations

import math

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.claims import Compared, Measured, compare
from diffscope.hypotheses.published import CLAIMS, SHORT
from diffscope.hypotheses.study import ALL, Study
from diffscope.tables import numbers
from diffscope.tables.table import Table

HEADER = ("source", "claim", "published", "quantity", "here [95 %]", "untrained", "answer", "limits")
CAPTION = (
    "Published claims beside this study. Brackets: 95 % intervals, not corrected for the number of claims, so that of "
    "twenty intervals of nothing one has a sign. Same sign, other sign: the whole interval is on the claimed side of 0, or "
    "on the other. Within, outside: of a claim that there is nothing (± the smallest effect that matters), or of a claimed "
    "range, the whole interval is within it, or outside. Undecided: neither. Untrained: from where to where models of "
    "random weights come; where they show as much, training has no part in a sign."
)


def claims(study: Study) -> Table:
    """Every published claim beside the quantities of a study that bear on it, with their signs.

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
    import pandas as pd

    if not isinstance(study, Study):
        raise DiffscopeError(f"this table is of a study, as diffscope.open opens it, not of a {type(study).__name__}")
    others = [board for name, board in study.boards.items() if name != ALL]
    compared = compare(CLAIMS, [study.boards[ALL], *others])
    rows = tuple(row for each in compared for row in _rows(each))
    records = [record for each in compared for record in _records(each)]
    sources = "; ".join(f"{short}: {source}" for source, short in SHORT.items())
    return Table("claims", HEADER, rows, CAPTION, pd.DataFrame(records), (f"Sources. {sources}.",))


def _rows(compared: Compared) -> list[tuple[str, ...]]:
    claim = compared.claim
    about = (SHORT[claim.source], claim.says, claim.published)
    if not compared.measured:
        return [(*about, numbers.ABSENT, numbers.ABSENT, numbers.ABSENT, compared.answer, claim.limits)]
    first, *rest = (_cells(each) for each in compared.measured)
    return [(*about, *first, claim.limits), *(("", "", "", *cells, "") for cells in rest)]


def _cells(measured: Measured) -> tuple[str, ...]:
    estimate = measured.estimate
    answer = f"{measured.answer}: {measured.why}" if measured.why else measured.answer
    if estimate is None:
        return (measured.quantity.label, numbers.ABSENT, numbers.ABSENT, answer)
    here = numbers.with_interval(estimate.value, estimate.low, estimate.high)
    untrained = numbers.ABSENT
    if estimate.untrained:
        untrained = f"{numbers.plain(estimate.null_low, 2)} to {numbers.plain(estimate.null_high, 2)}"
    return (measured.quantity.label, here, untrained, answer)


def _records(compared: Compared) -> list[dict]:
    claim = compared.claim
    about = {"claim": claim.id, "source": claim.source, "says": claim.says, "published": claim.published}
    if not compared.measured:
        return [
            {**about, "test": "", "quantity": "", "claimed": "", **_numbers(None), "answer": compared.answer, "why": claim.limits}
        ]
    return [
        {
            **about,
            "test": measured.bearing.test,
            "quantity": measured.quantity.label,
            "claimed": _claimed(measured),
            **_numbers(measured),
            "answer": measured.answer,
            "why": measured.why,
        }
        for measured in compared.measured
    ]


def _claimed(measured: Measured) -> str:
    says = measured.bearing.says
    return says if isinstance(says, str) else f"{says[0]:g} to {says[1]:g}"


def _numbers(measured: Measured | None) -> dict[str, float]:
    estimate = None if measured is None else measured.estimate
    names = ("value", "low", "high")
    return {name: math.nan if estimate is None else getattr(estimate, name) for name in names}
