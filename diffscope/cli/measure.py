"""``diffscope measure``: the statistics of a capture."""

import math
from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import (
    Device,
    Dtype,
    Head,
    Json,
    Layer,
    Model,
    Prompt,
    PromptFile,
    SavedCapture,
    Span,
    check_out,
    read_capture,
)
from diffscope.cli.output import counting, note, say, show_json, show_table, working
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope measure --model mini-diff \\",
    '  --prompt "The magic number: Paris 7421. The magic number: Paris" \\',
    "  --span answer=7421 --stats entropy,gini --json",
)

Stats = Annotated[str, typer.Option(metavar="A,B", help="Which statistics, separated by commas.")]
Query = Annotated[int | None, typer.Option(help="One query, a token counted from 0, or from the end: -1 is the last.")]
PerHead = Annotated[bool, typer.Option("--per-head", help="One row a head instead of the mean over heads.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Keep every value, unaveraged: .zarr, .nc, .parquet or .csv.")]


def command(
    saved: SavedCapture = None,
    model: Model = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    span: Span = None,
    stats: Stats = "entropy,gini",
    layer: Layer = None,
    head: Head = None,
    query: Query = None,
    per_head: PerHead = False,
    out: Out = None,
    as_json: Json = False,
    device: Device = None,
    dtype: Dtype = None,
):
    """Measure statistics of A1, A2 and D, averaged over queries."""
    from diffscope.figures.captured import check_place
    from diffscope.store import save_statistics, statistics_format

    check_out(out)
    if out is not None:
        statistics_format(out)
    names = [name.strip() for name in stats.split(",") if name.strip()]
    if not names:
        raise DiffscopeError("--stats names no statistic; for example --stats entropy,gini")
    capture = read_capture(saved, model, prompt, prompt_file, span, device, dtype)
    check_place(capture, layer, head)
    with counting("measuring") as progress:
        measured = capture.measure(names, queries=None if query is None else [query], progress=progress)
    place = {dim: [index] for dim, index in (("layer", layer), ("head", head)) if index is not None and dim in measured.dims}
    measured = measured.sel(place)
    if out is not None:
        with working(f"saving {out}"):
            save_statistics(measured, out)
    said = {name: _over_queries(values, _averageable(name)) for name, values in measured.items()}
    if as_json:
        show_json(
            {
                "model": capture.model_name,
                "family": capture.family,
                "tokens": capture.n_tokens,
                "spans": capture.spans,
                "averaged_over": {"query": measured.sizes.get("query")},
                "statistics": {name: _as_dict(values) | {"averaged_over": over} for name, (values, over) in said.items()},
                "saved": out,
            }
        )
        return
    say(f"{capture.model_name} ({capture.family}), {capture.n_tokens} tokens")
    for name, (values, over) in said.items():
        if "query" in values.dims:
            say()
            say(f"{name} [{values.attrs['units']}] is not averaged, its mean would say nothing; choose one --query, or --json")
            continue
        if "head" in values.dims and not per_head and head is None and _averageable(name):
            values, heads = _over_heads(values)
            over = over + heads
        _show(name, values, over)
    if out is not None:
        note(f"saved {out}")


def _averageable(name):
    """Whether means of a statistic say anything; of what is measured beside the statistics by name, they do."""
    from diffscope.stats import STATISTICS

    return name not in STATISTICS or STATISTICS[name].averageable


def _over_queries(values, averageable):
    """The mean over queries, and in words what it is over; the value itself of one query, or where a mean says nothing."""
    if "query" not in values.dims:
        return values, []
    if values.sizes["query"] == 1:
        return values.isel(query=0), []
    return _mean(values, "query", f"{values.sizes['query']} queries", "rows without a value") if averageable else (values, [])


def _over_heads(values):
    """The mean over heads, and in words what it is over; a head beside itself is left out."""
    if "other_head" not in values.dims:
        return _mean(values, "head", f"{values.sizes['head']} heads")
    return _mean(values.where(values["head"] != values["other_head"]), "head", f"other heads ({values.sizes['head'] - 1})")


def _mean(values, dim, over, missing=None):
    """The mean of what is finite, and in words what it is over and what was left out."""
    infinite = abs(values) == math.inf
    count = int(infinite.sum())
    left_out = [missing] if missing and values.isnull().any() else []
    left_out += [f"{count} infinite value{'s' if count > 1 else ''}"] if count else []
    over += f" ({' and '.join(left_out)} left out)" if left_out else ""
    return values.where(~infinite).mean(dim, keep_attrs=True), [over]


def _as_dict(values):
    return {
        **{key: values.attrs[key] for key in ("units", "long_name", "definition") if key in values.attrs},
        "dims": values.dims,
        "coords": {dim: values[dim].values for dim in values.dims},
        "values": values.values,
    }


def _show(name, values, averaged):
    """One table a statistic: the maps side by side, everything else down the rows."""
    series = values.to_series()
    table = series.unstack("map")[values["map"].values] if "map" in values.dims else series.to_frame("value")
    table = table.reset_index()
    units = f" [{values.attrs['units']}]" if values.attrs.get("units", "1") != "1" else ""
    over = f", mean over {', then '.join(averaged)}" if averaged else ""
    say()
    say(f"{name}{units}{over}")
    show_table([str(column) for column in table.columns], table.itertuples(index=False))
