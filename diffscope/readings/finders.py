"""Which heads of a model find the answer, in one line."""

from __future__ import annotations

import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.numbers import between, counted, decimal, percent, shortened
from diffscope.readings import signs
from diffscope.readings.captures import one_prompt, place_of, query_position
from diffscope.readings.head_sentence import CLEARLY, MOST
from diffscope.readings.reading import Reading, described
from diffscope.stats.negative_mass import NEEDED, negative_mass


def finders(cap: Capture, query: int | str = -1) -> Reading:
    """The heads that give the answer at least half of their weights at one query, and those that take weight from it.

    A head takes weight where D sums to less than 0 on the answer and half of its weights are there, or twice what uniform
    attention would give.

    Parameters
    ----------
    cap : Capture
        Of one prompt, with a span ``answer`` for an answer.
    query : int or "last"
        Whose row is read; by default the last.

    Returns
    -------
    Reading
        ``estimates``: ``share`` (layer, head), what D gives to the answer of all that it gives, Σ|D| there over Σ|D|, NaN of a
        head that sees nothing else, or none of it; ``negative`` (layer, head), the part of Σ|D| that negative weights there have;
        ``net`` (layer, head), what D sums to there; ``uniform`` (layer), what uniform attention would give. Empty where no answer
        is marked, which the sentence says.

    Raises
    ------
    DiffscopeError
        There is no such token, or the capture is of several prompts.
    """
    cap = one_prompt(cap)
    at = query_position(cap, query)
    if "answer" not in cap.spans:
        return Reading("No answer is marked in this prompt.", xr.Dataset())
    measured = cap.measure(NEEDED, queries=[at]).isel(query=0, drop=True)
    mass = measured["span_mass"]
    share, net = (mass.sel(map="D", span="answer", normalisation=kind, drop=True) for kind in ("share", "raw"))
    uniform = xr.DataArray(
        [_uniform(cap, number, at) for number in range(cap.n_layers)], {"layer": cap.layer_numbers}, ("layer",)
    )
    variables = {
        "share": described(share, "attention on the answer", "sum_answer |D| / sum |D|"),
        "negative": negative_mass(measured).sel(map="D", span="answer", drop=True),
        "net": described(net, "what D sums to on the answer", "sum_answer D"),
        "uniform": described(uniform, "what uniform attention gives", "visible keys of the answer / all visible keys"),
    }
    estimates = xr.Dataset(variables)
    return Reading(_sentence(estimates, cap, place_of(at, cap.n_tokens)), estimates)


def _uniform(cap: Capture, number: int, query: int) -> float:
    """The answer's share of the keys that a query sees in a layer."""
    visible = cap.layers[number].prompt(0).visible([query])[0].cpu()
    return float(visible[list(cap.spans["answer"])].sum() / visible.sum())


def _sentence(estimates: xr.Dataset, cap: Capture, place: str) -> str:
    heads = estimates.stack(which=("layer", "head")).dropna("which", subset=["share"])
    weights = "A" if all(layer.d_is_a1 for layer in cap.layers) else "|D|"
    if not heads.sizes["which"]:
        return f"No head sees the answer and other tokens {place}."
    control = f"uniform attention would give {between(heads['uniform'].values, percent)}"
    heads = heads.sortby("share", ascending=False)
    gives = heads["net"] >= 0
    half = heads["share"] >= MOST
    clear = half | (heads["share"] >= CLEARLY * heads["uniform"])
    takers = _takers(heads.isel(which=(~gives & clear).values), weights)
    giving = heads.isel(which=gives.values)
    givers = [f"{name} {percent(float(share))}" for name, share in zip(_names(giving), giving["share"])]
    if weights != "A":
        givers = [f"{words} ({sign})" for words, sign in zip(givers, _signs(giving))]
    count = int((half & gives).sum())
    if not count:
        most = f"; {givers[0]} gives most" if givers else ""
        return f"No head gives the answer half of its {weights} {place}{most} ({control}).{takers}"
    many = counted(heads.sizes["which"], "head")
    start = f"{count} of {many} {'gives' if count == 1 else 'give'} the answer half of {weights} or more"
    return f"{start} {place} ({control}): {shortened(givers[:count])}.{takers}"


def _takers(heads: xr.Dataset, weights: str) -> str:
    """The heads that take weight from the answer; nothing where there is none."""
    count = heads.sizes["which"]
    if not count:
        return ""
    named = [
        f"{name} ({percent(float(share))} of {weights}, {sign}, D sums to {decimal(float(net))} there)"
        for name, share, sign, net in zip(_names(heads), heads["share"], _signs(heads), heads["net"])
    ]
    verb = "takes" if count == 1 else "take"
    return f" {counted(count, 'head')} {verb} weight from the answer: {shortened(named)}."


def _signs(heads: xr.Dataset) -> list[str]:
    return [signs.of_it(float(share), float(negative)) for share, negative in zip(heads["share"], heads["negative"])]


def _names(heads: xr.Dataset) -> list[str]:
    return [f"L{layer}H{head}" for layer, head in heads["which"].values]
