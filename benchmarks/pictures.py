"""From the keys of one head to a picture of its maps: how long it takes and how many bytes a browser is given.

    python -m benchmarks.pictures --out pictures.json
    python -m benchmarks.pictures --lengths 512 2048 --methods diffscope bertviz

One head of a layer with random weights, d = 32. Each method runs in a process of its own; the methods take turns; times are the
median of the runs after a first one, where that took less than ten seconds. *products* is no picture: what every picture takes at
least if nothing clever is done, both maps of the head as products and softmax in blocks of 512 rows up to the diagonal, in plain
torch on all cores.

diffscope: A1, A2, λ·A2 and D in 512 × 512 bins, labelled, and as bytes for a canvas; *coarse* is its first picture of a long
prompt, *window* 512 × 512 positions in the middle, *thumbnails* D of 6 layers of 8 heads; *figure* is its plotly figure. A plotly
heatmap, BertViz and CircuitsVis draw maps that somebody has computed, one of the head's: A1 or D, whole, in plain torch, which is
in their time. At the end the pooled D is compared with float64.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.meter import OK, Child, Limits
from diffscope.attention import LayerAttention, Pairing
from diffscope.capture import Capture
from diffscope.figures import figure
from diffscope.figures.pixels import pixels
from diffscope.prompts import Encoded
from diffscope.proof.fidelity import Fidelity

LENGTHS = (512, 2048, 4096, 8192, 16384, 65536)
BINS = 512
D = 32
PEERS = ("plotly", "bertviz", "circuitsvis")
MOST_FOR_PEERS = 8192
SLOW = 10.0  # seconds above which the first run is the only one
THUMBNAILS = 4096
HEADS, LAYERS = 8, 6


def capture_of(tokens: int, heads: int = 1, layers: int = 1) -> Capture:
    """Layers of random queries and keys, as a capture."""
    generator = torch.Generator().manual_seed(0)

    def random(count):
        return torch.randn(1, count, tokens, D, generator=generator)

    held = [
        LayerAttention(
            layer=number,
            family="random",
            q=1.5 * random(2 * heads),
            k=random(2 * heads),
            v=torch.zeros(1, heads, tokens, 1),
            scale=D**-0.5,
            pairing=Pairing.stripes(heads),
            lengths=(tokens,),
            lam=torch.full((1, heads, 1), 0.7),
        )
        for number in range(layers)
    ]
    texts = tuple(f"t{i}" for i in range(tokens))
    prompt = Encoded(None, tuple(range(tokens)), texts, tuple((0, 0) for _ in texts), {"sink": (0,)})
    proofs = [Fidelity(error=0.0, tolerance=1e-5, rows=tokens, decided=True, reason="") for _ in held]
    return Capture([prompt], held, proofs, [[]], np.zeros((layers, 1, 2)), {"model": "random", "family": "random"})


def whole_maps(layer: LayerAttention) -> tuple[torch.Tensor, torch.Tensor]:
    """A1 and D of a head, (query, key), as a user of plain torch would compute them."""
    q, k = layer.q[0], layer.k[0]
    unseen = torch.ones(len(q[0]), len(q[0]), dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(1, 2) * layer.scale).masked_fill_(unseen, -torch.inf)
    a1, a2 = torch.softmax(scores, -1)
    return a1, a1 - 0.7 * a2


def products(layer: LayerAttention, rows: int = 512) -> None:
    q, k = layer.q[0], layer.k[0]
    for first in range(0, q.shape[1], rows):
        block = q[:, first : first + rows]
        scores = (block * layer.scale) @ k[:, : first + block.shape[1]].transpose(1, 2)
        corner = torch.ones(block.shape[1], block.shape[1], dtype=torch.bool).triu(1)
        scores[..., first:].masked_fill_(corner, -torch.inf)
        torch.softmax(scores, -1)


def as_bytes(maps) -> int:
    """Of all maps as levels."""
    return sum(pixels(array.values).levels.nbytes for array in maps.data_vars.values())


@dataclass(frozen=True)
class Job:
    """One method at one length."""

    method: str
    tokens: int

    def prepare(self):
        torch.set_num_threads(os.cpu_count() or 1)
        if self.method == "thumbnails":
            capture = capture_of(self.tokens, HEADS, LAYERS)
        else:
            capture = capture_of(self.tokens)
        layer = capture.layers[0]
        middle = slice(self.tokens // 2 - BINS // 2, self.tokens // 2 + BINS // 2)
        runs = {
            "products": lambda: products(layer) or 0,
            "diffscope": lambda: as_bytes(capture.pooled_maps(0, size=BINS)),
            "coarse": lambda: as_bytes(capture.pooled_maps(0, size=BINS, rows=1)),
            "window": lambda: as_bytes(capture.maps(0, queries=middle, keys=middle)),
            "thumbnails": lambda: pixels(capture.thumbnails(64).values).levels.nbytes,
            "figure": lambda: len(figure("maps", capture, layer=0, head=0).plotly().to_json()),
            **{name: PICTURES[name](capture) for name in PEERS if name == self.method},
        }
        return runs[self.method], lambda size: size


def plotly(capture):
    import plotly.graph_objects as go

    return lambda: len(go.Figure(go.Heatmap(z=whole_maps(capture.layers[0])[1].numpy())).to_json())


def bertviz(capture):
    from bertviz import head_view

    tokens = capture.tokens

    def run():
        a1 = whole_maps(capture.layers[0])[0]
        return len(head_view([a1[None, None]], tokens, html_action="return").data)

    return run


def circuitsvis(capture):
    from circuitsvis.attention import attention_heads

    tokens = capture.tokens
    return lambda: len(str(attention_heads(whole_maps(capture.layers[0])[1][None], tokens)))


PICTURES = {"plotly": plotly, "bertviz": bertviz, "circuitsvis": circuitsvis}


def error(tokens: int) -> float:
    """Of the pooled D against the same bins of float64 maps, largest."""
    capture = capture_of(tokens)
    layer = capture.layers[0]
    q, k = layer.q[0].double(), layer.k[0].double()
    pooled = capture.pooled_map("D", 0, 0, size=BINS)
    width = pooled.attrs["bin"]
    worst = 0.0
    for number, first in enumerate(range(0, tokens, width)):
        stop = min(tokens, first + width)
        scores = (q[:, first:stop] * layer.scale) @ k.transpose(1, 2)
        scores.masked_fill_(torch.arange(tokens) > torch.arange(first, stop)[:, None], -torch.inf)
        a1, a2 = torch.softmax(scores, -1)
        d = torch.nn.functional.pad(a1 - 0.7 * a2, (0, -tokens % width)).unflatten(1, (-1, width))
        largest = d.abs().amax((0, 2)).numpy()
        worst = max(worst, float(np.abs(np.abs(pooled.values[number]) - largest).max()))
    return worst


def methods_at(tokens: int, chosen) -> list[str]:
    names = ["products", "diffscope", "window"] if tokens < 65536 else ["diffscope", "window"]
    names += ["coarse"] if tokens >= 8192 else []
    names += ["figure", *PEERS] if tokens <= MOST_FOR_PEERS or tokens == 16384 else []
    names += ["thumbnails"] if tokens == THUMBNAILS else []
    names = [name for name in names if name not in PEERS or tokens <= MOST_FOR_PEERS]
    return [name for name in names if not chosen or name in chosen]


def measure(tokens: int, chosen, repeats: int) -> list[dict]:
    """All methods at one length, taking turns."""
    children = {name: Child(Job(name, tokens), "cpu", Limits()) for name in methods_at(tokens, chosen)}
    answers = {name: [child.ready] for name, child in children.items()}
    for _ in range(repeats + 1):
        for name, child in children.items():
            slow = len(answers[name]) > 1 and answers[name][1].seconds > SLOW
            if answers[name][-1].state == OK and not slow:
                answers[name].append(child.run())
    for child in children.values():
        child.close()
    rows = []
    for name, of_method in answers.items():
        last = of_method[-1]
        timed = of_method[2:] or of_method[1:]
        seconds = statistics.median(answer.seconds for answer in timed) if last.state == OK else None
        size = last.values if last.state == OK else None
        rows.append({"tokens": tokens, "method": name, "state": last.state, "why": last.why, "seconds": seconds, "bytes": size})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--methods", nargs="+", help="some of them; by default all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="a JSON file for all numbers")
    options = parser.parse_args()
    results = []
    print("tokens  method        state         seconds   of products        bytes")
    for tokens in options.lengths:
        rows = measure(tokens, options.methods, options.repeats)
        floor = next((row["seconds"] for row in rows if row["method"] == "products"), None)
        for row in rows:
            row["ratio"] = row["seconds"] / floor if floor and row["seconds"] else None
            seconds, ratio, size = (
                "–" if row[name] is None else format(row[name], form)
                for name, form in (("seconds", ".3f"), ("ratio", ".2f"), ("bytes", ",d"))
            )
            print(f"{tokens:6}  {row['method']:12}  {row['state']:12} {seconds:>8}  {ratio:>12}  {size:>14}", flush=True)
        results += rows
    errors = {tokens: error(tokens) for tokens in options.lengths if tokens <= 16384}
    print("largest error of the pooled D against float64: " + ", ".join(f"{n} tokens {e:.1e}" for n, e in errors.items()))
    if options.out:
        with open(options.out, "w") as file:
            json.dump({"rows": results, "errors": errors, "cores": os.cpu_count()}, file, indent=1)


if __name__ == "__main__":
    main()
