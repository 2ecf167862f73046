"""Compute the maps of a captured prompt as labelled data: windows, whole maps in bins, the strongest keys, small pictures.

Each function is a method of :class:`diffscope.Capture` by the same name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from torch import Tensor

from diffscope.attention.blocks import Workers
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import DEFAULT_MAPS, MAPS, check_map, present, title_of
from diffscope.errors import DiffscopeError
from diffscope.prompts.selection import indices_among, token_positions, whole_number
from diffscope.stats.maps import Bins, top_keys, window
from diffscope.stats.maps import bins as maps_in_bins

if TYPE_CHECKING:
    from diffscope.capture.capture import Capture

SIZE = 512  # bins a side

Positions = str | slice | Sequence[int] | None


def map(capture: Capture, name: str, layer: int, head: int, *, queries: Positions = None, keys: Positions = None) -> xr.DataArray:
    """Compute a window of one head's map.

    Parameters
    ----------
    name : {"A1", "A2", "D", "lambda_A2", "share"}
        ``D`` is A1 − λ·A2, ``lambda_A2`` is λ·A2, ``share`` is |D|/Σ|D|, and 0 in a row of zeros.
    layer : int
        Its number in the model, from 0.
    head : int
    queries, keys : str, slice or sequence of int, optional
        A span's name, "last", or token positions; by default all. For the whole of a long prompt use :meth:`pooled_map`.

    Returns
    -------
    xarray.DataArray, (query, key)
        With the tokens' texts as coordinates ``query_token`` and ``key_token``.

    Raises
    ------
    DiffscopeError
        There is no such map, layer, head or position, or the capture is of a batch.
    """
    return _of_one_head(maps(capture, layer, [head], [name], queries=queries, keys=keys), name)


def maps(
    capture: Capture,
    layer: int,
    heads: Sequence[int] | None = None,
    names: Sequence[str] | str | None = None,
    *,
    queries: Positions = None,
    keys: Positions = None,
) -> xr.Dataset:
    """Compute a window of several maps of several heads, all of them at once.

    Parameters
    ----------
    layer, queries, keys
        As for :meth:`map`.
    heads : sequence of int, optional
        By default all.
    names : sequence of str, or str, optional
        As of :meth:`map`; by default A1, A2, λ·A2 and D, as far as the layer has them.

    Returns
    -------
    xarray.Dataset, (head, query, key)

    Raises
    ------
    DiffscopeError
        As for :meth:`map`.
    """
    attention, heads, names = _selected(capture, layer, heads, names)
    (of_queries,), (of_keys,) = capture.sides(attention)
    rows = token_positions(queries, of_queries.span_positions(), attention.n_queries)
    columns = token_positions(keys, of_keys.span_positions(), attention.n_keys, "keys")
    device = attention.q.device
    with Workers() as workers:
        values = window(attention, names, heads, rows.to(device), columns.to(device), workers)
    return _labelled(capture, values, attention, heads, rows, columns)


def pooled_map(capture: Capture, name: str, layer: int, head: int, *, size: int = SIZE) -> xr.DataArray:
    """Compute one head's whole map, pooled to at most size × size bins.

    Parameters
    ----------
    name, layer, head
        As for :meth:`map`.
    size : int
        The largest number of bins a side.

    Returns
    -------
    xarray.DataArray, (query, key)
        Of each bin the value of largest magnitude, with its sign. Coordinates are the bins' first positions;
        ``attrs["bin"]`` is their width in tokens.

    Raises
    ------
    DiffscopeError
        There is no such map, layer or head, the capture is of a batch, or `size` is below 1.
    """
    return _of_one_head(pooled_maps(capture, layer, [head], [name], size=size), name)


def pooled_maps(
    capture: Capture,
    layer: int,
    heads: Sequence[int] | None = None,
    names: Sequence[str] | str | None = None,
    *,
    size: int = SIZE,
    marginals: bool = False,
    shares: bool = False,
) -> xr.Dataset:
    """Compute several whole maps of several heads in bins, in one pass over the rows.

    Parameters
    ----------
    layer, heads, names
        As for :meth:`maps`.
    size : int
        The largest number of bins a side.
    marginals : bool
        Whether to add what each key receives from all queries, ``received_NAME`` (head, token), and the entropy of each query's
        row in nats, ``entropy_NAME`` (head, token). In cross-attention keys have the dimension ``key_token_number``.
    shares : bool
        Whether to add the bins of each row's shares, x/Σ|x| with the sign of x, ``share_NAME`` (head, query, key), and the sums
        Σ|x| of the rows, ``mass_NAME`` (head, token).

    Returns
    -------
    xarray.Dataset, (head, query, key)
        As of :meth:`pooled_map`. The coordinate ``visible`` (query, key) says whether any query of a bin sees any of its keys.

    Raises
    ------
    DiffscopeError
        There is no such map, layer or head, the capture is of a batch, or `size` is below 1.
    """
    size = whole_number(size, 1, math.inf, "size is a whole number of bins from 1")
    attention, heads, names = _selected(capture, layer, heads, names)
    with Workers() as workers:
        bins = maps_in_bins(attention, names, heads, size, marginals=marginals, shares=shares, workers=workers)
    queries = range(0, attention.n_queries, bins.width)
    keys = range(0, attention.n_keys, bins.width)
    dataset = _labelled(capture, bins.maps, attention, heads, queries, keys)
    for array in dataset.data_vars.values():
        array.attrs["bin"] = bins.width
    dataset = dataset.assign_coords(visible=(("query", "key"), bins.visible.cpu().numpy()))
    return dataset.assign(_marginals_and_shares(bins, attention.kind)).assign_attrs(bin=bins.width)


def strongest(
    capture: Capture,
    name: str,
    layer: int,
    heads: Sequence[int] | None = None,
    *,
    queries: Positions = None,
    count: int = 8,
) -> xr.Dataset:
    """Find the keys that some queries weigh most, by head.

    Parameters
    ----------
    name : str
        The map, as of :meth:`map`.
    layer, heads, queries
        As for :meth:`maps`.
    count : int
        The number of keys of each query.

    Returns
    -------
    xarray.Dataset, (head, query, rank)
        ``key``, positions by decreasing size of their weight, and ``weight``; −1 and 0 where the query has fewer keys of a
        weight other than 0. ``mass`` (head, query) is Σ|x| of the whole row.

    Raises
    ------
    DiffscopeError
        There is no such map, layer, head or position, the capture is of a batch, or `count` is below 1.
    """
    count = whole_number(count, 1, math.inf, "count is a whole number of keys from 1")
    attention, heads, _ = _selected(capture, layer, heads, [name])
    (of_queries,), _ = capture.sides(attention)
    rows = token_positions(queries, of_queries.span_positions(), attention.n_queries)
    with Workers() as workers:
        keys, weights, mass = top_keys(attention, name, heads, rows.to(attention.q.device), count, workers)
    dims = ("head", "query", "rank")
    values = {
        "key": (dims, keys.cpu().numpy()),
        "weight": (dims, weights.cpu().numpy()),
        "mass": (dims[:2], mass.cpu().numpy()),
    }
    attrs = {"model": capture.model_name, "layer": attention.layer, "map": name}
    return xr.Dataset(values, {"head": list(heads), "query": np.asarray(rows)}, attrs)


def thumbnails(capture: Capture, name: str = "D", size: int = 64) -> xr.DataArray:
    """Compute one small picture of every head of every layer: a map, pooled to at most size × size bins.

    Parameters
    ----------
    name, size
        As for :meth:`pooled_map`.

    Returns
    -------
    xarray.DataArray, (layer, head, query, key)
        NaN where a layer has fewer heads than others. Its attribute ``title`` says what the map is.

    Raises
    ------
    DiffscopeError
        A layer has no such map, the layers are of several kinds, or the capture is of a batch.
    """
    if len(kinds := dict.fromkeys(capture.kinds)) > 1:
        raise DiffscopeError(
            f"the layers are of the kinds {', '.join(kinds)}, whose maps have other sides; give those of one, such as "
            f'capture.of_kind("{capture.kinds[-1]}")'
        )
    layers = [pooled_maps(capture, number, None, [name], size=size)[name] for number in capture.layer_numbers]
    together = xr.concat(layers, xr.DataArray(capture.layer_numbers, dims="layer", name="layer"), join="outer")
    together.attrs = {key: layers[0].attrs[key] for key in ("long_name", "model", "bin")}
    together.attrs["title"] = title_of(name, capture.layers)
    return together


def _selected(
    capture: Capture, layer: int, heads: Sequence[int] | None, names: Sequence[str] | str | None
) -> tuple[LayerAttention, list[int], tuple[str, ...]]:
    """Return the attention of one layer of the prompt, without padding, and the heads and maps asked for."""
    if capture.batch:
        raise DiffscopeError(f"a map is of one prompt, and this capture is of a batch of {len(capture)}; take capture[i] of it")
    attention = capture.layer(layer).prompt(0)
    chosen = list(indices_among("head", heads, range(attention.n_heads)))
    if names is None:
        return attention, chosen, present(attention, DEFAULT_MAPS) or ("A1",)
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        check_map(name, attention)
    return attention, chosen, names


def _labelled(
    capture: Capture,
    values: Mapping[str, Tensor],
    attention: LayerAttention,
    heads: Sequence[int],
    queries: Sequence[int] | Tensor,
    keys: Sequence[int] | Tensor,
) -> xr.Dataset:
    """Label values (head, query, key) of each map with their places, texts, model, λ and fidelity."""
    (of_queries,), (of_keys,) = capture.sides(attention)
    rows, columns = np.asarray(queries), np.asarray(keys)
    fidelity = capture._proofs[capture.layer_numbers.index(attention.layer)].error
    lam = "per token" if attention.lam.shape[2] > 1 else attention.rows([0], heads).lam[:, 0].tolist()
    attrs = {"model": capture.model_name, "layer": attention.layer, "lam": lam, "fidelity": fidelity}
    return xr.Dataset(
        {
            name: (("head", "query", "key"), of_map.cpu().numpy(), {"long_name": MAPS[name].long_name, **attrs})
            for name, of_map in values.items()
        },
        {
            "head": list(heads),
            "query": rows,
            "key": columns,
            "query_token": ("query", np.array(of_queries.tokens, dtype=object)[rows].astype(str)),
            "key_token": ("key", np.array(of_keys.tokens, dtype=object)[columns].astype(str)),
        },
        attrs,
    )


def _marginals_and_shares(bins: Bins, kind: str) -> dict[str, tuple]:
    """Return the variables that marginals and shares add to maps in bins of a layer of this kind; empty without either."""
    of_queries, of_keys = ("token", "key_token_number") if kind == "cross" else ("token", "token")
    parts = (
        ("received", of_keys, "mass received from all queries", "1", bins.received),
        ("entropy", of_queries, "entropy of the row", "nats", bins.entropy),
        ("mass", of_queries, "absolute mass of the row", "1", bins.mass),
        ("share", "query key", "share of the row's absolute mass", "1", bins.shares),
    )
    return {
        f"{kind}_{name}": (("head", *dims.split()), values.cpu().numpy(), {"long_name": words, "units": units})
        for kind, dims, words, units, of_maps in parts
        for name, values in of_maps.items()
    }


def _of_one_head(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """Return one map without its dimension `head`, which becomes an attribute, as λ of that head does."""
    array = dataset[name].isel(head=0, drop=True).drop_vars("visible", errors="ignore")
    lam = array.attrs["lam"]
    return array.assign_attrs(head=int(dataset["head"][0]), lam=lam if isinstance(lam, str) else lam[0])
