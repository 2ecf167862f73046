"""What came of a test, in numbers and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.declared import SUBJECTS, TESTS
from diffscope.hypotheses.inference import LEVEL, Estimate
from diffscope.hypotheses.rules import MEASURED, Declared, Test

DECLARED = ("id", "claim", "source", "statistic", "controls", "rule", "needs", "limits")
SUMMARY = {
    "NC": "as noise cancellation predicts",
    "SP": "as sparsification predicts",
    "both": "as both predict",
    "neither": "against what was predicted, which random weights may be as well",
    "inconclusive": "undecided",
    MEASURED: "measured, without a verdict",
    "needs": "not run for want of what they need",
}


@dataclass(frozen=True)
class Verdict:
    """What came of one test or measurement.

    Attributes
    ----------
    test : Test or Measurement
    verdict : str or None
        NC, SP, both, neither or inconclusive; "needs …" with what is missing; None of a measurement, which has no verdict.
    estimates : dict of str to Estimate
        By quantity.
    adjusted : dict of str to float
        Holm's p of the quantities that the rule uses, over the board.
    states : dict of str to str
        By quantity, as :func:`diffscope.hypotheses.rules.state` says.
    sentence : str
        What was measured, what was predicted of it, and what follows.
    """

    test: Declared
    verdict: str | None
    estimates: Mapping[str, Estimate]
    adjusted: Mapping[str, float]
    states: Mapping[str, str]
    sentence: str

    @property
    def shown(self) -> str:
        """The verdict, or that it was measured."""
        return self.verdict or MEASURED

    def as_dict(self) -> dict:
        """Ready for JSON."""
        rows = {
            name: {
                **asdict(estimate),
                "label": self.test.quantities[name].label,
                "margin": self.test.quantities[name].margin,
                "p_holm": self.adjusted.get(name),
                "in_rule": name in self.adjusted,
                "state": self.states[name],
            }
            for name, estimate in self.estimates.items()
        }
        declared = {name: getattr(self.test, name) for name in DECLARED}
        return {**declared, "verdict": self.verdict, "sentence": self.sentence, "estimates": rows}

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
        adjusted = {name: math.nan if row["p_holm"] is None else row["p_holm"] for name, row in rows.items() if row["in_rule"]}
        states = {name: row["state"] for name, row in rows.items()}
        text = sentence(test, estimates, adjusted, states) if rows else record["sentence"]
        return cls(test, record["verdict"], estimates, adjusted, states, text)


def _same_rule(test: Declared, record: Mapping) -> bool:
    """Whether a verdict was made with the rule, statistic and quantities that are declared now."""
    rows = record["estimates"]
    then = {name: (row["label"], row["margin"]) for name, row in rows.items()}
    now = {name: (quantity.label, quantity.margin) for name, quantity in test.quantities.items()} if rows else {}
    return (test.rule, test.statistic, now) == (record["rule"], record["statistic"], then)


def sentence(test: Declared, estimates: Mapping[str, Estimate], adjusted: Mapping[str, float], states: Mapping[str, str]) -> str:
    """What was measured, what was predicted of it, and what follows; of quantities that no rule uses if there are no others."""
    names = list(adjusted or estimates)
    parts = []
    for name in names:
        p = f"p = {adjusted[name]:.2g} after Holm" if adjusted else f"p = {estimates[name].p:.2g}"
        parts.append(_in_words(test.quantities[name].label, estimates[name], p))
    parts += test.conclusions(states) if isinstance(test, Test) else []
    notes = dict.fromkeys(estimate.note for estimate in estimates.values() if estimate.note)
    texts = [
        f"{'. '.join(map(_capital, parts))}. From {'; '.join(_counted(test, estimates, names))}.",
        *(f"{_capital(note)}." for note in notes),
        test.limits,
    ]
    return " ".join(filter(None, texts))


def _in_words(label: str, estimate: Estimate, p: str) -> str:
    if estimate.why:
        return f"{label}: undefined, {estimate.why}"
    return f"{label}: {estimate.value:.3g} (95 % {estimate.low:.3g} to {estimate.high:.3g}, {p})"


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
    return [f"{words} ({', '.join(labels)})" for words, labels in groups.items()]


def summary(verdicts: Sequence[Verdict]) -> str:
    """What the evidence supports taken together, and what is missing."""
    names: dict[str, list[str]] = {}
    for verdict in verdicts:
        names.setdefault(verdict.shown.partition(" ")[0], []).append(verdict.test.id)
    parts = [f"{len(names[kind])} {words} ({', '.join(names[kind])})" for kind, words in SUMMARY.items() if kind in names]
    corrected = f"Holm's correction over what the rules of these tests use, at {LEVEL:g}: fewer tests, less correction."
    return f"Of {len(verdicts)} tests: {'; '.join(parts)}. {corrected}"


def _capital(words: str) -> str:
    """With a capital, except where the first letter is a symbol of its own, such as λ or d′."""
    return words if words[:1] == "λ" or words[1:2] == "′" else words[0].upper() + words[1:]
