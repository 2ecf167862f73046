"""The linked view of one head's maps: what a browser is given, and the module that draws it.

One buffer holds everything: a safetensors file in memory, with the maps in bins as float16, sums over rows and columns as
float32, and the rest as JSON in its metadata. The same buffer serves a dashboard, a notebook and a page of its own.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from safetensors.numpy import save

from diffscope.attention.maps import short_title, title_of
from diffscope.figures import theme
from diffscope.figures.escaping import readable
from diffscope.figures.inputs import layer_at, visible_cells
from diffscope.figures.panels import heading
from diffscope.numbers import head_name, stretches
from diffscope.readings.reading import Part
from diffscope.views.component import Component
from diffscope.views.view_state import checked_state

if TYPE_CHECKING:
    from diffscope.attention.layer import LayerAttention
    from diffscope.capture.capture import Capture
    from diffscope.prompts.encoded import Encoded

Sentence = Sequence[Part]
Sentences = Callable[[int, int], Sentence]  # by layer and head
SIZE = 320  # bins a side: with all that comes with them, and a window, 16,384 tokens are less than 2 MB
MOST = 1024  # tokens a side of a window of exact values
LINES = 8  # strongest keys of each query that are drawn as lines
MOST_HEADS, MOST_TOKENS, MOST_CELLS = 64, 256, 2**19  # of a model whose heads are all sent at once, and of their maps together
MOST_LINES = 2**15  # of all heads and queries; of a layer of many heads each query has fewer
ALIKE = 2.0**-12  # sums of rows that differ by less cannot be told apart in float16
HEAD_COLOURS = ["#0072b2", "#009e73", "#cc79a7", "#d55e00", "#7b61c9", "#b8860b", "#56b4e9", "#8d6e63"]
LOOK = {
    "blue": theme.BLUES,
    "orange": theme.ORANGES,
    "dark": "#14171d",
    "unseen": theme.UNSEEN,
    "unseenDark": "#23272f",
    "heads": HEAD_COLOURS,
}
TALL = 480  # pixels of a page within a notebook
LONG = 2048  # tokens above which a page has fewer bins, so that a notebook grows by less than 1 MB
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
h1 {{ font-size: 1.15rem; margin: 0 0 .6em }}
body {{ margin: 1.5em; background: #ffffff; color: #1f2430; font-family: system-ui, sans-serif }}
@media (prefers-color-scheme: dark) {{ body {{ background: #14171d; color: #e6e8ec }} }}
</style>
<h1>{title}</h1>
<main id="view"></main>
<script type="module">
{module}
const zipped = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));
const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
const bundle = opened(await new Response(stream).arrayBuffer());
hold(bundle);
mount(document.getElementById("view"), HELD.get(`${{bundle.prompt}} ${{bundle.first}}`));
</script>
</html>
"""


#: Draws a buffer. Its events are
#:
#: - ``"head"``, ``{layer, head}``: the head that an arrow key asks for;
#: - ``"locked"``, ``{rows, columns}``: token positions, when a click or the escape key changes them;
#: - ``"window"``, ``{top, left, size, lines}``: the tokens of which exact values are missing, and whether the strongest keys of
#:   its queries are as well: what :func:`buffer` takes as `window` and `lines`;
#: - ``"state"``, as of :func:`diffscope.views.view_state.checked_state`: a quarter of a second after the last change, if the
#:   buffer has a state, be it empty.
COMPONENT = Component(
    (
        "view_data.js",
        "view_colours.js",
        "view_controls.js",
        "view_groups.js",
        "held_heads.js",
        "map_panels.js",
        "head_lines.js",
        "attention_view.js",
    ),
    triggers=("head",),
)
#: Shows nothing itself; its data is a :func:`bundle`. Its event is ``"wanted"``, ``{layer, head}``: the page lacks this neighbour
#: of the head that is shown.
HELD = Component(("held_heads.js", "held_host.js"), triggers=("wanted",))


def window_of(place: Mapping[str, Any] | None, queries: int, keys: int) -> tuple[slice, slice] | None:
    """Return the queries and keys that a view asks for, of so many; None if none, or too many."""
    if not place:
        return None
    top, left, size = (max(0, int(place[name])) for name in ("top", "left", "size"))
    if top >= queries or left >= keys or not 0 < size <= MOST:
        return None  # of another prompt, or not of the view
    return slice(top, min(queries, top + size)), slice(left, min(keys, left + size))


def whole_maps(capture: Capture, layer: int, head: int, *, size: int = SIZE) -> xr.Dataset:
    """Return the whole maps of a head in bins, (query, key), which takes a pass over all rows and serves every window.

    Parameters as of :func:`buffer`, which takes the result as `maps`.
    """
    return capture.only().pooled_maps(layer, [head], size=size, marginals=True, shares=True).isel(head=0)


def buffer(
    capture: Capture,
    layer: int,
    head: int,
    *,
    size: int = SIZE,
    window: tuple[slice, slice] | None = None,
    lines: bool | None = None,
    maps: xr.Dataset | None = None,
    group: str = "",
    state: object = None,
    sentence: Sentence = (),
    query: int | None = None,
) -> bytes:
    """Return everything that the view of one head needs.

    Parameters
    ----------
    capture : Capture
        Of one prompt.
    layer, head : int
        As of ``capture.map``.
    size : int
        The largest number of bins a side; of longer prompts a bin shows its largest value.
    window : (slice, slice), optional
        Queries and keys whose exact values come with it; nothing of a prompt that is shown token by token anyway.
    lines : bool, optional
        Whether the strongest keys of queries come with it, for every head of the layer: of all queries where tokens are shown one
        by one, else of those of the window. By default in the first case only.
    maps : xarray.Dataset, optional
        What :func:`whole_maps` gave for this head, where the caller keeps it; else it is computed.
    group : str
        Views of one group on one page share the end of their colours, and those of the same tokens window, crosshair and locks.
    state : dict, optional
        How the view is looked at when it appears, as it gave it before; what is no state is left out, and never an error. Without
        one, be it empty, the view does not say how it is looked at.
    sentence : sequence of Part
        What is said of the head above its maps, as the ``parts`` of a reading. Whoever points at a number is shown its help.
    query : int, optional
        Whose row the sentence is about, a token of the prompt; an arrow beside the maps points at it.

    Returns
    -------
    bytes
        A safetensors file with JSON in its metadata, ``view``. Of each map in bins: ``NAME``, float16, its values in units of
        ``view["unit"]``, those of visible cells alone, row after row; ``visible``, the bits that say which these are;
        ``share_NAME`` the same of x/Σ|x|, where it does not follow from ``mass_NAME``, float32 (token,), Σ|x| of each row, or
        (1,) where that is the same for all; ``received_NAME`` and ``entropy_NAME``, float32 (token,). Of a window
        ``detail.NAME`` and ``detail.visible``. Of lines ``lines.key``, int32, and ``lines.weight``, float16, (head, query, rank),
        and ``lines.mass``, float32 (head, query).

    Raises
    ------
    DiffscopeError
        There is no such layer or head, or the capture is of several prompts.
    """
    maps = whole_maps(capture, layer, head, size=size) if maps is None else maps
    names = [name for name in theme.SCALES if name in maps]
    capture = capture.only()
    attention = capture.layer(layer).prompt(0)
    about = _about(capture, attention, head, maps, names) | {
        "group": group,
        "sentence": [list(part) for part in sentence],
        "query": None if attention.kind == "encoder" and capture.key_prompts else query,
    }
    if state is not None:
        about["state"] = checked_state(state, attention.n_queries, attention.n_keys, attention.n_heads)
    by_token = about["bin"] == 1
    halves, tensors = _in_bins(maps, names, exact=by_token)
    if not by_token and window is not None:
        values, visible, about["detail"] = _window(capture, attention, head, window, names)
        halves |= values
        tensors |= {"detail.visible": visible}
    wanted = by_token if lines is None else lines
    if wanted and (by_token or window is not None):
        rows = slice(None) if by_token else window[0]
        weights, others, about["lines"] = _lines(capture, attention, rows)
        halves |= weights
        tensors |= others
    about["unit"] = _unit(halves.values())
    tensors |= {name: (values / about["unit"]).astype(np.float16) for name, values in halves.items()}
    words = json.dumps(about, ensure_ascii=False, separators=(",", ":"))
    return save(tensors, {"view": words.encode("utf-8", "replace").decode()})


def bundle(
    capture: Capture,
    places: Iterable[tuple[int, int]],
    *,
    size: int = SIZE,
    sentences: Sentences | None = None,
    maps: Callable[[int, int], xr.Dataset] | None = None,
    beside: tuple[int, int] | None = None,
    about: str = "",
    query: int | None = None,
) -> bytes:
    """Return the views of several heads, which a page holds so that it shows another one at once.

    Parameters
    ----------
    capture : Capture
    places : iterable of (int, int)
        Layers and heads; the first is the one that a page of its own shows first. May be empty if the page asks for heads.
    size, query
        As of :func:`buffer`.
    sentences : callable, optional
        Returns what is said of a head, by its layer and number, as parts.
    maps : callable, optional
        Returns the maps of a head as :func:`whole_maps` does, if the caller keeps them.
    beside : (int, int), optional
        The layer and head that is shown, if the page is to ask for the heads beside it.
    about : str
        What the sentences are about besides the prompt, such as a token. A page drops what it holds about anything else.

    Returns
    -------
    bytes
        A safetensors file: for each head its :func:`buffer`, uint8, called "LAYER HEAD".
    """
    tensors: dict[str, np.ndarray] = {}
    for layer, head in places:
        said = sentences(layer, head) if sentences else ()
        kept = maps(layer, head) if maps else None
        data = buffer(capture, layer, head, size=size, sentence=said, maps=kept, query=query)
        tensors[f"{layer} {head}"] = np.frombuffer(data, np.uint8)
    name = prompt_name(capture.only())
    words: dict[str, Any] = {"prompt": name, "about": about, "first": next(iter(tensors), None)}
    if beside is not None:
        words["beside"] = _grid(capture) | {"layer": beside[0], "head": beside[1]}
    return save(tensors, {"view": json.dumps(words)})


def page(
    capture: Capture,
    layer: int,
    head: int,
    *,
    size: int = 224,
    sentences: Sentences | None = None,
    query: int | None = None,
) -> str:
    """Return the view as one HTML page that needs nothing else: with all heads of a small model, else with one.

    Parameters as of :func:`bundle`.
    """
    others = [place for place in places_of(capture) if place != (layer, head)]
    chosen = [(layer, head), *(others if is_small(capture.only()) else ())]
    held = bundle(capture, chosen, size=size, sentences=sentences, query=query)
    data = gzip.compress(held, mtime=0)
    # Nothing of a user stands in the page as text: tokens are inside the data.
    script = COMPONENT.inline
    return PAGE.format(title=html.escape(capture.model_name), module=script, data=base64.b64encode(data).decode())


def places_of(capture: Capture) -> list[tuple[int, int]]:
    """Return the layer and number of every head."""
    return [(number, head) for number, of_layer in zip(capture.layer_numbers, capture.layers) for head in range(of_layer.n_heads)]


def is_small(capture: Capture) -> bool:
    """Return whether the maps of all heads of a capture may be sent at once."""
    layers = capture.layers
    longest = max(max(layer.n_queries, layer.n_keys) for layer in layers)
    cells = sum(layer.n_heads * layer.n_queries * layer.n_keys for layer in layers)
    return sum(layer.n_heads for layer in layers) <= MOST_HEADS and longest <= MOST_TOKENS and cells <= MOST_CELLS


def framed(cap: Capture, layer: int, head: int) -> str:
    """Return the page of a head inside an iframe without access to the notebook around it."""
    attention = layer_at(cap.only(), layer, head)
    size = 256 if max(attention.n_queries, attention.n_keys) <= LONG else 128
    content = page(cap, layer, head, size=size)
    style = f"width: 100%; height: {TALL}px; border: 0"
    title = f"maps of {head_name(layer, head)}"
    return f'<iframe sandbox="allow-scripts" title="{title}" style="{style}" srcdoc="{html.escape(content)}"></iframe>'


def _about(
    capture: Capture,
    attention: LayerAttention,
    head: int,
    maps: xr.Dataset,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return what a view says in words: the model, tokens, spans and titles."""
    (encoded,), (of_keys,) = capture.sides(attention)
    colours = theme.span_colours([*encoded.spans, *of_keys.spans])
    keys = {"keyTokens": readable(of_keys), "keySpans": spans_of(of_keys, colours)} if attention.kind == "cross" else {}
    lam = maps.attrs["lam"] if isinstance(maps.attrs["lam"], str) else maps.attrs["lam"][0]
    return {
        "title": heading(maps.assign_attrs(head=head, lam=lam if attention.differential else None, bin=1)),  # the view tells bins
        "prompt": prompt_name(capture),
        "layer": attention.layer,
        "head": head,
        "heads": attention.n_heads,
        "grid": _grid(capture),
        "bin": maps.attrs["bin"],
        "shape": list(maps["visible"].shape),
        "queries": attention.n_queries,
        "keys": attention.n_keys,
        "panels": [_panel(name, attention, maps[name].values) for name in names],
        "tokens": readable(encoded),
        "spans": spans_of(encoded, colours),
        "look": LOOK,
        **keys,
    }


def _grid(capture: Capture) -> dict[str, list[int]]:
    """Return the numbers of the layers, and how many heads each has."""
    return {"layers": list(capture.layer_numbers), "heads": [layer.n_heads for layer in capture.layers]}


def spans_of(encoded: Encoded, colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the spans of a prompt with their colours and, as first position and the one after the last, their tokens."""
    return [{"name": name, "colour": colours[name], "ranges": stretches(positions)} for name, positions in encoded.spans.items()]


def prompt_name(capture: Capture) -> str:
    """Return a name for the prompt and the model of a capture of one prompt, by which a page tells them from others.

    Captures of one prompt under other edits have the same name, and so have those of other latents.
    """
    return " ".join(map(str, (capture.model_name, *(hash(side.ids) for side in capture.all_prompts))))


def _panel(name: str, attention: LayerAttention, values: np.ndarray) -> dict[str, str]:
    title = title_of(name, [attention])
    return {"name": name, "title": title, "short": short_title(title), "scale": theme.scale_of(name, values)}


def _in_bins(maps: xr.Dataset, names: Sequence[str], exact: bool) -> tuple[dict, dict]:
    """Return values in bins and what comes with them; shares of rows only if their sums do not give them."""
    seen = maps["visible"].values
    values = {name: maps[name].values[seen] for name in names}
    tensors = {"visible": np.packbits(seen)}
    for name in names:
        mass = maps[f"mass_{name}"].values.astype(np.float32)
        if np.ptp(mass) <= ALIKE * mass.max():
            mass = mass[:1]
        elif not exact:
            values[f"share_{name}"] = maps[f"share_{name}"].values[seen]
        tensors[f"mass_{name}"] = mass
        for edge in (f"received_{name}", f"entropy_{name}"):
            if edge in maps:
                tensors[edge] = np.ascontiguousarray(maps[edge].values, dtype=np.float32)
    return values, tensors


def _window(
    capture: Capture,
    attention: LayerAttention,
    head: int,
    window: tuple[slice, slice],
    names: Sequence[str],
) -> tuple[dict[str, np.ndarray], np.ndarray, dict]:
    """Return exact values of a window, the bits of its visible cells, and where it is."""
    maps = capture.maps(attention.layer, [head], names, queries=window[0], keys=window[1]).isel(head=0)
    rows, columns = maps["query"].values, maps["key"].values
    seen = visible_cells(attention, rows, columns)
    place = {"top": int(rows[0]), "left": int(columns[0]), "shape": list(seen.shape)}
    return {f"detail.{name}": maps[name].values[seen] for name in names}, np.packbits(seen), place


def _lines(capture: Capture, attention: LayerAttention, rows: slice) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict]:
    """Return the strongest keys of some queries in every head: weights, keys, sums of rows, and which queries."""
    queries = range(attention.n_queries)[rows]
    count = min(LINES, max(1, MOST_LINES // (attention.n_heads * len(queries))))
    links = capture.strongest("D", attention.layer, queries=rows, count=count)
    place = {"top": queries.start, "queries": len(queries), "count": count, "map": "A" if attention.d_is_a1 else "D"}
    tensors = {"lines.key": links["key"].values, "lines.mass": links["mass"].values.astype(np.float32)}
    return {"lines.weight": links["weight"].values}, tensors, place


def _unit(parts) -> float:
    """Return a power of two in which the largest value is as large as float16 can hold, so that small ones keep their digits."""
    largest = max((float(np.abs(values).max(initial=0.0)) for values in parts), default=0.0)
    return 2.0 ** (math.ceil(math.log2(largest)) - 15) if largest > 0 else 1.0
