"""The linked view of one head's maps: what a browser is given, and the module that draws it (``attention_view.js``).

One buffer holds everything: a safetensors file in memory, with the maps in bins as float16, what keys receive and the entropy of
queries as float32, and the rest as JSON in its metadata. The same buffer serves a dashboard, a notebook and a page of its own.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from safetensors.numpy import save

from diffscope.figures import hosts, theme
from diffscope.figures.panels import heading

if TYPE_CHECKING:
    from diffscope.capture import Capture, CaptureBatch

SIZE = 384  # bins a side: four maps of as many are 1.2 MB, with the edges and tokens of a long prompt less than 2 MB
DARK = "#14171d"
LOOK = {
    "blue": theme.BLUES,
    "orange": theme.ORANGES,
    "dark": DARK,
    "unseen": theme.UNSEEN,
    "unseenDark": "#23272f",
}
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ margin: 1.5em; background: #ffffff; color: #1f2430; font-family: system-ui, sans-serif }}
@media (prefers-color-scheme: dark) {{ body {{ background: #14171d; color: #e6e8ec }} }}
</style>
<main id="view"></main>
<script type="module">
{module}
const bytes = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));
mount(document.getElementById("view"), bytes.buffer);
</script>
</html>
"""


@cache
def module() -> str:
    """The ES module that draws a buffer: ``mount(element, buffer, emit)``.

    `emit` is called with ``"locked"`` and the rows and columns that are, with ``"window"`` and the top, left and size of a window
    of which the buffer has no exact values, and with ``"head"`` and by how many layers and heads an arrow key moves.
    """
    return (Path(__file__).parent / "attention_view.js").read_text(encoding="utf-8")


@cache
def streamlit_module() -> str:
    """The same as a component of ``st.components.v2``, whose data is a buffer."""
    return hosts.streamlit_module(module(), ("head",))


def buffer(
    capture: Capture | CaptureBatch,
    layer: int,
    head: int,
    *,
    prompt: int = 0,
    size: int = SIZE,
    window: tuple[slice, slice] | None = None,
) -> bytes:
    """Everything that the view of one head needs.

    Parameters
    ----------
    capture : Capture or CaptureBatch
    layer, head, prompt : int
        As of ``capture.map``.
    size : int
        The largest number of bins a side; of longer prompts a bin shows its largest value.
    window : (slice, slice), optional
        Queries and keys whose exact values come with it; nothing of a prompt that is shown token by token anyway.

    Returns
    -------
    bytes
        A safetensors file: for each map a tensor of its name, float16 (query bin, key bin), ``received_NAME`` and
        ``entropy_NAME``, float32 (token,); ``visible``, uint8 (query bin, key bin); of a window the same with ``detail.`` before
        it, (query, key); and ``view``, JSON in its metadata.

    Raises
    ------
    DiffscopeError
        There is no such layer, head or prompt.
    """
    maps = capture.pooled_maps(layer, [head], prompt, size, marginals=True).isel(head=0)
    names = [name for name in theme.SCALES if name in maps]
    encoded = capture.prompts[prompt]
    attention = capture.layers[capture.layer_numbers.index(layer)].prompt(prompt)
    lam = maps.attrs["lam"] if isinstance(maps.attrs["lam"], str) else maps.attrs["lam"][0]
    about = {
        "title": heading(maps.assign_attrs(head=head, lam=lam if attention.differential else None)),
        "prompt": f"{maps.attrs['model']} {prompt} {hash(encoded.ids)}",
        "bin": maps.attrs["bin"],
        "queries": attention.n_queries,
        "keys": attention.n_keys,
        "panels": [_panel(name, len(names) > 1) for name in names],
        "tokens": list(encoded.tokens),
        "spans": _spans(encoded.spans),
        "look": LOOK,
    }
    tensors = _maps(maps, names)
    marginals = [f"{kind}_{name}" for kind in ("received", "entropy") for name in names]
    tensors |= {name: np.ascontiguousarray(maps[name].values, dtype=np.float32) for name in marginals if name in maps}
    if window is not None and about["bin"] > 1:
        queries, keys = window
        exact = capture.maps(layer, [head], prompt, queries, keys).isel(head=0)
        visible = attention.visible(exact["query"].values.tolist())[:, exact["key"].values.tolist()]
        about["detail"] = {"top": int(exact["query"][0]), "left": int(exact["key"][0])}
        parts = _maps(exact.assign_coords(visible=(("query", "key"), visible.cpu().numpy())), names)
        tensors |= {f"detail.{name}": values for name, values in parts.items()}
    return save(tensors, {"view": json.dumps(about)})


def page(capture: Capture | CaptureBatch, layer: int, head: int, *, prompt: int = 0, size: int = 256) -> str:
    """The view as one HTML page that needs nothing else; parameters as of :func:`buffer`."""
    data = buffer(capture, layer, head, prompt=prompt, size=size)
    title = f"{capture.model_name}, layer {layer}, head {head}"
    # Nothing of a user stands in the page as text: tokens are inside the data.
    script = module().replace("export function", "function")
    return PAGE.format(title=html.escape(title), module=script, data=base64.b64encode(data).decode())


def _maps(maps: xr.Dataset, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Maps and which of their cells are seen, each (query, key)."""
    values = {name: np.ascontiguousarray(maps[name].values, dtype=np.float16) for name in names}
    return values | {"visible": np.ascontiguousarray(maps["visible"].values, dtype=np.uint8)}


def _panel(name: str, differential: bool) -> dict[str, str]:
    title = theme.TITLES[name] if differential else theme.TITLES["A"]
    return {"name": name, "title": title, "short": title.partition(" = ")[0], "scale": theme.SCALES[name]}


def _spans(spans: dict[str, tuple[int, ...]]) -> list[dict]:
    """Spans with their colours, each as ranges of neighbouring tokens (first, one past the last)."""
    shown = []
    for name, positions in spans.items():
        ordered = np.unique(np.asarray(positions, dtype=int))
        runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1) if len(ordered) else []
        shown.append(
            {"name": name, "colour": theme.span_colour(name), "ranges": [[int(run[0]), int(run[-1]) + 1] for run in runs]}
        )
    return shown
