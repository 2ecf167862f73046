"""What is negative of weights that are summed by size: |D| adds up what a head gives and what it takes.

Every view that sums |D| takes its words from here, so that none shows a negative weight as attention without saying so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.numbers import counted, listed, percent, shortened
from diffscope.readings.captures import query_positions
from diffscope.stats.averaging import averaged, mean_over_prompts
from diffscope.stats.labels import called
from diffscope.stats.negative_mass import NEEDED, ROUNDING, WHATEVER, negative_mass

SAID = 0.005  # of a mass: what is less than that of it is not told as a part of its own


def negative_of_gains(noise_gain: xr.DataArray, signal_gain: xr.DataArray) -> xr.DataArray:
    """Return the part of Σ|D| on a key set that is negative, from Σ|D| and ΣD over the same A1."""
    part = ((noise_gain - signal_gain) / (2 * noise_gain)).clip(0, 1)
    return part.where(~(part < ROUNDING), 0)


def of_it(share: float, negative: float) -> str:
    """Say how much of a mass is negative: "all of it positive", "over 99 % of it positive", "27 % of it negative"."""
    part = min(negative / share, 1.0) if share else 0.0
    if part < SAID:
        return f"{'all' if part < ROUNDING else percent(1 - part)} of it positive"
    return "all of it negative" if part > 1 - ROUNDING else f"{percent(part)} of it negative"


def by_head(share: xr.DataArray, negative: xr.DataArray, where: str = "the answer") -> str:
    """Say in one sentence in which heads a mass of |D| on a key set is negative, and how much of it.

    Both parts (layer, head) are of the row's Σ|D|; heads without a value or weight there are left out, and without any nothing is
    said. `where` is the key set in words.
    """
    part = (negative / share.where(share > 0)).transpose("layer", "head")
    heads = [
        (f"L{layer}H{head}", float(value))
        for layer, row in zip(part["layer"].values.tolist(), part.values)
        for head, value in zip(part["head"].values.tolist(), row)
        if np.isfinite(value)
    ]
    signed = sorted(((name, min(value, 1.0)) for name, value in heads if value >= SAID), key=lambda pair: -pair[1])
    if not heads:
        return ""
    if not signed:
        size = "all" if all(value < ROUNDING for _, value in heads) else "over 99 %"
        return f"On {where} {size} of |D| is positive in every head."
    named = shortened([f"{name} {'100 %' if value > 1 - ROUNDING else percent(value)}" for name, value in signed])
    have = "has" if len(signed) == 1 else "have"
    return f"{len(signed)} of {counted(len(heads), 'head')} {have} negative weights on {where} (share of |D| there): {named}."


def within(place: str, said: str) -> str:
    """Say where a sentence holds: in which model, at which step."""
    return f"{place}, {said[:1].lower()}{said[1:]}" if said else ""


def of_span(cap: Capture, span: str, query: int | str = -1) -> str:
    """Say in which heads |D| on a span is negative at one query, or in the mean over all ("mean"), by :func:`by_head`.

    Nothing of standard attention, and of a span that no prompt has; of a batch the mean over the prompts that have it.
    """
    if not cap.differential:
        return ""
    parts = []
    for prompt in cap:
        rows = None if query == "mean" else query_positions(prompt, query)
        measured = prompt.measure(NEEDED, queries=rows)
        if span in measured["span"].values:
            parts.append(averaged(_of_d(measured, span), ["query"], "mean").values)
    if not parts:
        return ""
    share, negative = mean_over_prompts(xr.concat(parts, "prompt", join="outer", combine_attrs="override"))
    return by_head(share, negative, called(span))


def of_spans(measured: xr.Dataset, spans: Sequence[str]) -> str:
    """Say how much of |D| on each span is negative, mean over all that was measured; nothing of standard attention.

    Without ``negative_share`` it is not known how much is negative, which is said.
    """
    if not measured["span_mass"].sel(map="A2").notnull().any():
        return ""
    if not set(NEEDED) <= set(measured):
        return f"{WHATEVER}; how much is negative needs the statistic negative_share."
    words = []
    for span in spans:
        share, negative = averaged(_of_d(measured, span), by="mean").values.mean(
            [dim for dim in ("prompt", "model") if dim in measured["span_mass"].dims]
        )
        if float(share) > 0:
            words.append(f"on {called(span)} {of_it(float(share), float(negative))}")
    return f"{WHATEVER}: {listed(words)}." if words else f"{WHATEVER}."


def of_depths(estimates: Mapping[str, xr.Dataset], spans: Sequence[str]) -> str:
    """Say how much of |D| on some spans is negative, of models on retrieval prompts, mean over lengths and depths.

    The estimates are of :func:`diffscope.readings.depths`, by name. Standard attention is left out.
    """
    words = []
    for name, table in estimates.items():
        if not table["mass"].sel(map="A2").notnull().any():
            continue
        of_d = table[["mass", "negative"]].sel(map="D", normalisation="share").mean(("length", "depth"))
        parts = {span: of_d.sel(span=span) for span in spans}
        shares = [f"on {called(span)} {of_it(float(part['mass']), float(part['negative']))}" for span, part in parts.items()]
        words.append(f"{name} {', '.join(shares)}" if len(estimates) > 1 else ", ".join(shares))
    return f"{WHATEVER}: {'; '.join(words)}." if words else ""


def _of_d(measured: xr.Dataset, span: str) -> xr.DataArray:
    """Return the share of |D| on a span and the negative part of it, along ``part``."""
    share = measured["span_mass"].sel(map="D", span=span, normalisation="share", drop=True)
    negative = negative_mass(measured).sel(map="D", span=span, drop=True)
    return xr.concat([share, negative], "part", combine_attrs="override", coords="minimal", compat="override")


def amount(map: str, normalisation: str) -> str:
    """Name what masses of a map are: "share of |D|", "raw of D", "share of A1"."""
    return f"{normalisation} of {'|D|' if map == 'D' and normalisation == 'share' else map}"
