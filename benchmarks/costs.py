"""Row statistics by kernel against what the layer itself costs: two flash-attention forwards of a 3B-shaped layer.

python benchmarks/costs.py
python benchmarks/costs.py --lengths 1024 8192 --repeats 9
TRITON_INTERPRET=1 python benchmarks/costs.py --device cpu --lengths 40      # whether it runs, no more
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Pairing
from diffscope.kernels import rows

HEADS, D = 12, 128
# What an H200 does in a second: bf16 operations of a matrix product, and exponentials.
FLOPS, EXPONENTIALS = 790e12, 4.1e12
ORDER = {"top": (1, 5, 10), "near_zero": 0.1, "levels": (0.1, 0.5, 0.9, 0.99)}
SUMS = {"total", "net", "squares", "logs", "roots", "negative", "negatives", "peak"}
WORKS = {
    "sums": SUMS,
    "sums and pair": SUMS | set(rows.PAIR),
    "sums and small": SUMS | {"small"},
    "all, with histograms": {*rows.MOMENTS, *rows.PAIR},
}


def layer_of(tokens: int, heads: int, device: str) -> LayerAttention:
    """Random attention of that length, causal, bf16, λ = 0.8."""
    generator = torch.Generator(device).manual_seed(0)

    def random(maps: int) -> torch.Tensor:
        return torch.randn(1, maps, tokens, D, generator=generator, device=device, dtype=torch.bfloat16)

    return LayerAttention(
        layer=0,
        family="benchmark",
        q=random(2 * heads),
        k=random(2 * heads),
        v=random(heads),
        scale=D**-0.5,
        pairing=Pairing.stripes(heads, device=device),
        lengths=(tokens,),
        lam=torch.full((1, 1, 1), 0.8, device=device),
    )


def milliseconds(work, device: str) -> float:
    if device == "cpu":
        begun = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begun)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def extra_memory(work, device: str) -> int:
    if device == "cpu":
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def worst_error(layer: LayerAttention, wanted: set[str]) -> float:
    """Of total, squares and roots of A1 and D, relative to float64 rows, over 16 queries."""
    queries = torch.linspace(0, layer.n_queries - 1, 16, device=layer.q.device).long()
    sums = rows.moments(layer, queries, wanted, **ORDER)
    exact = {name: getattr(layer, name).double() for name in ("q", "k", "lam", "gain")}
    held = replace(layer, **exact).rows(queries)
    errors = []
    for name, x in (("A1", held.a1), ("D", held.d)):
        size = x.abs()
        for moment, value in (("total", size), ("squares", size.square()), ("roots", size.sqrt())):
            errors.append((sums[name][moment] / value.sum(-1) - 1).abs().max())
    return float(torch.stack(errors).max())


def compare(tokens: int, heads: int, repeats: int, device: str) -> None:
    layer = layer_of(tokens, heads, device)
    queries = torch.arange(tokens, device=device)
    v = layer.v.repeat_interleave(2, 1)

    def flash():
        with sdpa_kernel(SDPBackend.MATH if device == "cpu" else SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(layer.q, layer.k, v, is_causal=True, scale=layer.scale)

    works = {"two flash forwards": flash}
    for name, wanted in WORKS.items():
        works[name] = lambda wanted=wanted: rows.moments(layer, queries, wanted, **ORDER)
    for work in works.values():
        work()
    times = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(milliseconds(work, device))
    scores = 2 * heads * tokens * (tokens + 1) / 2  # of both maps of all heads, once
    products, exponentials = (2e3 * x for x in (scores * 2 * D / FLOPS, scores / EXPONENTIALS))
    print(f"{tokens} tokens; floor of two passes: products {products:.2f} ms, exponentials {exponentials:.2f} ms")
    forward = statistics.median(times["two flash forwards"])
    for name, work in works.items():
        middle = statistics.median(times[name])
        line = (
            f"  {name:22} {middle:10.2f} ms  ×{middle / forward:6.2f}  ×{middle / max(products, exponentials):6.2f} of the floor"
        )
        line += f"  {extra_memory(work, device) / 2**20:7.0f} MiB extra"
        print(line + (f"  error {worst_error(layer, WORKS[name]):.1e}" if name in WORKS else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2**n for n in range(10, 17)])
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: through Triton's interpreter")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "interpreted"
    print(f"{options.heads} heads of two maps, d = {D}, bf16, causal; {name}, torch {torch.__version__}")
    for tokens in options.lengths:
        compare(tokens, options.heads, options.repeats, options.device)


if __name__ == "__main__":
    main()
