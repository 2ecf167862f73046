"""The figure of head types: which head is what, by A1, A2 and D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import numpy as np
import xarray as xr

from diffscope.errors import check_choice
from diffscope.figures.by_head import by_head
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import Readings, estimates_of, together
from diffscope.figures.values import cells
from diffscope.numbers import between


@figure()
def head_types(
    subject: Readings,
    *,
    text: str | None = None,
    head_type: str | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw which head is of which type: what A1, A2 and D give to the token before, the same token, what followed it, and others.

    Cells are scores, a panel a map: 1 if a map gives all to the keys of the type, below 0 if D takes weight from them. The
    caption says what uniform attention and shuffled tokens score.

    Parameters
    ----------
    subject : Reading, its estimates, or mapping of str to either
        Of :func:`diffscope.readings.head_types`, by model.
    text : {"random tokens", "prompts"}, optional
        By default random tokens.
    head_type : str, optional
        One type, as cells by layer and head; by default all types, by head.

    Returns
    -------
    Figure
        ``value`` (panel, y, x): y types and x heads such as L1H0; of one type y layers and x heads.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such text or type, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> figures.head_types(readings.head_types(diffscope.load("mini-diff"), copying=False))
    <diffscope figure 'head_types' of value (panel: 3, y: 4, x: 6)>
    """
    estimates = estimates_of(subject, "is_type", "diffscope.readings.head_types(scope)")
    first = next(iter(estimates.values()))
    text = str(first["text"].values[0]) if text is None else text
    for table in estimates.values():
        check_choice("text", text, table["text"].values)
        if head_type is not None:
            check_choice("head type", head_type, table["type"].values)
    chosen = {name: _chosen(table, text, head_type) for name, table in estimates.items()}
    panels = {
        str(map) if len(chosen) == 1 else f"{name}, {map}": (table["score"] if head_type else by_head(table["score"])).sel(
            map=map
        )
        for name, table in chosen.items()
        for map in table["map"].values
        if table["score"].sel(map=map).notnull().any()
    }
    values = together({name: each.drop_vars("map") for name, each in panels.items()}, "panel")
    values = values.assign_attrs(long_name="attention on the keys of the type", units="1")
    if head_type is None:
        values = values.assign_coords(type=[str(name).replace("_", " ") for name in values["type"].values])
    drawing = cells.drawing(values, x="head", y="layer" if head_type else "type", panels="panel")
    what = "the keys of each type" if head_type is None else f"the keys of {head_type} heads"
    caption = f"What each map gives to {what} on {text}; uniform attention gives {_spread(chosen, 'uniform')}"
    caption += f", the same positions of shuffled tokens {_spread(chosen, 'shuffled')}."
    return drawing.described(caption, model=", ".join(estimates), text=text)


def _chosen(table: xr.Dataset, text: str, head_type: str | None) -> xr.Dataset:
    """Return the scores of one text, of one type or of all that it has."""
    table = table[["score", "shuffled", "uniform"]].sel(text=text)
    return table.dropna("type", how="all", subset=["score"]) if head_type is None else table.sel(type=head_type)


def _spread(tables: Mapping[str, xr.Dataset], name: str) -> str:
    values = np.concatenate([table[name].values.ravel() for table in tables.values()])
    return between(values[np.isfinite(values)])
