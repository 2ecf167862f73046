"""A scan for claims that their own numbers contradict: what it knows of rows and of sentences, and how it judges them.

    python -m tests.contradictions        # prints the list of claims that are checked

Nothing here is taken from the code that writes the texts: which side of 0 a question is answered with yes on, and which words
go with which numbers, is written down a second time.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator

BASELINES = ("standard", "double-width")
NORMALISATIONS = ("share", "raw", "signed", "positive")
ARMS = (
    "standard double-width signed lambda-1 lambda-0 no-norm scalar standard-norm diff-v2 top-8 low-rank gated "
    "plus d-plus shared-a2"
).split()

#: of every test the words of its question that make a claim, and by which sign of which quantities that claim holds
ROWS: dict[str, tuple[str, dict[str, int]]] = {
    "formation": ("earlier in DIFF", dict.fromkeys(BASELINES, -1)),
    "distractors": ("DIFF tell the answer better", dict.fromkeys(BASELINES, 1)),
    "distractors-or-length": ("more with distractors than with length", dict.fromkeys(BASELINES, 1)),
    "common-noise": ("DIFF reject noise", {"diff": 1}),
    "noise-symmetry": ("share more on irrelevant tokens", {"sharing": 1, "difference": 1, "kind": 1}),
    "amplifier": ("noise gain below the signal gain", {"floor": -1, "gain": -1}),
    "common-mode-injection": ("cancel, more than", {"over_paired": 1}),
    "branch-attribution": ("take from the distractors", {"rejection": 1, "margin": 1}),
    "noise-symmetry-training": ("share more of their noise", {"sharing": 1}),
    "amplifier-training": ("lower the least of A1", {"floor": -1, "gain": -1}),
    "gradient-dynamics": ("towards shared noise", {"push": -1}),  # of 1 − overlap
    "signed-mask": ("gain on standard attention", {"own": 1, "gap": 1}),
    "top-k": ("gain by keeping", {"own": 1, "gap": 1}),
    "gated": ("gain on standard attention", {"own": 1, "gap": 1}),
    "lambda-1": ("better among many distractors", {"distractors": 1}),
    "plus": ("better than the same with a plus", {"distractors": 1}),
    "d-plus": ("better than the same without its negative weights", {"distractors": 1}),
    "signed-weights": ("need D's negative weights", {"negative": 1}),
    "a2-content": ("and not a flat one", {"uniform": 1}),
    "a2-signal": ("more than the first map does", {"previous": 1, "blind": 1}),
    "low-rank-and-lambda-1": ("better than with a second map of low rank", {"low-rank": 1, "lambda-1": 1}),
    "faithfulness": ("more conservative", {"d": 1, "c": 1}),
    "key-token-gain": ("move attention to the answer", dict.fromkeys(NORMALISATIONS, 1)),
    "sparsity": ("D sparser than A1", {"gini": 1, "entropy": 1}),  # the entropy of A1 less that of D
    "low-rank-noise": ("lower rank than the uniform map", {"erank_over_uniform": -1, "low_5": 1, "mean": 1}),
    "information-flow": ("beyond the attention", {"over_mass": 1}),
    "key-token-gain-pair": ("DIFF look more at the answer", dict.fromkeys(NORMALISATIONS, 1)),
    "sparsity-pair": ("DIFF's maps sparser", {"gini": 1, "entropy": 1}),
    "sinks": ("reduce attention sinks", {"d": -1}),
    "information-flow-pair": ("more of what decides the answer", {"flow": 1}),
    "outliers-quantisation": ("smaller outliers", {"logits": -1, "outputs": -1, "bits_4": -1}),
    "redundancy-importance": ("repeat each other less", {"distance_d": 1, "cka": -1, "mean_head": -1, "worst_head": -1}),
    "sinks-training": ("keep less of the sink", {"kept": -1}),
    "allocation": (
        "more to the answer",
        {f"{arm}_{name}": sign for arm in BASELINES for name, sign in (("share", 1), ("needles", -1))},
    ),
    "formation-arms": ("later than DIFF", dict.fromkeys(ARMS, 1)),
    "text-loss": ("lose more than DIFF", {f"{arm}_other": 1 for arm in ARMS}),
    "norm": (
        "worse without the norm",
        {f"{name}_distractors": -1 for name in ("scalar", "no-norm", "lambda-0")} | {"standard-norm_distractors": 1},
    ),
    "head-geometry": ("answer better", {"distractors": 1, "steps": -1, "text": -1}),
    "near-duplicates": ("DIFF tell the answer better", dict.fromkeys(BASELINES, 1)),
}

NUMBER = r"−?(?:\d+\.?\d*|\.\d+)(?:e[+−-]?\d+)?"
WORD = r"yes|no|not told apart from 0|not measured"
GROUP = re.compile(rf"\b({WORD}): (.*?)(?=[;·] (?:{WORD}): |$)", re.I)
ABSENT = "not measured"
ESTIMATE = re.compile(rf"({NUMBER})(?: [a-zB ]+)? \(95 % ({NUMBER}) to ({NUMBER})")


def of_row(text: str, verdict) -> list[str]:
    """What is wrong with a row: a claim that an estimate contradicts, or a word that does not go with the numbers beside it.

    A row that does not ask the question of its test states a claim, and each estimate of it must have the sign that it claims,
    or none yet.
    """
    text = re.sub(r"[*\\]", "", text)
    question, asked, answer = text.rpartition("?")
    signs = {name: sign for name, sign in ROWS[verdict.test.id][1].items() if name in verdict.estimates}
    if not asked:
        against = [name for name, sign in signs.items() if _sign(verdict.estimates[name]) == -sign]
        return [f"{verdict.test.id}: {text!r} is stated, and {name} is {' '.join(_ends(verdict, name))}" for name in against]
    if ROWS[verdict.test.id][0] not in question:
        return [f"{verdict.test.id}: the question {question!r} is not the one that the scan knows"]
    told = {ends: word.lower() for word, numbers in GROUP.findall(answer) for ends in ESTIMATE.findall(numbers)}
    wrong = []
    for name, sign in signs.items():
        estimate = verdict.estimates[name]
        ends = _ends(verdict, name)
        if not all(map(math.isfinite, (estimate.value, estimate.low, estimate.high))):
            if any(ends == numbers for numbers in told) or ABSENT.lower() not in answer.lower():
                wrong.append(f"{verdict.test.id}: {name} is {' '.join(ends)}, so 'not measured', and the row says {answer!r}")
            continue
        due = {sign: "yes", -sign: "no", 0: "not told apart from 0"}[_sign(estimate)]
        called = verdict.test.quantities[name].short or name.replace("_", " ")
        if len(ROWS[verdict.test.id][1]) > 1 and f"{called} {ends[0]}" not in answer:
            wrong.append(f"{verdict.test.id}: {name} is {' '.join(ends)}, which does not stand behind {called!r}")
        if told.get(ends) != due:
            wrong.append(f"{verdict.test.id}: {name} is {' '.join(ends)}, so {due!r}, and the row says {told.get(ends)!r}")
    return wrong


#: of each test what every account predicts, as signs; 0 is no effect
PREDICTED: dict[str, dict[str, dict[str, int]]] = {
    "formation": dict.fromkeys(("NC", "SP", "SH"), dict.fromkeys(BASELINES, -1)),
    "distractors": dict.fromkeys(("NC", "SP", "SH"), dict.fromkeys(BASELINES, 1)),
    "distractors-or-length": {"NC": dict.fromkeys(BASELINES, 1), "SP": dict.fromkeys(BASELINES, -1)},
    "common-noise": {"NC": {"diff": 1}, "SP": {"diff": 0}},
    "noise-symmetry": {"NC": {"sharing": 1, "difference": 1, "kind": 1}},
    "amplifier": {"NC": {"floor": -1, "gain": -1}},
    "common-mode-injection": {"NC": {"over_paired": 1}},
    "branch-attribution": {"NC": {"rejection": 1}},
    "noise-symmetry-training": {"NC": {"sharing": 1}},
    "amplifier-training": {"NC": {"floor": -1, "gain": -1}},
    "gradient-dynamics": {"NC": {"push": -1}},
    "signed-mask": {"NC": {"gap": 1}, "SP": {"own": 1}, "SH": {"own": 1}},
    "top-k": {"NC": {"gap": 1}, "SP": {"own": 1}, "SH": {"gap": 1}},
    "gated": {"NC": {"gap": 1}, "SP": {"own": 1}, "SH": {"own": 1}},
    "lambda-1": {"NC": {"distractors": 1}},
    "signed-weights": {"SH": {"negative": 1}},
    "a2-content": {"NC": {"zero": 1, "uniform": 1}, "SP": {"zero": 1, "uniform": 0}, "SH": {"zero": 1, "uniform": 1}},
    "a2-signal": {"SH": {"previous": 1, "blind": 1}},
    "plus": {account: {"distractors": 1} for account in ("NC", "SP", "SH")},
    "d-plus": {"NC": {"distractors": 0}, "SP": {"distractors": 0}, "SH": {"distractors": 1}},
    "faithfulness": {"NC": {"d": 1, "c": 0}, "SP": {"c": 1}},
}
SPOKEN = re.compile(
    r"(Noise cancellation|Sparsification|Signed heads): for it: ([^;.]*); against it: ([^;.]*?)(?:; open: ([^.]*))?\."
)
SHORT = {"Noise cancellation": "NC", "Sparsification": "SP", "Signed heads": "SH"}


def of_words(verdict) -> list[str]:
    """What is wrong with the words of a test: one that its intervals contradict, or that an account cannot have here."""
    wrong = []
    for account, word in verdict.verdicts.items():
        predicted = PREDICTED[verdict.test.id].get(account, {})
        signs = {name: _sign(verdict.estimates[name]) for name in predicted}
        others = [signs_of for other, signs_of in PREDICTED[verdict.test.id].items() if other != account]
        own = [name for name, sign in predicted.items() if sign and all(other.get(name) != sign for other in others)]
        if word == "for" and not (own and all(signs[name] == sign for name, sign in predicted.items() if sign)):
            wrong.append(f"{verdict.test.id}: for {account}, which has nothing of its own there, or not this sign")
        if word == "against" and not any(_misses(verdict, name, sign) for name, sign in predicted.items()):
            wrong.append(f"{verdict.test.id}: against {account}, and no interval excludes what it predicts")
        if word != "silent" and not predicted:
            wrong.append(f"{verdict.test.id}: {word} {account}, which predicts nothing there")
    return wrong


def _misses(verdict, name: str, sign: int) -> bool:
    estimate, quantity = verdict.estimates[name], verdict.test.quantities[name]
    if sign:
        return max(sign * estimate.low, sign * estimate.high) < quantity.margin
    return estimate.low >= quantity.no_effect or estimate.high <= -quantity.no_effect


def of_conclusion(text: str, verdicts) -> list[str]:
    """Sentences of a conclusion that say another word of an account than the cell of a test."""
    cells = {verdict.test.id: verdict.verdicts for verdict in verdicts}
    wrong = []
    for name, *said in SPOKEN.findall(text):
        for word, ids in zip(("for", "against", "open"), said):
            named = set(ids.split(", ")) - {"", "nothing"}
            if named != {id for id, words in cells.items() if words.get(SHORT[name]) == word}:
                wrong.append(f"{word} {name}: {sorted(named)}")
    return wrong


def _sign(estimate) -> int:
    return int(estimate.low > 0) - int(estimate.high < 0)


def _ends(verdict, name: str) -> tuple[str, ...]:
    """An estimate and the ends of its interval, as they are printed."""
    estimate = verdict.estimates[name]
    return tuple(f"{end:.3g}".replace("-", "−") for end in (estimate.value, estimate.low, estimate.high))


SHARE = r"(under 1|over 99|−?\d+) %"
#: what of a share is negative: it is part of the share, not a claim of its own
SIGNED = r"(?:,? \(?(?:all|under 1 %|over 99 %|\d+ %) of it (?:positive|negative)\)?,?(?: \([^)]*\))?)?"
AMOUNT = r"(−?(?:\d*\.\d+|\d+)|infinite|minus infinity)"
BOTH_KINDS = rf"takes {AMOUNT} ± {AMOUNT} where it is common and {AMOUNT} ± {AMOUNT} where it is opposite"
#: weights of tokens, each followed by a name
WEIGHTS = r"(?:[^.:]|\.\d)*?"
GIVES = r"(?:gives the answer most|takes weight from the answer \([^)]*\))"
COURSE = (
    rf"{GIVES}, {SHARE} of [^,;. ]+{SIGNED} [^.]*?, and {SHARE} at step \d+; [^.]*\. (?:In between its share [^.]*\. )?It is "
)
ON_THE_WAY = r"(−?(?:\d*\.\d+|\d+)|under 1|over 99)(?: %)?"
TURNS = (
    rf"(rises|falls) from {ON_THE_WAY} to {ON_THE_WAY} at step \d+"
    + rf"(?:(?:,| and) (rises|falls) to {ON_THE_WAY}(?: at step \d+)?)?" * 6
)
HALF = 0.6  # of the last digit of what is printed in whole percent
LIKE = 0.025  # by which overlaps are alike, and half of their last digit


def number(printed: str) -> float:
    """What a sentence printed."""
    words = {"under 1": 0.5, "over 99": 99.5, "infinite": math.inf, "minus infinity": -math.inf}
    return words[printed] if printed in words else float(printed.replace("−", "-"))


def _beside(before: float, others: str, above: float = -HALF) -> bool:
    """Whether a probability is still that before, about the same, lower or higher, and above what is lost, in each clause."""
    for clause in filter(None, others.split("; ")):
        word = re.search(r"(?<=it is )(still|about the same|lower|higher)", clause)
        values = [number(share) for share in re.findall(SHARE, clause)]
        least, most = min(values), max(values)
        fits = {
            "still": least == most == before,
            "about the same": before - 2 - 2 * HALF <= least and most <= before + 2 + 2 * HALF,
            "lower": most < before,
            "higher": least > before,
        }
        if not word or not fits[word[1]] or least < above - HALF:
            return False
    return True


def _overlaps(own: float, words: str, middle: float, low: float | None, high: float | None) -> bool:
    low, high = (middle if end is None else end for end in (low, high))
    if words == "more than":
        return own > high
    return own < low if words == "less than" else low - LIKE <= own <= high + LIKE


def _cancels(words: str, size: float, factor: float | None, other: float | None) -> bool:
    """Whether |D| on irrelevant tokens is larger or smaller than A1 alone, as far as two figures tell."""
    alone = 1.0 if factor is None else factor
    if words == "adds more":
        return size > alone
    return size < alone if words == "cancels more" else abs(size - alone) <= 0.05 * alone + 0.03


def _turned(verb: str, before: float, after: float) -> bool:
    return after > before if verb.startswith("rise") else after < before


def _turned_each(verb: str, first: float, *rest: str | float | None) -> bool:
    """Whether a course rises and falls as its verbs say."""
    values = [first, *rest[::2]]
    verbs = [verb, *rest[1::2]]
    legs = [leg for leg in zip(verbs, values, values[1:]) if leg[0] is not None]
    return all(after >= before if said == "rises" else after <= before for said, before, after in legs)


def _signed_alike(start: str, values: str) -> bool:
    signs = {math.copysign(1, number(each)) for each in re.findall(r"[+−]?(?:\d*\.\d+)", values.replace("+", "")) if number(each)}
    return len(signs) == 1 if start == "is the same" else len(signs) > 1


#: claims of sentences: what they are, how they are written with their numbers, and when the numbers bear them out
SENTENCES: dict[str, tuple[str, Callable[..., bool]]] = {
    "the maps of a head overlap more, less or as much as their controls": (
        rf"overlap by {AMOUNT}(?: on [^,]+)?, (more than|less than|about as much as) A1 and "
        rf"(?:another head's|\d+ other heads') A2 \({AMOUNT}(?:, {AMOUNT} to {AMOUNT})?\)",
        _overlaps,
    ),
    "there is next to nothing to cancel": (
        rf"overlap by {AMOUNT}(?:[^.]|\.\d)*: there is next to nothing to cancel",
        lambda own: own <= 0.1,
    ),
    "A1 has next to nothing on irrelevant tokens": (
        rf"A1 has next to no weight on [^(]* \({SHARE}\): there is next to nothing to cancel",
        lambda share: share < 1,
    ),
    "A2 adds more, less or as much weight as it cancels": (
        rf"A2 (adds more|cancels more|adds about as much) weight (?:than|as) it (?:adds|cancels): \|D\| is {AMOUNT} × A1"
        rf"(?: \((?:{AMOUNT} × without A2)?(?:; )?(?:(?:another head's|other heads') A2 in its place: {AMOUNT})?\))?",
        _cancels,
    ),
    "the head does not single out the answer": (
        rf"does not single out the answer \({SHARE} of [^,;. ]+{SIGNED}; uniform attention: {SHARE}\)",
        lambda share, uniform: share <= 2 * (uniform + HALF) + HALF,
    ),
    "the head finds the answer": (
        rf"finds the answer: {SHARE} of [^, ]+ is on it{SIGNED} \(uniform attention: {SHARE}\)",
        lambda share, uniform: share >= 50 - HALF > uniform,
    ),
    "the second map takes weight from the answer": (
        rf"D is ({WEIGHTS}): λ·A2 takes weight from the answer itself",
        lambda weights: min(map(number, re.findall(r"−?\d\.\d\d", weights))) <= -0.05,
    ),
    "the head gives weight to the answer": (
        rf"gives weight to the answer: {SHARE} of [^, ]+ is on it{SIGNED} \(uniform attention: {SHARE}\)",
        lambda share, uniform: 2 * (uniform - HALF) - HALF <= share <= 50 + HALF,
    ),
    "a head takes weight from the answer": (
        rf"takes weight from the answer: {SHARE} of [^, ]+ is on it{SIGNED} \(uniform attention: {SHARE}\)\. "
        rf"D is {WEIGHTS}, and sums to {AMOUNT}",
        lambda share, uniform, net: share >= 2 * (uniform - HALF) - HALF and net <= 0,
    ),
    "heads take weight from the answer": (
        rf"(?:takes? weight from the answer: (?:[^.;]|\.\d)*?)?D sums to {AMOUNT} there",
        lambda net: net <= 0,
    ),
    "a head rests on a sink": (
        rf"rests on a sink: the [a-z ]+ has {SHARE} of [^,;. ]+{SIGNED} \(uniform attention: {SHARE}\)",
        lambda share, uniform: share >= 50 - HALF and share >= 2 * (uniform - HALF),
    ),
    "a head takes weight from a sink": (
        rf"takes weight from the [a-z ]+, which has {SHARE} of [^,;. ]+, (?:all|{SHARE}) of it negative "
        rf"\(uniform attention: {SHARE}\)",
        lambda share, part, uniform: share >= max(50 - HALF, 2 * (uniform - HALF)) and (part is None or part >= 50 - HALF),
    ),
    "a head spreads nearly evenly": (
        rf"nearly evenly: its entropy is {SHARE} of a uniform row's",
        lambda share: share >= 90 - HALF,
    ),
    "the share of the answer first passes a level between two checkpoints": (
        rf"{COURSE}first above {SHARE} at step (\d+); the checkpoint before is step (\d+)",
        lambda last, first, level, step, before: first <= level + HALF and before < step,
    ),
    "it passes the level at none": (
        rf"{COURSE}above {SHARE} at none",
        lambda last, first, level: max(last, first) <= level + HALF,
    ),
    "it is past the level from the first": (
        rf"{COURSE}above {SHARE} at the first",
        lambda last, first, level: first >= level - HALF,
    ),
    "noise that is common takes more or less": (
        rf"{BOTH_KINDS}; on the same draws common noise takes {AMOUNT} ± {AMOUNT} (less|more)",
        lambda common, _, opposite, __, size, error, word: (
            size >= 1.8 * error and (common <= opposite if word == "less" else common >= opposite)
        ),
    ),
    "common and opposite noise differ by little": (
        rf"{BOTH_KINDS}; on the same draws they differ by {AMOUNT} ± {AMOUNT}, less than two",
        lambda common, _, opposite, __, size, error: size <= 2.2 * error,
    ),
    "heads are above every control": (
        r"(\d+) of (\d+) heads? (?:is|are) above every control by more than two standard errors",
        lambda some, of: some <= of,
    ),
    "what rises and falls in training": (rf"(?:In between the overlap )?{TURNS}", _turned_each),
    "the answer's log-odds rise or fall": (rf"(rises?|falls?) from {AMOUNT} to {AMOUNT}", _turned),
    "they stay": (rf"stays? at {AMOUNT}", lambda value: not isinstance(value, str) and not math.isnan(value)),
    "a difference is more than chance gives": (
        rf"{AMOUNT} times the spread over all heads [^;]*; (more than|no more than) exchanging heads at random gives "
        rf"\(median {AMOUNT}, 95th percentile {AMOUNT}\)",
        lambda size, word, middle, rare: size >= rare * 0.94 if word == "more than" else size <= rare * 1.06,
    ),
    "one model gives the answer more or less": (
        rf"gives the answer {SHARE}(?: of \S+)?{SIGNED}, \S+ {SHARE}(?: of \S+)?{SIGNED}: "
        rf"(?:{AMOUNT} points (more|less)|the same)",
        lambda first, second, size, word: word is None or (first - second) * (1 if word == "more" else -1) >= -2 * HALF,
    ),
    "the sign depends on the normalisation, or does not": (
        r"The sign (is the same|depends)([^.]*(?:\.\d+[^.]*)*)",
        _signed_alike,
    ),
    "without a head most is lost": (rf"takes most in L\d+H\d+ \({AMOUNT}", lambda change: change < 0),
    "without a head least is gained": (
        rf"takes nothing in any; least is gained in L\d+H\d+ \(\+?{AMOUNT}",
        lambda change: change >= 0,
    ),
    "heads change it by more than two errors": (r"(\d+) of (\d+) heads? change it by more than two", lambda some, of: some <= of),
    "most is lost under an edit": (rf"(?:most is lost|it falls most) where [^(;]*\({AMOUNT}", lambda change: change < 0),
    "most is gained under an edit": (rf"(?:most is gained|it rises most) where [^(;]*\(\+?{AMOUNT}", lambda change: change > 0),
    "so many heads of so many": (
        r"(?:above it|the least|below every control|below 1|below 1 and every control|above noise gain|other heads' A2) "
        r"in (\d+) of (\d+) heads?",
        lambda some, of: some <= of,
    ),
    "one model's answers are surer": (
        rf"with log-odds of {AMOUNT} and {AMOUNT} nats: {AMOUNT} nats (more|less)",
        lambda first, second, size, word: (first - second) * (1 if word == "more" else -1) >= -0.11,  # each is printed to a tenth
    ),
    "heads are below both controls at once": (
        r"(\d+)(?: to (\d+))? of (\d+) heads? are below both with [^;.]*(?:; on (\d+) the definitions disagree)?",
        lambda least, most, of, apart: least <= (most or least) <= of and (most or least) - least <= (apart or 0) <= of,
    ),
    "so many below both controls": (r"\((\d+) and (\d+) of (\d+) heads?\)", lambda a, b, of: max(a, b) <= of),
    "heads give the answer half or more": (
        rf"(\d+) of (\d+) heads? gives? the answer half of \S+ or more [^:]*: L\d+H\d+ {SHARE}",
        lambda some, of, share: some <= of and share >= 50 - HALF,
    ),
    "no head gives the answer half": (
        rf"No head gives the answer half of its \S+ [^;(]*(?:; L\d+H\d+ {SHARE} gives most)?",
        lambda share: share is None or share <= 50 + HALF,
    ),
    "the second map moves the answer's lead": (
        rf"−λ·A2 adds {AMOUNT} and {AMOUNT}, and so moves the answer's lead by {AMOUNT} nats",
        lambda answer, distractors, lead: abs(answer - distractors - lead) <= 0.06 * (abs(answer) + abs(distractors)) + 0.01,
    ),
    "what is negative is a share of a share": (
        r"(all|under 1 %|over 99 %|−?\d+ %) of it (?:negative|positive)",
        lambda share: not re.match(r"−?\d", share) or 0 < number(share.removesuffix(" %")) < 100,
    ),
    "so many heads have negative weights": (
        r"(\d+) of (\d+) heads? ha(?:s|ve) negative weights on [^:]* \(share of \|D\| there\): ([^.;]*)",
        lambda some, of, named: 0 < some <= of and all(0 <= number(each) <= 100 for each in re.findall(f"{SHARE}", named)),
    ),
    "without an A2 half of the answer is lost, and without others it is not": (
        rf"the answer's probability is {SHARE}(?: to {SHARE})? instead of {SHARE}((?:; without that of [^;.]*)*)",
        lambda least, most, before, others: (
            (least if most is None else most) <= before / 2 + HALF and _beside(before, others, above=before / 2)
        ),
    ),
    "no layer alone halves the answer": (
        rf"No layer alone needs its A2 for the answer: its probability is {SHARE}((?:; without (?:that|the A2) of [^;.]*)*)",
        lambda before, each: each != "" and _beside(before, each, above=before / 2),
    ),
    "the model does not give the answer": (
        rf"The model does not give the answer \({SHARE}\)[^;]*((?:; without (?:that|the A2) of [^;.]*)*)",
        lambda share, each: share <= 10 + HALF and each != "" and _beside(share, each),
    ),
    "heads changed": (r"(\d+) of (\d+) heads? changed (?:directly|only because)", lambda some, of: some <= of),
}
CALLED = (
    "more",
    "less",
    "above",
    "below",
    "rises?",
    "falls?",
    "gain(?:s|ed)?",
    "lost",
    "takes?",
    "gives?",
    "finds?",
    "overlap",
    "moves?",
    "sparser",
    "better",
    "worse",
    "higher",
    "lower",
    "larger",
    "smaller",
    "greater",
    "increases?",
    "decreases?",
    "negative",
    "positive",
)
DIRECTION = re.compile(rf"\b({'|'.join(CALLED)})\b")
#: words of direction that claim nothing of the numbers here
NEUTRAL = re.compile(
    r"uniform attention would give|[Nn]oise gain|[Ss]ignal gain|gives nothing|what they give on|A1 and A2 overlap by|"
    r"(?:% of \|D\|) and negative, on|"
    r"how many are below the uniform map and below their permuted rows"
)


def of_sentence(text: str) -> tuple[list[str], list[str]]:
    """What is wrong with a sentence, and the claims that were found in it.

    Wrong is a claim that the numbers beside it contradict; and a word of direction that belongs to no claim that the scan knows.
    """
    text = " ".join(text.split())
    wrong, found, rest = [], [], text
    for name, (pattern, holds) in SENTENCES.items():
        for match in re.finditer(pattern, text):
            values = [_value(group) for group in match.groups()]
            found.append(name)
            rest = rest.replace(match.group(), " ")
            if not holds(*values):
                wrong.append(f"{name}: {match.group()!r}")
    left = NEUTRAL.sub(" ", rest)
    wrong += [f"nothing is known of {word!r} in {text!r}" for word in dict.fromkeys(DIRECTION.findall(left))]
    return wrong, found


def _value(group: str | None) -> float | str | None:
    if group is None:
        return None
    try:
        return number(group)
    except (KeyError, ValueError):
        return group


def listed() -> Iterator[str]:
    """All claims that are checked, a line each."""
    for id, (words, signs) in ROWS.items():
        sides = ", ".join(f"{name} {'above' if sign > 0 else 'below'} 0" for name, sign in signs.items())
        yield f"row {id}: “{words}” is a yes where {sides}"
    for name in SENTENCES:
        yield f"sentence: {name}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in listed())
