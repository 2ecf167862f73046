"""Measure the way from the keys of one head to a picture of its maps: its time, and the bytes that a browser gets.

    python -m benchmarks.pictures
    python -m benchmarks.pictures --lengths 512 2048 --methods diffscope bertviz

One head of a layer with random weights, d = 32. Each method runs in a process of its own; the methods take turns; times are the
median of the runs after a first one, unless that took more than ten seconds. *products* is no picture but what every picture
takes at least: both maps of the head as products and softmax in blocks of 512 rows up to the diagonal, in plain torch on all
cores.

diffscope: A1, A2, λ·A2 and D in 512 × 512 bins, labelled, and as bytes for a canvas; *window* 512 × 512 positions in the middle,
*thumbnails* D of 6 layers of 8 heads; *figure* is its plotly figure. A plotly heatmap, BertViz and CircuitsVis draw maps that
somebody has computed, one of the head's: A1 or D, whole, in plain torch, which is in their time.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import results
from benchmarks.meter import OK, Child
from benchmarks.results import LOAD, Section, duration, table
from diffscope.attention import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.figures import figure
from diffscope.figures.pixels import pixels
from tests.tiny import random_capture

LENGTHS = (512, 2048, 4096, 8192, 16384, 65536)
BINS = 512
PEERS = ("plotly", "bertviz", "circuitsvis")
MOST_FOR_PEERS, THUMBNAILS, MOST_WHOLE = 8192, 4096, 16384  # tokens
SLOW = 10.0  # seconds above which the first run is the only one


def whole_maps(layer: LayerAttention) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A1 and D of a head, (query, key), as a user of plain torch would compute them."""
    q, k = layer.q[0], layer.k[0]
    unseen = torch.ones(len(q[0]), len(q[0]), dtype=torch.bool).triu(1)
    a1, a2 = torch.softmax((q @ k.transpose(1, 2) * layer.scale).masked_fill_(unseen, -torch.inf), -1)
    return a1, a1 - float(layer.lam.flatten()[0]) * a2


def products(layer: LayerAttention, rows: int = 512) -> int:
    """Compute both maps in blocks of rows, and keep nothing."""
    q, k = layer.q[0], layer.k[0]
    for first in range(0, q.shape[1], rows):
        block = q[:, first : first + rows]
        scores = (block * layer.scale) @ k[:, : first + block.shape[1]].transpose(1, 2)
        corner = torch.ones(block.shape[1], block.shape[1], dtype=torch.bool).triu(1)
        scores[..., first:].masked_fill_(corner, -torch.inf)
        torch.softmax(scores, -1)
    return 0


def as_bytes(maps) -> int:
    """Return the bytes of all maps as levels."""
    return sum(pixels(array.values).levels.nbytes for array in maps.data_vars.values())


def plotly(capture: Capture) -> int:
    """Draw D as a heatmap of plotly."""
    import plotly.graph_objects as go

    return len(go.Figure(go.Heatmap(z=whole_maps(capture.layers[0])[1].numpy())).to_json())


def bertviz(capture: Capture) -> int:
    """Draw A1 by BertViz."""
    from bertviz import head_view

    return len(head_view([whole_maps(capture.layers[0])[0][None, None]], capture.tokens, html_action="return").data)


def circuitsvis(capture: Capture) -> int:
    """Draw D by CircuitsVis."""
    from circuitsvis.attention import attention_heads

    return len(str(attention_heads(whole_maps(capture.layers[0])[1][None], capture.tokens)))


def window(capture: Capture) -> int:
    """Draw 512 × 512 positions in the middle."""
    middle = len(capture.tokens) // 2
    some = slice(middle - BINS // 2, middle + BINS // 2)
    return as_bytes(capture.maps(0, queries=some, keys=some))


METHODS: dict[str, Callable[[Capture], int]] = {
    "products": lambda capture: products(capture.layers[0]),
    "diffscope": lambda capture: as_bytes(capture.pooled_maps(0, size=BINS)),
    "window": window,
    "thumbnails": lambda capture: pixels(capture.thumbnails().values).levels.nbytes,
    "figure": lambda capture: len(figure("maps", capture, layer=0, head=0).plotly().to_json()),
    "plotly": plotly,
    "bertviz": bertviz,
    "circuitsvis": circuitsvis,
}


@dataclass(frozen=True)
class Picture:
    """One method at one length."""

    method: str
    tokens: int

    def prepare(self) -> tuple[Callable[[], int], Callable[[int], int]]:
        torch.set_num_threads(os.cpu_count() or 1)
        capture = random_capture(self.tokens, *((8, 6) if self.method == "thumbnails" else (1, 1)))
        return lambda: METHODS[self.method](capture), lambda size: size


def error(tokens: int) -> float:
    """Return the largest error of the pooled D against the same bins of float64 maps."""
    capture = random_capture(tokens)
    layer = capture.layers[0]
    q, k = layer.q[0].double(), layer.k[0].double()
    pooled = capture.pooled_map("D", 0, 0, size=BINS)
    width, worst = pooled.attrs["bin"], 0.0
    for number, first in enumerate(range(0, tokens, width)):
        stop = min(tokens, first + width)
        scores = (q[:, first:stop] * layer.scale) @ k.transpose(1, 2)
        scores.masked_fill_(torch.arange(tokens) > torch.arange(first, stop)[:, None], -torch.inf)
        a1, a2 = torch.softmax(scores, -1)
        d = a1 - float(layer.lam.flatten()[0]) * a2
        largest = torch.nn.functional.pad(d, (0, -tokens % width)).unflatten(1, (-1, width)).abs().amax((0, 2)).numpy()
        worst = max(worst, float(np.abs(np.abs(pooled.values[number]) - largest).max()))
    return worst


def methods_at(tokens: int, chosen: Sequence[str]) -> list[str]:
    """Return what is tried at one length."""
    names = ["diffscope", "window"] if tokens > MOST_WHOLE else ["products", "diffscope", "window", "figure"]
    names += PEERS if tokens <= MOST_FOR_PEERS else []
    names += ["thumbnails"] if tokens == THUMBNAILS else []
    return [name for name in METHODS if name in names and name in chosen]


def measure(tokens: int, chosen: Sequence[str], repeats: int) -> list[dict]:
    """Run all methods at one length, taking turns."""
    with ExitStack() as stack:
        children = {name: stack.enter_context(Child(Picture(name, tokens))) for name in methods_at(tokens, chosen)}
        answers = {name: [child.run()] for name, child in children.items()}
        for _ in range(repeats):
            for name, child in children.items():
                if answers[name][-1].state == OK and answers[name][0].seconds <= SLOW:
                    answers[name].append(child.run())
    rows = []
    for name, found in answers.items():
        last, seconds = found[-1], statistics.median(answer.seconds for answer in found[1:] or found)
        taken = {"seconds": seconds, "bytes": last.values} if last.state == OK else {"seconds": None, "bytes": None}
        rows.append({"tokens": tokens, "method": name, "state": last.state, "why": last.why, **taken})
    return rows


def shown(rows: Sequence[dict], errors: dict[int, float]):
    """Return a table of methods by length: time, and bytes."""
    lengths = sorted({row["tokens"] for row in rows})
    at = {(row["method"], row["tokens"]): row for row in rows if row["seconds"] is not None}
    cells = [
        [
            name,
            *(f"{duration(of['seconds'])}, {of['bytes'] / 1e6:,.1f} MB" if (of := at.get((name, n))) else None for n in lengths),
        ]
        for name in METHODS
    ]
    worst = f" The largest error of the pooled D against float64 is {max(errors.values()):.0e}." if errors else ""
    return table("By tokens of the prompt." + worst, ("", *(f"{n:,}" for n in lengths)), cells)


def main() -> None:
    """Measure every method at every length."""
    parser = results.parser(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    lengths, repeats = ([512], 1) if options.quick else (options.lengths, options.repeats)
    rows = [row for tokens in lengths for row in measure(tokens, options.methods, repeats)]
    errors = {tokens: error(tokens) for tokens in lengths if tokens <= MOST_WHOLE}
    numbers = {"rows": rows, "errors": errors}
    words = "queries and keys at random, d = 32: one head, of the thumbnails 48"
    title = "Pictures of one head's maps"
    section = Section(
        "pictures", title, "python -m benchmarks.pictures", words, [shown(rows, errors)], numbers=numbers, load=LOAD
    )
    results.keep("pictures", [section], options)


if __name__ == "__main__":
    main()
