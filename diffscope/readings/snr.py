"""Whether the subtraction makes the answer stand out of what the text around it changes, beside other second maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from diffscope import instruments
from diffscope.instruments.snr import DRAWS, tells
from diffscope.numbers import between, counted, decibels
from diffscope.readings.reading import CLEARLY, Reading
from diffscope.scope import Scope

BEFORE = "before"
READS = {
    "snr_gain": "Above 0 dB the answer stands out more after the subtraction than before it. Only what is above the gain with a "
    "uniform A2, a flat pedestal, and with the next head's A2 is the head's own.",
    "snr": "Above 0 dB an output changes more with the answer than with the text around it. An A2 that carries nothing but noise "
    "is far below A1; one that is above A1 carries signal, with a minus sign.",
    "signal_change": "Why it gains or loses: cancelling takes noise away (below 0) and spares the signal (at 0); signed heads "
    "add more signal than noise. Both rise together in a head whose A1·V is next to nothing.",
}


def signal_to_noise(
    scope: Scope,
    prompt: Any,
    *,
    spans: Any = None,
    answers: Sequence[Any] | None = None,
    query: int | str = -1,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Reading:
    """Measure the signal-to-noise gain of the subtraction in every head at one query, beside a uniform A2 and the next head's.

    Parameters
    ----------
    scope : Scope
    prompt
        One prompt, as ``scope.capture`` takes it.
    spans : mapping, optional
        There has to be an ``answer`` among them.
    answers : sequence of str, optional
        Others for its place, of as many tokens; by default numbers of as many digits.
    query : int or "last"
    draws, seed, progress
        As of :func:`diffscope.instruments.signal_to_noise`.

    Returns
    -------
    Reading
        ``estimates`` as of :func:`diffscope.instruments.signal_to_noise`. The sentence is about D·V before the norm, in heads in
        which A1·V or D·V changes more with the answer than with the filler.

    Raises
    ------
    SpanError, PromptError, DiffscopeError
        As of :func:`diffscope.instruments.signal_to_noise`.
    """
    queries: Any = query if isinstance(query, str) else [query]
    estimates = instruments.signal_to_noise(
        scope, prompt, spans=spans, answers=answers, queries=queries, draws=draws, seed=seed, progress=progress
    )
    for name, words in READS.items():
        estimates[name].attrs["reads"] = words
    return Reading(snr_sentence(estimates), estimates)


def snr_sentence(estimates: xr.Dataset) -> str:
    """Say what the subtraction gains in heads that tell the answer; `estimates` as of :func:`signal_to_noise`."""
    gain = estimates["snr_gain"].sel(stage=BEFORE)
    if not gain.notnull().any():
        plain = estimates["snr"].sel(stage=BEFORE, output="A1")
        values = plain.values[np.isfinite(plain.values)]
        if not len(values):
            return "No output changes with both the answer and the text around it: there is no signal-to-noise ratio here."
        return f"Nothing is subtracted here; the signal-to-noise ratio of its heads is {between(values, decibels)} dB."
    heard = tells(estimates).sel(stage=BEFORE) & gain.sel(a2="own").notnull()
    signal = estimates["signal"]
    heads = signal.notnull().any([dim for dim in signal.dims if dim not in ("layer", "head")])  # a layer may have fewer
    total = counted(int(heads.sum()), "head")
    if not heard.any():
        return (
            f"In none of {total} the output changes more with the answer than with the text around it: a gain would say little."
        )
    error = estimates["snr_gain_error"].sel(stage=BEFORE, a2="own")
    own = gain.sel(a2="own")
    above, below = (int((sign * own > CLEARLY * error).where(heard, False).sum()) for sign in (1, -1))
    ranges = {name: _between(gain.sel(a2=name).where(heard)) for name in ("own", "uniform", "next head")}
    others = f"; with a uniform A2 it would by {ranges['uniform']} dB"
    if ranges["next head"]:
        others += f", with the next head's by {ranges['next head']} dB"
    return (
        f"In {int(heard.sum())} of {total} the output changes more with the answer than with the text around it. There the "
        f"subtraction changes the signal-to-noise ratio by {ranges['own']} dB, in {above} of them upwards, in {below} downwards "
        f"by more than two standard errors{others}."
    )


def _between(values: xr.DataArray) -> str:
    defined = values.values[np.isfinite(values.values)]
    return between(defined, decibels) if len(defined) else ""
