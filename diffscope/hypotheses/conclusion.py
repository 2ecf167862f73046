"""A board in words: what its verdicts support overall, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from diffscope.hypotheses.accounts import ACCOUNTS, AGAINST, FOR, OPEN, SILENT, WORDS
from diffscope.hypotheses.rules import MEASURED
from diffscope.hypotheses.sentence import CORRECTIONS, answers, number
from diffscope.hypotheses.tests import KINDS, PRIMARIES
from diffscope.hypotheses.verdict import Verdict
from diffscope.numbers import listed
from diffscope.stats.intervals import LEVEL

OUTCOMES = {  # what the word of a test on which accounts agree says of the benefit
    SILENT: "it holds, and says nothing of why: {accounts} predict the same",
    AGAINST: "it does not hold, against {accounts}, which predict it alike",
    OPEN: "open; {accounts} predict the same, so it could be for none of them alone",
}


def summary(verdicts: Sequence[Verdict]) -> str:
    """Say what the evidence supports overall, and what is missing, in paragraphs with an empty line between them."""
    return "\n\n".join(filter(None, (_counts(verdicts), *overall(verdicts), _missing(verdicts), _corrections(verdicts))))


def of_kind(verdicts: Iterable[Verdict], kind: str) -> list[Verdict]:
    """Select the primary tests, the mechanism tests or the measurements."""
    return [verdict for verdict in verdicts if verdict.test.kind == kind]


def _counts(verdicts: Sequence[Verdict]) -> str:
    sentences = []
    for kind, words in KINDS.items():
        listed = of_kind(verdicts, kind)
        judged = [verdict for verdict in listed if verdict.verdicts]
        parts = [by_word(account, judged) for account in ACCOUNTS] if judged else []
        measured = [verdict.test.id for verdict in listed if verdict.shown == MEASURED]
        lacking = [verdict.test.id for verdict in listed if verdict.lacks]
        parts += [f"{len(measured)} measured, without a verdict ({', '.join(measured)})"] if measured else []
        parts += [f"{len(lacking)} not run for want of what they need ({', '.join(lacking)})"] if lacking else []
        if parts:
            sentences.append(f"{words}: {'; '.join(parts)}.")
    return " ".join(sentences)


def by_word(account: str, judged: Sequence[Verdict]) -> str:
    """Count the tests by their word for an account, with their names unless they are silent."""
    ids = _ids_by_word(account, judged)
    parts = [f"{word} {len(ids[word])} ({', '.join(ids[word])})" for word in (FOR, AGAINST, OPEN) if ids[word]]
    parts += [f"{SILENT} {len(ids[SILENT])}"] if ids[SILENT] else []
    return f"{ACCOUNTS[account]}: {', '.join(parts)}" if parts else ""


def _ids_by_word(account: str, judged: Iterable[Verdict]) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {word: [] for word in WORDS}
    for verdict in judged:
        ids[verdict.verdicts[account]].append(verdict.test.id)
    return ids


def overall(verdicts: Sequence[Verdict]) -> list[str]:
    """Say what the tests support overall, in paragraphs.

    First the accounts, then each of them, then whether DIFF is better, last in which heads the second map is idle, and where that
    is not known.
    """
    judged = [verdict for kind in ("primary", "mechanism") for verdict in of_kind(verdicts, kind) if verdict.verdicts]
    if not judged:
        return ["No test with a verdict was run: nothing is said here of any account."]
    alike = [verdict for verdict in judged if not verdict.test.tells_apart and verdict.test.kind == "primary"]
    accounts = (_of_account(account, judged) for account in ACCOUNTS)
    return [*filter(None, (_supported(judged), *accounts, *map(_benefit, alike), _costs(judged)))]


def _benefit(verdict: Verdict) -> str:
    """Say what a primary shows of which accounts predict the same: whether there is a benefit to explain."""
    words = {account: verdict.verdicts[account] for account in verdict.test.predictions}
    alike = OUTCOMES[next(iter(words.values()))].format(accounts=listed(list(words))) if len(set(words.values())) == 1 else ""
    return f"{verdict.test.question} {_by_comparison(verdict)}. Verdict: {alike or verdict.shown}{_p(verdict)}."


def _of_account(account: str, judged: Sequence[Verdict]) -> str:
    """List the tests for an account, against it, and open."""
    ids = _ids_by_word(account, judged)
    name = ACCOUNTS[account].capitalize()
    if not (ids[FOR] or ids[AGAINST] or ids[OPEN]):
        return f"{name}: nothing that was run says anything of it."
    parts = [f"for it: {', '.join(ids[FOR]) or 'nothing'}", f"against it: {', '.join(ids[AGAINST]) or 'nothing'}"]
    parts += [f"open: {', '.join(ids[OPEN])}"] if ids[OPEN] else []
    able = any(verdict.test.own(account) and not verdict.idle for verdict in judged)
    return f"{name}: {'; '.join(parts)}.{'' if able else ' No test that was run could have been for it.'}"


def _supported(judged: Sequence[Verdict]) -> str:
    """Say which accounts the evidence supports: primaries decide, mechanism tests are exploratory."""
    words = {
        kind: {account: _ids_by_word(account, of_kind(judged, kind)) for account in ACCOUNTS} for kind in ("primary", "mechanism")
    }
    primary, mechanism = words["primary"], words["mechanism"]
    borne = [account for account in ACCOUNTS if primary[account][FOR]]
    disputed = [account for account in borne if primary[account][AGAINST]]
    failed = [account for account in ACCOUNTS if primary[account][AGAINST] and account not in borne]
    explored = [account for account in ACCOUNTS if mechanism[account][FOR] and account not in borne]
    sentences = []
    if disputed:
        sentences.append(f"the primary tests contradict each other on {_named(disputed)}")
    if clear := [account for account in borne if account not in disputed]:
        sentences.append(f"the primary tests support {_named(clear)}")
    if not borne:
        sentences.append(
            "the primary tests support none of the three accounts" if of_kind(judged, "primary") else "no primary test was run"
        )
    if failed:
        sentences.append(f"they speak against {_named(failed)}")
    if explored:
        sentences.append(f"mechanism tests, which are explored and do not decide, speak for {_named(explored)}")
    return f"Taken together: {'; '.join(sentences)}."


def _named(accounts: Sequence[str]) -> str:
    return listed([ACCOUNTS[account] for account in accounts])


def _costs(judged: Sequence[Verdict]) -> str:
    """Say in which heads the second map is idle, and where that is not known."""
    inside = [verdict for verdict in judged if verdict.test.inside]
    idle = [verdict.test.id for verdict in inside if verdict.idle]
    unknown = [verdict.test.id for verdict in inside if verdict.a2_cost is None or verdict.a2_cost.of != "A2"]
    sentences = []
    if idle:
        sentences.append(f"In the heads of {', '.join(idle)} A2 is idle, so that there is nothing to explain there.")
    if unknown := [id for id in unknown if id not in idle]:
        sentences.append(
            f"What A2 alone costs in the heads of {', '.join(unknown)} was not measured: a null there may be that of idle maps."
        )
    return " ".join(sentences)


def _by_comparison(verdict: Verdict) -> str:
    """Answer the question by comparison: "Beside standard attention yes (…); beside double-width not told apart …"."""
    parts = []
    for name in verdict.test.asks:
        if name in verdict.estimates:
            said = answers(verdict.test, {name: verdict.estimates[name]})
            called = verdict.test.quantities[name].short or name.replace("_", " ")
            for word, numbers in said.items():
                bare = numbers.removeprefix(called).strip().replace(" (95 %", ", 95 %").removesuffix(")")
                parts.append(f"{called} {word} ({bare})")
    return f"Beside {'; beside '.join(parts)}" if parts else verdict.answer.capitalize()


def lacking(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    """Return what tests could not be run for want of, and the tests that want it."""
    wants: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.lacks:
            wants.setdefault(verdict.lacks, []).append(verdict.test.id)
    return wants


def _p(verdict: Verdict) -> str:
    return "" if math.isnan(verdict.p) else f", p {number(verdict.p)}"


def _missing(verdicts: Sequence[Verdict]) -> str:
    undecided = [verdict.test.id for verdict in verdicts if OPEN in verdict.verdicts.values()]
    parts = [f"{words} (for {', '.join(ids)})" for words, ids in lacking(verdicts).items()]
    if undecided:
        parts.append(f"more seeds, prompts or models for what is open ({', '.join(undecided)})")
    if few := [verdict.test.id for verdict in of_kind(verdicts, "primary") if _too_few(verdict)]:
        parts.append(
            f"seeds: there are too few for sign flips to come out at {LEVEL:g} after Holm's correction in {', '.join(few)}"
        )
    absent = set(PRIMARIES) - {verdict.test.id for verdict in verdicts}
    if absent and len(absent) < len(PRIMARIES):
        parts.append(f"the primary tests that were not asked for ({', '.join(id for id in PRIMARIES if id in absent)})")
    sentences = [f"Missing: {'; '.join(parts)}."] if parts else []
    fragile = [f"{verdict.test.id} ({', '.join(words)})" for verdict in verdicts if (words := verdict.decisive())]
    if fragile:
        sentences.append(f"One seed or one head decides what is shown, or leaves it open, in: {'; '.join(fragile)}.")
    return " ".join(sentences)


def _too_few(verdict: Verdict) -> bool:
    """Whether one comparison of a primary has too few seeds for any p to come out after the correction."""
    judged = (verdict.estimates[name] for name in verdict.corrected)
    return any(estimate.least_p * len(PRIMARIES) > LEVEL for estimate in judged)


def _corrections(verdicts: Sequence[Verdict]) -> str:
    kinds = {verdict.test.kind for verdict in verdicts if verdict.estimates}
    quantities = sum(len(verdict.corrected) for verdict in of_kind(verdicts, "mechanism"))
    of = {
        "primary": f"{CORRECTIONS['primary']}'s over the {len(PRIMARIES)} primary tests, whichever were run",
        "mechanism": f"{CORRECTIONS['mechanism']}'s over the {quantities} quantities that mechanism tests on this board use",
    }
    words = [text for kind, text in of.items() if kind in kinds]
    return f"Corrections, at {LEVEL:g}: {'; '.join(words)}." if words else ""
