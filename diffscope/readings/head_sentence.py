"""Say what a head does at one query, from its estimates alone: clauses whose numbers explain themselves."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.numbers import NAMED, capital, counted, decimal, head_name, minus, percent, two_figures
from diffscope.readings import signs
from diffscope.readings.captures import RELEVANT, irrelevant_in_words, sink_in_words
from diffscope.readings.pairing_control import COUNT, LARGEST, LEAST, MIDDLE, OWN
from diffscope.readings.reading import Part, joined

ITSELF = "the token itself"
BEFORE = "the token before"

MOST = 0.5  # of a row: a head that gives that much to the answer finds it, to the sink rests on it
PREFERRED = 2.0  # times what uniform attention would give: a preference
EVEN = 0.9  # of the entropy of a uniform row: nearly that
MARGIN = 0.02  # also of a noise gain; maps whose overlap is nearer to that of their controls overlap about as much as those
DISJOINT = 0.1  # overlap, and share of A1 that is cancelled, up to which there is next to nothing to cancel
LITTLE = 0.01  # of A1, below which there is next to nothing to cancel
SINK_LOGIT = 0.05  # of a row of A1: what a sink logit takes is worth saying
SEEN = 0.05  # of D below zero on a token of the answer: worth saying
LONGEST = 12  # characters of a token
_ABOUT_SIGN = "How much of |D| on {} is negative: negative weights subtract what stands there."
MORE, LESS, ALIKE = "more than", "less than", "about as much as"

Spans = Mapping[str, Sequence[int]]
Pieces = list[str | Part]


@dataclass(frozen=True)
class Row:
    """One head at one query.

    Attributes
    ----------
    estimates : xarray.Dataset
        Of :func:`diffscope.readings.of_head`.
    layer : LayerAttention
    spans : mapping of str to sequence of int
    tokens : sequence of str
        Of the prompt.
    """

    estimates: xr.Dataset
    layer: LayerAttention
    spans: Spans
    tokens: Sequence[str]

    def at(self, name: str, **labels: str) -> float:
        """Return one estimate."""
        values = self.estimates.variables[name]
        if labels.keys() != {*values.dims}:
            raise KeyError(f"{name} is by {values.dims}, and was asked for by {(*labels,)}")
        return float(values.values[tuple(self.estimates.get_index(dim).get_loc(labels[str(dim)]) for dim in values.dims)])

    @property
    def signed(self) -> bool:
        """Whether weights may be negative."""
        return not self.layer.d_is_a1

    @property
    def weights(self) -> str:
        """What shares are of."""
        return "|D|" if self.signed else "A"


def sentence(estimates: xr.Dataset, layer: LayerAttention, spans: Spans, tokens: Sequence[str], place: str) -> tuple[Part, ...]:
    """Return the estimates of :func:`diffscope.readings.of_head` in words.

    `place` says where the query stands, such as "at the last token".
    """
    row = Row(estimates, layer, spans, tokens)
    start = f"{capital(place)} {head_name(int(estimates['layer']), int(estimates['head']))} "
    visible = estimates["keys"].attrs["visible"]
    if visible < 2:
        sees = "no token" if visible == 0 else "one token alone"
        return joined([f"{start}sees {sees}: there is nothing to divide its attention among."])
    if math.isnan(row.at("top_share", map="D")):
        return joined([f"{start}gives nothing: its D is zero on every token."])
    pieces = [start, *_looks(row), ".", *_sink_logit(row)]
    if layer.differential:
        return joined([*pieces, *_second(row), " ", *_shared(row), "."])
    return joined([*pieces, " It is standard attention: one map, from which nothing is subtracted."])


def _looks(row: Row) -> Pieces:
    """Say where the weights are: on the answer, or else where."""
    if "answer" not in row.spans:
        return [*_largest(row), "; no answer is marked"]
    if not row.at("keys", place="answer"):
        return ["cannot see the answer and ", *_largest(row)]
    uniform = row.at("uniform", place="answer")
    if uniform == 1:
        return ["sees nothing but the answer and ", *_largest(row)]
    share, net = (row.at("mass", map="D", place="answer", normalisation=kind) for kind in ("share", "raw"))
    if share < PREFERRED * uniform:
        return ["does not single out the answer (", *_compared_amount(row), ") and ", *_largest(row)]
    size = Part(percent(share), _of_row(row, "the answer"))
    sign = _sign(row, share, "answer") if row.signed else ""
    negative: Pieces = [", ", Part(sign, _ABOUT_SIGN.format("the answer"))] if sign.endswith("negative") else []
    control = _uniform(row, "answer", "the answer")
    amount: Pieces = [size, f" of {row.weights} is on it", *negative, " (", *control, "). ", *_on_answer(row)]
    if net < 0:
        total = Part(decimal(net), "The sum of D on the answer: below 0 the head subtracts more of it than it adds.")
        return ["takes weight from the answer: ", *amount, ", and sums to ", total]
    if share < MOST:
        return ["gives weight to the answer: ", *amount, ". It ", *_largest(row)]
    return ["finds the answer: ", *amount, *_against_itself(row)]


def _compared_amount(row: Row) -> Pieces:
    """Say how much of a row is on the answer, beside what uniform attention gives it."""
    return [*_amount(row, "answer", "the answer"), "; ", *_uniform(row, "answer", "the answer")]


def _amount(row: Row, place: str, named: str) -> Pieces:
    """Say how much of a row is on a place, and how much of that is negative."""
    share = row.at("mass", map="D", place=place, normalisation="share")
    pieces: Pieces = [Part(percent(share), _of_row(row, named)), f" of {row.weights}"]
    if not row.signed:
        return pieces
    return [*pieces, ", ", Part(_sign(row, share, place), _ABOUT_SIGN.format(named))]


def _of_row(row: Row, named: str) -> str:
    """Explain the share of a row that is on a place."""
    whole = f"Σ{row.weights} on {named} / Σ{row.weights} of the row"
    return f"{whole}: how much of this row's weight is there{', whatever its sign' if row.signed else ''}."


def _sign(row: Row, share: float, place: str) -> str:
    """Say how much of the weight on a place is negative."""
    return signs.of_it(share, row.at("negative", map="D", place=place))


def _uniform(row: Row, place: str, named: str) -> Pieces:
    """Say what uniform attention gives a place."""
    control = f"Control: what the same weight on every visible token gives {named}."
    return ["uniform attention: ", Part(percent(row.at("uniform", place=place)), control)]


def _on_answer(row: Row) -> Pieces:
    """Say what D is on the answer's tokens, the largest first."""
    d = row.estimates["weight"]
    largest = sorted(zip(d["token"].values.tolist(), d.values.tolist()), key=lambda pair: -abs(pair[1]))
    named = largest if len(largest) <= NAMED + 1 else largest[:NAMED]
    more = len(largest) - len(named)
    names = [_token(row.tokens, at) for at, _ in named]
    pieces: Pieces = ["D is " if row.signed else "A is "]
    for place, ((at, weight), name) in enumerate(zip(named, names)):
        text = name if names.count(name) == 1 or name == _numbered(at) else f"{name} ({_numbered(at)})"
        between = "" if place == 0 else ", " if place < len(named) - 1 or more else " and "
        pieces += [between, Part(_weight(row, weight), _of_weight(row, at)), f" on {text}"]
    return [*pieces, f" and less on {counted(more, 'other token')}"] if more else pieces


def _against_itself(row: Row) -> Pieces:
    """Say that λ·A2 takes weight from a token of the answer: as the maps are, only it can make D negative."""
    takes = float(row.estimates["weight"].min()) <= -SEEN
    return [": λ·A2 takes weight from the answer itself"] if takes and row.layer.differential and not row.layer.changes else []


def _of_weight(row: Row, at: int) -> str:
    if row.signed:
        return f"D at {_numbered(at)}: a positive weight adds what stands there, a negative one subtracts it."
    return f"A at {_numbered(at)}: the weight with which the head adds what stands there."


def _weight(row: Row, weight: float) -> str:
    """Write a weight of D with its sign: +0.96, −0.36; one of standard attention without."""
    return minus(f"{weight:+.2f}") if row.signed and abs(weight) >= 0.005 else f"{abs(weight):.2f}"


def _largest(row: Row) -> Pieces:
    """Say that a row rests on a sink, takes from it, or is nearly uniform, or else where its largest weight is."""
    if _rests_on_sink(row):
        where = sink_in_words(row.spans)
        share = row.at("mass", map="D", place="sink", normalisation="share")
        takes = row.signed and row.at("negative", map="D", place="sink") > share / 2
        start = f"takes weight from {where}, which has " if takes else f"rests on a sink: {where} has "
        return [start, *_amount(row, "sink", where), " (", *_uniform(row, "sink", where), ")"]
    entropy = row.at("entropy_normalised", map="D")
    if _is_even(row):
        words = f"Entropy of {row.weights} / log(visible tokens): 100 % if all tokens have the same weight, 0 if one has all."
        even: Pieces = ["nearly evenly: its entropy is ", Part(percent(entropy), words), " of a uniform row's"]
        if not row.signed:
            return ["spreads A ", *even]
        negative = signs.of_it(1, row.at("negative_share", map="D"))
        return ["spreads |D|, ", Part(negative, "How much of this row's Σ|D| is negative."), ", ", *even]
    key, weight = int(row.at("top_key", map="D")), float(row.estimates["top_weight"])
    size = Part(percent(row.at("top_share", map="D")), f"The largest {row.weights} of the row / Σ{row.weights} of the row.")
    value = Part(_weight(row, weight), _of_weight(row, key))
    return ["has its largest weight on ", _place(row, key), ": ", value, " (", size, f" of {row.weights})"]


def _rests_on_sink(row: Row) -> bool:
    sink = row.at("mass", map="D", place="sink", normalisation="share")
    return sink >= MOST and sink >= PREFERRED * row.at("uniform", place="sink")


def _is_even(row: Row) -> bool:
    return row.at("entropy_normalised", map="D") >= EVEN


def _place(row: Row, key: int, numbered: bool = True) -> str:
    """Name a token by where it stands, or by its text and, if `numbered`, position."""
    query = int(row.estimates["query"])
    names = {0: "the first token", query - 1: BEFORE, query: ITSELF}
    if key in names:
        return names[key]
    text = _token(row.tokens, key)
    return f"{text} ({_numbered(key)})" if numbered and text != _numbered(key) else text


def _second(row: Row) -> Pieces:
    """Say where A2 has most of its weight, if one token has, and what A1 has there."""
    share, first = row.at("top_share", map="A2"), float(row.estimates["first_at_second"])
    if not share >= MOST or math.isnan(first):
        return []
    key = int(row.at("top_key", map="A2"))
    place, text = _place(row, key), _token(row.tokens, key)
    where = place if text in place or text == _numbered(key) else f"{place}, {text}"
    size = Part(percent(share), "The largest A2 of the row / ΣA2 of the row. A2 enters D as −λ·A2.")
    beside = Part(percent(first), "A1 on the same token / ΣA1 of the row.")
    return [" A2 has ", size, f" of its weight on {where}, and A1 ", beside, "."]


def _sink_logit(row: Row) -> Pieces:
    """Say what a sink logit takes of A1, if that is worth saying."""
    taken = 1 - row.at("row_sum", map="A1")
    if row.layer.sink_logit is None or taken < SINK_LOGIT:
        return []
    name = "A1" if row.layer.differential else "A"
    size = Part(percent(taken), f"1 − Σ{name} of the row: what the sink logit takes of it, which goes to no token.")
    return [" Its sink logit takes ", size, f" of {name}."]


def _shared(row: Row) -> Pieces:
    """Say whether A2 cancels on irrelevant tokens, and what the two maps have in common there, against the controls."""
    where = irrelevant_in_words(row.spans) + _with_found(row)
    if not row.at("keys", place="irrelevant"):
        return ["It sees no irrelevant token, so its maps are not compared"]
    overlap, taken, gain = (row.at(name, control=OWN) for name in ("overlap", "taken", "noise_gain"))
    if math.isnan(overlap) or math.isnan(taken):
        return [f"On {where} A1 has no mass that could be taken away"]
    held = row.at("mass", map="A1", place="irrelevant", normalisation="share")
    if held < LITTLE:
        size = Part(
            f"under {percent(LITTLE)}", "ΣA1 on these tokens / ΣA1 of the row. |D| there, beside it, would be a ratio to nothing."
        )
        return [f"A1 has next to no weight on {where} (", size, "): there is next to nothing to cancel", *_added(row)]
    size = Part(decimal(overlap), _about_overlap(row))
    start: Pieces = [*_cancelled(row, where, held), ". On these tokens its maps overlap by ", size]
    if not int(row.estimates[COUNT]):
        return [*start, ", for which there is no control: its layer has no other A2"]
    compared = _compared(row)
    nothing = compared != MORE and max(overlap, 1 - gain / _amplified(row)) <= DISJOINT
    return [*start, f", {compared} ", *_controls(row), ": there is next to nothing to cancel" if nothing else ""]


def _with_found(row: Row) -> str:
    """Say that the token with the largest weight counts as irrelevant: without a marked answer all unmarked tokens do."""
    key = int(row.at("top_key", map="D"))
    if "answer" in row.spans or _rests_on_sink(row) or _is_even(row) or any(key in row.spans.get(name, ()) for name in RELEVANT):
        return ""
    return f", with {_place(row, key, numbered=False)} among them"


def _added(row: Row) -> Pieces:
    """Say how much of D is on irrelevant tokens if A1 is not what brings it there."""
    added = row.at("noise_gain", control=OWN) > _amplified(row) + MARGIN
    if not added or row.at("mass", map="D", place="irrelevant", normalisation="share") < LITTLE:
        return []
    return [", but A2 adds weight there: ", *_amount(row, "irrelevant", "these tokens")]


def _about_overlap(row: Row) -> str:
    question = ", the question" if "query" in row.spans else ""
    part = f" Irrelevant are all but the answer{question} and {sink_in_words(row.spans)}." if "answer" in row.spans else ""
    words = "Overlap = 1 − ρ = 1 − Σ|A1 − A2| / Σ(A1 + A2): what the two maps share there, 0 to 1. Only that can cancel."
    return f"{words}{part}"


def _compared(row: Row) -> str:
    """Return whether two maps overlap more or less than every control does."""
    own, least, largest = (row.at("overlap", control=control) for control in (OWN, LEAST, LARGEST))
    if own > largest + MARGIN:
        return MORE
    return LESS if own < least - MARGIN else ALIKE


def _controls(row: Row) -> Pieces:
    """Name what is compared with, with its overlap."""
    middle, least, largest = (decimal(row.at("overlap", control=name)) for name in (MIDDLE, LEAST, LARGEST))
    count = int(row.estimates[COUNT])
    if count == 1:
        one = Part(middle, "Control: the overlap of this head's A1 and the A2 of another head of its layer.")
        return ["A1 and another head's A2 (", one, ")"]
    mean = Part(middle, f"Control: the overlap of this head's A1 and each of the {count} other A2s of its layer, their mean.")
    ends: Pieces = [", ", Part(f"{least} to {largest}", f"The least and the largest of the {count} controls.")]
    return [f"A1 and {count} other heads' A2 (", mean, *(ends if least != largest else ()), ")"]


def _cancelled(row: Row, where: str, held: float) -> Pieces:
    """Say how much of A1 irrelevant tokens hold, whether A2 cancels more than it adds there, and how large |D| is."""
    gain, negative, taken_of_a1 = (row.at(name, control=OWN) for name in ("noise_gain", "negative_noise", "taken"))
    factor = _amplified(row)
    amplified = "" if factor == 1 else f", where D = {two_figures(factor)} × A1 − λ·A2"
    about = (
        f"Noise gain = Σ|D| / ΣA1 on these tokens{amplified}. Above {two_figures(factor)} more weight is added than cancelled."
    )
    taken = f"Token by token λ·A2 takes away {percent(taken_of_a1)} of A1"
    beside: list[Pieces] = []
    if factor != 1:
        beside.append([Part(two_figures(factor), "The factor of A1 in D: what |D| / A1 would be with λ = 0."), " × without A2"])
    if count := int(row.estimates[COUNT]):
        taken += f" (with other heads' A2 {percent(row.at('taken', control=MIDDLE))})"
        words = "Control: the same with A2 of other heads of the layer, their median."
        name = "another head's" if count == 1 else "other heads'"
        beside.append([f"{name} A2 in its place: ", Part(two_figures(row.at("noise_gain", control=MIDDLE)), words)])
    sign = "" if math.isnan(negative) else f" Of |D| there {signs.of_it(1, negative).replace(' of it', ' is')}."  # NaN: D is 0
    size = Part(two_figures(gain), f"{about} {taken}.{sign}")
    compared = [piece for place, each in enumerate(beside) for piece in ("; " if place else " (", *each)]
    start: Pieces = [f"On {where} "]
    if not math.isnan(held):  # it is if the query sees nothing else
        part = Part(percent(held), "ΣA1 on these tokens / ΣA1 of the row: what A2 may cancel.")
        start = [f"On {where}, which hold ", part, " of A1, "]
    return [*start, f"A2 {_verdict(gain, factor)}: |D| is ", size, " × A1", *compared, ")" if beside else ""]


def _verdict(gain: float, factor: float) -> str:
    """Return what A2 does to weights: Σ|D| = g·ΣA1 − what it cancels + what it adds, where g is the factor of A1."""
    if abs(gain - factor) <= MARGIN or two_figures(gain) == two_figures(factor):
        return "adds about as much weight as it cancels"
    return "adds more weight than it cancels" if gain > factor else "cancels more weight than it adds"


def _amplified(row: Row) -> float:
    """Return the factor of A1 in D at the query: 1 in most families."""
    gain = row.layer.gain[0].expand(row.layer.n_heads, row.layer.n_queries)
    return float(gain[int(row.estimates["head"]), int(row.estimates["query"])])


def _numbered(at: int) -> str:
    return f"token {at}"


def _token(tokens: Sequence[str], at: int) -> str:
    """Quote the text of a token, short and in one line; a token without letters that can be printed is named by its position."""
    text = tokens[at].strip()
    if not text or not text.isprintable() or "\ufffd" in text or "`" in text:
        return _numbered(at)
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return f"\u2068`{short}`\u2069" if _from_the_right(short) else f"`{short}`"


def _from_the_right(letters: Iterable[str]) -> bool:
    """Return whether a text is written from right to left, so that it has to be set apart from what surrounds it."""
    return any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in letters)
