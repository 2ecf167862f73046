"""Contrast two models, or one with and without an edit, on retrieval prompts by length and depth."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.numbers import counted, decimal, listed, percent, two_figures
from diffscope.readings import signs
from diffscope.readings.reading import Reading, described
from diffscope.readings.retrieval import CELL, common_lengths, has_second_map
from diffscope.stats.averaging import mean_over_prompts, standard_error


def contrast(first: xr.Dataset, second: xr.Dataset, names: tuple[str, str]) -> Reading:
    """Contrast what two sides give to the answer.

    Parameters
    ----------
    first, second : xarray.Dataset
        The ``estimates`` of :func:`depths`, over the same lengths.
    names : (str, str)
        What the two are called.

    Returns
    -------
    Reading
        ``estimates``: those of both that are not of single heads or prompts, along ``side``; ``mass_low`` and ``mass_high``, one
        standard error below and above ``mass``; ``difference`` (span, normalisation), first − second of D, mean over lengths,
        depths and prompts, and its standard error over prompts, ``difference_se``: prompt by prompt where both were given the
        same tokens (``attrs["paired"]``).

    Raises
    ------
    DiffscopeError
        They were taken with other lengths or numbers of prompts.
    """
    if first["length"].values.tolist() != second["length"].values.tolist():
        raise DiffscopeError("the two were measured on other prompts; give both the same lengths, numbers and seed")
    common_lengths(dict(zip(names, (first, second))))
    paired = first.attrs["digest"] == second.attrs["digest"]
    kept = [str(name) for name, values in first.data_vars.items() if not {"layer", "prompt"} & set(values.dims)]
    sides = xr.concat(
        [first[kept], second[kept]], xr.DataArray(list(names), dims="side", name="side"), combine_attrs="drop_conflicts"
    )
    first_mass, second_mass = (side["mass_of_prompt"].sel(map="D").mean(CELL) for side in (first, second))
    spread = (
        standard_error(first_mass - second_mass)
        if paired
        else (standard_error(first_mass) ** 2 + standard_error(second_mass) ** 2) ** 0.5
    )
    about = "mean over lengths, depths and prompts"
    sides["mass_low"] = described(sides["mass"] - sides["mass_se"], "attention less its standard error", "mass − mass_se")
    sides["mass_high"] = described(sides["mass"] + sides["mass_se"], "attention and its standard error", "mass + mass_se")
    sides["difference"] = described(mean_over_prompts(first_mass - second_mass), "difference of D", f"first − second, {about}")
    sides["difference_se"] = described(spread, "standard error of the difference", "over prompts")
    sides.attrs |= {"paired": int(paired)}
    return Reading(_contrast_sentence(sides, first, second), sides)


def _contrast_sentence(sides: xr.Dataset, first: xr.Dataset, second: xr.Dataset) -> str:
    """Say what both give to the answer, the difference in all normalisations, and how both answer."""
    names = [str(name) for name in sides["side"].values]
    mass = sides["mass"].sel(map="D", normalisation="share").mean(CELL)
    if mass.sel(span="answer").isnull().any():
        return f"D is zero everywhere on a side, so that there is nothing to compare between {names[0]} and {names[1]}."
    answer, rest = (mass.sel(span=span).values.tolist() for span in ("answer", "irrelevant"))
    change = sides[["difference", "difference_se"]].sel(span="answer")
    share = change.sel(normalisation="share")
    points = 100 * float(share["difference"])
    error = 100 * float(share["difference_se"])
    size = f"{two_figures(abs(points))} points {'more' if points > 0 else 'less'}" if points else "the same"
    within = f" (standard error {two_figures(error)})" if np.isfinite(error) else ""
    how = "The prompts are the same" if sides.attrs["paired"] else "The prompts are not of the same tokens"
    right = listed([str(int(side["exact_of_prompt"].sum())) for side in (first, second)])
    given = [f"{percent(value)}{_signed(side, value)}" for value, side in zip(answer, (first, second))]
    others = [f"{percent(value)}{_signed(side, value, 'irrelevant')}" for value, side in zip(rest, (first, second))]
    return (
        f"{names[0]} gives the answer {given[0]}, {names[1]} {given[1]}: {size}{within}. "
        f"{_by_normalisation(change['difference'])}. Irrelevant tokens get {listed(others)}. "
        f"{right} of {counted(first['exact_of_prompt'].size, 'answer')} are exact. {how}."
    )


def _signed(estimates: xr.Dataset, share: float, span: str = "answer") -> str:
    """Say how much of what a span gets of |D| is negative; nothing for standard attention."""
    if not has_second_map(estimates["mass_of_prompt"]):
        return ""
    return f" of |D| ({signs.of_it(share, float(estimates['negative'].sel(map='D', span=span).mean(CELL)))})"


def _by_normalisation(differences: xr.DataArray) -> str:
    """Say whether the sign of a difference is the same in all normalisations."""
    values = {str(name): float(value) for name, value in zip(differences["normalisation"].values, differences.values)}
    defined = {name: value for name, value in values.items() if np.isfinite(value)}
    seen = {np.sign(value) for value in defined.values()}
    words = [f"{'+' if value > 0 else ''}{decimal(value)} {name}" for name, value in defined.items()]
    missing = [f"undefined {name}" for name in values if name not in defined]
    start = "The sign depends on the normalisation"
    if seen == {0.0}:
        start = "There is no difference in any normalisation"
    elif len(seen) == 1:
        start = "The sign is the same in all normalisations" + (" that are defined" if missing else "")
    return f"{start}: {listed([*words, *missing])}"
