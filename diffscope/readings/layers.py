"""A statistic of every head by layer, of one model or several, beside what it is without anything to find: its controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.attention.maps import MAPS
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError
from diffscope.numbers import between, minus, two_figures
from diffscope.prompts.selection import checked_query
from diffscope.readings.captures import any_capture, query_positions, shared_or_each, uniform_attention
from diffscope.readings.pairing_control import MIDDLE, OWN, compares_maps, paired_statistic
from diffscope.readings.reading import Reading
from diffscope.stats import STATISTICS
from diffscope.stats.averaging import averaged, mean_over_prompts, rule
from diffscope.stats.labels import UNIFORM, at_labels

RANKS = {"permuted": "its rows permuted", "uniform": "uniform map"}
OTHERS = "A₂ of other heads"
INITIAL = "at initialisation"

Captures = Capture | Mapping[str, Capture]
Labels = Mapping[str, str | None]


class _Series(NamedTuple):
    """Values (layer, head) of a model, of one of its controls, or of a control that is the same for all models."""

    model: str  # "" of all
    control: str  # "" of the model as it is
    values: xr.DataArray

    @property
    def label(self) -> str:
        return ": ".join(filter(None, (self.model, self.control)))


def by_layer(captures: Captures, statistic: str = "entropy", *, choices: Labels | None = None, query: int | str = -1) -> Reading:
    """Measure a statistic of every head, its average over the heads of each layer, and the same of its controls.

    Controls are, of effective ranks the map with its rows permuted and the uniform map; of what compares A1 and A2 the same with
    the A2 of other heads; of λ its initial value; of all else that is of a map, uniform attention over the keys that the query
    sees. A control that several models have alike is there once.

    Parameters
    ----------
    captures : Capture, or mapping of str to either
        By model; of a batch every value is the average over its prompts, by the statistic's own rule.
    statistic : str
        By head, from ``diffscope.stats.STATISTICS``.
    choices : mapping of str to str, optional
        Labels along the statistic's other dimensions, such as ``{"span": "sink"}``; ``map`` is that of effective ranks too. By
        default D (of ranks λ·A2), the span "answer" (else the sink), of what compares A1 and A2 "irrelevant"; and "share".
    query : int, "last" or "mean"
        Negative ones count from a prompt's end. "mean" is over all queries, where what compares A1 and A2 has no control. Ranks
        are of all queries.

    Returns
    -------
    Reading
        ``estimates``: ``heads`` (series, layer, head) and their average ``middle`` (series, layer), a mean, or a median where the
        registry averages the statistic so (ratios without a bound, ranks). Along ``series`` are ``model``, nothing of a control
        of all, and ``control``, nothing of models as they are. The attribute ``selection`` says which labels, queries and prompts
        these are. NaN of what a model lacks.

    Raises
    ------
    DiffscopeError
        There is no such statistic, label or query, or the statistic is not by head or has no mean (positions, decibels).

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import readings
    >>> cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
    >>> readings.by_layer(cap, "gini").estimates["series"].values.tolist()
    ['mini-diff', 'uniform attention']
    """
    _check(statistic)
    named = captures if isinstance(captures, Mapping) else {any_capture(captures).model_name: captures}
    if not named:
        raise DiffscopeError("there is no capture; give one at least, such as {'mini-diff': capture}")
    at = checked_query(query, "mean")
    tables = {name: _with_controls(cap, statistic, choices or {}, at) for name, cap in named.items()}
    series = [_Series(name, "", table[""]) for name, table in tables.items()]
    for control in [name for name in next(iter(tables.values())) if name]:
        own = shared_or_each({name: table[control] for name, table in tables.items()})
        series += [_Series(name, control, values) for name, values in own.items()]
    selections = [
        ", ".join(filter(None, [str(tables[name][""].attrs["selection"]), _places(cap, statistic, at)]))
        for name, cap in named.items()
    ]
    heads = _together(series).assign_attrs(selection=" or ".join(dict.fromkeys(selections)))
    estimates = xr.Dataset({"heads": heads, "middle": averaged(heads, ["head"]).values})
    return Reading(_sentence(estimates), estimates)


def _check(statistic: str) -> None:
    if statistic not in STATISTICS:
        raise DiffscopeError(f"there is no statistic {statistic!r}; diffscope.stats.STATISTICS has those that there are")
    entry = STATISTICS[statistic]
    if "head" not in entry.dims:
        raise DiffscopeError(f"{statistic} is of a layer and not of its heads; choose another statistic")
    if entry.averaged == "not":
        raise DiffscopeError(f"{statistic} [{entry.units}] has no mean over heads that would say anything; see figures.heads")


def _together(series: list[_Series]) -> xr.DataArray:
    """Join all series, (series, layer, head); NaN if one lacks a layer or head of another."""
    labels = xr.DataArray([each.label for each in series], dims="series", name="series")
    values = [each.values for each in series]
    heads = xr.concat(values, labels, join="outer", combine_attrs="override", coords="minimal", compat="override")
    models, controls = ([getattr(each, name) for each in series] for name in ("model", "control"))
    return heads.assign_coords(model=("series", models), control=("series", controls))


def _with_controls(cap: Capture, statistic: str, choices: Labels, query: int | str) -> dict[str, xr.DataArray]:
    """Return values (layer, head) by the name of their control, the model's own under no name."""
    dims = set(STATISTICS[statistic].dims)
    if "ranked_map" in dims:
        return _ranks(cap, statistic, choices, query)
    if "lambda_value" in dims:
        values = {"": "used", INITIAL: "init"}
        tables = {words: _heads(cap, statistic, {**choices, "lambda_value": label}, query) for words, label in values.items()}
        return {words: table.assign_attrs(long_name="λ") for words, table in tables.items()}
    if "map" in dims:
        uniform = _heads(uniform_attention(cap), statistic, {**choices, "map": "A1"}, query)
        return {"": _heads(cap, statistic, choices, query), UNIFORM: uniform}
    if compares_maps(statistic):
        span = choices.get("span") or "irrelevant"
        if query == "mean":
            return {"": _heads(cap, statistic, {**choices, "span": span}, query)}
        pairs = [paired_statistic(prompt, statistic, span, int(query)) for prompt in cap]
        controls = {"": OWN, OTHERS: MIDDLE}
        return {words: _over_prompts([pair.sel(control=name, drop=True) for pair in pairs]) for words, name in controls.items()}
    return {"": _heads(cap, statistic, choices, query)}


def _ranks(cap: Capture, statistic: str, choices: Labels, query: int | str) -> dict[str, xr.DataArray]:
    """Return an effective rank with that of the permuted map and of the uniform map."""
    ranked = choices.get("map") or choices.get("ranked_map") or ("lambda_A2" if cap.differential else "D")
    controls = {"": "map"} | {words: name for name, words in RANKS.items()}
    tables = {
        words: _heads(cap, statistic, {**choices, "ranked_map": ranked, "control": name}, query)
        for words, name in controls.items()
    }
    definition = tables[""].attrs["selection"].split(", ")[1]
    word = MAPS[ranked].title.partition(" = ")[0] if cap.differential else "A"
    return {
        words: table.assign_attrs(long_name=f"effective rank ({definition})", selection=word) for words, table in tables.items()
    }


def _places(cap: Capture, statistic: str, query: int | str) -> str:
    """Say which queries of which prompts a statistic is of; nothing for whole maps of one prompt."""
    prompts = f"{len(cap)} prompts" if len(cap) > 1 else ""
    if "query" not in STATISTICS[statistic].dims:
        return prompts
    if query == "mean":
        counts = [len(prompt.ids) for prompt in cap.prompts]
        over = f"{STATISTICS[statistic].averaged} over {between(counts, lambda count: f'{count:g}')} queries"
        return f"{over}, then {prompts}" if prompts else over
    if not prompts:
        return f"query {int(query) % len(cap.prompts[0].ids)}"
    place = "the last query" if query == -1 else minus(f"query {query}")
    return f"{place} of {prompts}"


def _heads(cap: Capture, statistic: str, choices: Labels, query: int | str) -> xr.DataArray:
    """Measure one statistic of every head, (layer, head), averaged over the prompts of a batch."""
    tables = []
    for prompt in cap:
        rows = None if query == "mean" or "query" not in STATISTICS[statistic].dims else query_positions(prompt, [int(query)])
        values = prompt.measure([statistic], queries=rows)[statistic]
        at_query = averaged(values, ["query"]).values if rows is None else values.isel(query=0, drop=True)
        chosen, labels = at_labels(at_query, choices)
        chosen = chosen.transpose("layer", "head").reset_coords(drop=True)
        tables.append(chosen.assign_attrs(values.attrs, selection=", ".join(labels)))
    return _over_prompts(tables)


def _over_prompts(tables: list[xr.DataArray]) -> xr.DataArray:
    """Average over prompts, by the statistic's own rule."""
    first = tables[0]
    if len(tables) == 1:
        return first
    prompts = xr.concat(tables, "prompt", join="outer", combine_attrs="override")
    return mean_over_prompts(prompts, rule(first)).assign_attrs(first.attrs)


def _sentence(estimates: xr.Dataset) -> str:
    """Say from which layer average to which each series goes."""
    middle = estimates["middle"]
    about = middle.attrs
    units = "" if about["units"] in ("", "1") else f" in {about['units']}"
    selection = f" ({about['selection']})" if about["selection"] else ""
    start = f"By layer, the {about['averaged']} over heads of {about['long_name']}{selection}"
    finite = {str(label): row[np.isfinite(row)] for label, row in zip(middle["series"].values, middle.values)}
    courses = [f"{label} {between(row, two_figures)}" for label, row in finite.items() if row.size]
    if not courses:
        return f"{start} is undefined everywhere."
    return f"{start}{units}: {'; '.join(courses)}."
