"""Combine labelled results along new dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.stats.datasets import agreed


class Part(NamedTuple):
    """A result, and where it belongs."""

    name: str  # whose result it is, for attributes in which parts differ
    place: Mapping  # its labels along those leading dimensions that it does not have itself
    dataset: xr.Dataset


def assemble(parts: Sequence[Part], leading: Mapping[str, Sequence]) -> xr.Dataset:
    """Put parts side by side in one Dataset; values that no part has are NaN.

    Parameters
    ----------
    parts : sequence of Part
    leading : mapping of str to labels
        The dimensions along which they are put side by side.

    Returns
    -------
    Dataset
        Along the other dimensions, labels that are numbers ascend, and texts stand in the order of the parts.
    """
    index = {dim: list(labels) for dim, labels in leading.items()}
    for dim in dict.fromkeys(dim for part in parts for dim in part.dataset.dims if dim not in index):
        index[dim] = _union([part.dataset[dim].values.tolist() for part in parts if dim in part.dataset.dims])
    positions = {dim: {label: position for position, label in enumerate(labels)} for dim, labels in index.items()}
    variables = {}
    for name in dict.fromkeys(name for part in parts for name in part.dataset.data_vars):
        holders = [part for part in parts if name in part.dataset]
        dims = (*leading, *(dim for dim in holders[0].dataset[name].dims if dim not in leading))
        dtype = np.result_type(np.float32, *(part.dataset[name].dtype for part in holders))
        array = np.full([len(index[dim]) for dim in dims], np.nan, dtype)
        for part in holders:
            values = part.dataset[name].expand_dims({dim: [label] for dim, label in part.place.items()}).transpose(*dims)
            array[np.ix_(*([positions[dim][label] for label in values[dim].values.tolist()] for dim in dims))] = values
        variables[name] = (dims, array, merged_attrs([(part.name, part.dataset[name].attrs) for part in holders]))
    attrs = merged_attrs([(part.name, part.dataset.attrs) for part in parts])
    return xr.Dataset(variables, {dim: (dim, np.array(labels)) for dim, labels in index.items()}, attrs)


def merged_attrs(named: Sequence[tuple[str, dict]]) -> dict:
    """The attributes of several named results as those of one: merged first among results of one name, then among names."""
    by_name: dict[str, list[dict]] = {}
    for name, attrs in named:
        by_name.setdefault(name, []).append(attrs)
    return agreed([agreed(attrs, [name] * len(attrs)) for name, attrs in by_name.items()], list(by_name))


def _union(lists: Sequence[Sequence]) -> list:
    """The labels of all lists, each once."""
    labels = list(dict.fromkeys(label for labels in lists for label in labels))
    return labels if isinstance(labels[0], str) else sorted(labels)
