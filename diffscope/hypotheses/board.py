"""All tests side by side: run what a subject supports, name what the others need, correct for how many there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, PromptError
from diffscope.hypotheses import of_checkpoints, of_family, of_flow, of_model, of_noise, of_pair, of_robustness
from diffscope.hypotheses.inference import LEVEL, Estimate, Observed, as_estimate, holm
from diffscope.hypotheses.rules import NAMES, Missing, Test, against, judge, state, words
from diffscope.hypotheses.subjects import Pair, Subject

OBSERVERS = {
    "model": of_model.TESTS | of_noise.TESTS | of_flow.TESTS,
    "pair": of_pair.TESTS | of_flow.PAIRS | of_robustness.PAIRS,
    "checkpoints": of_checkpoints.TESTS | of_flow.CHECKPOINTS,
    "family": of_family.TESTS,
}
TESTS: dict[str, Test] = {test.id: test for tests in OBSERVERS.values() for test in tests}
SUBJECTS = {
    "model": ("model", "models"),
    "pair": ("pair", "pairs"),
    "checkpoints": ("series of checkpoints", "series"),
    "family": ("seed", "seeds"),
}
NEEDED = {
    "model": "a differential model with a tokenizer for retrieval prompts",
    "pair": "a standard model beside it (--baseline NAME)",
    "checkpoints": "checkpoints along its training, of one model",
    "family": "a trained family (--family FOLDER)",
}


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
        sentence = _sentence(test, kept["verdict"], estimates, adjusted, states) if rows else kept["sentence"]
        return cls(test, kept["verdict"], estimates, adjusted, states, sentence)


def chosen(ids: Sequence[str]) -> list[Test]:
    """Tests by id; all without any."""
    if unknown := [one for one in ids if one not in TESTS]:
        raise DiffscopeError(f"there is no test {unknown[0]!r}; there are: {', '.join(TESTS)}")
    return [TESTS[one] for one in ids or TESTS]


def run(
    ids: Sequence[str] = (),
    model: Subject | None = None,
    family: xr.Dataset | None = None,
    *,
    pair: Pair | None = None,
    checkpoints: Sequence[Subject] = (),
    progress: Callable[[int, int, str], None] | None = None,
    kept: MutableMapping[str, dict[str, Estimate] | str] | None = None,
) -> list[Verdict]:
    """Run tests and judge them by the rules they declared.

    Parameters
    ----------
    ids : sequence of str
        By default all.
    model : Subject, optional
    family : Dataset, optional
        What ``diffscope train`` measured of a family, ``family.nc``.
    pair : Pair, optional
    checkpoints : sequence of Subject
        Of each training its checkpoints, ``NAME@STEP``, in order; several trainings are seeds.
    progress : callable, optional
        Called with (tests done, tests in all, id).
    kept : mutable mapping, optional
        Estimates of tests by id, or what they need, that are taken from there or put there as they are finished.

    Returns
    -------
    list of Verdict
        In the order asked; a test that cannot be run says what it needs.
    """
    subjects = {"model": model, "pair": pair, "checkpoints": list(checkpoints) or None, "family": family}
    tests, kept, found = chosen(ids), {} if kept is None else kept, {}
    for number, test in enumerate(tests):
        if progress:
            progress(number, len(tests), test.id)
        found[test.id] = kept[test.id] if test.id in kept else _found(test, subjects[test.needs])
        kept[test.id] = found[test.id]
    adjusted = _adjusted([test for test in tests if not isinstance(found[test.id], str)], found)
    return [
        _needs(test, found[test.id]) if isinstance(found[test.id], str) else _verdict(test, found[test.id], adjusted)
        for test in tests
    ]


def _found(test: Test, subject) -> dict[str, Estimate] | str:
    """The estimates of a test, or what it needs."""
    if subject is None:
        return NEEDED[test.needs]
    observe = OBSERVERS[test.needs][test]
    try:
        observed = _of_trainings(observe, subject) if test.needs == "checkpoints" else observe(subject)
    except Missing as error:
        return str(error)
    except PromptError as error:
        return f"other prompts: {error}"
    except DiffscopeError as error:
        return f"a model and prompts that allow it: {error}"
    return {name: as_estimate(one) for name, one in observed.items()}


def _of_trainings(observe: Callable, trainings: Sequence[Subject]) -> dict[str, Observed]:
    """What is observed of each training, as seeds; one that lacks what others have is left out."""
    found, lacking = [], []
    for series in trainings:
        try:
            found.append(observe(series))
        except Missing as error:
            lacking.append(error)
    if not found:
        raise lacking[0]
    note = f"{len(lacking)} of {len(trainings)} trainings are left out, for want of {lacking[0]}" if lacking else ""
    return {
        name: Observed(
            *(np.concatenate([getattr(one[name], part) for one in found]) for part in ("values", "untrained")), note=note
        )
        for name in found[0]
    }


def _adjusted(tests: Sequence[Test], found: Mapping[str, Mapping[str, Estimate]]) -> dict[tuple[str, str], float]:
    """Holm's p of every quantity that a rule uses; what two tests ask alike counts once."""
    asked = {(test.id, name): found[test.id][name] for test in tests for wanted in test.predictions.values() for name in wanted}
    labels = {key: (TESTS[key[0]].quantities[key[1]].label, asked[key].p) for key in asked}
    distinct = list(dict.fromkeys(labels.values()))
    corrected = dict(zip(distinct, holm([p for _, p in distinct])))
    return {key: corrected[label] for key, label in labels.items()}


def _needs(test: Test, what: str) -> Verdict:
    return Verdict(test, f"needs {what}", {}, {}, {}, f"Not run: it needs {what}.")


def _verdict(test: Test, found: Mapping[str, Estimate], adjusted: Mapping[tuple[str, str], float]) -> Verdict:
    own = {name: p for (id, name), p in adjusted.items() if id == test.id}
    states = {name: state(one, own.get(name, one.p), test.quantities[name].margin) for name, one in found.items()}
    states = {name: is_ if name in own else f"{is_} (uncorrected)" for name, is_ in states.items()}
    verdict = judge(test, states)
    return Verdict(test, verdict, found, own, states, _sentence(test, verdict, found, own, states))


def _sentence(test: Test, verdict: str, found, adjusted, states) -> str:
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
