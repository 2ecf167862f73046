"""A statistic of every head by layer, of several captures, and what it would be without anything to find: its controls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from diffscope.capture import Capture, CaptureBatch
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.heads import over_heads
from diffscope.figures.subjects import UNDEFINED, together, undefined_said
from diffscope.stats import STATISTICS
from diffscope.stats.averaging import averaged, rule

RANKS = {"permuted": "its rows permuted", "uniform": "uniform map"}
UNIFORM = "uniform attention"
OTHERS = "A₂ of other heads"
INITIAL = "at initialisation"
DASHES = {"": "solid", RANKS["permuted"]: "dash", OTHERS: "dash", INITIAL: "dash", RANKS["uniform"]: "dot", UNIFORM: "dot"}
BETWEEN = ": "


def of_statistic(
    captures: Mapping[str, Capture | CaptureBatch], statistic: str, choices: Mapping[str, str | None], query: int | str
) -> xr.DataArray:
    """Every head of every capture and its controls, (series, layer, head); series are called "model" or "model: control"."""
    if statistic not in STATISTICS:
        raise DiffscopeError(f"there is no statistic {statistic!r}; diffscope.stats.STATISTICS has those that there are")
    tables = {name: _with_controls(cap, statistic, choices, query) for name, cap in captures.items()}
    for name, cap in captures.items():
        own = tables[name][""]
        own.attrs["selection"] = ", ".join([*filter(None, [own.attrs["selection"]]), *_places(cap, statistic, query)])
    first = next(iter(tables.values()))[""]
    if rule(first) == "not":
        units = first.attrs["units"]
        raise DiffscopeError(f"{statistic} [{units}] has no mean over heads that would say anything; see figures.heads")
    parts = {name: table[""] for name, table in tables.items()}
    for control in [name for name in next(iter(tables.values())) if name]:
        parts |= _of_control(control, {name: table[control] for name, table in tables.items()})
    selections = dict.fromkeys(str(table[""].attrs["selection"]) for table in tables.values())
    values = undefined_said(together(parts, "series"), "series")
    return values.assign_attrs({**first.attrs, "selection": " or ".join(selections)})


def _of_control(control: str, tables: Mapping[str, xr.DataArray]) -> dict[str, xr.DataArray]:
    """One control of several models as series: one of all where it is the same, none where it is undefined."""
    defined = {name: values for name, values in tables.items() if values.notnull().any()}
    if len(defined) == 1 == len(tables) or (len(defined) > 1 and _alike(list(defined.values()))):
        return {control: next(iter(defined.values()))}
    return {f"{name}{BETWEEN}{control}": values for name, values in defined.items()}


def _alike(tables: list[xr.DataArray]) -> bool:
    """Whether all have the same numbers for the same heads."""
    first, *others = tables
    return all(one.shape == first.shape and np.allclose(one, first, equal_nan=True) for one in others)


def _with_controls(
    cap: Capture | CaptureBatch, statistic: str, choices: Mapping[str, str | None], query: int | str
) -> dict[str, xr.DataArray]:
    """Heads (layer, head) by the name of the control, their own by none."""
    dims = set(STATISTICS[statistic].dims)
    if "head" not in dims:
        raise DiffscopeError(f"{statistic} is of a layer and not of its heads; choose another statistic")
    own = dict(choices)
    if "ranked_map" in dims:
        usual = "lambda_A2" if cap.differential else "D"
        own["ranked_map"] = choices.get("map") or choices.get("ranked_map") or usual
        names = {"": "map"} | {words: name for name, words in RANKS.items()}
        tables = {words: _heads(cap, statistic, {**own, "control": name}, query) for words, name in names.items()}
        definition = tables[""].attrs["selection"].split(", ")[1]
        word = theme.TITLES[own["ranked_map"]].partition(" = ")[0] if cap.differential else "A"
        about = {"long_name": f"effective rank ({definition})", "selection": word}
        return {words: values.assign_attrs(about) for words, values in tables.items()}
    if "lambda_value" in dims:
        values = {"": "used", INITIAL: "init"}
        tables = {words: _heads(cap, statistic, {**own, "lambda_value": label}, query) for words, label in values.items()}
        return {words: one.assign_attrs(long_name="λ") for words, one in tables.items()}
    if "map" in dims:
        from diffscope.readings.captures import uniform_attention

        uniform = _heads(uniform_attention(cap), statistic, {**own, "map": "A1"}, query)
        return {"": _heads(cap, statistic, own, query), UNIFORM: uniform}
    if has_pairing_control(statistic):
        span = choices.get("span") or "irrelevant"
        if query == "mean":
            return {"": _heads(cap, statistic, {**own, "span": span}, query)}
        beside = [beside_null(one, statistic, span, query) for one in cap]
        names = {"": "as it is", OTHERS: "other heads"}
        return {words: _over_prompts([one.sel(control=name, drop=True) for one in beside]) for words, name in names.items()}
    return {"": _heads(cap, statistic, own, query)}


def has_pairing_control(statistic: str) -> bool:
    """Whether a statistic compares A1 and A2 at a query on a span, so that it may be compared with the A2 of other heads."""
    return {"head", "query", "span"} == set(STATISTICS[statistic].dims)


def _places(cap: Capture | CaptureBatch, statistic: str, query: int | str) -> list[str]:
    """At which queries of which prompts a statistic is, in words."""
    of_prompts = f" of {len(cap)} prompts" if len(cap) > 1 else ""
    if "query" not in STATISTICS[statistic].dims:
        return [of_prompts.removeprefix(" of ")] if of_prompts else []
    if query == "mean":
        counts = sorted({len(prompt.ids) for prompt in cap.prompts})
        count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        average = STATISTICS[statistic].averaged
        return [f"{average} over {count} queries" + (f", then{of_prompts.removeprefix(' of')}" if of_prompts else "")]
    if not of_prompts:
        return [f"query {int(query) % cap.n_tokens}"]
    return [f"the last query{of_prompts}" if query == -1 else f"query {query}{of_prompts}".replace("-", "−")]


def _given(choices: Mapping[str, str | None]) -> dict[str, str]:
    return {dim: label for dim, label in choices.items() if label is not None}


def _heads(cap: Capture | CaptureBatch, statistic: str, choices: Mapping[str, str | None], query: int | str) -> xr.DataArray:
    """One statistic of every head, (layer, head), over the prompts of a batch."""
    from diffscope.readings.captures import query_positions

    tables = []
    for one in cap:
        rows = None if query == "mean" or "query" not in STATISTICS[statistic].dims else query_positions(one, [int(query)])
        values = one.measure([statistic], queries=rows)[statistic]
        at_query = averaged(values, ["query"]).values if rows is None else values.isel(query=0, drop=True)
        chosen = over_heads(at_query, choices=_given(choices))
        own = ("units", "long_name", "definition", "selection")
        tables.append(chosen[statistic].assign_attrs({**values.attrs, **{key: chosen.attrs[key] for key in own}}))
    return _over_prompts(tables)


def _over_prompts(tables: list[xr.DataArray]) -> xr.DataArray:
    """The middle over prompts of every head, by the statistic's own rule."""
    if len(tables) == 1:
        return tables[0]
    prompts = xr.concat(tables, "query", join="outer", combine_attrs="override")
    return averaged(prompts, ["query"]).values.assign_attrs(tables[0].attrs)


def beside_null(cap: Capture | CaptureBatch, statistic: str, span: str, query: int) -> xr.DataArray:
    """What compares A1 and A2 at a query on a span, and the same with the A2 of other heads, (layer, head, control)."""
    from diffscope.readings.captures import one_prompt, query_positions
    from diffscope.readings.pairing import beside_controls

    pairs = [name for name in STATISTICS if has_pairing_control(name)]
    if statistic not in pairs:
        raise DiffscopeError(f"{statistic!r} is none of the statistics that compare A1 and A2 on a span: {', '.join(pairs)}")
    cap = one_prompt(cap)
    if span not in cap.spans:
        raise DiffscopeError(f"there is no span {span!r}; spans are {', '.join(cap.spans)}")
    rows = query_positions(cap, [query])

    def measure(one: Capture) -> xr.Dataset:
        return one.measure([statistic], queries=rows).isel(query=0, drop=True).sel(span=span, drop=True)

    values = beside_controls(cap, measure)[statistic]
    return values.assign_attrs(selection=span)


def middle(values: xr.DataArray) -> xr.DataArray:
    """The average over heads, by the statistic's own rule."""
    return averaged(values, ["head"]).values


def titled(values: xr.DataArray) -> str:
    """What the axis of a statistic is called."""
    units = values.attrs.get("units", "1")
    return str(values.attrs["long_name"]) + ("" if units in ("", "1") else f", {units}")


def averages(tables: Mapping[str, xr.DataArray]) -> str:
    """By what the lines are averaged: mean, median or both."""
    return " or ".join(dict.fromkeys(rule(values) for values in tables.values()))


def looks(series: list[str], models: list[str]) -> dict[str, tuple[str, str]]:
    """A colour for each model, in which its controls are broken lines; controls of all models are grey."""
    colours = dict(zip(models, theme.SERIES * len(models)))
    chosen = {}
    for name in series:
        of = [model for model in models if name.removesuffix(UNDEFINED) == model or name.startswith(model + BETWEEN)]
        model = max(of, key=len, default="")
        control = name.removeprefix(model).removeprefix(BETWEEN).removesuffix(UNDEFINED)
        chosen[name] = (colours.get(model, theme.MUTED), DASHES[control])
    return chosen
