"""The verdict of a test: a word of each account, from p-values that are corrected for how many there are.

A primary holds only if all of its comparisons do, so its p is the largest of theirs and needs no correction within; Holm's is
over the primaries that are declared, and one that could not be run counts as a p of 1: to ask for fewer does not help. Mechanism
tests are exploratory: Benjamini and Hochberg's correction is over every quantity that their rules use on this board.

Of primaries the p of the sign-flip test is corrected; of fewer than five seeds, of which it is not computed, that of Student's t,
but no less than the least p of sign flips. Few seeds have few combinations of signs, so that with fewer than eight no primary
alone can come out at 0.05 after the correction. Of mechanism tests the p of Student's t is corrected. The other of the two is
shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from diffscope import render as display
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.intervals import benjamini_hochberg, holm
from diffscope.hypotheses.rules import BY, MEASURED, Cost, Test, decisive, words_by
from diffscope.hypotheses.sentence import (
    ABSENT,
    CORRECTIONS,
    answers,
    cost_in_words,
    number,
    sentence,
    uncorrected,
    weighted_by,
    whole,
)
from diffscope.hypotheses.statistics import Estimate, of_fields

DECLARED = ("id", "kind", "question", "source", "statistic", "controls", "of", "rule", "needs", "limits")
NEEDS = "needs "  # first word of what is shown of a test that could not be run


@dataclass(frozen=True, repr=False)
class Verdict:
    """The result of one test or measurement.

    Attributes
    ----------
    test : Test
    verdicts : dict of {"NC", "SP", "SH"} to {"for", "against", "open", "silent"}
        By account; empty of a measurement and of a test that was not run.
    estimates : dict of str to Estimate
        By quantity.
    corrected : dict of str to float
        p of the quantities that the rule uses, corrected as the test's kind says.
    states : dict of str to str
        By quantity, as :func:`diffscope.hypotheses.rules.state` says.
    lacks : str
        What a test that was not run needs; empty of others.
    a2_cost : Cost, optional
        What the second map costs in the heads of the test, where that was measured.
    """

    test: Test
    verdicts: Mapping[str, str]
    estimates: Mapping[str, Estimate]
    corrected: Mapping[str, float]
    states: Mapping[str, str]
    lacks: str = ""
    a2_cost: Cost | None = None

    def __repr__(self) -> str:
        return f"<Verdict of {self.test.id}: {self.judged}>\n{display.lines(self.sentence)}"

    def _repr_html_(self) -> str:
        return self.card(self.judged)

    def card(self, result: str) -> str:
        """Return question and measurements as HTML, under a title that gives the result."""
        rows = (
            (
                self.test.quantities[name].label,
                number(estimate.value),
                f"{number(estimate.low)} to {number(estimate.high)}",
                number(math.nan if whole(self.test) else self.corrected.get(name, math.nan)),
                self.states[name],
            )
            for name, estimate in self.estimates.items()
        )
        table = display.table(("quantity", "estimate", "95 % interval", "p, corrected", "state"), rows)
        declared = {
            "question": self.test.question,
            "answer": self.answer,
            "statistic": self.statistic,
            "controls": "; ".join(self.test.controls),
            **({"of": self.of, "what A2 costs there": self.cost} if self.verdicts else {}),
        }
        parts = (display.facts(declared), table if self.estimates else "", display.paragraph(self.sentence))
        return display.card(f"{self.test.id}: {result}", *parts)

    @property
    def sentence(self) -> str:
        """What was measured, what was predicted of it, and what follows; of a test that was not run what it needs."""
        if self.lacks:
            return f"Not run: it needs {self.lacks}."
        return sentence(self.test, self.estimates, self.corrected, self.states, self.a2_cost)

    @property
    def statistic(self) -> str:
        """What was estimated, and how heads were weighted."""
        return words_by(self.test.statistic, weighted_by(self.estimates.values()))

    @property
    def of(self) -> str:
        """Of which heads and queries it is, and how heads were weighted."""
        return words_by(self.test.of, weighted_by(self.estimates.values()))

    @property
    def shown(self) -> str:
        """The word of each account; of a measurement that it was measured; of a test that was not run what it needs."""
        if self.lacks:
            return f"{NEEDS}{self.lacks}"
        return " · ".join(f"{account} {word}" for account, word in self.verdicts.items()) or MEASURED

    @property
    def reasons(self) -> dict[str, str]:
        """Why each account has its word."""
        return self.test.reasons(self.estimates, self.states, self.a2_cost) if self.verdicts else {}

    @property
    def cost(self) -> str:
        """What the second map costs in the heads of the test, in words; empty if it is not about heads."""
        return cost_in_words(self.a2_cost) if self.test.inside else ""

    @property
    def idle(self) -> bool:
        """Whether every account is silent because the second map does nothing in the heads of the test."""
        return self.test.idle(self.a2_cost)

    @property
    def answers(self) -> dict[str, str]:
        """The answer to the question, as :func:`answers` gives it; of a test that was not run what it needs."""
        return answers(self.test, self.estimates) if self.estimates else {ABSENT: f"it {self.shown}"}

    @property
    def answer(self) -> str:
        """The same in a line, such as ``no: −0.0464 (95 % −0.0652 to −0.0276)``."""
        return "; ".join(f"{word}: {numbers}" for word, numbers in self.answers.items())

    @property
    def p(self) -> float:
        """The corrected p of the whole test; NaN of measurements, and of tests with one p a quantity."""
        return next(iter(self.corrected.values()), math.nan) if whole(self.test) else math.nan

    @property
    def judged(self) -> str:
        """The verdict, with the p of the whole test where it has one."""
        p = "" if math.isnan(self.p) else f" (p {number(self.p)} of the whole test, after {CORRECTIONS[self.test.kind]})"
        return f"{self.shown}{p}"

    def decisive(self) -> list[str]:
        """Return the seeds and heads whose removal changes the state of a quantity that the rule uses."""
        rests = (decisive(self.estimates[name], self.test.quantities[name]) for name in self.corrected)
        return list(dict.fromkeys(left.what for rest in rests for left in rest))

    def as_dict(self) -> dict:
        """Return it as a dict for JSON."""
        rows = {
            name: {
                **asdict(estimate),
                "label": self.test.quantities[name].label,
                "margin": self.test.quantities[name].margin,
                "p_corrected": self.corrected.get(name),
                "in_rule": name in self.corrected,
                "state": self.states[name],
                "decisive": [left.what for left in decisive(estimate, self.test.quantities[name])],
            }
            for name, estimate in self.estimates.items()
        }
        declared = {name: getattr(self.test, name) for name in DECLARED} | {"statistic": self.statistic, "of": self.of}
        cost = None if self.a2_cost is None else asdict(self.a2_cost)
        result = {"answer": self.answer, "shown": self.shown, "verdicts": dict(self.verdicts), "reasons": self.reasons}
        more = {"lacks": self.lacks, "a2_cost": cost, "sentence": self.sentence}
        return {**declared, **result, **more, "estimates": rows}

    @classmethod
    def from_dict(cls, record: Mapping, tests: Mapping[str, Test]) -> Verdict:
        """Read what :meth:`as_dict` made, after JSON; `tests` are those that are declared, by id.

        Raises
        ------
        DiffscopeError
            The test was declared otherwise when the verdict was made.
        """
        test = tests.get(record["id"])
        rows = record["estimates"]
        if test is None or not _same_rule(test, record):
            raise DiffscopeError(f"the test {record['id']!r} is judged by another rule now; run it anew with diffscope test")
        estimates = {name: Estimate.from_json(row) for name, row in rows.items()}
        p = {name: row["p_corrected"] for name, row in rows.items() if row["in_rule"]}
        corrected = {name: math.nan if value is None else value for name, value in p.items()}
        states = {name: row["state"] for name, row in rows.items()}
        cost = None if record["a2_cost"] is None else Cost(**of_fields(Cost, record["a2_cost"]))
        return cls(test, record["verdicts"], estimates, corrected, states, record["lacks"], cost)


class Board(list[Verdict]):
    """A list of verdicts that shows itself as a table."""

    def __repr__(self) -> str:
        wide = max((len(verdict.test.id) for verdict in self), default=0)
        rows = (f"  {verdict.test.id:{wide}}  {verdict.judged}" for verdict in self)
        return "\n".join((f"<Board of {len(self)} verdicts>", *rows))

    def _repr_html_(self) -> str:
        rows = ((each.test.kind, each.test.id, each.test.question, each.answer, each.judged) for each in self)
        sentences = "".join(
            display.folded(f"{verdict.test.id}: {verdict.shown}", verdict.card(verdict.shown)) for verdict in self
        )
        return display.table(("kind", "test", "question", "answer", "verdict"), rows) + sentences


def _same_rule(test: Test, record: Mapping) -> bool:
    """Whether a verdict was made with the rule, statistic and quantities that are declared now."""
    rows = record["estimates"]
    then = {name: (row["label"], row["margin"]) for name, row in rows.items()}
    now = {name: (quantity.label, quantity.margin) for name, quantity in test.quantities.items()}
    statistics = {words_by(test.statistic, weights) for weights in BY}
    same = (test.kind, test.rule) == (record.get("kind"), record["rule"]) and record["statistic"] in statistics
    return same and then.items() <= now.items()


def corrected(results: Mapping[str, Mapping[str, Estimate]], tests: Mapping[str, Test]) -> dict[tuple[str, str], float]:
    """Correct the p of every quantity that a rule uses.

    Parameters
    ----------
    results : mapping
        Estimates by test and quantity.
    tests : mapping of str to Test
        All tests that are declared, whether they were run or not.

    Returns
    -------
    dict
        p by (test, quantity).
    """
    return _primaries(results, tests) | _mechanisms(results, tests)


def _primaries(results: Mapping, tests: Mapping[str, Test]) -> dict[tuple[str, str], float]:
    primaries = [test for test in tests.values() if test.kind == "primary"]
    largest = {
        test.id: float(np.max([uncorrected(test, results[test.id][name]) for name in test.judged]))  # NaN if any is
        for test in primaries
        if test.id in results
    }
    p = [largest.get(test.id, math.nan) for test in primaries]
    among = dict(zip((test.id for test in primaries), holm([1.0 if math.isnan(each) else each for each in p])))
    return {(id, name): math.nan if math.isnan(of) else among[id] for id, of in largest.items() for name in tests[id].judged}


def _mechanisms(results: Mapping, tests: Mapping[str, Test]) -> dict[tuple[str, str], float]:
    """Correct over distinct questions: quantities of two tests with the same label and p count once."""
    questions = {}
    for id, estimates in results.items():
        test = tests[id]
        for name in test.judged if test.kind == "mechanism" else ():
            questions[id, name] = (test.quantities[name].label, uncorrected(test, estimates[name]))
    distinct = list(dict.fromkeys(questions.values()))
    among = dict(zip(distinct, benjamini_hochberg([p for _, p in distinct])))
    return {key: among[question] for key, question in questions.items()}
