"""What is said of a head at one query, from its estimates alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.numbers import capital, decimal, percent
from diffscope.numbers import two_figures as figures
from diffscope.readings import signs
from diffscope.readings.captures import irrelevant_in_words
from diffscope.readings.pairing_control import COUNT, LARGEST, LEAST, MIDDLE, OWN

ITSELF = "the token itself"
BEFORE = "the token before"

MOST = 0.5  # of a row: a head that gives that much to the answer finds it, to the sink rests on it
CLEARLY = 2.0  # times what uniform attention would give: a preference
EVEN = 0.9  # of the entropy of a uniform row: nearly that
MARGIN = 0.02  # maps whose overlap is nearer to that of their controls overlap about as much as those
DISJOINT = 0.1  # maps that overlap no more have next to nothing in common
SINK_LOGIT = 0.05  # of a row of A1: what a sink logit takes is worth saying

Spans = Mapping[str, Sequence[int]]


def sentence(estimates: xr.Dataset, layer: LayerAttention, spans: Spans, place: str) -> str:
    """The estimates of :func:`diffscope.readings.of_head` in words.

    Parameters
    ----------
    estimates : xarray.Dataset
    layer : LayerAttention
        Whose head it is.
    spans : mapping of str to sequence of int
        Of the capture.
    place : str
        Where the query stands, such as "at the last token".
    """
    name = f"L{int(estimates['layer'])}H{int(estimates['head'])}"
    visible = estimates["keys"].attrs["visible"]
    if visible < 2:
        sees = "no token" if visible == 0 else "one token alone"
        return f"{capital(place)} {name} sees {sees}: there is nothing to divide its attention among."
    if estimates["top_share"].sel(map="D").isnull():
        return f"{capital(place)} {name} gives nothing: its D is zero on every token."
    weights = "A" if layer.d_is_a1 else "|D|"
    parts = [f"{capital(place)} {name} {_looks(estimates, spans, weights)}."]
    left = 1 - _at(estimates, "row_sum", map="A1")
    if layer.sink_logit is not None and left >= SINK_LOGIT:
        parts.append(f"Its sink logit takes {percent(left)} of {'A1' if layer.differential else 'A'}.")
    if layer.differential:
        parts.append(f"{_shared(estimates, spans)}.")
    else:
        parts.append("It is standard attention: one map, from which nothing is subtracted.")
    return " ".join(parts)


def _at(estimates: xr.Dataset, name: str, **labels: str) -> float:
    return float(estimates[name].sel(labels))


def _looks(estimates: xr.Dataset, spans: Spans, weights: str) -> str:
    """Where the weights are: on the answer, or else where."""
    largest = _largest(estimates, spans, weights)
    if "answer" not in spans:
        return f"{largest}; no answer is marked"
    if not _at(estimates, "keys", place="answer"):
        return f"cannot see the answer and {largest}"
    uniform = _at(estimates, "uniform", place="answer")
    if uniform == 1:
        return f"sees nothing but the answer and {largest}"
    share, net = (_at(estimates, "mass", map="D", place="answer", normalisation=kind) for kind in ("share", "raw"))
    signed = _signed(estimates, "answer", weights)
    control = f"where uniform attention would give {percent(uniform)}"
    amount = f"{percent(share)} of {weights}{signed}, {control}"
    if share < CLEARLY * uniform:
        return f"does not single out the answer ({amount}) and {largest}"
    amount = f"{percent(share)} of {weights}{signed}{_on_tokens(estimates, weights)}, {control}"
    if net < 0:
        return f"takes weight from the answer: {amount}, and D sums to {decimal(net)} there"
    if share < MOST:
        return f"gives the answer {amount}, and {largest}"
    return f"finds the answer: {amount}"


def _largest(estimates: xr.Dataset, spans: Spans, weights: str) -> str:
    """Whether a row rests on a sink or is nearly uniform; else where its largest weight is."""
    sink = _at(estimates, "mass", map="D", place="sink", normalisation="share")
    if sink >= MOST and sink >= CLEARLY * _at(estimates, "uniform", place="sink"):
        where = "the first token" if list(spans["sink"]) == [0] else "the span marked as sink"
        return f"rests on a sink: {percent(sink)} of {weights}{_signed(estimates, 'sink', weights, ',')} is on {where}"
    entropy = _at(estimates, "entropy_normalised", map="D")
    if entropy >= EVEN:
        of_row = "" if weights == "A" else f", {signs.of_it(1, _at(estimates, 'negative_share', map='D'))},"
        return f"spreads {weights}{of_row} nearly evenly, with {percent(entropy)} of a uniform row's entropy"
    share = _at(estimates, "top_share", map="D")
    key = int(_at(estimates, "top_key", map="D"))
    query = int(estimates["query"])
    names = {0: "the first token", query - 1: BEFORE, query: ITSELF}
    negative = " and negative" if float(estimates["top_weight"]) < 0 else ""
    return f"has its largest weight, {percent(share)} of {weights}{negative}, on {names.get(key, f'token {key}')}"


def _signed(estimates: xr.Dataset, place: str, weights: str, end: str = "") -> str:
    """How much of what a place gets is negative; nothing of standard attention."""
    if weights == "A":
        return ""
    share = _at(estimates, "mass", map="D", place=place, normalisation="share")
    return f", {signs.of_it(share, _at(estimates, 'negative', map='D', place=place))}{end}"


def _on_tokens(estimates: xr.Dataset, weights: str) -> str:
    """The weights of D on the answer's tokens, where they differ in sign."""
    share = _at(estimates, "mass", map="D", place="answer", normalisation="share")
    if weights == "A" or not signs.both(share, _at(estimates, "negative", map="D", place="answer")):
        return ""
    d = estimates["weight"]
    return f" ({signs.on_tokens(list(zip(d['token'].values.tolist(), d.values.tolist())))})"


def _shared(estimates: xr.Dataset, spans: Spans) -> str:
    """What the two maps have in common on irrelevant tokens, against the controls."""
    where = irrelevant_in_words(spans)
    if not _at(estimates, "keys", place="irrelevant"):
        return "It sees nothing besides, on which its maps could be compared"
    own = estimates.sel(control=OWN)
    if own["overlap"].isnull() or own["taken"].isnull():
        return f"On {where} A1 has no mass that could be taken away"
    mass = _at(estimates, "mass", map="A1", place="irrelevant", normalisation="share")
    share = "" if math.isnan(mass) else f", which get {percent(mass)} of A1,"  # NaN where it sees nothing else
    start = f"On {where}{share}"
    taken = f"λ·A2 takes away {percent(float(own['taken']))} of A1's mass there"
    negative = signs.of_it(1, float(own["negative_noise"])) if own["negative_noise"].notnull() else "zero everywhere"
    size = f"|D| there, {negative}, is {figures(float(own['noise_gain']))} times A1's mass"
    if not int(estimates[COUNT]):
        shared = decimal(float(own["overlap"]))
        return (
            f"{start} {taken} (overlap {shared}), and {size}; its layer has no other A2 to compare with, so there is no control"
        )
    middle = estimates.sel(control=MIDDLE)
    size = f"{size} (control {figures(float(middle['noise_gain']))})"
    amount = _amount(estimates)
    start = f"{start} its maps overlap {amount} {_pairs(estimates)}"
    if amount != MORE and float(own["overlap"]) <= DISJOINT:
        return f"{start}: next to nothing there to cancel, and {size}"
    return f"{start}: {taken} (control {percent(float(middle['taken']))}), and {size}"


MORE, LESS, ALIKE = "more than", "less than", "about as much as"


def _amount(estimates: xr.Dataset) -> str:
    """Whether two maps overlap more or less than every control does."""
    own, least, largest = (_at(estimates, "overlap", control=control) for control in (OWN, LEAST, LARGEST))
    if own > largest + MARGIN:
        return MORE
    return LESS if own < least - MARGIN else ALIKE


def _pairs(estimates: xr.Dataset) -> str:
    """What is compared with, and both values."""
    own, middle, least, largest = (decimal(_at(estimates, "overlap", control=name)) for name in (OWN, MIDDLE, LEAST, LARGEST))
    count = int(estimates[COUNT])
    if count == 1:
        return f"A1 and the one other A2 of its layer (overlap {own}, control {middle})"
    return f"A1 and the {count} other A2s of its layer (overlap {own}, controls {middle}, {least} to {largest})"
