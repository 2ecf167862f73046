"""``diffscope measure``: statistics of a prompt as the model runs it, or of a saved capture."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from diffscope.cli.options import (
    DecoderPrompt,
    Device,
    Dtype,
    Head,
    Json,
    KeySpan,
    Layer,
    Model,
    OfKind,
    Prompt,
    PromptFile,
    SavedCapture,
    Span,
    Statistics,
    check_out,
    print_warnings,
    read_capture,
    read_prompt,
    read_scope,
    read_spans,
    read_statistics,
)
from diffscope.cli.output import STOPPED, counting, note, say, show_json, show_table, working
from diffscope.errors import DiffscopeError, MeasurementInterrupted

EXAMPLE = (
    "diffscope measure --model mini-diff \\",
    '  --prompt "Magic numbers. Paris 7421. Rome 2174. Paris" \\',
    "  --span answer=7421 --statistics entropy,gini --json",
)

PRINTED = (".tex", ".md")

Query = Annotated[int | None, typer.Option(help="One query, a token counted from 0, or from the end: -1 is the last.")]
Queries = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN|last|START:STOP|sample:N", help="Some queries: a span's, the last, a range, or N drawn at random."
    ),
]
Backend = Annotated[
    Literal["blocks", "triton"] | None,
    typer.Option(help="Where row statistics come from; by default blocks of rows, on CUDA Triton's kernels."),
]
List = Annotated[
    bool,
    typer.Option("--list", help="List the statistics that --statistics knows, with units and definition, and measure nothing."),
]
PerHead = Annotated[bool, typer.Option("--per-head", help="One row a head instead of the mean over heads.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Keep every value, unaveraged: .zarr, .nc, .parquet, .csv; averages as a table: .tex, .md."
    ),
]


def command(
    saved: SavedCapture = None,
    model: Model = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    span: Span = None,
    decoder_prompt: DecoderPrompt = None,
    key_span: KeySpan = None,
    statistics: Statistics = "entropy,gini",
    layer: Layer = None,
    head: Head = None,
    of_kind: OfKind = None,
    query: Query = None,
    queries: Queries = None,
    backend: Backend = None,
    per_head: PerHead = False,
    list_statistics: List = False,
    out: Out = None,
    as_json: Json = False,
    device: Device = None,
    dtype: Dtype = None,
):
    """Measure statistics of A1, A2 and D, averaged over queries. Ctrl-C leaves the layers that were finished."""
    if list_statistics:
        _list(as_json)
        return
    check_out(out)
    if out is not None:
        _check_format(out, per_head)
    names = read_statistics(statistics)
    asked = _names(names)
    rows = _queries(query, queries)
    scope = None if saved is not None else read_scope(model, device, dtype)
    if scope is None or scope.crosses or any((of_kind, decoder_prompt, key_span)):
        given = (saved, model, prompt, prompt_file, span, device, dtype, of_kind)
        capture = read_capture(*given, decoder_prompt=decoder_prompt, key_span=key_span, scope=scope)
        source = _of_capture(capture, layer, head, backend)
    else:
        content = read_prompt(prompt, prompt_file)
        source = _of_model(scope, content, read_spans(span or [], prompt=content), layer, head, backend)
    _check_range(rows, queries, source.tokens)
    signed = [*asked, *{"negative_share"} - set(asked)] if "span_mass" in asked else names
    measured, interrupt = _measure(source, signed, rows)
    if layer is not None and layer not in measured["layer"]:
        raise interrupt
    print_warnings(measured.attrs)
    place = {dim: [number] for dim, number in (("layer", layer), ("head", head)) if number is not None and dim in measured.dims}
    measured = measured.sel(place)
    words = _signs(measured)
    shown = measured.drop_vars(set(measured) - set(asked))
    _report(shown, source, out, as_json, over_heads=not per_head and head is None, signs=words)
    if interrupt:
        kept = f"these are kept in {out}" if out is not None else "nothing is kept; --out FILE keeps what is finished"
        note(f"stopped {measured.attrs['stopped']}; {kept}")
        raise typer.Exit(STOPPED)


def _list(as_json):
    """Show the statistics as their functions declare them."""
    from diffscope.stats import STATISTICS

    if as_json:
        show_json({name: {"kind": each.kind, "dims": each.dims, **each.attributes} for name, each in STATISTICS.items()})
    else:
        rows = ((name, each.kind, each.units, each.description, each.formula) for name, each in STATISTICS.items())
        show_table(["statistic", "kind", "units", "measures", "definition"], rows)


class _Source(NamedTuple):
    """What is measured: by a function of names, queries and progress."""

    measure: Callable
    tokens: int | list[int]  # of a batch of each prompt
    spans: dict
    keys: dict | list[dict] | None = None  # of cross-attention, how many tokens it looks at and their spans; of a batch of each


def _of_capture(capture, layer, head, backend):
    from diffscope.errors import check_index

    check_index("layer", layer, capture.layer_numbers)
    check_index("head", head, range(capture.n_heads))
    sides = capture.key_prompts and [{"tokens": len(side.ids), "spans": side.span_positions()} for side in capture.key_prompts]
    keys = sides if capture.batch else sides and sides[0]
    return _Source(partial(capture.measure, backend=backend), capture.n_tokens, capture.key_sets, keys)


def _of_model(scope, content, spans, layer, head, backend):
    from diffscope.errors import check_index

    encoded = scope.encode(content, spans)
    check_index("layer", layer, scope.layer_numbers)
    if head is not None:
        check_index("head", head, _heads(scope))
    measure = partial(scope.measure, content, spans=spans, backend=backend)
    return _Source(measure, len(encoded.ids), encoded.span_positions())


def _names(names):
    """Return the statistics of these names and groups."""
    from diffscope.stats.registry import select

    return [statistic.name for statistic in select(names)]


def _signs(measured):
    """Say how much of |D| is negative on each key set if shares of it are shown."""
    if "span_mass" not in measured:
        return ""
    from diffscope.readings.signs import of_spans

    return of_spans(measured, measured["span"].values.tolist())


def _measure(source, names, queries):
    """Measure, and return the statistics with the interrupt that stopped it or None."""
    with counting("measuring") as progress:
        try:
            return source.measure(statistics=names, queries=queries, progress=progress), None
        except MeasurementInterrupted as interrupt:
            return interrupt.measured, interrupt


def _report(measured, source, out, as_json, over_heads, signs):
    """Save every value where that is asked for, and show the averages."""
    if out is not None:
        with working(f"saving {out}"):
            _keep(measured, out)
    if as_json:
        show_json(_summary(measured, source, out) | ({"signs": signs} if signs else {}))
    else:
        _show_tables(measured, source, over_heads, signs)
    if out is not None:
        note(f"saved {out}")


def _check_format(out, per_head):
    """Refuse a name that tells no format, and heads one by one where averages are kept."""
    from diffscope.storage.statistics import FORMATS

    if out.suffix.lower() not in (*FORMATS, *PRINTED):
        raise DiffscopeError(f"statistics cannot be kept as {out.name!r}; end the name in {', '.join((*FORMATS, *PRINTED))}")
    if per_head and out.suffix.lower() in PRINTED:
        others = ", ".join(FORMATS)
        raise DiffscopeError(
            f"a table as {out.suffix} has averages over heads; leave --per-head out, or keep every value ({others})"
        )


def _keep(measured, out):
    """Write every value, or averages as a paper prints them."""
    from diffscope.storage.statistics import save_statistics
    from diffscope.tables import statistics

    if out.suffix.lower() in PRINTED:
        statistics(measured).save(out)
    else:
        save_statistics(measured, out)


def _summary(measured, source, out):
    """Return the averages as a dictionary for JSON."""
    from diffscope.tables.of_statistic import average_of

    attrs = measured.attrs
    sampled = {"sampled": attrs["sampled"]} if attrs.get("sampled") else {}
    return {
        "model": attrs["model"],
        "family": attrs["family"],
        "tokens": source.tokens,
        "spans": source.spans,
        **({"keys": source.keys} if source.keys else {}),
        "averaged_over": {"query": measured.sizes.get("query"), **sampled},
        "statistics": {name: _as_dict(*average_of(values, ["query"])) for name, values in measured.items()},
        **({"stopped": attrs["stopped"]} if "stopped" in attrs else {}),
        "saved": out,
    }


def _show_tables(measured, source, over_heads, signs):
    """Show one table for each statistic."""
    from diffscope.capture.repr import in_tokens
    from diffscope.stats.negative_mass import WHATEVER, sums_sizes
    from diffscope.tables import statistic

    attrs = measured.attrs
    sampled = f"; measured on {attrs['sampled']}" if attrs.get("sampled") else ""
    tokens = source.tokens if isinstance(source.tokens, list) else [source.tokens]
    sides = source.keys if isinstance(source.keys, list) else [source.keys] if source.keys else []
    keys = f", {in_tokens([side['tokens'] for side in sides])} of another side" if sides else ""
    say(f"{attrs['model']} ({attrs['family']}), {in_tokens(tokens)}{keys}{sampled}")
    for name, values in measured.items():
        say()
        if values.attrs.get("averaged") == "not" and values.sizes.get("query", 1) > 1:
            say(f"{name} [{values.attrs['units']}] is not averaged, its mean would say nothing; choose one --query, or --json")
            continue
        table = statistic(values, ["query", "head"] if over_heads else ["query"])
        for line in (table.caption, *table.notes):
            say(line)
        show_table(table.header, table.data[[*table.header]].itertuples(index=False))
        if name == "span_mass" and signs:
            say(signs)
        elif sums_sizes(values):
            say(f"{WHATEVER}.")


def _heads(scope):
    """Return the heads of the layer that has most, found on two tokens, so that a wrong --head is refused at once."""
    return list(range(scope.measure([0, 0], ["lambda"]).sizes["head"]))


def _queries(query, queries):
    """Read --query and --queries as ``measure`` takes them."""
    from diffscope.stats.sample import QuerySample

    if query is not None and queries is not None:
        raise DiffscopeError("--query and --queries exclude each other; give one of them")
    if queries is None:
        return None if query is None else [query]
    if sample := re.fullmatch(r"sample:(\d+)", queries):
        return QuerySample(int(sample[1]))
    if ends := re.fullmatch(r"(-?\d+)?:(-?\d+)?", queries):
        return slice(*(int(end) if end else None for end in ends.groups()))
    return queries


def _check_range(rows, queries, tokens):
    """Refuse a range of queries, as --queries has it, that goes beyond the prompt or the longest of a batch."""
    longest = max(tokens) if isinstance(tokens, list) else tokens
    if isinstance(rows, slice) and any(end is not None and abs(end) > longest for end in (rows.start, rows.stop)):
        raise DiffscopeError(f"--queries {queries} goes beyond the prompt, which has {longest} tokens")


def _as_dict(values, error, words):
    return {
        **{key: value for key, value in values.attrs.items() if key != "averaged_over"},
        "dims": values.dims,
        "coords": {dim: values[dim].values for dim in values.dims},
        "values": values.values,
        **({} if error is None else {"standard_error": error.values}),
        "averaged_over": words,
    }
