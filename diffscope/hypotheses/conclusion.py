"""What a board supports taken together, and what is missing, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from diffscope.hypotheses.answered import answers, number
from diffscope.hypotheses.correction import CORRECTIONS, PRIMARIES
from diffscope.hypotheses.declared import KINDS, TESTS
from diffscope.hypotheses.intervals import LEVEL
from diffscope.hypotheses.rules import ACCOUNTS, MEASURED, NONE, Test
from diffscope.hypotheses.verdicts import Verdict

COUNTED = {
    "NC": "as noise cancellation predicts",
    "SP": "as sparsification predicts",
    "both": "as both predict",
    "neither": "against what was predicted",
    "inconclusive": "inconclusive",
    MEASURED: "measured, without a verdict",
    "needs": "not run for want of what they need",
}
SHOWN = {  # of a primary that does not tell the accounts apart: whether that is what both say of DIFF
    "both": "both, as both accounts predict",
    "neither": "neither; at least one comparison contradicts both accounts",
    "inconclusive": "inconclusive",
}


def summary(verdicts: Sequence[Verdict]) -> str:
    """What the evidence supports taken together, and what is missing; paragraphs with an empty line between them."""
    return "\n\n".join(filter(None, (_counts(verdicts), together(verdicts), _missing(verdicts), _corrections(verdicts))))


def of_kind(verdicts: Iterable[Verdict], kind: str) -> list[Verdict]:
    """Those of primary tests, of mechanism tests or of measurements."""
    return [verdict for verdict in verdicts if verdict.test.kind == kind]


def _counts(verdicts: Sequence[Verdict]) -> str:
    sentences = []
    for kind, words in KINDS.items():
        ids: dict[str, list[str]] = {}
        for verdict in of_kind(verdicts, kind):
            ids.setdefault(verdict.shown.partition(" ")[0], []).append(verdict.test.id)
        parts = [f"{len(ids[shown])} {words} ({', '.join(ids[shown])})" for shown, words in COUNTED.items() if shown in ids]
        if parts:
            sentences.append(f"{words}: {'; '.join(parts)}.")
    return " ".join(sentences)


def together(verdicts: Sequence[Verdict]) -> str:
    """What the primaries say: first whether there is a benefit, then which account they bear out."""
    primaries = {verdict.test.id: verdict for verdict in of_kind(verdicts, "primary") if verdict.estimates}
    if not primaries:
        return "No primary test was run: nothing is said here for one account over the other."
    alike = [verdict for verdict in primaries.values() if isinstance(verdict.test, Test) and not verdict.test.tells_apart]
    benefit = [
        f"{verdict.test.question} {_by_comparison(verdict)}. Verdict: {SHOWN[verdict.shown]}{_p(verdict)}." for verdict in alike
    ]
    telling = [test for id in PRIMARIES if isinstance(test := TESTS[id], Test) and test.tells_apart]
    nothing = [
        f"{test.id} came out as {ACCOUNTS[account]} predicts, which is that there is no effect: that speaks against "
        f"{ACCOUNTS[_other(account)]}, and for no account."
        for test in telling
        for account in test.predictions
        if test.id in primaries and primaries[test.id].shown == account and not _effect(test, account)
    ]
    return " ".join([*benefit, _between(primaries, telling), *nothing])


def _by_comparison(verdict: Verdict) -> str:
    """What each comparison answers to the question: "Beside standard attention yes (…); beside double-width not told apart …"."""
    parts = []
    for name in verdict.test.asks:
        if name in verdict.estimates:
            said = answers(verdict.test, {name: verdict.estimates[name]})
            called = verdict.test.quantities[name].short or name.replace("_", " ")
            for word, numbers in said.items():
                bare = numbers.removeprefix(called).strip().replace(" (95 %", ", 95 %").removesuffix(")")
                parts.append(f"{called} {word} ({bare})")
    return f"Beside {'; beside '.join(parts)}" if parts else verdict.answer.capitalize()


def _p(verdict: Verdict) -> str:
    return "" if math.isnan(verdict.p) else f", p {number(verdict.p)}"


def _other(account: str) -> str:
    return next(other for other in ACCOUNTS if other != account)


def _effect(test: Test, account: str) -> bool:
    """Whether an account predicts something that nothing would not show as well."""
    return any(state != NONE for state in test.predictions.get(account, {}).values())


def _between(primaries: dict[str, Verdict], telling: Sequence[Test]) -> str:
    """What the primaries that tell the accounts apart say of these."""
    shown = {test.id: primaries[test.id].shown for test in telling if test.id in primaries}
    asked = {account: [test.id for test in telling if _effect(test, account)] for account in ACCOUNTS}
    favoured = {account: [id for id in ids if shown.get(id) == account] for account, ids in asked.items()}
    supported = [account for account, ids in favoured.items() if ids]
    if len(supported) == 2:
        return (
            f"The primary tests contradict each other: {', '.join(favoured['NC'])} came out as noise cancellation predicts, "
            f"{', '.join(favoured['SP'])} as sparsification predicts."
        )
    if not supported:
        return "The primary tests do not decide between noise cancellation and sparsification."
    (account,) = supported
    if all(shown.get(test.id) == account for test in telling):
        return (
            f"All primary tests that tell the accounts apart ({', '.join(shown)}) came out as {ACCOUNTS[account]} predicts: the "
            f"evidence supports {ACCOUNTS[account]} and not {ACCOUNTS[_other(account)]}."
        )
    rest = ", ".join(f"{test.id}: {shown.get(test.id, 'not run')}" for test in telling if shown.get(test.id) != account)
    return (
        f"Of the primary tests that tell the accounts apart {', '.join(favoured[account])} came out as {ACCOUNTS[account]} "
        f"predicts, and the other did not ({rest}): the evidence supports {ACCOUNTS[account]} in part, and does not decide."
    )


def _missing(verdicts: Sequence[Verdict]) -> str:
    needs = {verdict.test.id: verdict.shown for verdict in verdicts if verdict.shown.startswith("needs ")}
    inconclusive = [verdict.test.id for verdict in verdicts if verdict.shown == "inconclusive"]
    needed: dict[str, list[str]] = {}
    for id, words in needs.items():
        needed.setdefault(words.removeprefix("needs "), []).append(id)
    parts = [f"{words} (for {', '.join(ids)})" for words, ids in needed.items()]
    if inconclusive:
        parts.append(f"more seeds, prompts or models for what is inconclusive ({', '.join(inconclusive)})")
    absent = set(PRIMARIES) - {verdict.test.id for verdict in verdicts}
    if absent and len(absent) < len(PRIMARIES):
        parts.append(f"the primary tests that were not asked for ({', '.join(id for id in PRIMARIES if id in absent)})")
    sentences = [f"Missing: {'; '.join(parts)}."] if parts else []
    fragile = [f"{verdict.test.id} ({', '.join(words)})" for verdict in verdicts if (words := verdict.decided_by())]
    if fragile:
        sentences.append(f"One seed or one head decides what is shown, or leaves it open, in: {'; '.join(fragile)}.")
    return " ".join(sentences)


def _corrections(verdicts: Sequence[Verdict]) -> str:
    kinds = {verdict.test.kind for verdict in verdicts if verdict.estimates}
    quantities = sum(len(verdict.corrected) for verdict in of_kind(verdicts, "mechanism"))
    of = {
        "primary": f"{CORRECTIONS['primary']}'s over the {len(PRIMARIES)} primary tests, whichever were run",
        "mechanism": f"{CORRECTIONS['mechanism']}'s over the {quantities} quantities that mechanism tests on this board use",
    }
    words = [text for kind, text in of.items() if kind in kinds]
    return f"Corrections, at {LEVEL:g}: {'; '.join(words)}." if words else ""
