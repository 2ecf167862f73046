"""``diffscope measure``: the statistics of a capture."""

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
    check_place,
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
    per_head: PerHead = False,
    out: Out = None,
    as_json: Json = False,
    device: Device = None,
    dtype: Dtype = None,
):
    """Measure statistics of A1, A2 and D, averaged over queries."""
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
        measured = capture.measure(names, progress=progress)
    place = {dim: [index] for dim, index in (("layer", layer), ("head", head)) if index is not None and dim in measured.dims}
    measured = measured.sel(place)
    if out is not None:
        with working(f"saving {out}"):
            save_statistics(measured, out)
    means = measured.mean([dim for dim in measured.dims if dim == "query"], keep_attrs=True)
    if as_json:
        show_json(
            {
                "model": capture.model_name,
                "family": capture.family,
                "tokens": capture.n_tokens,
                "spans": capture.spans,
                "averaged_over": {"query": measured.sizes.get("query")},
                "statistics": {name: _as_dict(values) for name, values in means.items()},
                "saved": out,
            }
        )
        return
    say(f"{capture.model_name} ({capture.family}), {capture.n_tokens} tokens")
    for name, values in means.items():
        over = []
        if "query" in measured[name].dims:
            gaps = " (rows without a value left out)" if measured[name].isnull().any() else ""
            over.append(f"{measured.sizes['query']} queries{gaps}")
        if "head" in values.dims and not per_head and head is None:
            over.append(f"{values.sizes['head']} heads")
            values = values.mean("head", keep_attrs=True)
        _show(name, values, over)
    if out is not None:
        note(f"saved {out}")


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
