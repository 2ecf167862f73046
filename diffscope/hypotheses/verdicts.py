"""What came of a test, and how it is said in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.declared import SUBJECTS, TESTS
from diffscope.hypotheses.inference import LEVEL, Estimate
from diffscope.hypotheses.rules import NAMES, Test, against, words


@dataclass(frozen=True)
class Verdict:
    """What came of one test.

    Attributes
    ----------
    test : Test
    verdict : str
        NC, SP, both, neither, inconclusive, or "needs …" with what is missing.
    estimates : dict of str to Estimate
        By quantity.
    adjusted : dict of str to float
        Holm's p of the quantities that the rule uses, over the board.
    states : dict of str to str
        above, below, none or open.
    sentence : str
        What a careful reviewer would sign.
    """

    test: Test
    verdict: str
    estimates: Mapping[str, Estimate]
    adjusted: Mapping[str, float]
    states: Mapping[str, str]
    sentence: str

    def as_dict(self) -> dict:
        """Ready for JSON."""
        declared = {
            name: getattr(self.test, name)
            for name in ("id", "claim", "source", "statistic", "controls", "rule", "needs", "limits", "unable")
        }
        rows = {
            name: {
                **asdict(found),
                "label": self.test.quantities[name].label,
                "margin": self.test.quantities[name].margin,
                "p_holm": self.adjusted.get(name),
                "in_rule": name in self.adjusted,
                "state": self.states[name],
            }
            for name, found in self.estimates.items()
        }
        return {**declared, "verdict": self.verdict, "sentence": self.sentence, "estimates": rows}

    @classmethod
    def from_dict(cls, kept: Mapping) -> Verdict:
        """The inverse of :meth:`as_dict`, of what JSON made of it.

        Raises
        ------
        DiffscopeError
            The test was declared otherwise when the verdict was made.
        """
        test, rows = TESTS.get(kept["id"]), kept["estimates"]
        asked = {name: (row["label"], row["margin"]) for name, row in rows.items()}
        now = test and {name: (one.label, one.margin) for name, one in test.quantities.items() if rows}
        if test is None or (test.rule, test.statistic, now) != (kept["rule"], kept["statistic"], asked):
            raise DiffscopeError(f"the test {kept['id']!r} is judged by another rule now; run it anew with diffscope test")
        estimates = {name: Estimate.from_json(row) for name, row in rows.items()}
        adjusted = {name: math.nan if row["p_holm"] is None else row["p_holm"] for name, row in rows.items() if row["in_rule"]}
        states = {name: row["state"] for name, row in rows.items()}
        text = sentence(test, kept["verdict"], estimates, adjusted, states) if rows else kept["sentence"]
        return cls(test, kept["verdict"], estimates, adjusted, states, text)


def sentence(test: Test, verdict: str, found, adjusted, states) -> str:
    """What was measured, what was predicted of it, and what follows."""
    parts = []
    after = " after Holm" if test.predictions else ""
    for name, p in (adjusted or {name: one.p for name, one in found.items()}).items():
        one, quantity = found[name], test.quantities[name]
        if one.why:
            parts.append(f"{quantity.label}: undefined, {one.why}")
            continue
        parts.append(f"{quantity.label}: {one.value:.3g} (95 % {one.low:.3g} to {one.high:.3g}, p = {p:.2g}{after})")
    if not test.predictions:
        parts.append("neither account predicts anything of it")
    for hypothesis, wanted in test.predictions.items():
        judged = [(name, what, states[name]) for name, what in wanted.items()]
        wrong = [
            f"{test.quantities[name].label} is not {words(what, test.quantities[name])}"
            for name, what, is_ in judged
            if against(is_, what)
        ]
        if all(what == is_ for _, what, is_ in judged):
            parts.append(f"as {NAMES[hypothesis]} predicts")
        elif wrong:
            parts.append(f"against {NAMES[hypothesis]}: {'; '.join(wrong)}")
        else:
            parts.append(f"{NAMES[hypothesis]} is neither borne out nor ruled out")
    number = f"From {'; '.join(_counted(test, found, adjusted or found))}"
    notes = dict.fromkeys(one.note for one in found.values() if one.note)
    unable = f"It cannot tell the accounts apart: {test.unable}." if test.unable else ""
    return " ".join(
        filter(
            None, (f"{'. '.join(map(_capital, parts))}. {number}.", *(f"{_capital(one)}." for one in notes), test.limits, unable)
        )
    )


def _counted(test: Test, found: Mapping[str, Estimate], names) -> list[str]:
    """What the estimates are of; where they differ, which."""
    one, several = SUBJECTS[test.needs]
    groups: dict[str, list[str]] = {}
    for name in names:
        counts = found[name]
        said = f"{counts.seeds} {several}" if counts.seeds > 1 else f"one {one}, {counts.prompts} prompts"
        said += f", {counts.untrained} untrained {several}" if counts.untrained else ""
        groups.setdefault(said, []).append(test.quantities[name].label)
    return [said if len(groups) == 1 else f"{said} ({', '.join(labels)})" for said, labels in groups.items()]


def together(verdicts: Sequence[Verdict]) -> str:
    """What the evidence supports together, and what is missing."""
    count = {}
    for one in verdicts:
        name = f"{one.test.id}*" if one.test.unable else one.test.id
        said = "needs" if one.verdict.startswith("needs ") else one.verdict if one.test.predictions else "measured"
        count.setdefault(said, []).append(name)
    said = []
    for verdict, start in (
        ("NC", "as noise cancellation predicts"),
        ("SP", "as sparsification predicts"),
        ("both", "as both predict"),
        ("neither", "against what was predicted, which random weights may be as well"),
        ("inconclusive", "undecided"),
        ("measured", "measured, of which neither predicts anything"),
    ):
        if verdict in count:
            said.append(f"{len(count[verdict])} {start} ({', '.join(count[verdict])})")
    if "needs" in count:
        said.append(f"{len(count['needs'])} not run for want of what they need ({', '.join(count['needs'])})")
    starred = " Those with * cannot tell the two apart." if any(one.test.unable for one in verdicts) else ""
    corrected = f"Holm's correction over what the rules of these tests use, at {LEVEL:g}: fewer tests, less correction."
    return f"Of {len(verdicts)} tests: {'; '.join(said)}.{starred} {corrected}"


def _capital(words: str) -> str:
    """With a capital, except where the first letter is a symbol of its own, such as λ or d′."""
    return words if words[:1] == "λ" or words[1:2] == "′" else words[0].upper() + words[1:]
