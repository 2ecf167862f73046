"""One statistic of a capture by layer, head, span and whatever else it has, its maps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import xarray as xr

from diffscope import numbers
from diffscope.errors import DiffscopeError
from diffscope.stats.averaging import Average, averaged, rule
from diffscope.tables.table import Column, Table

if TYPE_CHECKING:
    import pandas as pd

DIGITS = 4
ERROR = " ±"  # behind the name of a map: the standard error of its average


def statistic(values: xr.DataArray, over: Sequence[str] | str = ("query", "head")) -> Table:
    """Tabulate one statistic: maps side by side, everything else down the rows.

    Single positions, decibels and pairs of heads stand as they are. An average over sampled queries has its standard error beside
    it. The caption says which labels were selected, such as the query, and counts the values that an average leaves out.

    Parameters
    ----------
    values : DataArray
        A variable of what ``measure`` returns, of one prompt.
    over : sequence of str
        What is averaged over: "query", "head", "layer". Positions and decibels are not averaged, and one query is shown as it is.

    Returns
    -------
    Table
        ``data`` has a row a row, and a column a map; labels that were selected are columns, too.

    Raises
    ------
    DiffscopeError
        It is no statistic, or of positions or decibels at several queries.

    Examples
    --------
    >>> import diffscope
    >>> cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
    >>> diffscope.tables.statistic(cap.measure("entropy")["entropy"])
    <Table statistic: 3 × 4>
    """
    if not isinstance(values, xr.DataArray):
        raise DiffscopeError(f"this table is of one statistic, such as measure(…)['entropy'], not of a {type(values).__name__}")
    if rule(values) == "not" and values.sizes.get("query", 1) > 1:
        units = values.attrs.get("units", "1")
        raise DiffscopeError(f"{values.name} [{units}] is not averaged, its mean would say nothing; choose one query")
    average, error, words = average_of(values, [over] if isinstance(over, str) else over)
    frame = _by_map(average)
    if error is not None:
        labels = [*average["map"].values] if "map" in average.dims else ["value"]
        frame = frame.join(_by_map(error)[labels].add_suffix(ERROR))
    columns = [Column(str(name), partial(_text, str(name))) for name in frame]
    units = f" [{average.attrs['units']}]" if average.attrs.get("units", "1") != "1" else ""
    steps = f", {average.attrs['averaged']} over {', then '.join(words)}" if words else ""
    bound = f", error of a row below {average.attrs['error_bound']:.1g}" if "error_bound" in average.attrs else ""
    notes = [f"({average.attrs[key]})" for key in ("why", "estimated", "unknown") if key in average.attrs]
    chosen = {str(name): label.item() for name, label in average.coords.items() if not label.dims}
    at = "".join(f", {name} {label}" for name, label in chosen.items())
    records = [chosen | {str(name): value for name, value in record.items()} for record in frame.to_dict("records")]
    return Table.of("statistic", records, columns, f"{values.name}{units}{at}{steps}{bound}", notes)


def average_of(values: xr.DataArray, over: Sequence[str]) -> Average:
    """Average over some dimensions; return one query, and statistics that are not averaged, as they are."""
    if values.sizes.get("query") == 1:
        values = values.isel(query=0)
    return averaged(values, over) if rule(values) != "not" else Average(values, None, [])


def _by_map(values: xr.DataArray) -> pd.DataFrame:
    """Return a row for each label of all dimensions but the map, and a column for each map."""
    import pandas as pd

    if not set(values.dims) - {"map"}:  # one row
        return pd.DataFrame([dict(zip(values["map"].values, values.values)) if values.dims else {"value": values.item()}])
    series = values.rename("value").to_series()
    table = series.unstack("map")[values["map"].values] if "map" in values.dims else series.to_frame("value")
    return table.reset_index()


def _text(name: str, record: dict) -> str:
    value = record[name]
    return numbers.significant(value, DIGITS) if isinstance(value, float | int) else str(value)
