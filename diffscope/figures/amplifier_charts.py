"""Charts of what :mod:`diffscope.readings` says of a model as an amplifier; each is of the estimates of a reading."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from diffscope.attention.maps import MAPS, RANKED_MAPS
from diffscope.figures.by_head import by_head
from diffscope.figures.figure import Figure
from diffscope.figures.values import curves
from diffscope.readings.gains import per_unit
from diffscope.readings.logits import FIRST, OTHER, SECOND, targets
from diffscope.readings.logits import LARGEST as LARGEST_OTHER
from diffscope.readings.logits import LEAST as LEAST_OTHER
from diffscope.readings.map_structure import NEXT
from diffscope.readings.map_structure import OWN as AS_IT_IS
from diffscope.readings.pairing_control import LARGEST, LEAST, MIDDLE, OWN
from diffscope.stats.averaging import mean_over_prompts, standard_error

CONTROLS = {OWN: "own A₂", MIDDLE: "A₂ of other heads"}
SYMBOLS = {name: entry.symbol for name, entry in MAPS.items()}
CEILING = "ceiling (A₂ of A₁'s shape)"
EQUAL = "equal maps, small noise"
OUTPUTS = {name: f"{SYMBOLS[name]}·V" for name in RANKED_MAPS}
SECONDS = {"own": "own A₂", "uniform": "uniform A₂", "next head": "A₂ of the next head"}
STAGES = {"before": "before the norm", "after": "after the norm"}
SIDES = {"signal_change": "signal", "noise_change": "noise"}
RANKS = {"map": "the map", "permuted": "its rows permuted", "uniform": "uniform map"}
MODES = {"common": "common noise", "differential": "opposite noise"}
PANELS_OF_PARTS = {"A₂": ("A2", AS_IT_IS), "A₂ of the next head": ("A2", NEXT), "A₁": ("A1", AS_IT_IS)}
PARTS = {"other": "the other map"}
TARGETS = {"answer": "answer", "distractors": "mean of distractors", "margin": "answer − distractors"}
STAR = (0.0, 2.0)  # a λ* beyond says only that there is next to nothing to subtract
GAINS = (-2.0, 2.0)
PASSED = {"as much as went in": 1.0}
START = "λ_init, the constant in its formula"


class Quantity(NamedTuple):
    """One quantity of an amplifier: its variable, what its axis is called, how it is drawn, and beside what."""

    variable: str
    title: str
    options: dict[str, Any]
    control: str = "the same with the A2 of other heads"


QUANTITIES = {
    "best_lambda": Quantity("lambda_star", "λ*", {"panels": "span", "within": STAR}),
    "lambda": Quantity("lambda", "λ", {"controls": [START]}, "λ_init, the constant in its formula"),
    "cmrr": Quantity("cmrr", "CMRR", {"style": "bars"}, ""),
    "residual": Quantity("residual_over_floor", "residual / floor", {"log": "y"}),
    "floor": Quantity("residual_floor", "floor", {}),
    "noise_gain": Quantity("noise_gain", "noise gain", {"panels": "span", "references": PASSED, "log": "y"}),
    "signal_gain": Quantity("signal_gain", "signal gain", {"panels": "span", "references": PASSED, "within": GAINS}),
}


def by_quantity(estimates: xr.Dataset, quantity: str, models: Collection[xr.Dataset] = ()) -> Figure:
    """Draw one of ``QUANTITIES`` of every head, beside its control: a range where that is of the A2 of other heads.

    Keys are irrelevant ones, or panels of these and the answer. λ* stands against λ per unit of A1, named for all `models` if the
    figure is of several.
    """
    variable, title, options, _ = QUANTITIES[quantity]
    values = _titled(estimates[variable], title)
    options = {"style": "points", "wide": True, **options}
    if quantity == "lambda":
        which = xr.DataArray(["λ", START], dims="control", name="control")
        values = xr.concat([values, estimates["lambda_init"]], which, combine_attrs="override")
    if "control" not in values.dims or quantity == "lambda":
        return curves(by_head(values), x="head", series="control" if "control" in values.dims else None, **options)
    if quantity == "best_lambda":
        name = per_unit(*(models or [estimates]))
        at = by_head(_titled(estimates["lambda"] / estimates["gain"], name))
        middle, _, _ = _beside_controls(values)
        return curves(middle, x="head", series="control", at=at, diagonal=f"λ* = {name}", controls=[CONTROLS[MIDDLE]], **options)
    return beside_other_heads(values if "panels" in options else values.sel(span="irrelevant", drop=True), **options)


def beside_other_heads(values: xr.DataArray, **options) -> Figure:
    """Draw values of every head (layer, head, control) as points, beside the range of those with the A2 of other heads."""
    middle, low, high = _beside_controls(values)
    grey = [CONTROLS[MIDDLE]]
    options = {"style": "points", **options}
    return curves(middle, x="head", series="control", low=low, high=high, controls=grey, extremes=grey, **options)


def ranks(estimates: xr.Dataset, definition: str = "erank") -> Figure:
    """Draw effective ranks of λ·A2, A1 and D of every head, beside its rows permuted and the uniform map."""
    chosen = estimates.sel(definition=definition, rank_control=list(RANKS), ranked_map=["lambda_A2", "A1", "D"])
    standard = not chosen["effective_rank"].sel(ranked_map="lambda_A2").notnull().any()
    drawn = chosen.sel(ranked_map=["D"]) if standard else chosen
    drawn = _worded(drawn, ranked_map={"D": "A"} if standard else SYMBOLS, rank_control=RANKS)
    rank, error = (by_head(drawn[name]) for name in ("effective_rank", "effective_rank_error"))
    return curves(
        _titled(rank, definition),
        x="head",
        series="rank_control",
        panels="ranked_map",
        low=rank - error,
        high=rank + error,
        style="points",
        log="y",
        controls=[RANKS["permuted"], RANKS["uniform"]],
        wide=True,
    )


def rejected(estimates: xr.Dataset, sigma: float) -> Figure:
    """Draw what every head rejects of injected noise of one strength, with its standard error, beside controls and ceiling."""
    chosen = estimates.sel(sigma=sigma)
    error = by_head(chosen["cmrr_injected_error"].sel(control=OWN, drop=True))
    values, low, high = _beside_controls(_titled(chosen["cmrr_injected"], "CMRR by injection"))
    own = values["control"] == CONTROLS[OWN]
    most = [by_head(each) for each in _ceiling(chosen)]
    equal = by_head(chosen["equal_maps"]).expand_dims(control=[EQUAL])
    return curves(
        xr.concat([values, *most, equal], "control"),
        x="head",
        series="control",
        low=xr.concat([xr.where(own, values - error, low), *most, equal], "control"),
        high=xr.concat([xr.where(own, values + error, high), *most, equal], "control"),
        references={"nothing cancels": 0.0},
        style="points",
        controls=[CONTROLS[MIDDLE], CEILING, EQUAL],
        extremes=[CONTROLS[MIDDLE]],
        wide=True,
    )


def rejected_by_sigma(estimates: xr.Dataset, layer: int, head: int) -> Figure:
    """Draw what one head rejects over the strength of the noise, beside the pairing control and the ceiling."""
    of_head = estimates.sel(layer=layer, head=head, drop=True)
    error = of_head["cmrr_injected_error"].sel(control=OWN, drop=True)
    values, low, high = _ranged(_titled(of_head["cmrr_injected"], f"CMRR of L{layer}H{head}"))
    own = values["control"] == CONTROLS[OWN]
    most = _ceiling(of_head)
    return curves(
        _with_sigma(xr.concat([values, *most], "control")),
        x="sigma",
        series="control",
        low=xr.concat([xr.where(own, values - error, low), *most], "control"),
        high=xr.concat([xr.where(own, values + error, high), *most], "control"),
        references={"nothing cancels": 0.0},
        log="x",
        controls=[CONTROLS[MIDDLE], CEILING],
        extremes=[CONTROLS[MIDDLE]],
    )


def rejected_by_all(estimates: xr.Dataset) -> Figure:
    """Draw what heads reject over the strength of the noise: their median and each, beside pairing control and ceiling."""
    values = _worded(_titled(estimates["cmrr_injected"].sel(control=list(CONTROLS)), "CMRR by injection"), control=CONTROLS)
    values = xr.concat([values, *_ceiling(estimates)], "control")
    heads = _with_sigma(values.where(np.isfinite(values)))
    return curves(
        heads.median(["layer", "head"], keep_attrs=True),
        x="sigma",
        series="control",
        points=heads,
        references={"nothing cancels": 0.0},
        log="x",
        controls=[CONTROLS[MIDDLE], CEILING],
    )


def _ceiling(estimates: xr.Dataset) -> list[xr.DataArray]:
    """Return the ceiling of rejection as a series of its own; none where it was not measured."""
    if "cmrr_ceiling" not in estimates:
        return []
    return [estimates["cmrr_ceiling"].expand_dims(control=[CEILING])]


def gained(estimates: xr.Dataset) -> Figure:
    """Draw what the subtraction gains in signal-to-noise ratio in every head, ± standard error, beside other second maps."""
    gain = estimates["snr_gain"]
    values = _staged(_titled(gain, "signal-to-noise gain"), gain, a2=SECONDS)
    error = _staged(estimates["snr_gain_error"], gain, a2=SECONDS).where(values["a2"] == SECONDS["own"])
    return curves(
        values,
        x="head",
        series="a2",
        panels="stage",
        low=values - error,
        high=values + error,
        references={"as before": 0.0},
        style="points",
        controls=[SECONDS["uniform"], SECONDS["next head"]],
        wide=True,
    )


def heard(estimates: xr.Dataset) -> Figure:
    """Draw the signal-to-noise ratio of A1·V, λA2·V and D·V of every head, with standard errors."""
    chosen = estimates.sel(output=list(OUTPUTS))
    values = _staged(_titled(chosen["snr"], "signal-to-noise ratio"), chosen["snr"], output=OUTPUTS)
    error = _staged(chosen["snr_error"], chosen["snr"], output=OUTPUTS)
    known = values["output"][values.notnull().any([dim for dim in values.dims if dim != "output"]).values]
    values, error = values.sel(output=known), error.sel(output=known)
    return curves(
        values,
        x="head",
        series="output",
        panels="stage",
        low=values - error,
        high=values + error,
        references={"as much as the text around": 0.0},
        style="points",
        wide=True,
    )


def gained_by_side(estimates: xr.Dataset) -> Figure:
    """Draw what the subtraction does to the signal, and what to the noise, of every head."""
    sides = [estimates[name].sel(a2="own", drop=True) for name in SIDES]
    values = xr.concat(sides, xr.DataArray(list(SIDES.values()), dims="side", name="side"), combine_attrs="override")
    values = _staged(_titled(values, "change by the subtraction"), values)
    return curves(values, x="head", series="side", panels="stage", references={"as before": 0.0}, style="bars", wide=True)


def _staged(values: xr.DataArray, known: xr.DataArray, **words: Mapping[str, str]) -> xr.DataArray:
    """Return values of every head before the norm, and after it where others are known."""
    stages = [stage for stage in STAGES if stage == "before" or known.sel(stage=stage).notnull().any()]
    return by_head(_worded(values.sel(stage=stages), stage=STAGES, **words))


def lost(estimates: xr.Dataset) -> Figure:
    """Draw log-odds of the answer lost to common and to opposite noise, with standard errors, over the strength of the noise."""
    values = _worded(_titled(estimates["log_odds_lost"], "log-odds lost"), mode=MODES)
    error = _worded(estimates["log_odds_lost_error"], mode=MODES)
    everything = {"all of it": float(estimates["log_odds"])}
    return curves(
        _with_sigma(values), x="sigma", series="mode", low=values - error, high=values + error, references=everything, log="x"
    )


def made_of(estimates: xr.Dataset, way: str = "shapley") -> Figure:
    """Draw what A2 and A1 of every head are made of, as stacked bars."""
    values = estimates[way].sel(control=AS_IT_IS)
    if values.sel(map="A2").notnull().any():
        values = _worded(values.sel(map=["A2", "A1"]), map=SYMBOLS, part=PARTS)
    else:  # one map, and no other to be a copy of
        values = _worded(values.sel(map=["A1"]).drop_sel(part="other"), map={"A1": "A"})
    values = by_head(values)
    return curves(_titled(values, "share of the map"), x="head", series="part", panels="map", style="stacked", wide=True)


def made_of_beside_next(estimates: xr.Dataset, way: str = "shapley") -> Figure:
    """Draw what A2 and A1 of every head are made of, and A2 of the next head in its place, as stacked bars."""
    values = estimates[way]
    if not values.sel(map="A2").notnull().any():
        return made_of(estimates, way)
    chosen = [values.sel(map=name, control=control, drop=True) for name, control in PANELS_OF_PARTS.values()]
    panels = xr.concat(chosen, xr.DataArray(list(PANELS_OF_PARTS), dims="map", name="map"))
    values = by_head(_worded(panels, part=PARTS))
    return curves(_titled(values, "share of the map"), x="head", series="part", panels="map", style="stacked", wide=True)


def added(estimates: xr.Dataset) -> Figure:
    """Draw what A1 and −λ·A2 of every head add to logits, and what A2 of other prompts would, with its range."""
    contribution = estimates["contribution"]
    values = contribution.sel(branch=[FIRST, SECOND, OTHER])
    low = contribution.sel(branch=[FIRST, SECOND, LEAST_OTHER]).assign_coords(branch=values["branch"])
    high = contribution.sel(branch=[FIRST, SECOND, LARGEST_OTHER]).assign_coords(branch=values["branch"])
    branches = values["branch"][values.notnull().any(["layer", "head", "target"]).values]
    names = {} if SECOND in branches else {FIRST: "A"}
    words = {"target": TARGETS, "branch": names}
    values, low, high = (by_head(_worded(each.sel(branch=branches), **words)) for each in (values, low, high))
    return curves(
        _titled(values, "added, directly"),
        x="head",
        series="branch",
        panels="target",
        low=low,
        high=high,
        style="bars",
        controls=[OTHER],
        extremes=[OTHER],
        wide=True,
    )


def added_by_prompts(table: xr.Dataset) -> Figure:
    """Draw the same of :func:`diffscope.attribution.branch_attribution`: means over prompts with standard errors."""
    parts = [targets(table["contribution"].sel(branch=name, drop=True)) for name in ("A1", "A2")]
    if "other_a2" in table:
        parts.append(targets(table["other_a2"]))
    values = xr.concat(parts, xr.DataArray([FIRST, SECOND, OTHER][: len(parts)], dims="branch", name="branch"))
    values = values.sel(branch=values.notnull().any([dim for dim in values.dims if dim != "branch"]))
    names = {} if SECOND in values["branch"] else {FIRST: "A"}
    values = _worded(values, target=TARGETS, branch=names)
    if "layer" not in values.coords or "head" not in values.coords:
        values = values.assign_coords(head=range(values.sizes["head"]))
    error = standard_error(values)
    middle = by_head(mean_over_prompts(values))
    ends = {"low": middle - by_head(error), "high": middle + by_head(error)}
    titled = _titled(middle, "added, directly")
    return curves(titled, x="head", series="branch", panels="target", **ends, style="bars", controls=[OTHER], wide=True)


def account(estimates: xr.Dataset) -> Figure:
    """Draw how all parts of the model add up to the logits of the answer and of the distractors, layer by layer."""
    values = _worded(estimates["account"].sel(target=["answer", "distractors"]), target=TARGETS)
    values = values.sel(part=values.any(["place", "target"]))
    if SECOND not in values["part"]:
        values = _worded(values, part={FIRST: "A"})
    return curves(_titled(values, "added, directly"), x="place", series="part", panels="target", style="stacked", wide=True)


def _titled(values: xr.DataArray, title: str) -> xr.DataArray:
    return values.assign_attrs(long_name=title)


def _worded(values, **words: Mapping[str, str]):
    """Return values with labels as they are printed."""
    return values.assign_coords(
        {dim: [named.get(str(label), str(label)) for label in values[dim].values] for dim, named in words.items()}
    )


def _with_sigma(values: xr.DataArray) -> xr.DataArray:
    values = values.copy(deep=False)
    values["sigma"].attrs["long_name"] = "σ of the noise, nats"
    return values


def _beside_controls(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Return values of every head and the middle of its controls, and the range of these."""
    if "span" in values.dims:  # without a marked answer there is none to draw
        spans = [str(name) for name in values["span"].values if name != "answer" or values.sel(span=name).notnull().any()]
        values = values.sel(span=spans)
    values, low, high = _ranged(values)
    return by_head(values), by_head(low), by_head(high)


def _ranged(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Return values and the middle of their controls, and the least and largest control; values have no range."""
    middle, low, high = (
        values.sel(control=[OWN, control]).assign_coords(control=list(CONTROLS.values())) for control in (MIDDLE, LEAST, LARGEST)
    )
    return middle, low, high
