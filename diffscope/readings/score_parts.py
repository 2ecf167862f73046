"""Say why a head looks at a token: which earlier parts its query and its key are made of."""

from __future__ import annotations

import xarray as xr

from diffscope.numbers import minus, two_figures
from diffscope.readings.reading import Reading

COMPARED = {"nothing": "", "row": ", counted from the mean of its row"}


def score_parts(table: xr.Dataset) -> Reading:
    """Say which parts make up an attention score.

    Parameters
    ----------
    table : xarray.Dataset
        Of :func:`diffscope.attribution.score_attribution`.

    Returns
    -------
    Reading
        Its estimates are the table. The sentence names the part of the key and that of the query that add most, in either
        direction, and the pair that does; an amount is one of the score's units, before the softmax.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import readings
    >>> scope = diffscope.load("mini-diff")
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> table = diffscope.attribution.score_attribution(scope, text, 1, 1, -1, 8, against="row")
    >>> print(readings.score_parts(table).sentence.partition(":")[0])
    A1 of L1H1 scores key 8 +2.4 at token 14, counted from the mean of its row
    """
    cell = table.attrs
    compared = COMPARED.get(cell["against"], f", counted from {cell['against']}")
    total = float(table["total"])
    head = f"{cell['map']} of L{cell['layer']}H{cell['head']}"
    start = f"{head} scores key {cell['key']} {_amount(total)} at token {cell['query']}{compared}"
    of_key = f"the largest part of its key is {_written(_largest(table['of_key'], 'key_part'))}"
    of_query = f"the largest of its query {_written(_largest(table['of_query'], 'query_part'))}"
    pair = table["score"].stack(pair=["query_part", "key_part"])
    (query, key), amount = _largest(pair, "pair")
    product = f"the largest product is {_of(query)} at the query with {_of(key)} at the key ({_amount(amount)})"
    return Reading(f"{start}: {of_key}, {of_query}; {product}.", table)


def _largest(values: xr.DataArray, dim: str) -> tuple:
    """Return the label and the value of the part with the largest absolute value."""
    part = values.isel({dim: int(abs(values).argmax(dim))})
    return part[dim].item(), float(part)


def _written(part: tuple[str, float]) -> str:
    name, amount = part
    return f"{_of(name)} ({_amount(amount)})"


def _of(part: str) -> str:
    """Name a part in a sentence: what A2 of L0H1 wrote."""
    place, _, what = part.partition(" ")
    if part == "embedding":
        return "the embedding"
    if part == "biases":
        return "the biases of norm and projection"
    return f"what {what} of {place} wrote" if what in ("A1", "A2") else f"the {what} of {place}"


def _amount(value: float) -> str:
    return f"+{two_figures(value)}" if value > 0 else minus(two_figures(value))
