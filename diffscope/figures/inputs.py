"""What a figure is of: captures or readings, of one model or of several by name, and which part of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.capture.captions import edits_of
from diffscope.capture.capture import Capture
from diffscope.capture.comparison import Comparison
from diffscope.errors import DiffscopeError, check_choice, check_index
from diffscope.figures.escaping import readable, short_name
from diffscope.numbers import stretches
from diffscope.prompts.selection import is_last

if TYPE_CHECKING:
    from diffscope.readings.reading import Reading

Captures = Capture | Comparison | Mapping[str, Capture] | Sequence[Capture]
# as text, since readings load code of models
Readings: TypeAlias = "Reading | xr.Dataset | Mapping[str, Reading | xr.Dataset]"
UNDEFINED = " (undefined)"  # behind the name of a series


def captures_of(subject: Any, *, one_side: bool = True) -> dict[str, Capture]:
    """Return captures by name, of anything that a figure of captures takes; those of `one_side` have no cross-attention.

    Raises DiffscopeError if it holds something else, or nothing.
    """
    named = _captures(subject)
    for name, cap in named.items():
        if not isinstance(cap, Capture):
            raise DiffscopeError(f"this figure is of captures, and {name} is a {type(cap).__name__}; make one with scope.capture")
        if one_side:
            cap.check_one_side("this figure")
    if not named:
        raise DiffscopeError("there is no capture to draw; give one, or several by name")
    return named


def _captures(subject: Any) -> dict[str, Any]:
    if isinstance(subject, Capture):
        return {short_name(subject.model_name): subject}
    if isinstance(subject, Comparison):
        return dict(zip(subject.names, subject.captures))
    if isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset):
        return {str(name): cap for name, cap in subject.items()}
    if isinstance(subject, (list, tuple)):
        return dict(zip(_numbered([short_name(getattr(cap, "model_name", "?")) for cap in subject]), subject))
    raise DiffscopeError(f"this figure is of captures, not of a {type(subject).__name__}; make one with scope.capture(prompt)")


def _numbered(names: list[str]) -> list[str]:
    """Return names of which none comes twice."""
    times = Counter(names)
    seen: Counter = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if times[name] == 1 else f"{name} ({seen[name]})")
    return labels


def estimates_of(subject: Any, needed: str | Sequence[str], reading: str) -> dict[str, xr.Dataset]:
    """Return the estimates of a Reading, of its estimates, or of a mapping of either, by name.

    Raises DiffscopeError if some lack a variable that is `needed`; it names `reading` as the call that makes them.
    """
    needs = [needed] if isinstance(needed, str) else needed
    several = isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset)
    named = dict(subject) if several else {"": subject}
    datasets = {str(name): getattr(each, "estimates", each) for name, each in named.items()}
    for dataset in datasets.values():
        known = dataset if isinstance(dataset, xr.Dataset) else ()
        if lacking := [name for name in needs if name not in known]:
            raise DiffscopeError(
                f"this figure is of {reading}, or of several by name: there is no {lacking[0]!r} in what was given"
            )
    if not datasets:
        raise DiffscopeError(f"there is no reading to draw; give {reading}")
    if several:
        return datasets
    (dataset,) = datasets.values()
    return {short_name(str(dataset.attrs.get("model", ""))): dataset}


def together(parts: Mapping[str, xr.DataArray], dim: str = "model") -> xr.DataArray:
    """Return arrays by name along a new dimension, with labels of all; NaN where one lacks a label of another.

    Raises DiffscopeError if every value is undefined.
    """
    names = xr.DataArray(list(parts), dims=dim, name=dim)
    values = xr.concat(list(parts.values()), names, join="outer", combine_attrs="override", coords="minimal", compat="override")
    check_defined(values)
    return values


def check_defined(values: xr.DataArray) -> None:
    """Raise DiffscopeError where every value is undefined."""
    if not values.notnull().any():
        raise DiffscopeError(f"there is nothing to draw: {values.attrs.get('long_name', values.name)} is undefined everywhere")


def undefined_said(values: xr.DataArray, dim: str) -> xr.DataArray:
    """Return values with labels of a dimension that say where every value is undefined."""
    others = [other for other in values.dims if other != dim]
    known = values.notnull().any(others).values
    labels = [str(label) if defined else f"{label}{UNDEFINED}" for label, defined in zip(values[dim].values, known)]
    return values.assign_coords({dim: labels})


def check_labels(values: xr.Dataset | xr.DataArray, **labels: Any) -> None:
    """Refuse a label that a dimension of the values does not have; one that is None is not asked for."""
    for dim, label in labels.items():
        for each in label if isinstance(label, list) else [label]:
            if each is not None:
                check_choice(dim, each, values[dim].values.tolist())


def select(values: xr.Dataset, **labels: Any) -> xr.Dataset:
    """Return values at one label along each of some dimensions, which they lose, or at a list of labels; refuse others."""
    check_labels(values, **labels)
    return values.sel(labels).drop_vars(dim for dim, label in labels.items() if not isinstance(label, list))


def any_capture(cap: Any) -> Capture:
    """Return a capture, or raise DiffscopeError if it is none."""
    if not isinstance(cap, Capture):
        raise DiffscopeError(f"this figure is of a capture, not of a {type(cap).__name__}; make one with scope.capture(prompt)")
    return cap


def layer_at(cap: Capture, layer: int | None, head: int) -> LayerAttention:
    """Return the attention inputs of a layer by its number in the model, by default the first; it has the head asked for."""
    number = cap.layer_numbers[0] if layer is None else layer
    attention = cap.layer(number)
    check_index("head", head, range(cap.n_heads))
    return attention


def visible_cells(layer: LayerAttention, queries, keys) -> np.ndarray:
    """Return whether a query sees a key, (query, key)."""
    return layer.visible(np.array(queries)).cpu().numpy()[:, keys]


def window(choice, n: int, name: str) -> slice:
    """Return a slice, a (start, stop) pair, one position, "last" or None as a slice of at least one position."""
    if choice is None:
        return slice(0, n)
    choice = -1 if is_last(choice) else choice
    if isinstance(choice, (int, np.integer)):
        start = int(choice) % n if -n <= choice < n else n
        choice = slice(start, start + 1)
    elif isinstance(choice, (tuple, list)) and len(choice) == 2:
        choice = slice(*choice)
    try:
        start, stop, step = choice.indices(n)
    except (AttributeError, TypeError, ValueError):  # no slice, or one of something else
        raise DiffscopeError(f"{name} must be a slice or (start, stop) of whole numbers, not {choice!r}") from None
    if step != 1 or stop <= start:
        raise DiffscopeError(f"{name} {choice.start}:{choice.stop} holds no position of the prompt's {n} tokens")
    return slice(start, stop)


def window_said(queries: slice, n_queries: int, keys: slice, n_keys: int) -> str:
    """Say which queries and keys of a map a picture shows: "query 14", "keys 0 to 7"; nothing where it shows all."""
    sides = []
    for chosen, n, one, several in ((queries, n_queries, "query", "queries"), (keys, n_keys, "key", "keys")):
        if chosen.stop - chosen.start < n:
            last = chosen.stop - 1
            sides.append(f"{one} {last}" if last == chosen.start else f"{several} {chosen.start} to {last}")
    return ", ".join(sides)


def position_of(query: int | str, n: int) -> int:
    """Return a query of a prompt of n tokens, from 0: "last", or a position, from the end if it is negative; refuse others."""
    position = -1 if is_last(query) else query
    if not isinstance(position, (int, np.integer)) or not -n <= position < n:
        raise DiffscopeError(f"there is no token {query}: the prompt has {n}; give one position, or 'last'")
    return int(position) % n


def with_readable_tokens(data: xr.Dataset, cap: Capture, layer: LayerAttention) -> xr.Dataset:
    """Return data whose coordinates of tokens, as far as there are any, are texts that can be read."""
    sides = {dim: side for dim, (side,) in zip(("query", "key"), cap.sides(layer)) if dim in data.dims}
    texts = {dim: np.array(readable(side), dtype=object) for dim, side in sides.items()}
    return data.assign_coords({f"{dim}_token": (dim, of_dim[data[dim].values].astype(str)) for dim, of_dim in texts.items()})


def the_one(estimates: Mapping[str, xr.Dataset]) -> tuple[str, xr.Dataset]:
    """Return the name and the estimates of the one reading that a figure is of; refuse several."""
    if len(estimates) != 1:
        raise DiffscopeError(f"this figure is of one reading, and {len(estimates)} were given; draw each by itself")
    ((name, table),) = estimates.items()
    return name, table


def described(cap: Capture, layer: LayerAttention, head: int) -> dict:
    """Return what the data of a figure says about where it comes from."""
    (queries,), (keys,) = cap.sides(layer)
    about = {
        "model": cap.model_name,
        "family": cap.family,
        "layer": layer.layer,
        "head": int(head),
        "n_tokens": len(queries.ids),
        "mask": str(layer.mask.kind),
        "spans": {name: stretches(positions) for name, positions in queries.spans.items()},
        "edits": edits_of({"": cap}),
    }
    if layer.kind == "cross":
        about |= {"n_keys": len(keys.ids), "key_spans": {name: stretches(positions) for name, positions in keys.spans.items()}}
    return about
