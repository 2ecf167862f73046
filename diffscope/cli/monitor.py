"""``diffscope monitor``: what a monitor has measured of a training, in a table that follows it."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import Json
from diffscope.cli.output import say, show_json, show_table, show_value
from diffscope.numbers import ABSENT

EXAMPLE = ("diffscope monitor runs/mine/monitor",)

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="The folder that a monitor writes, or the output_dir of the Trainer.", show_default=False
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Print what is there and end; so it does where the output is no terminal.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="How often to look for new steps.")]
ALERTS = 5  # the last ones that are shown


def command(folder: Folder, once: Once = False, seconds: Seconds = 2.0, as_json: Json = False):
    """Show λ, overlap and other statistics of a training by layer, at its last measured step, and follow it until Ctrl-C."""
    from diffscope.monitoring.record import Record

    record = Record(folder)
    if as_json:
        show_json(_as_json(record.dataset()))
    elif once or not sys.stdout.isatty():
        _print(record.dataset())
    else:
        _follow(record, seconds)


def _follow(record, seconds):
    """Draw the table anew whenever a step has come."""
    from rich.live import Live

    from diffscope.monitoring.record import stamp

    shown = {}
    with Live(auto_refresh=False) as live:
        while True:
            seen = stamp(record.path)
            if record.steps and seen != shown:
                shown = seen
                live.update(_drawn(record.dataset()), refresh=True)
            time.sleep(seconds)


def _print(kept):
    say(_head_line(kept))
    say()
    headers, rows = _table(kept)
    show_table(headers, rows)
    for line in _alerts(kept):
        say(line)


def _drawn(kept):
    """Return the tables as one drawing for a live screen."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    headers, rows = _table(kept)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(show_value(value)) for value in row))
    alerts = [Text(line, style="yellow") for line in _alerts(kept)]
    return Group(Text(_head_line(kept)), Text(), table, *alerts)


def _head_line(kept):
    last = kept.isel(step=-1)
    loss = f", loss {float(last['loss']):.4g}" if "loss" in kept and bool(last["loss"].notnull()) else ""
    seconds = float(kept["seconds"].median())
    return (
        f"{kept.attrs['model']}, step {int(last['step']):,}{loss}; {kept.sizes['step']} steps measured, {seconds:.2g} s each; "
        "averages over prompts, then heads, and how they have changed since the first"
    )


def _table(kept):
    """Return headers and rows: a layer each, each statistic at the last step with its change since the first that has it."""
    from diffscope.monitoring.courses import courses

    series = {name: _by_layer(values) for name, values in courses(kept).items() if "layer" in values.dims}
    series = {name: values for name, values in series.items() if bool(values.notnull().any())}
    rows = []
    for layer in kept["layer"].values:
        row = [f"layer {layer}"]
        for values in series.values():
            of_layer = values.sel(layer=layer)
            last = float(of_layer.isel(step=-1))
            if math.isnan(last):
                row.append(ABSENT)
            else:
                row.append(f"{last:.3f} ({last - float(of_layer.dropna('step').isel(step=0)):+.3f})")
        rows.append(row)
    return ["", *series], rows


def _by_layer(values):
    """Return a statistic by step and layer: what is kept, averaged over prompts, is averaged over heads."""
    from diffscope.stats.averaging import averaged

    return averaged(values, ["head"]).values if "head" in values.dims else values


def _alerts(kept):
    found = json.loads(kept.attrs["alerts"])
    before = [f"{len(found) - ALERTS} earlier alerts"] if len(found) > ALERTS else []
    return [*before, *(f"step {step}: {text}" for step, _, text in found[-ALERTS:])]


def _as_json(kept):
    """Return every step with its averages by layer, over prompts and then heads, and the alerts."""
    from diffscope.monitoring.courses import courses

    series = courses(kept)
    values = {
        name: (_by_layer(values).transpose("step", "layer") if "layer" in values.dims else values).values.tolist()
        for name, values in series.items()
    }
    alerts = [{"step": step, "rule": rule, "text": text} for step, rule, text in json.loads(kept.attrs["alerts"])]
    return {"steps": kept["step"].values.tolist(), "layers": kept["layer"].values.tolist(), "values": values, "alerts": alerts}
