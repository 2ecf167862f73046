"""``diffscope measure``: statistics of a prompt as the model runs it, or of a saved capture."""

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

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
    read_prompt,
    read_scope,
    read_spans,
    say_what_to_know,
)
from diffscope.cli.output import counting, note, say, show_json, show_table, working
from diffscope.errors import DiffscopeError, Stopped

EXAMPLE = (
    "diffscope measure --model mini-diff \\",
    '  --prompt "The magic number: Paris 7421. The magic number: Paris" \\',
    "  --span answer=7421 --stats entropy,gini --json",
)

Stats = Annotated[str, typer.Option(metavar="A,B", help="Which statistics, separated by commas.")]
Query = Annotated[int | None, typer.Option(help="One query, a token counted from 0, or from the end: -1 is the last.")]
Queries = Annotated[
    str | None, typer.Option(metavar="SPAN|START:STOP|sample:N", help="Some queries: a span's, a range, or N drawn at random.")
]
Backend = Annotated[
    Literal["blocks", "triton"] | None,
    typer.Option(help="Where row statistics come from; by default the fastest: exact blocks of rows, on CUDA Triton's kernels."),
]
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
    queries: Queries = None,
    backend: Backend = None,
    per_head: PerHead = False,
    out: Out = None,
    as_json: Json = False,
    device: Device = None,
    dtype: Dtype = None,
):
    """Measure statistics of A1, A2 and D, averaged over queries. Ctrl-C leaves the layers that were finished."""
    from diffscope.attention.indexing import check_index
    from diffscope.store import save_statistics, statistics_format

    check_out(out)
    if out is not None:
        statistics_format(out)
    names = [name.strip() for name in stats.split(",") if name.strip()]
    if not names:
        raise DiffscopeError("--stats names no statistic; for example --stats entropy,gini")
    rows = _queries(query, queries)
    if saved is not None:
        source = read_capture(saved, model, prompt, prompt_file, span, device, dtype)
        about, measure = {"tokens": source.n_tokens, "spans": source.spans}, partial(source.measure, backend=backend)
        there = {"layer": [one.layer for one in source.layers], "head": list(range(source.n_heads))}
    else:
        source = read_scope(model, device, dtype)
        text, spans = read_prompt(prompt, prompt_file), read_spans(span or [])
        encoded = source.encode(text, spans)
        about = {"tokens": len(encoded.ids), "spans": encoded.key_sets("cpu")}
        there = {"layer": source.layers, "head": None if head is None else _heads(source)}

        def measure(names, queries, progress):
            return source.measure(text, names, spans=spans, queries=queries, progress=progress, announce=note, backend=backend)

    check_index("layer", layer, there["layer"])
    check_index("head", head, there["head"])
    stopped = None
    with counting("measuring") as progress:
        try:
            measured = measure(names, queries=rows, progress=progress)
        except Stopped as interrupt:
            stopped, measured = interrupt, interrupt.measured
    if layer is not None and layer not in measured["layer"]:
        raise stopped
    say_what_to_know(measured.attrs)
    place = {dim: [index] for dim, index in (("layer", layer), ("head", head)) if index is not None and dim in measured.dims}
    measured = measured.sel(place)
    if out is not None:
        with working(f"saving {out}"):
            save_statistics(measured, out)
    sampled = measured.attrs.get("sampled")
    if as_json:
        show_json(
            {
                **{key: measured.attrs[key] for key in ("model", "family")},
                **about,
                "averaged_over": {"query": measured.sizes.get("query"), **({"sampled": sampled} if sampled else {})},
                "statistics": {name: _as_dict(*_average(values, ["query"])) for name, values in measured.items()},
                **({"stopped": measured.attrs["stopped"]} if stopped else {}),
                "saved": out,
            }
        )
    else:
        of_them = f"; measured on {sampled}" if sampled else ""
        say(f"{measured.attrs['model']} ({measured.attrs['family']}), {about['tokens']} tokens{of_them}")
        over = ["query"] if per_head or head is not None else ["query", "head"]
        for name, values in measured.items():
            if values.attrs.get("averaged") == "not" and values.sizes.get("query", 1) > 1:
                units = values.attrs["units"]
                say()
                say(f"{name} [{units}] is not averaged, its mean would say nothing; choose one --query, or --json")
                continue
            _show(name, *_average(values, over))
    if out is not None:
        note(f"saved {out}")
    if stopped:
        note(f"stopped {measured.attrs['stopped']}")
        raise stopped


def _heads(scope):
    """Numbers of the heads of the layer that has most, found on two tokens: a wrong --head is not to be told after an hour."""
    return list(range(scope.measure([0, 0], ["lambda"]).sizes["head"]))


def _queries(query, queries):
    """What --query and --queries say, as ``measure`` takes it."""
    from diffscope.stats.sampling import Sample

    if query is not None and queries is not None:
        raise DiffscopeError("--query and --queries exclude each other; give one of them")
    if queries is None:
        return None if query is None else [query]
    if found := re.fullmatch(r"sample:(\d+)", queries):
        return Sample(int(found[1]))
    if found := re.fullmatch(r"(-?\d+)?:(-?\d+)?", queries):
        return slice(*(int(end) if end else None for end in found.groups()))
    return queries


def _average(values, dims):
    """The average over some dimensions; of one query its value, and of what is not averaged all values."""
    from diffscope.stats.averaging import Average, averaged, rule

    if values.sizes.get("query") == 1:
        values = values.isel(query=0)
    return averaged(values, dims) if rule(values) != "not" else Average(values, None, [])


def _as_dict(values, error, words):
    return {
        **{key: said for key, said in values.attrs.items() if key != "averaged_over"},
        "dims": values.dims,
        "coords": {dim: values[dim].values for dim in values.dims},
        "values": values.values,
        **({} if error is None else {"standard_error": error.values}),
        "averaged_over": words,
    }


def _show(name, values, error, words):
    """One table a statistic: the maps side by side, everything else down the rows."""
    units = f" [{values.attrs['units']}]" if values.attrs.get("units", "1") != "1" else ""
    over = f", {values.attrs['averaged']} over {', then '.join(words)}" if words else ""
    bound = f", error of a row below {values.attrs['error_bound']:.1g}" if "error_bound" in values.attrs else ""
    say()
    say(f"{name}{units}{over}{bound}")
    for key in ("why", "estimated", "unknown"):
        if key in values.attrs:
            say(f"({values.attrs[key]})")
    table = _table(values, "value")
    if error is not None:
        columns = [*values["map"].values] if "map" in values.dims else ["value"]
        table = table.join(_table(error, "value")[columns].add_suffix(" ±"))
    show_table([str(column) for column in table.columns], table.itertuples(index=False))


def _table(values, name):
    series = values.rename(name).to_series()
    table = series.unstack("map")[values["map"].values] if "map" in values.dims else series.to_frame(name)
    return table.reset_index()
