"""What others have published, beside what a study measured."""

from __future__ import annotations

import math

from diffscope import numbers
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.claims import Compared, Measured, compare, read_claims
from diffscope.hypotheses.study import ALL, WEIGHTS, Study
from diffscope.tables.table import Table

BY_ANSWER = "heads by A1's mass [95 %]"
HEADER = (
    "source",
    "claim",
    "published",
    "quantity",
    "claimed",
    "here [95 %]",
    BY_ANSWER,
    "untrained",
    "seeds",
    "answer",
    "limits",
)
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
    import pandas as pd

    if not isinstance(study, Study):
        raise DiffscopeError(f"this table is of a study, as diffscope.open opens it, not of a {type(study).__name__}")
    sources, published = read_claims()
    compared = compare(published, {name: study.boards[name] for name in (ALL, WEIGHTS) if name in study.boards})
    rows = tuple(row for each in compared for row in _rows(each))
    records = [record for each in compared for record in _records(each)]
    records = [{**record, "source": sources[record["source"]]} for record in records]
    named = "; ".join(f"{short}: {source}" for short, source in sources.items())
    return Table("claims", HEADER, rows, CAPTION, pd.DataFrame(records), (f"Sources. {named}.",))


def _rows(compared: Compared) -> list[tuple[str, ...]]:
    claim = compared.claim
    about = (claim.source, claim.says, claim.published)
    if not compared.measured:
        return [(*about, *[numbers.ABSENT] * 6, compared.answer, claim.limits)]
    first, *rest = (_cells(measured) for measured in compared.measured)
    return [(*about, *first, claim.limits), *(("", "", "", *cells, "") for cells in rest)]


def _cells(measured: Measured) -> tuple[str, ...]:
    """Return the cells of quantity, claim, value, untrained models, seeds and answer."""
    estimate = measured.estimate
    about = (measured.bearing.declared.label, measured.bearing.claimed)
    if estimate is None:
        return (*about, *[numbers.ABSENT] * 4, f"{measured.answer}: {measured.why}")
    second = numbers.with_interval(*estimate.by_answer) if estimate.by_answer else numbers.ABSENT
    here = numbers.with_interval(estimate.value, estimate.low, estimate.high)
    untrained = f"{numbers.significant(estimate.null_low, 2)} to {numbers.significant(estimate.null_high, 2)}"
    seeds = f"({estimate.seeds})" if measured.board == WEIGHTS else str(estimate.seeds)
    answer = f"{measured.answer}: {measured.why}" if measured.why else measured.answer
    return (*about, here, second, untrained if estimate.untrained else numbers.ABSENT, seeds, answer)


def _records(compared: Compared) -> list[dict]:
    claim = compared.claim
    about = {"claim": claim.id, "source": claim.source, "says": claim.says, "published": claim.published}
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
    ends = {name: math.nan if estimate is None else getattr(estimate, name) for name in ("value", "low", "high")}
    nulls = {
        name: getattr(estimate, name) if estimate is not None and estimate.untrained else math.nan
        for name in ("null_low", "null_high")
    }
    by_answer = estimate.by_answer if estimate is not None and estimate.by_answer else (math.nan,) * 3
    second = dict(zip(("by_answer", "by_answer_low", "by_answer_high"), by_answer))
    counts = {name: 0 if estimate is None else getattr(estimate, name) for name in ("seeds", "prompts")}
    over = "" if estimate is None else estimate.interval or estimate.method
    return {**ends, **second, **nulls, **counts, "interval": over, "board": "" if measured is None else measured.board}
