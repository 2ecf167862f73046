"""What came of a test, in numbers and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from diffscope import display
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.answered import ABSENT, answers, number
from diffscope.hypotheses.correction import CORRECTIONS, by_signs, uncorrected, whole
from diffscope.hypotheses.declared import SUBJECTS, TESTS
from diffscope.hypotheses.inference import Estimate
from diffscope.hypotheses.rules import MEASURED, OPEN, Declared, Quantity, Test, by_interval, deciding
from diffscope.hypotheses.weights import ANSWER, SECOND, statistic_by

DECLARED = ("id", "kind", "question", "source", "statistic", "controls", "rule", "needs", "limits")


@dataclass(frozen=True, repr=False)
class Verdict:
    """What came of one test or measurement.

    Attributes
    ----------
    test : Test or Measurement
    verdict : str or None
        NC, SP, both, neither or inconclusive; "needs …" with what is missing; None of a measurement, which has no verdict.
    estimates : dict of str to Estimate
        By quantity.
    corrected : dict of str to float
        p of the quantities that the rule uses, corrected as the test's kind says.
    states : dict of str to str
        By quantity, as :func:`diffscope.hypotheses.rules.state` says.
    sentence : str
        What was measured, what was predicted of it, and what follows.
    """

    test: Declared
    verdict: str | None
    estimates: Mapping[str, Estimate]
    corrected: Mapping[str, float]
    states: Mapping[str, str]
    sentence: str

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
        }
        parts = (display.facts(declared), table if self.estimates else "", display.paragraph(self.sentence))
        return display.card(f"{self.test.id}: {came}", *parts)

    @property
    def statistic(self) -> str:
        """What was estimated, with heads weighted as they were."""
        return statistic_by(self.test.statistic, weighted_by(self.estimates.values()))

    @property
    def shown(self) -> str:
        """The verdict, or that it was measured."""
        return self.verdict or MEASURED

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

    def decided_by(self) -> list[str]:
        """The seeds and heads without which a quantity that the rule uses would show something else."""
        rests = (deciding(self.estimates[name], self.test.quantities[name]) for name in self.corrected)
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
                "decided_by": [left.what for left in deciding(estimate, self.test.quantities[name])],
            }
            for name, estimate in self.estimates.items()
        }
        declared = {name: getattr(self.test, name) for name in DECLARED} | {"statistic": self.statistic}
        came = {"answer": self.answer, "verdict": self.verdict, "sentence": self.sentence}
        return {**declared, **came, "estimates": rows}

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
        estimates = {name: Estimate.from_json(row) for name, row in rows.items()}
        p = {name: row["p_corrected"] for name, row in rows.items() if row["in_rule"]}
        corrected = {name: math.nan if value is None else value for name, value in p.items()}
        states = {name: row["state"] for name, row in rows.items()}
        text = sentence(test, estimates, corrected, states) if rows else record["sentence"]
        return cls(test, record["verdict"], estimates, corrected, states, text)


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
    statistic = statistic_by(test.statistic, next(filter(None, (row.get("weighted_by", ANSWER) for row in rows.values())), ""))
    same = (test.kind, test.rule, statistic) == (record.get("kind"), record["rule"], record["statistic"])
    return same and then.items() <= now.items()


def weighted_by(estimates: Iterable[Estimate]) -> str:
    """What heads count with in estimates, as :data:`diffscope.hypotheses.weights.BY` names it; empty without heads."""
    return next((estimate.weighted_by for estimate in estimates if estimate.weighted_by), "")


def sentence(test: Declared, estimates: Mapping[str, Estimate], corrected: Mapping[str, float], states: Mapping[str, str]) -> str:
    """What was measured, what was predicted of it, and what follows; of a mechanism test what its rule uses alone."""
    names = list(corrected if test.kind == "mechanism" else estimates)
    parts = [_in_words(test, name, estimates[name], corrected) for name in names]
    parts += test.conclusions(states) if isinstance(test, Test) else []
    notes = dict.fromkeys(part for name in names for part in estimates[name].note.split(". ") if part and test.judged)
    texts = [
        f"{'. '.join(map(_capital, parts))}. From {'; '.join(_counted(test, estimates, names))}.",
        *(f"{_capital(note)}." for note in notes),
        test.limits,
    ]
    return " ".join(filter(None, texts))


def _in_words(test: Declared, name: str, estimate: Estimate, corrected: Mapping[str, float]) -> str:
    quantity = test.quantities[name]
    if estimate.why:
        return f"{quantity.label}: undefined, {estimate.why}"
    words = f"{quantity.label}: {number(estimate.value)} (95 % {number(estimate.low)} to {number(estimate.high)}"
    words += f"; {SECOND} {second_view(estimate)}" if estimate.by_answer else ""
    if name not in corrected:
        p = f"; p = {number(uncorrected(test, estimate))}, not corrected" if test.judged else ""
        return f"{words}{p})"
    signs = f" by turned signs, {number(estimate.p_t)} by Student's t" if by_signs(test, estimate) else ""
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
    rest = deciding(estimate, quantity)
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
