"""What came of a test, in numbers and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from diffscope import display
from diffscope.accounts import ACCOUNTS, OPEN, SILENT
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.answered import ABSENT, answers, number
from diffscope.hypotheses.correction import CORRECTIONS, by_signs, uncorrected, whole
from diffscope.hypotheses.declared import SUBJECTS, TESTS
from diffscope.hypotheses.rules import (
    MEASURED,
    Cost,
    Declared,
    Quantity,
    Test,
    by_interval,
    decisive,
    in_nats,
)
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.weights import ANSWER, BY, SECOND, words_by

DECLARED = ("id", "kind", "question", "source", "statistic", "controls", "of", "rule", "needs", "limits")
NEEDS = "needs "  # how what is shown of a test that could not be run begins


@dataclass(frozen=True, repr=False)
class Verdict:
    """What came of one test or measurement.

    Attributes
    ----------
    test : Test or Measurement
    verdicts : dict of {"NC", "SP", "SH"} to {"for", "against", "open", "silent"}
        By account; none of a measurement, nor of a test that could not be run.
    estimates : dict of str to Estimate
        By quantity.
    corrected : dict of str to float
        p of the quantities that the rule uses, corrected as the test's kind says.
    states : dict of str to str
        By quantity, as :func:`diffscope.hypotheses.rules.state` says.
    sentence : str
        What was measured, what was predicted of it, and what follows.
    lacks : str
        What a test that could not be run needs; empty of others.
    a2_cost : Cost, optional
        What the second map costs in the heads that the test is about, where that was measured.
    """

    test: Declared
    verdicts: Mapping[str, str]
    estimates: Mapping[str, Estimate]
    corrected: Mapping[str, float]
    states: Mapping[str, str]
    sentence: str
    lacks: str = ""
    a2_cost: Cost | None = None

    def __repr__(self) -> str:
        return f"<Verdict of {self.test.id}: {self.judged}>\n{display.lines(self.sentence)}"

    def _repr_html_(self) -> str:
        return self.card(self.judged)

    def card(self, came: str) -> str:
        """Return what was asked and measured as HTML, under what came of it: the verdict, with its p or without."""
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
        return display.card(f"{self.test.id}: {came}", *parts)

    @property
    def statistic(self) -> str:
        """What was estimated, with heads weighted as they were."""
        return words_by(self.test.statistic, weighted_by(self.estimates.values()))

    @property
    def of(self) -> str:
        """Of which heads and queries it is, with heads weighted as they were."""
        return words_by(self.test.of, weighted_by(self.estimates.values()))

    @property
    def shown(self) -> str:
        """The word of each account; or that it was measured, or what it needs."""
        if self.lacks:
            return f"{NEEDS}{self.lacks}"
        return " · ".join(f"{account} {word}" for account, word in self.verdicts.items()) or MEASURED

    @property
    def reasons(self) -> dict[str, str]:
        """Why each account has its word."""
        judged = isinstance(self.test, Test) and self.verdicts
        return self.test.reasons(self.estimates, self.states, self.a2_cost) if judged else {}

    @property
    def cost(self) -> str:
        """What the second map costs in the heads that the test is about, in words; empty if it is not about heads."""
        return cost_in_words(self.a2_cost) if self.test.inside else ""

    @property
    def idle(self) -> bool:
        """Whether every account is silent because the second map does nothing in the heads that the test is about."""
        return isinstance(self.test, Test) and self.test.idle(self.a2_cost)

    @property
    def answers(self) -> dict[str, str]:
        """What the estimates answer to the question: each word, and the numbers with their intervals that it is derived from.

        Of a test that could not run, what it needs.
        """
        return answers(self.test, self.estimates) if self.estimates else {ABSENT: f"it {self.shown}"}

    @property
    def answer(self) -> str:
        """The same in a line, such as ``no: −0.0464 (95 % −0.0652 to −0.0276)``."""
        return "; ".join(f"{word}: {numbers}" for word, numbers in self.answers.items())

    @property
    def p(self) -> float:
        """The corrected p of the whole test; NaN of tests whose quantities have one each, and of measurements."""
        return next(iter(self.corrected.values()), math.nan) if whole(self.test) else math.nan

    @property
    def judged(self) -> str:
        """The verdict, and beside it the p of the whole test, where it has one."""
        p = "" if math.isnan(self.p) else f" (p {number(self.p)} of the whole test, after {CORRECTIONS[self.test.kind]})"
        return f"{self.shown}{p}"

    def decisive(self) -> list[str]:
        """The seeds and heads without which a quantity that the rule uses would show something else."""
        rests = (decisive(self.estimates[name], self.test.quantities[name]) for name in self.corrected)
        return list(dict.fromkeys(left.what for rest in rests for left in rest))

    def as_dict(self) -> dict:
        """Ready for JSON."""
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
        came = {"answer": self.answer, "shown": self.shown, "verdicts": dict(self.verdicts), "reasons": self.reasons}
        more = {"lacks": self.lacks, "a2_cost": cost, "sentence": self.sentence}
        return {**declared, **came, **more, "estimates": rows}

    @classmethod
    def from_dict(cls, record: Mapping) -> Verdict:
        """The inverse of :meth:`as_dict`, of what JSON made of it.

        Raises
        ------
        DiffscopeError
            The test was declared otherwise when the verdict was made.
        """
        test = TESTS.get(record["id"])
        rows = record["estimates"]
        if test is None or not _same_rule(test, record):
            raise DiffscopeError(f"the test {record['id']!r} is judged by another rule now; run it anew with diffscope test")
        heads = {} if test.needs == "cohort" else {"weighted_by": ANSWER}  # of what was written before there was another way
        estimates = {name: Estimate.from_json(heads | row) for name, row in rows.items()}
        p = {name: row["p_corrected"] for name, row in rows.items() if row["in_rule"]}
        corrected = {name: math.nan if value is None else value for name, value in p.items()}
        states = {name: row["state"] for name, row in rows.items()}
        cost = None if record["a2_cost"] is None else Cost(**record["a2_cost"])
        text = sentence(test, estimates, corrected, states, cost) if rows else record["sentence"]
        return cls(test, record["verdicts"], estimates, corrected, states, text, record["lacks"], cost)


class Board(list[Verdict]):
    """Verdicts side by side: a list that shows itself as a table."""

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


def _same_rule(test: Declared, record: Mapping) -> bool:
    """Whether a verdict was made with the rule, statistic and quantities that are declared now."""
    rows = record["estimates"]
    then = {name: (row["label"], row["margin"]) for name, row in rows.items()}
    now = {name: (quantity.label, quantity.margin) for name, quantity in test.quantities.items()}
    statistics = {words_by(test.statistic, weights) for weights in BY}
    same = (test.kind, test.rule) == (record.get("kind"), record["rule"]) and record["statistic"] in statistics
    return same and then.items() <= now.items()


def weighted_by(estimates: Iterable[Estimate]) -> str:
    """What heads count with in estimates, as :data:`diffscope.hypotheses.weights.BY` names it; empty without heads."""
    return next((estimate.weighted_by for estimate in estimates if estimate.weighted_by), "")


def sentence(
    test: Declared,
    estimates: Mapping[str, Estimate],
    corrected: Mapping[str, float],
    states: Mapping[str, str],
    cost: Cost | None = None,
) -> str:
    """What was measured, what was predicted of it, and what follows; of a mechanism test what its rule uses alone."""
    names = list(corrected if test.kind == "mechanism" else estimates)
    parts = [_in_words(test, name, estimates[name], corrected) for name in names]
    parts += _conclusions(test, estimates, states, cost) if isinstance(test, Test) else []
    notes = dict.fromkeys(part for name in names for part in estimates[name].note.split(". ") if part and test.judged)
    of = (
        [
            f"of {words_by(test.of, weighted_by(estimates.values()))}",
            *([f"what A2 costs there: {cost_in_words(cost)}"] if test.inside else []),
        ]
        if test.judged
        else []
    )
    texts = [
        f"{'. '.join(map(_capital, [*parts, *of]))}. From {'; '.join(_counted(test, estimates, names))}.",
        *(f"{_capital(note)}." for note in notes),
        test.limits,
    ]
    return " ".join(filter(None, texts))


def cost_in_words(cost: Cost | None) -> str:
    """What a second map costs, with its interval; or that this was not measured."""
    if cost is None:
        return "not measured"
    return in_nats(cost) if cost.of == "A2" else f"{in_nats(cost)} for {cost.of}; for A2 alone not measured"


def _conclusions(test: Test, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None) -> list[str]:
    """The word of each account that predicts something, and why; of idle heads once."""
    words = test.judge(estimates, states, cost)
    reasons = test.reasons(estimates, states, cost)
    if test.idle(cost):
        return [f"all accounts: {SILENT} ({reasons[next(iter(test.predictions))]})"]
    return [f"{ACCOUNTS[account]}: {words[account]} ({reasons[account]})" for account in test.predictions]


def _in_words(test: Declared, name: str, estimate: Estimate, corrected: Mapping[str, float]) -> str:
    quantity = test.quantities[name]
    if estimate.why:
        return f"{quantity.label}: undefined, {estimate.why}"
    words = f"{quantity.label}: {number(estimate.value)} (95 % {number(estimate.low)} to {number(estimate.high)}"
    words += f"; {SECOND} {second_view(estimate)}" if estimate.by_answer else ""
    if name not in corrected:
        p = f"; p = {number(uncorrected(test, estimate))}, not corrected" if test.judged else ""
        return f"{words}{p})"
    signs = f" by sign flips, {number(estimate.p_t)} by Student's t" if by_signs(test, estimate) else ""
    after = "" if whole(test) else f"; after {CORRECTIONS[test.kind]} {number(corrected[name])}"
    p = f"p = {number(uncorrected(test, estimate))}{signs}{after}"
    return "; ".join(filter(None, (f"{words}; {p})", decided(estimate, quantity))))


def second_view(estimate: Estimate) -> str:
    """The estimate with heads weighted by A1's mass on the answer, and its interval; empty without one."""
    if not estimate.by_answer:
        return ""
    value, low, high = map(number, estimate.by_answer)
    return f"{value}, {low} to {high}"


def decided(estimate: Estimate, quantity: Quantity) -> str:
    """That one seed or head decides what an estimate shows, or that it shows nothing yet, in words; empty where none does."""
    rest = decisive(estimate, quantity)
    if not rest:
        return ""
    shown = by_interval(estimate, quantity)
    by = "left open by" if shown == OPEN else "decided by"
    if len(rest) > 3:
        return f"{by} any one of {len(rest)} ({', '.join(left.what for left in rest)})"
    each = (f"{left.what} (without it {number(left.value)}, {number(left.low)} to {number(left.high)})" for left in rest)
    return f"{by} {', '.join(each)}"


def _counted(test: Declared, estimates: Mapping[str, Estimate], names: Iterable[str]) -> list[str]:
    """From how many models, seeds and prompts the estimates are; where they differ, which."""
    singular, plural = SUBJECTS[test.needs]
    groups: dict[str, list[str]] = {}
    for name in names:
        counts = estimates[name]
        words = f"{counts.seeds} {plural}" if counts.seeds > 1 else f"one {singular}, {counts.prompts} prompts"
        words += f", {counts.untrained} untrained {plural}" if counts.untrained else ""
        groups.setdefault(words, []).append(test.quantities[name].label)
    if len(groups) == 1:
        return list(groups)
    if not test.judged:
        fewest, most = (of(estimates[name].seeds for name in names) for of in (min, max))
        return [f"{fewest} {plural}" if fewest == most else f"{fewest} to {most} {plural}, as the table says"]
    return [f"{words} ({', '.join(labels)})" for words, labels in groups.items()]


def _capital(words: str) -> str:
    """With a capital, except where the first letter is a symbol of its own, such as λ or d′."""
    return words if words[:1] == "λ" or words[1:2] == "′" else words[0].upper() + words[1:]
