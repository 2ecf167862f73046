"""Labelled results side by side in one Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.stats.datasets import agreed


class Part(NamedTuple):
    """A result, and where it belongs."""

    name: str  # of what it is a result, for attributes in which parts differ
    place: Mapping  # labels along the leading dimensions that it does not have itself
    dataset: xr.Dataset


def assemble(parts: Sequence[Part], leading: Mapping[str, Sequence]) -> xr.Dataset:
    """One Dataset of several; what is in none of them is NaN.

    Parameters
    ----------
    parts : sequence of Part
    leading : mapping of str to labels
        The dimensions along which they are put side by side.

    Returns
    -------
    Dataset
        Numbers along the other dimensions in ascending order, words in the order in which they come.
    """
    index = {dim: list(labels) for dim, labels in leading.items()}
    for dim in dict.fromkeys(dim for part in parts for dim in part.dataset.dims if dim not in index):
        index[dim] = _union([part.dataset[dim].values.tolist() for part in parts if dim in part.dataset.dims])
    positions = {dim: {label: at for at, label in enumerate(labels)} for dim, labels in index.items()}
    variables = {}
    for name in dict.fromkeys(name for part in parts for name in part.dataset.data_vars):
        holders = [part for part in parts if name in part.dataset]
        dims = (*leading, *(dim for dim in holders[0].dataset[name].dims if dim not in leading))
        dtype = np.result_type(np.float32, *(part.dataset[name].dtype for part in holders))
        whole = np.full([len(index[dim]) for dim in dims], np.nan, dtype)
        for part in holders:
            values = part.dataset[name].expand_dims({dim: [label] for dim, label in part.place.items()}).transpose(*dims)
            whole[np.ix_(*([positions[dim][label] for label in values[dim].values.tolist()] for dim in dims))] = values
        variables[name] = (dims, whole, said_of([(part.name, part.dataset[name].attrs) for part in holders]))
    attrs = said_of([(part.name, part.dataset.attrs) for part in parts])
    return xr.Dataset(variables, {dim: (dim, np.array(labels)) for dim, labels in index.items()}, attrs)


def said_of(named: Sequence[tuple[str, dict]]) -> dict:
    """The attributes of several results as those of one, first of those of one name, then of all."""
    by_name: dict[str, list[dict]] = {}
    for name, attrs in named:
        by_name.setdefault(name, []).append(attrs)
    return agreed([agreed(attrs, [name] * len(attrs)) for name, attrs in by_name.items()], list(by_name))


def _union(lists: Sequence[Sequence]) -> list:
    """Labels of all, each once."""
    labels = list(dict.fromkeys(label for labels in lists for label in labels))
    return labels if isinstance(labels[0], str) else sorted(labels)
