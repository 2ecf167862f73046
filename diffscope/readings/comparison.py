"""What differs most between two captures: models, prompts, checkpoints, or a model with and without an edit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.capture.comparison import Comparison
from diffscope.errors import DiffscopeError, check_choice
from diffscope.numbers import head_name, two_figures
from diffscope.readings.captures import any_capture
from diffscope.readings.reading import Reading
from diffscope.stats.averaging import average, finite_mean, finite_median, rule
from diffscope.stats.labels import UNSIGNED
from diffscope.stats.spans import NORMALISATIONS

Side = Capture | xr.Dataset

#: one or two of each kind, so that what is large is not listed under many names
USUAL = ("entropy_normalised", "gini", "span_mass", "overlap", "cosine", "noise_gain", "signal_gain", "lambda")
BY_CHANCE = (0.5, 0.95)


class Item(NamedTuple):
    """What is compared: a statistic of one map, on one key set and so on."""

    statistic: str
    what: str
    units: str
    averaged: str


def differences(
    first: Comparison | Side,
    second: Side | None = None,
    *,
    names: Sequence[str] | None = None,
    statistics: Sequence[str] | str | None = USUAL,
    queries: str | slice | Sequence[int] | None = (-1,),
    normalisation: str = "share",
    matched: bool | None = None,
    draws: int = 99,
    seed: int = 0,
) -> Reading:
    """Compare the statistics of two captures, and list what differs most first.

    Of two models, means over heads are compared layer by layer (medians of ratios without a bound, as ``diffscope.average`` takes
    them), since head h of one is not head h of the other. The unit is the standard deviation over the heads of all layers, pooled
    over the two sides. Where the same model is on both sides, each head is compared with itself, in the same unit.

    Parameters
    ----------
    first : Comparison, Capture or Dataset
        A Dataset is what ``measure`` gave.
    second : Capture or Dataset, optional
        Not beside a Comparison, which holds both.
    names : two str, optional
        What the two are called; by default the models' names, with their edits.
    statistics : str or sequence of str, optional
        Names or groups; of a Dataset all that it holds is compared.
    queries : str, slice or sequence of int, optional
        As for ``Capture.measure``; by default the last. Several are averaged, and so are prompts.
    normalisation : str
        Of masses.
    matched : bool, optional
        Whether head h of one is head h of the other, as of checkpoints, edits and prompts of one model. By default it is where
        both models have one name, steps of training left out, and the same heads. A module that was opened as it is has the
        name of its class, which another model may have too: then it is only where one side has edits.
    draws, seed : int
        How often heads are exchanged between two models at random, for the control.

    Returns
    -------
    Reading
        ``estimates`` (entry), largest first: ``first``, ``second``, ``difference`` (first − second), ``spread``, and their ratio
        ``standardised``; ``heads_first`` and ``heads_second``, the number of values of each; coordinates ``statistic``, ``what``,
        ``units``, ``averaged``, ``layer`` and, if matched, ``head``. ``by_chance`` (quantile) is the largest
        ``standardised`` where heads are exchanged at random within their layer; NaN if matched. The attributes ``left_out`` (what
        has no mean or is not by head) and ``on_one_side`` (what is undefined on a side) name statistics.

    Raises
    ------
    DiffscopeError
        The two have no layer or statistic in common, or `matched` ones other heads; there is no such normalisation.
    """
    check_choice("normalisation", normalisation, NORMALISATIONS)
    sides, names = _sides(first, second, names, statistics, queries)
    left_out = list(dict.fromkeys(name for side in sides for name in _left_out(side)))
    items, layers, arrays = _aligned([_items(_averaged(side), normalisation, left_out) for side in sides])
    same_heads = arrays[0].shape == arrays[1].shape
    if matched is None:
        matched = same_heads and _one_model(sides)
    if matched and not same_heads:
        raise DiffscopeError(f"{names[0]} and {names[1]} have other heads, and none can be matched; leave matched out")
    medians = np.array([item.averaged == "median" for item in items])
    estimates = _table(items, layers, arrays, medians, matched)
    chance = np.full(len(BY_CHANCE), np.nan) if matched else _by_chance(arrays, medians, draws, seed)
    about = {
        "long_name": "largest standardised difference by chance",
        "units": "1",
        "definition": f"quantiles over {draws} draws in which heads are exchanged at random between the two within each layer",
    }
    estimates["by_chance"] = xr.DataArray(chance, {"quantile": list(BY_CHANCE)}, ("quantile",), attrs=about)
    defined = set(estimates["statistic"].values.tolist())
    absent = [name for name in dict.fromkeys(item.statistic for item in items) if name not in defined]
    estimates.attrs = {
        "first": names[0],
        "second": names[1],
        "matched": int(matched),
        "left_out": ", ".join(left_out),
        "on_one_side": ", ".join(absent),
    }
    return Reading(_sentence(estimates), estimates)


def _sides(
    first: Comparison | Side,
    second: Side | None,
    names: Sequence[str] | None,
    statistics: Sequence[str] | str | None,
    queries: str | slice | Sequence[int] | None,
) -> tuple[list[xr.Dataset], tuple[str, str]]:
    """Return what was measured of the two, and their names."""
    if isinstance(first, Comparison):
        names = names or first.names
        first, second = first.captures
    if second is None:
        raise DiffscopeError("a difference is between two: give a Comparison, two captures, or what was measured of two")
    both = (first, second)
    sides = [side if isinstance(side, xr.Dataset) else any_capture(side).measure(statistics, queries=queries) for side in both]
    if names is None:
        edited = [f" ({side.attrs['edits']})" if "edits" in side.attrs else "" for side in sides]
        names = [f"{side.attrs.get('model', '')}{words}" for side, words in zip(sides, edited)]
    if names[0] == names[1]:
        names = [f"{name or 'capture'} ({number})" for number, name in enumerate(names, 1)]
    return sides, (names[0], names[1])


def _one_model(sides: Sequence[xr.Dataset]) -> bool:
    """Return whether both sides are of one model, judged by their names."""
    names = [str(side.attrs.get("model", "")) for side in sides]
    first, second = (name.rpartition("@")[0] or name for name in names)
    of_a_class = names[0] == names[1] and first.isidentifier()
    return first == second != "" and (not of_a_class or any("edits" in side.attrs for side in sides))


def _left_out(measured: xr.Dataset) -> list[str]:
    """Return the names of statistics that have no mean over heads."""
    return [
        str(name)
        for name, values in measured.data_vars.items()
        if not {"layer", "head"} <= set(values.dims) or "other_head" in values.dims or rule(values) == "not"
    ]


def _averaged(measured: xr.Dataset) -> xr.Dataset:
    """Average over queries, then over prompts."""
    averages = average(measured, "query")
    return average(averages, "prompt")


def _items(averages: xr.Dataset, normalisation: str, left_out: Sequence[str]) -> dict[Item, xr.DataArray]:
    """Return the values of each item, (layer, head)."""
    items = {}
    for name, values in averages.data_vars.items():
        error = str(name).endswith("_se") and str(name).removesuffix("_se") in averages
        if name in left_out or error:
            continue
        unsigned = normalisation == "share" and "normalisation" in values.dims
        for dim, label in (("normalisation", normalisation), ("lambda_value", "used")):
            if dim in values.dims:
                values = values.sel({dim: label}, drop=True)
        others = [dim for dim in values.dims if dim not in ("layer", "head")]
        for labels in itertools.product(*(values[dim].values.tolist() for dim in others)):
            selection = [*map(str, labels), *([UNSIGNED] if unsigned and "D" in labels else [])]
            words = ": ".join([str(values.attrs.get("long_name", name)), *([", ".join(selection)] if selection else [])])
            item = Item(str(name), words, str(values.attrs.get("units", "1")), rule(values))
            items[item] = values.sel(dict(zip(others, labels)), drop=True).transpose("layer", "head")
    return items


def _aligned(sides: Sequence[dict[Item, xr.DataArray]]) -> tuple[list[Item], list[int], list[np.ndarray]]:
    """Return items, layers and each side's values (item, layer, head) that both sides have; NaN if not finite."""
    first, second = sides
    items = [item for item in first if item in second]
    layers = (
        [int(layer) for layer in first[items[0]]["layer"].values if layer in second[items[0]]["layer"].values] if items else []
    )
    if not layers:
        raise DiffscopeError("the two have no statistic of a layer in common; measure the same of both")
    arrays = [np.stack([side[item].sel(layer=layers).values.astype(float) for item in items]) for side in sides]
    return items, layers, [np.where(np.isfinite(array), array, np.nan) for array in arrays]


def _centre(values: np.ndarray, medians: np.ndarray) -> np.ndarray:
    """Compute means or medians over heads: (item, layer, head) → (item, layer)."""
    return np.where(medians[:, None], finite_median(values), finite_mean(values))


def _unit(sides: Sequence[np.ndarray]) -> np.ndarray:
    """Compute the unit of differences, (item,): the standard deviation over the heads of all layers, pooled over both sides."""
    squares = np.zeros(len(sides[0]))
    free = np.zeros(len(sides[0]))
    for values in sides:
        heads = values.reshape(len(values), -1)
        squares += np.nansum((heads - finite_mean(heads)[:, None]) ** 2, -1)
        free += np.maximum(np.isfinite(heads).sum(-1) - 1, 0)
    defined = (free > 0) & (squares > 0)
    return np.sqrt(np.where(defined, squares, np.nan) / np.where(defined, free, 1))


def _by_chance(sides: Sequence[np.ndarray], medians: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Compute quantiles of the largest standardised difference if heads are exchanged at random within each layer."""
    rng = np.random.default_rng(seed)
    pooled = np.concatenate(sides, -1)  # (item, layer, head)
    largest = []
    for _ in range(draws):
        order = rng.random(pooled.shape[1:]).argsort(-1)
        exchanged = np.split(np.take_along_axis(pooled, order[None], -1), [sides[0].shape[-1]], -1)
        first, second = (_centre(values, medians) for values in exchanged)
        sizes = abs(first - second) / _unit(exchanged)[:, None]
        largest.append(np.nanmax(sizes, initial=0.0))
    return np.quantile(largest, BY_CHANCE) if largest else np.full(len(BY_CHANCE), np.nan)


def _table(
    items: Sequence[Item], layers: Sequence[int], sides: Sequence[np.ndarray], medians: np.ndarray, matched: bool
) -> xr.Dataset:
    """Return one entry for each item, layer and (if matched) head that both sides define, the largest first."""
    unit = _unit(sides)
    first, second = sides if matched else (_centre(values, medians)[..., None] for values in sides)
    counts = [np.ones_like(values) if matched else np.isfinite(values).sum(-1, keepdims=True) for values in sides]
    with np.errstate(invalid="ignore"):
        size = (first - second) / unit[:, None, None]
    defined = np.argwhere(np.isfinite(first - second))
    order = np.argsort(-np.nan_to_num(abs(size[tuple(defined.T)]), nan=-1.0), kind="stable")
    at = tuple(defined[order].T)  # items, layers and heads of the entries
    numbers = {
        "first": (first, "value of the first", "average over heads of the layer, or of one head"),
        "second": (second, "value of the second", "average over heads of the layer, or of one head"),
        "difference": (first - second, "difference", "first - second"),
        "spread": (
            np.broadcast_to(unit[:, None, None], first.shape),
            "unit of differences",
            "standard deviation over the heads of all layers, pooled over the sides",
        ),
        "standardised": (size, "difference in units of the spread", "difference / spread"),
        "heads_first": (counts[0], "values of the first", "#{heads with a value}"),
        "heads_second": (counts[1], "values of the second", "#{heads with a value}"),
    }
    own_units = ("first", "second", "difference", "spread")
    variables = {
        name: (
            "entry",
            values[at],
            {"long_name": words, "units": "of the entry" if name in own_units else "1", "definition": formula},
        )
        for name, (values, words, formula) in numbers.items()
    }
    chosen = [items[item] for item in at[0]]
    coords = {name: ("entry", [getattr(item, name) for item in chosen]) for name in Item._fields}
    coords["layer"] = ("entry", [layers[layer] for layer in at[1]])
    if matched:
        coords["head"] = ("entry", at[2].tolist())
    return xr.Dataset(variables, coords)


def is_by_chance(estimates: xr.Dataset) -> bool:
    """Return whether the largest difference is no more than exchanging heads at random gives in 1 of 20 draws."""
    largest = np.abs(estimates["standardised"].values[:1])
    return bool((largest <= estimates["by_chance"].values[-1]).any())


def chance_in_words(estimates: xr.Dataset) -> str:
    """Say whether anything differs more than exchanging heads at random gives; empty if that control is not defined."""
    if not estimates.sizes["entry"] or not np.isfinite([estimates["standardised"][0], estimates["by_chance"][-1]]).all():
        return ""
    if is_by_chance(estimates):
        return "no statistic differs more than exchanging heads at random gives"
    top = estimates.isel(entry=0)
    return f"in layer {int(top['layer'])} {top['what'].item()} differs more than exchanging heads at random gives"


def _sentence(estimates: xr.Dataset) -> str:
    """Say where the largest difference is."""
    names = f"{estimates.attrs['first']} and {estimates.attrs['second']}"
    if not estimates.sizes["entry"]:
        return f"Nothing is defined in both {names}."
    top = estimates.isel(entry=0)
    if not estimates["difference"].any():
        return f"Nothing differs between {names}."
    if not float(top["standardised"]) or top["standardised"].isnull():  # what has no spread comes last
        return f"What differs between {names} has no spread to compare it with."
    matched = bool(estimates.attrs["matched"])
    where = head_name(int(top["layer"]), int(top["head"])) if matched else f"layer {int(top['layer'])}"
    units = "" if top["units"] == "1" else f" {top['units'].item()}"
    values = " against ".join(f"{two_figures(float(top[side]))}{units}" for side in ("first", "second"))
    size = f"{two_figures(abs(float(top['standardised'])))} times the spread over all heads"
    start = f"Of {estimates.sizes['entry']} differences between {names} the largest is in {where}:"
    start = f"{start} {top['what'].item()}, {values}, {size}"
    if matched:
        return f"{start}; the same heads are on both sides."
    counts = " and ".join(str(int(top[f"heads_{side}"])) for side in ("first", "second"))
    start = f"{start} ({top['averaged'].item()}s over {counts} heads)"
    usual, rare = estimates["by_chance"].values.tolist()
    if np.isnan(rare):
        return f"{start}."
    verdict = "no more than" if is_by_chance(estimates) else "more than"
    chance = f"median {two_figures(usual)}, 95th percentile {two_figures(rare)}"
    return f"{start}; {verdict} exchanging heads at random gives ({chance})."
