"""Retrieval by depth of the answer: the third table of "Differential Transformer" (Ye et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral

import xarray as xr

from diffscope import numbers
from diffscope.capture.captions import edits_of
from diffscope.errors import DiffscopeError, check_choice
from diffscope.numbers import counted
from diffscope.readings.reading import Reading
from diffscope.stats.intervals import t_half_width
from diffscope.stats.labels import called
from diffscope.tables.table import Table

Estimates = Reading | xr.Dataset
ROWS = ("answer", "irrelevant", "exact")
NEEDED = {"mass", "mass_se", "mass_of_prompt", "negative", "exact"}  # variables
INTERVAL = "95 %"  # the row below exact answers: their interval, which is no ± of them


def depths(
    reading: Estimates | Mapping[str, Estimates],
    *,
    normalisation: str = "share",
    map: str = "D",
    length: int | Sequence[int] | None = None,
    rows: Sequence[str] = ROWS,
) -> Table:
    """Tabulate what the last query gives to the answer and to irrelevant tokens, and exact answers, by depth.

    Parameters
    ----------
    reading : Reading or Dataset, or mapping of str to these
        What ``diffscope.readings.depths`` gave, or its ``estimates``; of several models by name.
    normalisation : {"share", "raw", "signed", "positive"}
    map : {"D", "A1", "A2"}
    length : int or sequence of int, optional
        Which lengths of prompts; by default all that every model was measured on.
    rows : sequence of str
        Spans, and "exact" for exact answers.

    Returns
    -------
    Table
        Masses are means over heads, then layers, then prompts, with the 95 % interval over prompts (Student's t); exact answers
        with Wilson's.

    Raises
    ------
    DiffscopeError
        It is no such reading, or has no such normalisation, map or length; or models were measured on other prompts.
    """
    import pandas as pd

    from diffscope.readings import signs  # which loads code of models
    from diffscope.readings.retrieval import common_lengths

    by_model = reading if isinstance(reading, Mapping) and not isinstance(reading, xr.Dataset) else {"": reading}
    tables = {name: _estimates(one) for name, one in by_model.items()}
    first = next(iter(tables.values()))
    named = {name or str(table.attrs.get("model", "")): table for name, table in tables.items()}
    spans = [row for row in rows if row != "exact"]
    for dim, label in (("normalisation", normalisation), ("map", map), *(("span", span) for span in spans)):
        check_choice(dim, label, first[dim].values)
    run = common_lengths(named)
    lengths = run if length is None else [length] if isinstance(length, Integral) else list(length)
    if missing := sorted(set(lengths) - set(run)):
        known = ", ".join(f"{tokens:g}" for tokens in run)
        raise DiffscopeError(f"no prompts of {missing[0]} tokens were run: there are {known}")
    records = [
        {"model": name, **record}
        for name, table in named.items()
        for record in _records(table.sel(normalisation=normalisation, map=map), lengths, rows)
    ]
    several = len(named) > 1
    titles = (*(["model"] if several else []), "tokens", "")
    columns = {float(depth): f"{round(100 * depth)} %" for depth in first["depth"].values}
    cells = [
        ((*([record["model"]] if several else []), str(record["length"]), row), record["depth"], text)
        for record in records
        for row, text in _printed(record)
    ]
    prompts = int(first.attrs["prompts"])
    caption = (
        f"Attention of the last query of retrieval prompts by depth of the answer, {' and '.join(named)}: "
        f"{signs.amount(map, normalisation)}, mean over heads, then layers, then "
        f"{counted(prompts, 'prompt')} of each length and depth, which state {int(first.attrs['distractors']) + 1} numbers. "
    )
    within = (
        "±: half of the 95 % interval over prompts (Student's t)" if prompts > 1 else "± –: of one prompt there is no interval"
    )
    caption += within + ("; below exact answers theirs (Wilson)." if "exact" in rows else ".")
    if (map, normalisation) == ("D", "share"):
        tables = {name: table.sel(length=lengths) for name, table in named.items()}
        caption = f"{caption} {signs.of_depths(tables, spans)}".rstrip()
    if edits := edits_of(named):
        caption += f" Under {edits}."
    definitions = [f"{called(span)}: {first['mass'].attrs['definition']}, span {span}" for span in spans]
    definitions += [f"exact: {first['exact'].attrs['definition']}"] if "exact" in rows else []
    note = f"Definitions. {'; '.join(definitions)}."
    return Table.of_cells("depths", titles, columns, cells, caption, pd.DataFrame(records), (note,))


def _printed(record: dict) -> list[tuple[str, str]]:
    """Return one number as the rows that it is printed in."""
    if record["quantity"] != "exact":
        row = called(record["quantity"]).removeprefix("the ")
        return [(row, numbers.with_spread(record["value"], (record["high"] - record["low"]) / 2))]
    return [("exact", f"{record['value']:.2f}"), (INTERVAL, f"{record['low']:.2f}–{record['high']:.2f}")]


def _estimates(reading: Estimates) -> xr.Dataset:
    table = reading.estimates if isinstance(reading, Reading) else reading
    if not isinstance(table, xr.Dataset) or not set(table.data_vars) >= NEEDED:
        raise DiffscopeError("this table is of what diffscope.readings.depths gives; hand that over")
    return table


def _records(table: xr.Dataset, lengths: Sequence[int], rows: Sequence[str]) -> list[dict]:
    """Return one record for each number of one model."""
    records = []
    for length in lengths:
        for quantity in rows:
            for depth in table["depth"].values.tolist():
                cell = table.sel(length=length, depth=depth)
                n = int(table.attrs["prompts"])
                if quantity == "exact":
                    value, low, high = (float(cell[name]) for name in ("exact", "exact_low", "exact_high"))
                    interval = "95 % (Wilson)"
                else:
                    value = float(cell["mass"].sel(span=quantity))
                    n = int(cell["mass_of_prompt"].sel(span=quantity).notnull().sum())
                    half = t_half_width(float(cell["mass_se"].sel(span=quantity)), n - 1)
                    low, high = value - half, value + half
                    interval = "95 % over prompts" if math.isfinite(half) else "none"
                labels = {"length": length, "depth": depth, "quantity": quantity}
                records.append({**labels, "value": value, "low": low, "high": high, "interval": interval, "n": n})
    return records
