"""Verdicts in words: one test in a sentence, and what a board supports overall and lacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from diffscope.accounts import ACCOUNTS, AGAINST, FOR, OPEN, SILENT, WORDS
from diffscope.hypotheses.declared import KINDS, PRIMARIES, SUBJECTS
from diffscope.hypotheses.intervals import LEVEL
from diffscope.hypotheses.rules import MEASURED, Cost, Declared, Quantity, Test, by_interval, decisive
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.verdict import (
    CORRECTIONS,
    Verdict,
    answers,
    by_signs,
    cost_in_words,
    number,
    uncorrected,
    weighted_by,
    whole,
)
from diffscope.hypotheses.weights import SECOND, words_by

OUTCOMES = {  # what the word of a test on which accounts agree says of the benefit
    SILENT: "it holds, and says nothing of why: {accounts} predict the same",
    AGAINST: "it does not hold, against {accounts}, which predict it alike",
    OPEN: "open; {accounts} predict the same, so it could be for none of them alone",
}


def sentence(
    test: Declared,
    estimates: Mapping[str, Estimate],
    corrected: Mapping[str, float],
    states: Mapping[str, str],
    cost: Cost | None = None,
) -> str:
    """Say what was measured, what was predicted and what follows; of a mechanism test only the quantities of its rule."""
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


def _conclusions(test: Test, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None) -> list[str]:
    """Give the word of each account that predicts something, and why; once for all if the heads are idle."""
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
    """Format the estimate and interval with heads weighted by A1's mass on the answer; empty without one."""
    if not estimate.by_answer:
        return ""
    value, low, high = map(number, estimate.by_answer)
    return f"{value}, {low} to {high}"


def decided(estimate: Estimate, quantity: Quantity) -> str:
    """Say which single seed or head decides what an estimate shows, or leaves it open; empty if none does."""
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
    """Count models, seeds and prompts of the estimates; where counts differ, by quantity."""
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
    """Capitalise, except a symbol such as λ or d′."""
    return words if words[:1] == "λ" or words[1:2] == "′" else words[0].upper() + words[1:]


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
    ids = _by_word(account, judged)
    parts = [f"{word} {len(ids[word])} ({', '.join(ids[word])})" for word in (FOR, AGAINST, OPEN) if ids[word]]
    parts += [f"{SILENT} {len(ids[SILENT])}"] if ids[SILENT] else []
    return f"{ACCOUNTS[account]}: {', '.join(parts)}" if parts else ""


def _by_word(account: str, judged: Iterable[Verdict]) -> dict[str, list[str]]:
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
    alike = OUTCOMES[next(iter(words.values()))].format(accounts=_listed(list(words))) if len(set(words.values())) == 1 else ""
    return f"{verdict.test.question} {_by_comparison(verdict)}. Verdict: {alike or verdict.shown}{_p(verdict)}."


def _of_account(account: str, judged: Sequence[Verdict]) -> str:
    """List the tests for an account, against it, and open."""
    ids = _by_word(account, judged)
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
        kind: {account: _by_word(account, of_kind(judged, kind)) for account in ACCOUNTS} for kind in ("primary", "mechanism")
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
    return _listed([ACCOUNTS[account] for account in accounts])


def _listed(names: Sequence[str]) -> str:
    """Join names with commas, and "and" before the last."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


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


def _p(verdict: Verdict) -> str:
    return "" if math.isnan(verdict.p) else f", p {number(verdict.p)}"


def _missing(verdicts: Sequence[Verdict]) -> str:
    undecided = [verdict.test.id for verdict in verdicts if OPEN in verdict.verdicts.values()]
    needed: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.lacks:
            needed.setdefault(verdict.lacks, []).append(verdict.test.id)
    parts = [f"{words} (for {', '.join(ids)})" for words, ids in needed.items()]
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
    return any(by_signs(verdict.test, estimate) and estimate.least_p * len(PRIMARIES) > LEVEL for estimate in judged)


def _corrections(verdicts: Sequence[Verdict]) -> str:
    kinds = {verdict.test.kind for verdict in verdicts if verdict.estimates}
    quantities = sum(len(verdict.corrected) for verdict in of_kind(verdicts, "mechanism"))
    of = {
        "primary": f"{CORRECTIONS['primary']}'s over the {len(PRIMARIES)} primary tests, whichever were run",
        "mechanism": f"{CORRECTIONS['mechanism']}'s over the {quantities} quantities that mechanism tests on this board use",
    }
    words = [text for kind, text in of.items() if kind in kinds]
    return f"Corrections, at {LEVEL:g}: {'; '.join(words)}." if words else ""
