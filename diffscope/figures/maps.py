"""The maps of one head side by side: A1, A2, λ·A2 and D; of standard attention A1, and D where a layer changes it."""

from __future__ import annotations

import xarray as xr

from diffscope.attention.maps import present
from diffscope.errors import DiffscopeError
from diffscope.figures import maps_print, maps_screen
from diffscope.figures.base import register
from diffscope.figures.selection import check_place, described, layer_numbers, layer_of, of_prompt, visible_cells, window

LARGEST = 512  # positions a side that are drawn one by one; above, bins that keep the largest weight
NAMES = ("A1", "A2", "lambda_A2", "D")


def data(
    cap,
    layer: int | None = None,
    head: int = 0,
    prompt: int = 0,
    queries=None,
    keys=None,
    size: int = LARGEST,
    names: tuple[str, ...] | None = None,
) -> xr.Dataset:
    """The maps of one head over (query, key), exactly as the capture gives them.

    `queries` and `keys` pick a window (a slice or `(start, stop)`); without one, a prompt of more than `size`
    tokens is shown in bins that keep the value of largest magnitude. The coordinate `visible` says which cells hold a key
    that their query sees. Without a layer, it is the first.
    """
    layer = layer_numbers(cap)[0] if layer is None else layer
    check_place(cap, layer, head)
    tokens = of_prompt(cap.tokens, prompt)
    rows, columns = window(queries, len(tokens), "queries"), window(keys, len(tokens), "keys")
    pooled = max(len(range(*rows.indices(len(tokens)))), len(range(*columns.indices(len(tokens))))) > size
    if pooled and (queries is not None or keys is not None):
        raise DiffscopeError(
            f"a window of more than {size} positions a side cannot be drawn: choose a smaller one, or none for the overview"
        )
    found = layer_of(cap, layer, prompt)
    chosen = (names or NAMES) if found.differential else present(found, NAMES)
    made = {}
    for name in chosen:
        if pooled:
            made[name] = cap.overview(name, layer, head, size=size, prompt=prompt)
        else:
            made[name] = cap.map(name, layer=layer, head=head, prompt=prompt, queries=rows, keys=columns)
    if found.d_is_a1:
        made = {"A": made["A1"].rename("A")}
    first = next(iter(made.values()))
    bin = int(first.attrs.get("bin", 1))
    seen = visible_cells(cap, layer, prompt, first["query"].values, first["key"].values, bin)
    together = xr.Dataset(made).assign_coords(visible=(("query", "key"), seen))
    together.attrs = {
        "figure": "maps",
        **described(cap, layer, head, prompt),
        "lam": first.attrs.get("lam") if found.differential else None,
        "bin": bin,
    }
    return together


register(
    "maps",
    "A1, A2, λ·A2 and D of one head side by side",
    data=data,
    plotly=maps_screen.draw,
    matplotlib=maps_print.draw,
)
