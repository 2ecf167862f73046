"""The maps of one head side by side: A1, A2, λ·A2 and D; of standard attention A1, and D where a layer changes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.attention.maps import DEFAULT_MAPS, present, title_of
from diffscope.capture.captions import edits_of
from diffscope.capture.comparison import Comparison, one_each
from diffscope.errors import DiffscopeError
from diffscope.figures import maps_print, maps_screen
from diffscope.figures.escaping import short_name
from diffscope.figures.figure import Chart
from diffscope.figures.inputs import any_capture, described, layer_at, visible_cells, window, window_said, with_readable_tokens
from diffscope.numbers import head_name

LARGEST = 512  # positions a side that are drawn one by one; above, bins that keep the largest weight
BINS = 256  # a side: more are finer than print, and large files


def data(
    cap,
    layer: int | None = None,
    head: int = 0,
    queries=None,
    keys=None,
    size: int = LARGEST,
    names: Sequence[str] | None = None,
) -> xr.Dataset:
    """Return the maps of one head over (query, key) as the capture gives them; parameters as of ``diffscope.figures.maps``.

    The coordinate ``visible`` says which cells hold a key that their query sees.
    """
    if isinstance(cap, Comparison):
        return _of_two(cap, layer, head, queries, keys, size)
    cap = any_capture(cap).only()
    attention = layer_at(cap, layer, head)
    of_layer = attention.prompt(0)
    rows = window(queries, of_layer.n_queries, "queries")
    columns = window(keys, of_layer.n_keys, "keys")
    pooled = max(rows.stop - rows.start, columns.stop - columns.start) > size
    if pooled and (queries is not None or keys is not None):
        raise DiffscopeError(
            f"a window of more than {size} positions a side cannot be drawn: choose a smaller one, or none for all in bins"
        )
    names = (names or DEFAULT_MAPS) if attention.differential else present(attention, DEFAULT_MAPS)
    if pooled:
        maps = cap.pooled_maps(attention.layer, [head], size=min(size, BINS), names=names)
    else:
        maps = cap.maps(attention.layer, [head], queries=rows, keys=columns, names=names)
        seen = visible_cells(attention, maps["query"].values, maps["key"].values)
        maps = maps.assign_coords(visible=(("query", "key"), seen))
    dataset = with_readable_tokens(maps.isel(head=0, drop=True), cap, attention)
    lam = maps.attrs["lam"] if isinstance(maps.attrs["lam"], str) else maps.attrs["lam"][0]
    for name, array in dataset.data_vars.items():
        array.attrs |= {"head": head, "lam": lam, "title": title_of(str(name), [attention])}
    if attention.d_is_a1:
        dataset = dataset.rename(A1="A")
    dataset.attrs = {
        **described(cap, attention, head),
        "lam": lam if attention.differential else None,
        "bin": maps.attrs.get("bin", 1),
        "window": window_said(rows, of_layer.n_queries, columns, of_layer.n_keys),
    }
    return dataset


def _of_two(comparison: Comparison, layer, head, queries, keys, size) -> xr.Dataset:
    """Return what is left of one head's map in each of two models, D; under the models' names."""
    comparison.check_tokens()
    layers, heads = one_each(comparison.names, "layer", layer), one_each(comparison.names, "head", head)
    maps = {}
    datasets = []
    for name, cap in zip(comparison.names, comparison.captures):
        dataset = data(cap, layers[name], heads[name], queries, keys, size, names=("D",))
        drawn = "A" if "A" in dataset else "D"
        place = head_name(dataset.attrs["layer"], dataset.attrs["head"])
        short = f"{drawn} of {short_name(name)}"
        labels = {"map": drawn, "title": f"{short}: {place}", "short": short}
        maps[name] = dataset[drawn].where(dataset["visible"]).drop_vars("visible").assign_attrs(labels)
        datasets.append(dataset)
    seen = np.logical_or(*(dataset["visible"].values for dataset in datasets))
    both = xr.Dataset({name: array.rename(name) for name, array in maps.items()})
    both = both.assign_coords(visible=(("query", "key"), seen))
    about = ("n_tokens", "spans", "bin", "window", "n_keys", "key_spans")
    shared = {name: datasets[0].attrs[name] for name in about if name in datasets[0].attrs}
    shared["edits"] = edits_of(dict(zip(comparison.names, comparison.captures)))
    return both.assign_attrs(shared, model=" and ".join(map(short_name, comparison.names)), models=list(comparison.names))


CHART = Chart(maps_screen.draw, maps_print.draw)
