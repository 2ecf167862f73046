"""Which heads of a model find the answer, in one line."""

from __future__ import annotations

import xarray as xr

from diffscope.capture import Capture, CaptureBatch
from diffscope.readings.captures import one_prompt, place_of, query_position
from diffscope.readings.reading import Reading, described
from diffscope.readings.words import between, counted, decimal, listed, percent

MOST = 0.5  # of a row: a head that gives that much to the answer finds it
NAMED = 4  # heads


def finders(cap: Capture | CaptureBatch, query: int | str = -1) -> Reading:
    """The heads that give the answer at least half of their weights at one query.

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
        head that sees nothing else, or none of it; ``net`` (layer, head), what D sums to there, below 0 in a head that takes
        weight from the answer, which |D| does not show; ``uniform`` (layer), what uniform attention would give. Empty where no
        answer is marked, which the sentence says.

    Raises
    ------
    DiffscopeError
        There is no such token, or the capture is of several prompts.
    """
    cap = one_prompt(cap)
    at = query_position(cap, query)
    if "answer" not in cap.spans:
        return Reading("No answer is marked in this prompt.", xr.Dataset())
    mass = cap.measure("span_mass", queries=[at])["span_mass"].isel(query=0, drop=True)
    share, net = (mass.sel(map="D", span="answer", normalisation=kind, drop=True) for kind in ("share", "raw"))
    uniform = xr.DataArray(
        [_uniform(cap, number, at) for number in range(cap.n_layers)], {"layer": cap.layer_numbers}, ("layer",)
    )
    variables = {
        "share": described(share, "attention on the answer", "sum_answer |D| / sum |D|"),
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
    share = estimates["share"]
    heads = share.stack(which=("layer", "head")).dropna("which")
    weights = "A" if all(layer.d_is_a1 for layer in cap.layers) else "|D|"
    if not heads.size:
        return f"No head sees the answer and other tokens {place}."
    uniform = estimates["uniform"].where(share.notnull().any("head"), drop=True).values
    control = f"uniform attention would give {between(uniform, percent)}"
    ordered = heads.sortby(heads, ascending=False)
    gives = estimates["net"].stack(which=("layer", "head")).sel(which=ordered["which"]).values >= 0
    finds = ordered.values >= MOST
    takers = _taken(ordered[finds & ~gives], estimates["net"], weights)
    named = [f"L{layer}H{head} {percent(float(value))}" for (layer, head), value in zip(ordered["which"].values, ordered.values)]
    givers = [name for name, giving in zip(named, gives) if giving]
    count = int((finds & gives).sum())
    if not count:
        most = f"; {givers[0]} gives most" if givers else ""
        return f"No head gives the answer half of its {weights} {place}{most} ({control}).{takers}"
    more = count - NAMED
    which = givers[: NAMED if more > 1 else count] + ([f"{counted(more, 'other')}"] if more > 1 else [])
    start = f"{count} of {counted(heads.size, 'head')} {'gives' if count == 1 else 'give'} the answer half of {weights} or more"
    return f"{start} {place} ({control}): {listed(which)}.{takers}"


def _taken(heads: xr.DataArray, net: xr.DataArray, weights: str) -> str:
    """The heads that have half of their weights on the answer, below zero; nothing where there is none."""
    if not heads.size:
        return ""
    named = [
        f"L{layer}H{head} {percent(float(value))} of {weights}, D sums to {decimal(float(net.sel(layer=layer, head=head)))} there"
        for (layer, head), value in zip(heads["which"].values, heads.values)
    ]
    more = len(named) - NAMED
    which = named[: NAMED if more > 1 else None] + ([counted(more, "other")] if more > 1 else [])
    verb = "takes" if len(named) == 1 else "take"
    return f" {counted(len(named), 'head')} {verb} weight from the answer: {'; '.join(which)}."
