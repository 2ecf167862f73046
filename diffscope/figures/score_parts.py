"""The figure of one attention score: what each part of the query, times each part of the key, adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import estimates_of, the_one
from diffscope.figures.values import cells
from diffscope.numbers import head_name, minus, two_figures
from diffscope.prompts.selection import whole_number

if TYPE_CHECKING:
    from diffscope.readings.reading import Reading

OTHERS, ALL = "others", "all"
MOST = 64  # parts of a side


@figure()
def score_parts(subject: Reading | xr.Dataset, *, parts: int = 6, **printing: Unpack[Printing]) -> Drawing:
    """Draw what one attention score is made of: the largest parts of the query by the largest parts of the key.

    A cell is what a part of the query times a part of the key adds to the score, before the softmax. The last row and column
    are sums over all parts, and those before them the parts that are not named, so that the lower right cell is the score.

    Parameters
    ----------
    subject : Reading or its estimates
        Of :func:`diffscope.readings.score_parts`; or the table of :func:`diffscope.attribution.score_attribution`.
    parts : int
        How many parts of each side are named, the largest ones in either direction.

    Returns
    -------
    Figure
        ``value`` (panel, y, x): y parts of the query, x parts of the key.

    Raises
    ------
    DiffscopeError
        It is of something else, or no part is asked for.

    Examples
    --------
    >>> import diffscope
    >>> scope = diffscope.load("mini-diff")
    >>> table = diffscope.attribution.score_attribution(scope, "Paris 7421. Rome 2174. Paris", 1, 1, -1, 2, map="A2")
    >>> diffscope.figures.score_parts(table, parts=3)
    <diffscope figure 'score_parts' of value (panel: 1, y: 5, x: 5)>
    """
    parts = whole_number(parts, 1, MOST, f"a figure names 1 to {MOST} parts of each side")
    name, table = the_one(estimates_of(subject, "of_key", "diffscope.readings.score_parts(table)"))
    if not {"query_part", "key_part"} <= set(table.dims):
        raise DiffscopeError("this figure is of one score; give what diffscope.attribution.score_attribution returns")
    score = table["score"]
    for dim in ("query_part", "key_part"):
        score = _shortened(score, table[f"of_{dim.removesuffix('_part')}"], dim, parts)
    cell = table.attrs
    head = f"{cell['map']} of {head_name(cell['layer'], cell['head'])}"
    against = {"nothing": "", "row": ", counted from the mean of its row"}.get(
        cell["against"], f", counted from {cell['against']}"
    )
    caption = (
        f"What parts of the query (token {cell['query']}) times parts of the key (token {cell['key']}) add to the score of "
        f"{head}, {minus(two_figures(float(table['total'])))} before the softmax{against}."
    )
    values = score.rename(query_part="query", key_part="key").assign_attrs(long_name="added to the score", units="1")
    return cells.drawing(values, x="key", y="query").described(caption, model=name)


def _shortened(score: xr.DataArray, sums: xr.DataArray, dim: str, parts: int) -> xr.DataArray:
    """Return the largest parts along a dimension, the sum of the others if there are any, and the sum of all."""
    order = abs(sums).argsort().values[::-1]
    named, others = sorted(order[:parts]), sorted(order[parts:])
    pieces = [score.isel({dim: named})]
    if others:
        pieces.append(score.isel({dim: others}).sum(dim).expand_dims({dim: [OTHERS]}))
    pieces.append(score.sum(dim).expand_dims({dim: [ALL]}))
    return xr.concat(pieces, dim)
