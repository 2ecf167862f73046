"""Which heads are of the known types: a row a head and map, a column a type."""

from __future__ import annotations

import math

import xarray as xr

from diffscope.errors import DiffscopeError, check_choice
from diffscope.numbers import decimal, head_name
from diffscope.readings.head_types import BY_CONTENT
from diffscope.readings.reading import Reading
from diffscope.tables.table import Table


def head_types(reading: Reading | xr.Dataset, *, text: str | None = None) -> Table:
    """Tabulate how much A1, A2 and D of every head give to the keys of each type, beside uniform attention and shuffled tokens.

    Parameters
    ----------
    reading : Reading or Dataset
        What ``diffscope.readings.head_types`` gave, or its ``estimates``.
    text : {"random tokens", "prompts"}, optional
        By default random tokens.

    Returns
    -------
    Table
        Of each head and map the score, and in brackets the control: uniform attention, or the same positions of shuffled tokens.

    Raises
    ------
    DiffscopeError
        It is no such reading, or has no such text.
    """
    import pandas as pd

    table = reading.estimates if isinstance(reading, Reading) else reading
    if not isinstance(table, xr.Dataset) or "is_type" not in table:
        raise DiffscopeError("this table is of what diffscope.readings.head_types gives; hand that over")
    text = str(table["text"].values[0]) if text is None else text
    check_choice("text", text, table["text"].values)
    scores = table[["score", "uniform", "shuffled", "is_type"]].sel(text=text).dropna("type", how="all", subset=["score"])
    frame = scores.to_dataframe().reset_index().dropna(subset=["score"])
    frame = frame.sort_values(["layer", "head", "map"], kind="stable")
    columns = {name: name.replace("_", " ") for name in scores["type"].values}
    cells = [((head_name(row.layer, row.head), row.map), row.type, _printed(row)) for row in frame.itertuples()]
    caption = (
        f"What A1, A2 and D of {table.attrs.get('model', 'a model')} give to the keys that make a head one of a type, on {text}. "
        "In brackets the control: uniform attention; of types that depend on what tokens are, the same positions where tokens "
        "are shuffled, if that is more."
    )
    note = f"Definitions. score: {table['score'].attrs['definition']}; is_type: {table['is_type'].attrs['definition']}."
    return Table.of_cells("head_types", ("head", "map"), columns, cells, caption, pd.DataFrame(frame), (note,))


def _printed(row) -> str:
    """Write a score and the control that decides about it; position alone makes no head one of a type by content."""
    by_content = row.type in BY_CONTENT and not math.isnan(row.shuffled)
    control = max(row.uniform, row.shuffled) if by_content else row.uniform
    return f"{decimal(row.score)} ({decimal(control)})"
