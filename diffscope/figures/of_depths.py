"""Figures of retrieval by depth of the answer and length of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import Figure
from diffscope.figures.of_values import cells, curves
from diffscope.figures.subjects import drawn, edits_of, estimates_of, prompts_said, together

if TYPE_CHECKING:
    from diffscope.readings.reading import Reading

    Readings = Reading | xr.Dataset | Mapping[str, Reading | xr.Dataset]

READING = "diffscope.readings.depths(scope)"
SPANS = {"answer": ("answer", "solid"), "irrelevant": ("irrelevant tokens", "dash")}
UNIFORM = "uniform attention"
QUANTITIES = {"exact": "share of exact answers", "log_odds": "log-odds of the answer", "answer": "attention on the answer"}


def by_depth(
    subject: Readings,
    *,
    length: int | None = None,
    map: str = "D",
    venue: str | None = None,
    wide: bool | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """What the last query gives to the answer and to irrelevant tokens by depth of the answer, in all four normalisations.

    The form of Table 3 of "Differential Transformer" (Ye et al., 2024), of any number of models. Lines are means over heads, then
    layers, then prompts, with one standard error over prompts; which normalisation the paper used was not published. Beside them,
    the share of keys that the query sees: what uniform attention would give, in grey where that is the same for all models, else
    dotted, in the colour of each. Nothing is averaged over models.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.depths`, by model.
    length : int, optional
        Of the prompts in tokens; by default the longest that all were measured on.
    map : {"D", "A1", "A2"}
    venue, wide, width, title
        As of :func:`diffscope.figures.maps`.

    Returns
    -------
    Figure
        ``value``, ``low`` and ``high`` (panel, series, x): a panel a normalisation, x the depth from 0 to 1.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such length or map, models were measured on other prompts, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> reading = readings.depths(diffscope.load("mini-diff"), [64], prompts=1, distractors=1)
    >>> figures.by_depth(reading)
    <diffscope figure 'by_depth' of value, low, high (panel: 4, series: 4, x: 5)>
    """
    from diffscope.readings.controls import once_or_each  # which loads code of models
    from diffscope.readings.depths import common_lengths

    estimates = estimates_of(subject, "mass_of_prompt", READING)
    common = common_lengths(estimates)
    tokens = common[-1] if length is None else length
    chosen = {name: _chosen(one, length=tokens, map=map) for name, one in estimates.items()}
    colours = dict(zip(chosen, theme.SERIES * len(chosen)))
    rows: dict[str, xr.DataArray] = {}
    errors: dict[str, xr.DataArray] = {}
    looks = {}
    for name, one in chosen.items():
        for span, (words, dash) in SPANS.items():
            label = f"{name}: {words}"
            rows[label] = one["mass"].sel(span=span, drop=True)
            errors[label] = one["mass_se"].sel(span=span, drop=True)
            looks[label] = (colours[name], dash)
    shape = next(iter(rows.values()))
    for name, uniform in once_or_each({name: one["uniform"].sel(span=list(SPANS)) for name, one in chosen.items()}).items():
        for span, (words, dash) in SPANS.items():
            label = f"{_uniform(name)}: {words}"
            rows[label] = uniform.sel(span=span, drop=True).broadcast_like(shape)
            errors[label] = rows[label].where(False)
            looks[label] = (colours[name], "dot") if name else (theme.MUTED, dash)
    values = together({label: row for label, row in rows.items()}, "series").assign_attrs(long_name="attention", units="1")
    error = xr.concat(list(errors.values()), values["series"], coords="minimal", compat="override")
    figure = curves(
        values,
        x="depth",
        series="series",
        panels="normalisation",
        low=values - error,
        high=values + error,
        looks=looks,
        venue=venue,
        wide=True if wide is None else wide,
        width=width,
        title=title,
    )
    first = next(iter(chosen.values()))
    within = ", ± standard error over prompts" if any(one["mass_se"].notnull().any() for one in chosen.values()) else ""
    caption = (
        f"{map} of the last query on the answer and on irrelevant tokens by depth of the answer, prompts of {tokens} tokens; "
        f"mean over {first.attrs['averaged_over']}{within}."
    )
    facts = {"length": int(tokens), "map": map, "prompts": int(first.attrs["prompts"])}
    return drawn("by_depth", figure, caption, edits=edits_of(chosen), model=", ".join(chosen), **facts)


def depth_by_length(
    subject: Readings,
    *,
    quantity: Literal["exact", "log_odds", "answer"] = "exact",
    map: str = "D",
    normalisation: str = "share",
    venue: str | None = None,
    wide: bool | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Whether a model answers, or looks at the answer, by depth of the answer and length of the prompt, as cells.

    Every cell is a mean over prompts; below it stands one standard error over prompts, or for exact answers half the width of
    their 95 % interval (Wilson). Of attention, a panel has what uniform attention would give: one where that is the same for all
    models, else one each; nothing is averaged over models. Of several models these are the lengths that all were measured on.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.depths`, by model; each is a panel.
    quantity : {"exact", "log_odds", "answer"}
        The share of exact answers; log-odds of the answer against all distractors, in nats; or attention on the answer, mean over
        heads, then layers.
    map, normalisation : str
        Of the attention.
    venue, wide, width, title
        As of :func:`diffscope.figures.maps`.

    Returns
    -------
    Figure
        ``value`` and ``error`` (panel, y, x): y the length in tokens, x the depth from 0 to 1.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such quantity, map or normalisation, models were measured on other prompts, or all
        is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> reading = readings.depths(diffscope.load("mini-diff"), [64, 96], prompts=1, distractors=1)
    >>> figures.depth_by_length(reading, quantity="log_odds")
    <diffscope figure 'depth_by_length' of value, error (panel: 1, y: 2, x: 5)>
    """
    from diffscope.readings.controls import once_or_each  # which loads code of models
    from diffscope.readings.depths import common_lengths

    estimates = estimates_of(subject, "mass_of_prompt", READING)
    if quantity not in QUANTITIES:
        raise DiffscopeError(f"there is no quantity {quantity!r}; choose from {', '.join(QUANTITIES)}")
    lengths = common_lengths(estimates)
    estimates = {name: one.sel(length=lengths) for name, one in estimates.items()}
    values: dict[str, xr.DataArray] = {}
    errors: dict[str, xr.DataArray] = {}
    counts: list[int] = []
    for name, one in estimates.items():
        if quantity == "exact":
            values[name], errors[name] = one["exact"], (one["exact_high"] - one["exact_low"]) / 2
            of_prompt = one["exact_of_prompt"]
        elif quantity == "log_odds":
            values[name], errors[name] = one["log_odds"], one["log_odds_se"]
            of_prompt = one["log_odds_of_prompt"]
        else:
            mass = _chosen(one, map=map, normalisation=normalisation).sel(span="answer", drop=True)
            values[name], errors[name] = mass["mass"], mass["mass_se"]
            of_prompt = mass["mass_of_prompt"]
        counts += of_prompt.notnull().sum("prompt").values.ravel().tolist()
    facts: dict[str, Any] = {}
    words = QUANTITIES[quantity]
    if quantity == "answer":
        for name, uniform in once_or_each({name: one["uniform"].sel(span="answer") for name, one in estimates.items()}).items():
            values[_uniform(name)] = uniform.drop_vars("span")
            errors[_uniform(name)] = uniform.drop_vars("span").where(False)
        facts = {"map": map, "normalisation": normalisation}
        words = f"{words} ({normalisation} of {map})"
    table = together(values).assign_attrs(long_name=words, units="nats" if quantity == "log_odds" else "1")
    error = xr.concat(list(errors.values()), table["model"], coords="minimal", compat="override", join="outer")
    figure = cells(table, x="depth", y="length", panels="model", error=error, venue=venue, wide=wide, width=width, title=title)
    first = next(iter(estimates.values()))
    below = "half their 95 % interval (Wilson)" if quantity == "exact" else "its standard error over prompts"
    within = f", ± {below}" if error.notnull().any() else ""
    caption = f"{words}: mean over {prompts_said(counts)} a cell{within}."
    facts |= {"edits": edits_of(estimates), "prompts": int(first.attrs["prompts"])}
    return drawn("depth_by_length", figure, caption, model=", ".join(estimates), **facts)


def _uniform(model: str) -> str:
    """What uniform attention over a model's keys is called; of all models without a name."""
    return f"{UNIFORM} ({model})" if model else UNIFORM


def _chosen(estimates: xr.Dataset, **labels: int | str) -> xr.Dataset:
    """One label along each of some dimensions."""
    for dim, label in labels.items():
        known = estimates[dim].values.tolist()
        if label not in known:
            raise DiffscopeError(
                f"there is no {dim} {label!r} in these estimates; choose from {', '.join(str(k) for k in known)}"
            )
    return estimates.sel(labels)
