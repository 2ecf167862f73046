"""What the documentation shows of a study: pages of its boards and of published claims, figures, and what other pages quote."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from diffscope import figures, numbers, tables
from diffscope.figures.tests import quantities
from diffscope.hypotheses.accounts import ACCOUNTS
from diffscope.hypotheses.conclusion import of_kind, overall
from diffscope.hypotheses.report import left_out, rates_section, runs_section, study_markdown
from diffscope.hypotheses.sentence import by_signs, whole, word
from diffscope.hypotheses.study import ALL, Study
from diffscope.hypotheses.verdict import Verdict
from diffscope.render import pipe_table

QUOTING = ("study.md", "study/report.md")  # below docs/
WIDTH = 7.0  # inches of a figure
WITHOUT = "without one seed or head"
MINUS = re.compile(r"(?<!\w)-(?=\d)")


def pages(study: Study) -> dict[str, str]:
    """Pages by name: each board with its numbers, and published claims beside the study."""
    written = {f"{board.replace(' ', '_')}.md": study_markdown(study, board) for board in study.boards}
    claims = tables.claims(study)
    return {**written, "claims.md": f"# Published claims beside the {study.facts['recipe']} cohort\n\n{claims.to_markdown()}"}


def drawings(study: Study) -> dict[str, figures.Figure]:
    """Figures by name: what arms came to, and the quantities that primary and mechanism tests are judged by."""
    drawn = {quantity: figures.study(study, quantity=quantity, width=WIDTH, title="") for quantity in quantities(study)}
    for kind in ("primary", "mechanism"):
        judged = [verdict for verdict in of_kind(study.boards[ALL], kind) if verdict.estimates]
        if judged:
            drawn[kind] = figures.board(judged, width=WIDTH, title="")
    return drawn


def quotes(study: Study) -> dict[str, str]:
    """Return what the page quotes, by name."""
    board = study.boards[ALL]
    return {
        "conclusion": _points(overall(board)),
        "primaries": _judged(of_kind(board, "primary")),
        "second-reading": _notes(study),
        "answers": _answers(study),
        "decided": _decided(board),
        "runs": _below(runs_section(study)),
        "rates": _below(rates_section(study.facts.get("training", {}))),
    }


def _points(points: Iterable[str]) -> str:
    return "".join(f"- {point}\n" for point in points)


def _notes(study: Study) -> str:
    """Format what was found of a study by hand, point by point."""
    first, *points = study.notes or ("Nothing was found besides.",)
    return f"{first}\n\n{_points(points)}"


def _judged(verdicts: Sequence[Verdict]) -> str:
    """Format what rules use or questions ask, what that answers, and a column of words for each account.

    The corrected p stands at each quantity, or once at a whole test.
    """
    once = all(whole(verdict.test) for verdict in verdicts)
    of_quantities = ("test", "quantity", "estimate [95 %]", "answer", "p", *(() if once else ("q",)))
    header = (
        *of_quantities,
        "smallest that matters",
        WITHOUT,
        *ACCOUNTS,
        *(("p after Holm",) if once else ()),
        "of which heads and queries",
        "what A2 costs there",
    )
    rows = []
    for verdict in verdicts:
        judged = [_of_rule(verdict, name) for name in verdict.estimates if name in {*verdict.corrected, *verdict.test.asks}]
        words = tuple(verdict.verdicts.values()) or (numbers.ABSENT,) * len(ACCOUNTS)
        there = (verdict.of, verdict.cost or numbers.ABSENT) if verdict.verdicts else (verdict.shown, numbers.ABSENT)
        end = (*words, *((numbers.significant(verdict.p, 2),) if once else ()), *there)
        first, *others = judged or [(numbers.ABSENT,) * (len(header) - 1 - len(end))]
        rows += [
            (f"{verdict.test.id}: {verdict.test.question}", *first, *end),
            *(("", *cells, *[""] * len(end)) for cells in others),
        ]
    return pipe_table(header, rows)


def _of_rule(verdict: Verdict, name: str) -> tuple[str, ...]:
    """One quantity: its label, estimate, answer, p, corrected p, what matters, what leaving out comes to."""
    estimate, quantity = verdict.estimates[name], verdict.test.quantities[name]
    value = numbers.with_interval(estimate.value, estimate.low, estimate.high)
    answer = word(estimate, verdict.test.asks[name]) if name in verdict.test.asks else numbers.ABSENT
    each = () if whole(verdict.test) else (numbers.significant(verdict.corrected.get(name, math.nan), 2),)
    left = MINUS.sub("−", left_out(estimate, quantity))
    return quantity.label, value, answer, _p(verdict, name), *each, f"{quantity.margin:g}", left


def _p(verdict: Verdict, name: str) -> str:
    """Format the p that is corrected, and the other one if two are known."""
    estimate = verdict.estimates[name]
    signs, of_t = (numbers.significant(p, 2) for p in (estimate.p, estimate.p_t))
    if math.isnan(estimate.p_t):
        return signs
    return f"{signs} by signs ({of_t} by t)" if by_signs(verdict.test, estimate) else f"{of_t} by t ({signs} by signs)"


def _answers(study: Study) -> str:
    """How many published claims have which answer."""
    counts = Counter(record["answer"] for record in tables.claims(study).data.to_dict("records"))
    return pipe_table(("answer", "quantities"), [(answer, str(count)) for answer, count in counts.most_common()])


def _decided(board: Iterable[Verdict]) -> str:
    """Which tests one seed or one head decides, or leaves open."""
    rows = [(verdict.test.id, verdict.shown, ", ".join(what)) for verdict in board if (what := verdict.decisive())]
    return pipe_table(("test", "verdict", "decided, or left open, by"), rows) if rows else "None.\n"


def _below(section: str) -> str:
    """Return a section without its heading."""
    return section.partition("\n\n")[2]
