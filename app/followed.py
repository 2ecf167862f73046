"""A training that is monitored: the numbers of its folder, drawn anew whenever a step has come."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import blocks
import streamlit as st
import xarray as xr
from messages import escape_markdown, show_errors
from training_views import show_pictures, show_statistics, show_steps
from url_state import bound

from diffscope import figures
from diffscope.capture.capture import Capture, open_capture
from diffscope.monitoring.courses import courses
from diffscope.monitoring.measuring import CONTROL
from diffscope.monitoring.record import ABOUT, MAPS, Record, folder_of, is_free, stamp
from diffscope.monitoring.record import FOLDER as IN_OUTPUT
from diffscope.numbers import capital, counted, duration, head_name, numbered, short_duration

FOLDER = "training-folder"  # the key of its field, and what an address names it by
STEADY = "<style>[data-stale=true]{opacity:1!important;transition:none!important}</style>"  # nothing fades as a step comes
EVERY = 2.0  # seconds between two looks for new steps
ALERTS = 3  # the last ones, which are shown at once
PICTURES = 8  # steps whose maps stand beside each other
FIRST = ("loss", "lambda", "overlap", "entropy", "sink_mass")  # shown at once, in this order
CAPTIONS = {
    "loss": "As the training gave it at a measured step; of the Trainer, as logged last before that.",
    "lambda": "λ, by how much A₂ is taken off.",
    "overlap": "What the two maps share on irrelevant tokens. Dashed: the same with the A₂ of another head.",
    "noise_gain": "What is left in |D| of A₁ on irrelevant tokens. Dashed: with the A₂ of another head.",
    "entropy": "How widely D is spread.",
    "sink_mass": "How much of |D| goes to the sink, the first token unless another is marked.",
    "gradient_ratio": "Norms of what the query and key weights of A₁ and A₂ get from the backward pass.",
}
HOW = 'monitor = diffscope.monitor(model, prompts, path="runs/mine/monitor", maps=[(0, 0)])'


def maps_at(folder: Path, step: int) -> Capture:
    """Return what was kept of a step, which is read when it is looked at."""
    file = folder / MAPS.format(step)
    return _opened(file, file.stat().st_mtime)


@st.cache_resource(show_spinner=False, max_entries=64)
def _opened(file: Path, written: float) -> Capture:
    return open_capture(file)


@st.cache_resource(show_spinner=False, max_entries=8)
def _record(folder: Path, begun: float) -> Record:
    """The record of a folder, which reads each file once; `begun` is when its first file was written."""
    return Record(folder)


def show_followed() -> None:
    """Show a monitored training, whose folder the reader names, and follow it."""
    name = st.text_input("Folder of the monitor", **bound(FOLDER), placeholder="runs/mine/monitor").strip()
    if not name:
        st.info("Give the folder that a monitor writes, or the output folder of the Trainer that it is in. A monitor is made by:")
        st.code(f"import diffscope\n\n{HOW}", language="python")
        return
    st.html(STEADY)
    folder = folder_of(os.path.expanduser(name))
    seen = stamp(folder)
    watch(name, seen)
    if not (folder / ABOUT).is_file():
        say_what_is_missing(folder, name)
    elif not any(file.endswith(".nc") for file in seen):
        st.info("No step has been measured yet. The page shows the first one as soon as it is there.")
    else:
        show_record(_record(folder, (folder / ABOUT).stat().st_mtime))


def say_what_is_missing(folder: Path, name: str) -> None:
    """Say that a folder is not there yet, or holds something else."""
    awaited = is_free(folder) or ((folder / IN_OUTPUT).is_dir() and is_free(folder / IN_OUTPUT))
    if not awaited:
        Record(folder)  # which refuses it in a line
    st.info(
        escape_markdown(
            f"There is no {name} yet. It appears when the training measures its first step, and the page shows it then. "
            "If the training has begun, check the name: path= of the monitor, or the folder monitor in the Trainer's output_dir."
        )
    )


def watch(name: str, seen: Mapping[str, int]) -> None:
    """Draw the page anew when a step has come, or was measured anew; until then only this line is."""

    @st.fragment(run_every=EVERY)
    def look() -> None:
        if stamp(folder_of(os.path.expanduser(name))) != seen:  # the folder may have come into the one that was named
            st.rerun()
        if seen:
            since = time.time() - max(seen.values()) / 1e9
            st.caption(f"Looking for new steps. The last one came {duration(max(since, 0))} ago.")
        else:
            st.caption("Looking for the first step.")

    look()


def show_record(record: Record) -> None:
    """Show what has been measured so far."""
    kept = record.dataset()
    series = courses(kept)
    st.markdown(escape_markdown(sentence(kept)))
    show_alerts(kept)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer = choose("layer", kept["layer"].values.tolist())
        head = choose("head", kept["head"].values.tolist() if "head" in kept.coords else list(range(kept.sizes.get("head", 1))))
    code = f"import diffscope\n\nkept = diffscope.open({str(record.path)!r})\n"
    draw = partial(show_curve, kept, series, layer=layer, head=head, code=code)
    names = [each for each in series if not each.endswith(CONTROL) and bool(series[each].notnull().any())]
    show_statistics(names, FIRST, partial(title_of, series), draw)
    show_maps(record, layer, head)


def sentence(kept: xr.Dataset) -> str:
    """Return in words which step was measured last, and what the loss was, there or at an earlier step."""
    step = int(kept["step"][-1])
    loss = kept["loss"].dropna("step") if "loss" in kept else []
    words = ""
    if len(loss):
        earlier = int(loss["step"][-1])
        words = f", loss {float(loss[-1]):.4g}" + (f" at step {earlier:,}" if earlier != step else "")
    took = short_duration(float(kept["seconds"].median()))
    return f"{kept.attrs['model']} at step {step:,}{words}. Steps measured: {kept.sizes['step']:,}; the median took {took}."


def show_alerts(kept: xr.Dataset) -> None:
    """Show the bounds that were left, the last ones at once."""
    found = [f"Step {step:,}: {text}." for step, _, text in json.loads(kept.attrs["alerts"])]
    if not found:
        st.caption("No alarm so far.")
        return
    st.warning("  \n".join(escape_markdown(line) for line in found[-ALERTS:]))
    if earlier := found[:-ALERTS]:
        with st.expander(counted(len(earlier), "earlier alarm")):
            st.markdown("  \n".join(escape_markdown(line) for line in earlier))


def choose(what: str, numbers: list[int]) -> int:
    """Choose the layer or the head that is set apart."""
    return st.selectbox(capital(what), numbers, **bound(what, options=numbers), width=110)


def title_of(series: xr.Dataset, name: str) -> str:
    """Return the name of a statistic in words."""
    return str(series[name].attrs.get("long_name", name))


def show_curve(kept: xr.Dataset, series: xr.Dataset, name: str, layer: int, head: int, code: str) -> None:
    """Show one number over the steps: of every head, of every layer, or of the training."""
    values = series[name]
    if "head" in values.dims:
        figure, subject = figures.training(kept, statistic=name, layer=layer, head=head), "kept"
    else:
        values = values.assign_coords(step=kept["step"].assign_attrs(long_name="step of training"))
        lines = {"series": "layer"} if "layer" in values.dims else {}
        figure = figures.curves(values.assign_attrs(long_name=title_of(series, name)), x="step", **lines)
        subject = "values"
        code += f"from diffscope.monitoring.courses import courses\n\nvalues = courses(kept)[{name!r}]\n"
    title = title_of(series, name)
    blocks.show_figure(
        figure,
        f"{title} by step of training",
        key=f"training-of-monitor-{name}",
        name=f"monitor-{name}",
        caption=CAPTIONS.get(name, ""),
        label=escape_markdown(f"Export: {title}"),
        data=lambda: kept,
        code=code + blocks.saved(figure, subject, name),
    )


def show_maps(record: Record, layer: int, head: int) -> None:
    """Show the maps of a head that were kept, with the step on a slider."""
    steps = record.steps_with_maps
    if not steps:
        st.caption("No maps were kept: maps=[(layer, head)] of the monitor asks for those of some heads.")
        return
    at = partial(maps_at, record.path)
    layers = at(steps[-1]).layer_numbers
    if layer not in layers:
        st.info(f"Maps were kept of {numbered('layer', layers)}. Choose {'it' if len(layers) == 1 else 'one'} above to see them.")
        return
    st.markdown(f"#### Maps of {head_name(layer, head)} on the first prompt")
    code = (
        "import diffscope\n\n"
        f"folder = {str(record.path)!r}\n"
        f'captures = {{step: diffscope.open(f"{{folder}}/maps-{{step:08d}}.dscope") for step in {steps!r}}}\n'
    )
    stride = -(-len(steps) // PICTURES)
    chosen = steps[::-1][::stride][::-1]  # with the last one
    with show_errors():
        show_pictures({step: at(step) for step in chosen}, layer, head, code)
        show_steps(steps, at, layer, head, code, grows=True)
