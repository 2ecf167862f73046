"""What heads, and answers, make of noise that is put into both maps: the same into both, or opposite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError, check_several
from diffscope.instruments.injection import DRAWS, MODES, SIGMAS, cmrr_by_injection, log_odds_under_noise
from diffscope.numbers import between, counted, decibels, two_figures
from diffscope.prompts.selection import Indices
from diffscope.readings.captures import any_capture, query_position
from diffscope.readings.pairing_control import LARGEST, LEAST, MIDDLE, OWN, beside_controls, controls_of_each
from diffscope.readings.predictions import Question
from diffscope.readings.reading import CLEARLY, Reading, described
from diffscope.scope import Scope

SMALL_NOISE = 20 * math.log10(2)  # dB above the statistic cmrr, since +n and -n differ by 2n

READS = {
    "cmrr_injected": "At 0 dB what both maps get passes as opposite noise does: nothing cancels. At 20 dB a tenth of it passes. "
    "Only what is above the controls is the head's own. The ceiling is the same if A2 had A1's shape there.",
    "log_odds_lost": "If what both maps get cancels, common noise costs the answer less than opposite noise of the same size.",
}


def rejection(
    cap: Capture,
    query: int | str = -1,
    *,
    span: str = "irrelevant",
    sigmas: Sequence[float] = SIGMAS,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Reading:
    """Measure common-mode rejection by injection of every head at one query, beside the same with other heads' second maps.

    Parameters
    ----------
    cap : Capture
        Of one prompt.
    query : int or "last"
    span : str
        The keys that noise is put on.
    sigmas, draws, seed
        As of :func:`diffscope.instruments.injection.cmrr_by_injection`. The sentence is about the first σ.
    progress : callable, optional
        Called with (pairings done, pairings at most) after each; what it raises ends the reading.

    Returns
    -------
    Reading
        ``estimates``: ``cmrr_injected`` and its standard error ``cmrr_injected_error`` (layer, head, sigma, control), in dB; the
        middle of the controls is a ratio of their mean squares. ``cmrr_ceiling`` (layer, head, sigma) is the same with
        an A2 of A1's shape on the keys, and no upper bound. ``controls`` (layer, head) is their number, ``equal_maps``
        (layer, head) what small noise would give if both maps were equal.

    Raises
    ------
    DiffscopeError
        There is no such token or span, or the capture is of several prompts.
    """
    cap = any_capture(cap).only()
    at = query_position(cap, query)

    done = count(1)

    def injecting(capture: Capture, ceiling: bool) -> xr.Dataset:
        injected = cmrr_by_injection(capture, [at], spans=[span], sigmas=sigmas, draws=draws, seed=seed, ceiling=ceiling)
        return injected.isel(span=0, drop=True)

    whole = injecting(cap, ceiling=True)

    def measure(capture: Capture) -> xr.Dataset:
        injected = whole if capture is cap else injecting(capture, ceiling=False)
        squares = {f"{mode}_squared": injected[f"change_{mode}"] ** 2 for mode in ("common", "differential")}
        if progress:
            progress(next(done), cap.n_heads)
        return injected[["cmrr_injected", "cmrr_injected_error"]].assign(squares)

    estimates = beside_controls(cap, measure)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 10 * np.log10(estimates["differential_squared"] / estimates["common_squared"])
    own = estimates["cmrr_injected"]
    gains = cap.measure("cmrr", queries=[at])["cmrr"].isel(query=0, drop=True) + SMALL_NOISE
    estimates = estimates.drop_vars(["differential_squared", "common_squared"]).assign(
        cmrr_injected=xr.where(own["control"] == MIDDLE, ratio, own).transpose(*own.dims).assign_attrs(own.attrs),
        cmrr_ceiling=whole["cmrr_ceiling"],
        equal_maps=described(gains, "what equal maps would reject of small noise", "20 log10((g + lambda) / |g - lambda|)", "dB"),
    )
    estimates["cmrr_injected"].attrs |= {"reads": READS["cmrr_injected"], "span": span}
    if not cap.differential:
        return Reading("It is standard attention: it has one map, and no noise is common to two.", estimates)
    return Reading(rejection_sentence(estimates, float(sigmas[0])), estimates)


def rejection_sentence(estimates: xr.Dataset, sigma: float) -> str:
    """Say how much noise of one strength heads reject, beside the controls; `estimates` as of :func:`rejection`."""
    values = estimates.sel(sigma=sigma)
    rejected = values["cmrr_injected"]
    span = rejected.attrs["span"]
    own = rejected.sel(control=OWN)
    if not own.notnull().any():
        return f"Noise on {span} tokens changes nothing here: there is nothing to reject."
    whole = float(values["equal_maps"].min()), float(values["equal_maps"].max())
    start = (
        f"Of noise of σ = {sigma:g} on {span} tokens the rejection by head is {between(own.values[own.notnull()], decibels)} dB"
        f"{_of_one_shape(values)}"
    )
    if values["equal_maps"].notnull().any():
        start += f"; that of equal maps would be {between(whole, decibels)} dB of small noise"
    least, largest = (rejected.sel(control=control) for control in (LEAST, LARGEST))
    compared = own.notnull() & largest.notnull()
    if not compared.any():
        return f"{start}. There is no other A2 in a layer to compare with."
    errors = values["cmrr_injected_error"]
    error = (errors.sel(control=OWN) ** 2 + errors.sel(control=LARGEST) ** 2) ** 0.5
    error = error.where(np.isfinite(own) & np.isfinite(largest), 0.0)  # what is infinite has none
    above = int((own - largest > CLEARLY * error).where(compared, False).sum())
    controls = float(least.where(compared).min()), float(largest.where(compared).max())
    if bool((error.where(compared).isnull() & compared).any()):
        return f"{start}. With other heads' A2 it is {between(controls, decibels)} dB; one draw has no standard error."
    heads = f"{counted(int(compared.sum()), 'head')} {'is' if above == 1 else 'are'}"
    return (
        f"{start}. With other heads' A2 it is {between(controls, decibels)} dB ({controls_of_each(values)}): {above} of {heads} "
        "above every control by more than two standard errors."
    )


def _of_one_shape(values: xr.Dataset) -> str:
    """Say how much heads would reject if A2 had the shape of A1, which is no upper bound."""
    if "cmrr_ceiling" not in values or not values["cmrr_ceiling"].notnull().any():
        return ", ceiling not measured"
    ceiling = values["cmrr_ceiling"].values
    return f", and would be {between(ceiling[~np.isnan(ceiling)], decibels)} dB if A2 had A1's shape there"


def noise_cost(
    scope: Scope,
    question: Question,
    *,
    span: str = "irrelevant",
    sigmas: Sequence[float] = SIGMAS,
    draws: int = DRAWS,
    seed: int = 0,
    layers: Indices = None,
    heads: Indices = None,
    progress: Callable[[int, int], object] | None = None,
) -> Reading:
    """Measure what common and opposite noise cost the answer's log-odds against its distractors, by strength.

    Parameters
    ----------
    scope : Scope
    question : Question
        Of :func:`diffscope.readings.question`.
    span, sigmas, draws, seed, layers, heads
        As of :func:`diffscope.instruments.injection.log_odds_under_noise`.
    progress : callable, optional
        Called with (done, total), counted in strengths.

    Returns
    -------
    Reading
        ``estimates``: ``log_odds``, ``log_odds_lost`` (mode, sigma) and ``lost_to_common_more`` (sigma), with their standard
        errors, in nats; as of :func:`diffscope.instruments.injection.log_odds_under_noise`.
    """
    check_several("standard deviations of noise", sigmas, [0.5, 1.0])
    tables = []
    for done, sigma in enumerate(sigmas):
        table = log_odds_under_noise(
            scope,
            question.ids,
            question.answer,
            list(question.distractors.values()),
            span=span,
            spans=question.spans,
            sigmas=[sigma],
            draws=draws,
            seed=seed,
            layers=layers,
            heads=heads,
        )
        tables.append(table)
        if progress:
            progress(done + 1, len(sigmas))
    if not tables:
        raise DiffscopeError("give at least one standard deviation of noise")
    estimates = xr.concat(tables, "sigma", data_vars="minimal", compat="override", coords="minimal", join="outer")
    estimates["log_odds_lost"].attrs["reads"] = READS["log_odds_lost"]
    return Reading(_lost(estimates), estimates)


def _lost(estimates: xr.Dataset) -> str:
    """Say what noise costs at the least strength at which common noise costs a tenth, or else at the largest."""
    whole = float(estimates["log_odds"])
    share = estimates["log_odds_lost"].sel(mode="common") / whole
    sigmas = estimates["sigma"].values
    strong = sigmas[(share >= 0.1).values] if whole > 0 else []
    sigma = float(min(strong)) if len(strong) else float(max(sigmas))
    values = estimates.sel(sigma=sigma)
    common, opposite = (float(values["log_odds_lost"].sel(mode=mode)) for mode in MODES)
    errors = [float(values["log_odds_lost_error"].sel(mode=mode)) for mode in MODES]
    start = f"Of {two_figures(whole)} nats of log-odds, noise of σ = {sigma:g} takes"
    if any(map(math.isnan, errors)):
        return f"{start} {two_figures(common)} where it is common and {two_figures(opposite)} where it is opposite, in one draw."
    takes = [f"{two_figures(amount)} ± {two_figures(error)}" for amount, error in zip((common, opposite), errors)]
    more, error = (float(values[name]) for name in ("lost_to_common_more", "lost_to_common_more_error"))
    size = f"{two_figures(abs(more))} ± {two_figures(error)}"
    verdict = f"they differ by {size}, less than two standard errors"
    if abs(more) > CLEARLY * error:
        verdict = f"common noise takes {size} {'less' if more < 0 else 'more'}"
    return f"{start} {takes[0]} where it is common and {takes[1]} where it is opposite; on the same draws {verdict}."
