"""Labelled values along one dimension, a series for each label of another: the data of lines, points and bars."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count, cycle

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.labelled import along_title, by_role, in_roles, values_title
from diffscope.stats.labels import UNIFORM

ROLES = ("panel", "series", "x")
ALIKE = 0.2  # of the way from white to black: colours that are closer look alike in grey print
STYLES = ("lines", "points", "bars", "stacked")
DASHES = ("solid", "dash", "dot")
Looks = Mapping[str, tuple[str, str]]
#: a series of each first part of labels, and the colour and dash of each second part
Factors = tuple[dict[str, str], dict[str, tuple[str, str]]]


def data(
    values: xr.DataArray,
    x: str,
    series: str | None = None,
    panels: str | None = None,
    low: xr.DataArray | None = None,
    high: xr.DataArray | None = None,
    references: Mapping[str, float] | None = None,
    at: xr.DataArray | None = None,
    diagonal: str = "",
    controls: Sequence[str] = (),
    within: tuple[float, float] | None = None,
    points: xr.DataArray | None = None,
    looks: Looks | None = None,
) -> xr.Dataset:
    """Return values (panel, series, x), their range and points (panel, series, x, point); parameters as of ``figures.curves``."""
    chosen = by_role(values, {"x": x, "series": series, "panel": panels})
    arrays = {"value": values}
    if (low is None) != (high is None):
        raise DiffscopeError("a range has two ends: give low and high")
    if low is not None and high is not None:
        arrays |= {"low": low, "high": high}
    if at is not None:
        arrays["at"] = at.broadcast_like(values)
    drawn = {name: in_roles(array, chosen, ROLES) for name, array in arrays.items()}
    if points is not None:
        drawn["points"] = _behind(points, chosen)
    dataset = xr.Dataset(drawn).drop_attrs()
    about = {
        "model": str(values.attrs.get("model", "")),
        "x": along_title(values, x) if at is None else values_title(at),
        "y": values_title(values),
        "references": dict(references or {}),
        "diagonal": diagonal,
        "controls": list(controls),
        "within": list(within or ()),
        "looks": {name: list(look) for name, look in (looks or {}).items()},
    }
    return dataset.assign_attrs(about)


def _behind(points: xr.DataArray, chosen: Mapping[str, str]) -> xr.DataArray:
    """Return single values (panel, series, x, point) that are drawn behind the others; all dimensions without a role are one."""
    single = [dim for dim in points.dims if dim not in chosen]
    labels = [" ".join(map(str, np.atleast_1d(label))) for label in points.stack(point=single)["point"].values.tolist()]
    flat = points.stack(point=single, create_index=False).reset_coords(drop=True).assign_coords(point=labels)
    return in_roles(flat, {**chosen, "point": "point"}, (*ROLES, "point"))


def colours_of(dataset: xr.Dataset) -> dict[str, str]:
    """Return the colour of each series: that of a map or a span where it is one, grey where it is a control."""
    names = [str(name) for name in dataset["series"].values]
    greys, others = cycle(theme.CONTROLS), cycle(theme.SERIES)
    controls = dataset.attrs.get("controls", [])
    known = theme.MAP_COLOURS | theme.SYMBOL_COLOURS | theme.SPAN_COLOURS
    known |= {name: next(greys) for name in names if name in controls or name.startswith(UNIFORM)}
    known |= {name: colour for name, (colour, _) in dataset.attrs.get("looks", {}).items()}
    return {name: known.get(name) or next(others) for name in names}


def rounds_of(dataset: xr.Dataset) -> dict[str, int]:
    """Return of each series how many others before it have its colour and dash, so that its marker can tell it apart.

    Where colours are given, series whose labels have the same first part are of one model, and count once.
    """
    looks = dataset.attrs.get("looks", {})
    before: dict[tuple[str, str], dict[str, int]] = {}
    rounds = {}
    for name, colour in colours_of(dataset).items():
        owner, dash = (parts_of(name)[0], looks[name][1]) if name in looks else (name, DASHES[0])
        owners = before.setdefault((colour, dash), {})
        rounds[name] = owners.setdefault(owner, len(owners))
    return rounds


def dashes_of(dataset: xr.Dataset) -> dict[str, str]:
    """Return how the line of each series is drawn: solid, dash or dot; another one where a colour comes again."""
    looks = dataset.attrs.get("looks", {})
    return {
        name: looks[name][1] if name in looks else DASHES[number % len(DASHES)] for name, number in rounds_of(dataset).items()
    }


def marker_numbers(colours: Mapping[str, str], rounds: Mapping[str, int]) -> dict[str, int]:
    """Return the number of the marker of each series: one a colour and round; the control of a model has that of the model."""
    owners = {name: parts_of(name)[0] for name, colour in colours.items() if colour in theme.CONTROLS}
    owner_of = {name: owners[name] if owners.get(name) in colours else name for name in colours}
    inks = {name: (colours[owner], rounds.get(owner, 0)) for name, owner in owner_of.items()}
    numbers = {ink: number for number, ink in enumerate(dict.fromkeys(inks.values()))}
    return {name: numbers[ink] for name, ink in inks.items()}


def hatch_numbers(colours: Mapping[str, str]) -> dict[str, int]:
    """Return the number of the hatch of each bar: 0 for none, more for one that grey print would not tell from bars before it."""
    numbers: dict[str, int] = {}
    inks = {name: theme.darkness(colour) for name, colour in colours.items() if colour not in theme.CONTROLS}
    for name, ink in inks.items():
        taken = {number for other, number in numbers.items() if abs(ink - inks[other]) < ALIKE}
        numbers[name] = next(number for number in count() if number not in taken)
    return {name: numbers.get(name, 0) for name in colours}


def parts_of(name: str) -> tuple[str, str]:
    """Return the two parts of a label such as "model: control" or "model, unedited"; the second is empty if there is one."""
    first, _, second = re.sub(", (?=unedited)", ": ", name).partition(": ")
    return first, second


def ends_of(dataset: xr.Dataset) -> tuple[float, float]:
    """Return between which numbers a diagonal is drawn: those of the horizontal axis, and 0."""
    at = dataset["at"].values
    finite = at[np.isfinite(at)]
    return min(0.0, *finite), max(0.0, *finite)


def shown(dataset: xr.Dataset, name: str) -> np.ndarray:
    """Return values, of which those beyond what is drawn stand at its end."""
    values = dataset[name].values
    return np.clip(values, *dataset.attrs["within"]) if dataset.attrs["within"] else values


def spread(dataset: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the range below and above values, at least 0 despite rounding; NaN without a range."""
    values = shown(dataset, "value")
    down, up = values - shown(dataset, "low"), shown(dataset, "high") - values
    none = np.maximum(down, up) <= 0
    return np.where(none, np.nan, np.maximum(down, 0)), np.where(none, np.nan, np.maximum(up, 0))


def within_a_decade(dataset: xr.Dataset) -> bool:
    """Return whether values are so close that a logarithmic axis has a tick at most between them."""
    finite = dataset["value"].values[dataset["value"].values > 0]
    return len(finite) > 0 and finite.max() < 10 * finite.min()


def beyond(dataset: xr.Dataset) -> np.ndarray:
    """Return -1 for a value below what is drawn, 1 for one above it, 0 for one within."""
    return np.sign(dataset["value"].values - shown(dataset, "value"))


def places_of(dataset: xr.Dataset) -> tuple[list, bool]:
    """Return where values stand along x, and whether these are numbers."""
    places = dataset["x"].values.tolist()
    numbers = all(isinstance(place, (int, float)) for place in places)
    return (places if numbers else [str(place) for place in places]), numbers


def has_single(part: xr.Dataset) -> bool:
    """Return whether a series has single values that its values do not say already, as those of a control do."""
    return "points" in part and not np.allclose(part["points"], part["value"].values[:, None], rtol=1e-6, atol=0, equal_nan=True)


def factors_of(dataset: xr.Dataset) -> Factors | None:
    """Return the two parts of labels such as "model: control", if a legend of the parts is shorter and as clear.

    The first parts have a colour each, their controls a grey, and the second parts a dash each. A first part whose series have
    all one dash keeps it. Returned are a series of each first part, and the colour and dash of each second part that has a name;
    the colour is grey if all its series are controls.
    """
    parts: dict[str, dict[str, str]] = {}
    colours, dash_by_name = colours_of(dataset), dashes_of(dataset)
    for name in colours:
        first, second = parts_of(name)
        parts.setdefault(first, {})[second] = name
    dashes: dict[str, set[str]] = {}
    for named in parts.values():
        own = {second: dash_by_name[name] for second, name in named.items()}
        inks = {colours[name] for name in named.values()}
        if len(inks - set(theme.CONTROLS) or inks) > 1:
            return None
        if len(set(own.values())) > 1 or len(own) == 1:
            for second, dash in own.items():
                dashes.setdefault(second, set()).add(dash)
    inks = {second: {colours[named[second]] for named in parts.values() if second in named} for second in dashes}
    named_parts = {
        second: (theme.MUTED if inks[second] <= set(theme.CONTROLS) else theme.INK, min(known))
        for second, known in dashes.items()
        if second
    }
    clear = all(len(known) == 1 for known in dashes.values()) and len(set(named_parts.values())) == len(named_parts)
    if not clear or len(parts) < 2 or len(parts) + len(named_parts) > len(colours) or not named_parts:
        return None
    return {first: next(iter(named.values())) for first, named in parts.items()}, named_parts
