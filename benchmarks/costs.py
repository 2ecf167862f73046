"""Measure what single parts cost in time and memory, on random models.

python -m benchmarks.costs                            # every part that runs on a CPU
python -m benchmarks.costs --part ranks --length 1024
python -m benchmarks.costs --part kernels big --device cuda
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import diffscope
from benchmarks import results
from benchmarks.meter import OK, Child, Limits, Meter
from benchmarks.results import LOAD, Section, duration, size, table
from diffscope.attention.layer import LayerAttention, Pairing
from diffscope.attention.stored import to_tensors
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.proof.float32 import Float32Proofs
from diffscope.stats.kernels import rows
from diffscope.stats.ranks import estimated as estimated_rank
from diffscope.stats.ranks import exact as rank
from diffscope.stats.ranks.implicit_map import ImplicitMaps

WIDTH = 64  # of a head in the part `ranks`
HEADS, D = 12, 128  # of the layer in the part `kernels`, as in a model of 3B parameters
FLOPS, EXPONENTIALS = 790e12, 4.1e12  # bf16 operations of products, and exponentials, that an H200 does in a second
SUMS = {"total", "net", "squares", "logs", "roots", "negative", "negatives", "peak"}
MOMENTS = {
    "sums": SUMS,
    "sums and small": SUMS | {"small"},
    "all, with histograms": set(rows.MOMENTS),
}


def random_ids(length: int, vocabulary: int = 900) -> list[int]:
    """Return random token ids."""
    return torch.randint(2, vocabulary, (length,), generator=torch.Generator().manual_seed(0)).tolist()


def own_v1(layers: int, hidden: int, heads: int, length: int, vocabulary: int = 1000) -> DiffForCausalLM:
    """Return a DIFF V1 with random weights."""
    shape = {"hidden_size": hidden, "intermediate_size": 8 * hidden // 3, "num_hidden_layers": layers, "vocab_size": vocabulary}
    heads_too = {"num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": length}
    return DiffForCausalLM(DiffConfig(attention="v1", **shape, **heads_too)).eval()


@dataclass(frozen=True)
class MeasureAll:
    """All row statistics of a long prompt through a model of four layers, in a process of its own."""

    tokens: int

    def prepare(self) -> tuple[Callable, Callable]:
        torch.manual_seed(0)
        scope = diffscope.load(own_v1(4, 512, 4, self.tokens))
        return lambda: scope.measure(random_ids(self.tokens), ["row"]), lambda _: None


def measure(options: Namespace) -> Section:
    """Measure the memory of all row statistics above that of the model."""
    tokens = options.length or (256 if options.quick else 8192)
    with Child(MeasureAll(tokens), options.device, Limits(600.0)) as child:
        answer = child.run()
    if answer.state != OK:
        sys.exit(f"error: {answer.state}: {answer.why}")
    numbers = {"tokens": tokens, "seconds": answer.seconds, "peak": answer.peak}
    caption = "All row statistics with exact Gini; memory above that of the model, the forward's own included."
    shown = table(caption, ("tokens", "time", "memory"), [[f"{tokens:,}", duration(answer.seconds), size(answer.peak)]])
    return section(
        "measure",
        "Memory of scope.measure on a long prompt",
        "4 layers of 4 heads, d = 64, random weights",
        shown,
        numbers,
        options,
    )


def big(options: Namespace) -> Section:
    """Capture a DIFF V1 of a 3B shape."""
    layers, hidden, heads, length = (2, 64, 2, 64) if options.quick else (28, 3072, 12, options.length or 8192)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    with torch.device(options.device):
        model = own_v1(layers, hidden, heads, length, 32_000).to(dtype)
    ids = random_ids(length, 32_000)
    tokens = torch.tensor([ids], device=options.device)
    meter = Meter(options.device)
    with torch.no_grad():
        model(tokens, use_cache=False, logits_to_keep=1)
        plain = meter.measure(lambda: model(tokens, use_cache=False, logits_to_keep=1))
    taken = meter.measure(lambda: diffscope.load(model).capture(ids))
    held = sum(x.untyped_storage().nbytes() for layer in taken.result.layers for x in to_tensors(layer)[0].values())
    cells = [["plain forward", duration(plain.seconds), size(plain.peak)]]
    cells += [["capture with its proof", duration(taken.seconds), size(taken.peak)], ["what the capture holds", None, size(held)]]
    worst = float(taken.result.fidelity.error.max())
    numbers = {"plain": plain[1:], "capture": taken[1:], "held": held, "fidelity": worst, "parameters": model.num_parameters()}
    shown = table(f"{length:,} tokens; largest error of the proof {worst:.1e}.", ("", "time", "memory"), cells)
    words = f"DIFF V1, {model.num_parameters() / 1e9:.2f}·10⁹ parameters, random weights, {str(dtype).removeprefix('torch.')}"
    return section("big", "A model of a 3B shape", words, shown, numbers, options)


def proof(options: Namespace) -> Section:
    """Prove half-precision layers by their own modules in float32, beside a capture without that proof."""
    layers, hidden, maps = (2, 64, 4) if options.quick else (4, 1024, 16)
    shape = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers, "vocab_size": 1000}
    heads = {"num_attention_heads": maps, "num_key_value_heads": max(2, maps // 4)}
    torch.manual_seed(0)
    model = DiffLlamaForCausalLM(DiffLlamaConfig(**shape, **heads, attn_implementation="sdpa"))
    model = model.to(options.device, torch.bfloat16).eval()
    scope, cells, numbers = diffscope.load(model), [], {}
    for length in [options.length] if options.length else [64] if options.quick else [128, 512, 2048]:
        ids = random_ids(length)
        tokens = torch.tensor([ids], device=options.device)
        with torch.no_grad():
            model(tokens)  # what is loaded and compiled once is not counted
            alone = Meter(options.device).measure(lambda tokens=tokens: model(tokens))
        scope.capture(ids)
        proven = Meter(options.device).measure(lambda ids=ids: scope.capture(ids))
        with patch.object(Float32Proofs, "prove"):
            bare = Meter(options.device).measure(lambda ids=ids: scope.capture(ids))
        for name, cost in (("the model alone", alone), ("capture with its proof", proven), ("capture without it", bare)):
            cells.append([f"{length:,}", name, duration(cost.seconds), duration(cost.processor), size(cost.peak)])
            numbers[f"{length} {name}"] = {"seconds": cost.seconds, "processor": cost.processor, "peak": cost.peak}
    caption = "A copy of one layer in float32 is in memory at a time."
    shown = table(caption, ("tokens", "", "time", "time of the processor", "memory"), cells)
    words = f"DiffLlama, {layers} layers of {maps} maps, {hidden} wide, bfloat16, SDPA, random weights"
    return section("proof", "The proof of half precision in float32", words, shown, numbers, options)


KINDS = ("diffuse", "random", "sharp", "sink", "local", "previous token")


def queries_and_keys(kind: str, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys of one map: (token, width) each, float64."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, n, WIDTH, generator=generator, dtype=torch.float64)
    if kind == "diffuse":  # a few directions carry the scores
        decay = torch.arange(1, WIDTH + 1, dtype=torch.float64).reciprocal()
        return q * decay, k * decay * 4
    if kind == "sink":  # nearly all weight on the first key
        q, k = q * 1.5, k.clone()
        q[:, 0], k[:, 0], k[0] = 8, 0, 0
        k[0, 0] = 9.6
        return q, k
    if kind == "local":  # the last few keys, by rotary positions
        turn = torch.arange(n)[:, None] * 10_000 ** (-torch.arange(WIDTH // 2, dtype=torch.float64) / (WIDTH // 2))
        where = 1.6 * torch.cat([turn.cos(), turn.sin()], dim=-1)
        return 0.2 * q + where, 0.2 * k + where
    if kind == "previous token":  # nearly all weight there, so that nearly all singular values are the same
        turn = torch.arange(n)[:, None] * 3 * torch.rand(WIDTH // 2, generator=generator, dtype=torch.float64)
        before, here = (3 * torch.cat([x.cos(), x.sin()], dim=-1) for x in (turn - turn[1], turn))
        return before, here
    return q * {"random": 2, "sharp": 6}[kind], k


def ranks(options: Namespace) -> Section:
    """Estimate effective ranks without the map, beside all singular values of it."""
    n = options.length or (256 if options.quick else 4096)
    labels = (*rank.DEFINITIONS, *(f"residual {r}" for r in rank.RESIDUAL_RANKS))
    cells, numbers = [], {}
    for kind in KINDS[:1] if options.quick else KINDS:
        both = [queries_and_keys(kind, n, 0), queries_and_keys("random", n, 100)]
        q, k = (torch.stack(x)[None].float().to(options.device) for x in zip(*both, strict=True))  # (1, map, token, width)
        layer = layer_of(q, k, torch.zeros(1, 1, n, 4, device=options.device))
        for name in ("A1", "D"):
            meter = Meter(options.device)
            fast = meter.measure(lambda layer=layer, name=name: estimated_rank.estimate(ImplicitMaps(layer, 0), [name])[name])
            slow = meter.measure(lambda layer=layer, name=name: exact_ranks(layer, name)) if n <= 4096 else None
            values = torch.cat([fast.result.ranks, fast.result.residuals])
            widths = torch.cat([fast.result.ranks_error, fast.result.residuals_error]) / values
            errors = torch.full_like(values, torch.nan) if slow is None else values / slow.result - 1
            found = {label: [float(of), float(within)] for label, of, within in zip(labels, errors, widths)}
            numbers[f"{kind}, {name}"] = {
                "errors and half-widths": found,
                "seconds": fast.seconds,
                "exact": slow and slow.seconds,
            }
            shown = [f"{100 * of:+.3f} % ± {100 * within:.3f} %" for of, within in list(found.values())[: len(rank.DEFINITIONS)]]
            cells.append(
                [kind, name, *shown, fast.result.sweeps, f"{fast.seconds:.1f}", "–" if slow is None else f"{slow.seconds:.1f}"]
            )
    caption = f"{n:,} tokens: error of the estimate ± its stated half-width."
    shown = table(caption, ("kind", "map", *rank.DEFINITIONS, "sweeps", "seconds", "of all singular values"), cells)
    words = f"one differential head, d = {WIDTH}, whose first map is of a kind and whose second is random"
    return section("ranks", "Matrix-free ranks beside all singular values", words, shown, numbers, options)


def exact_ranks(layer: LayerAttention, name: str) -> torch.Tensor:
    """Return every definition of the rank of the whole map, then every residual."""
    held = ImplicitMaps(layer, 0).transposed({name: torch.eye(layer.n_queries, device=layer.q.device)})[name]
    sigma = rank.singular_values(held).cpu()
    return torch.cat([rank.ranks(sigma), rank.rank_residual(sigma)])


def layer_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> LayerAttention:
    """Return a layer of q, k (1, map, token, d) and v with λ = 0.8."""
    lam = torch.full((1, 1, 1), 0.8, device=q.device)
    pairing = Pairing.stripes(q.shape[1] // 2, device=q.device)
    shape = {"scale": q.shape[-1] ** -0.5, "pairing": pairing, "lengths": (q.shape[2],), "lam": lam}
    return LayerAttention(layer=0, family="benchmark", q=q, k=k, v=v, **shape)


def kernels(options: Namespace) -> Section:
    """Compute row moments by Triton kernels, beside two flash-attention forwards of the same layer."""
    heads, lengths = (2, [20]) if options.quick else (HEADS, [options.length] if options.length else [2048, 8192, 65536])
    cells, numbers = [], {}
    for tokens in lengths:
        generator = torch.Generator(options.device).manual_seed(0)
        q, k, v = (
            torch.randn(1, maps, tokens, D, generator=generator, device=options.device, dtype=torch.bfloat16)
            for maps in (2 * heads, 2 * heads, heads)
        )
        layer, queries = layer_of(q, k, v), torch.arange(tokens, device=options.device)

        def flash(q=q, k=k, v=v, scale=layer.scale) -> torch.Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION if options.device == "cuda" else SDPBackend.MATH):
                return scaled_dot_product_attention(q, k, v.repeat_interleave(2, 1), is_causal=True, scale=scale)

        works: dict[str, Callable] = {"two flash forwards": flash}
        for name, wanted in MOMENTS.items():
            works[name] = lambda layer=layer, queries=queries, wanted=wanted: rows.moments(layer, queries, wanted)
        for work in works.values():
            work()
        meter = Meter(options.device)
        taken = {name: [meter.measure(work) for _ in range(1 if options.quick else 5)] for name, work in works.items()}
        seconds = {name: statistics.median(of.seconds for of in found) for name, found in taken.items()}
        scores = heads * tokens * (tokens + 1)  # of both maps of all heads
        floor = 2 * max(scores * 2 * D / FLOPS, scores / EXPONENTIALS)
        for name, found in taken.items():
            error = worst_error(layer, MOMENTS[name]) if name in MOMENTS else None
            peak, times = found[0].peak, seconds[name] / seconds["two flash forwards"]
            numbers[f"{tokens} {name}"] = {"seconds": seconds[name], "peak": peak, "error": error, "floor": floor}
            shown = [
                duration(seconds[name]),
                f"{times:.2f}",
                f"{seconds[name] / floor:.2f}",
                size(peak),
                error and f"{error:.1e}",
            ]
            cells.append([f"{tokens:,}", name, *shown])
    header = ("tokens", "", "time", "× flash", "× floor", "memory", "error")
    shown = table("The floor is two passes of products or exponentials on an H200.", header, cells)
    words = f"a layer of {heads} heads of two maps, d = {D}, bf16, causal"
    return section("kernels", "Row statistics by Triton kernels", words, shown, numbers, options)


def worst_error(layer: LayerAttention, wanted: set[str]) -> float:
    """Return the worst of total, squares and roots of A1 and D, relative to float64, over 16 queries."""
    queries = torch.linspace(0, layer.n_queries - 1, 16, device=layer.q.device).long()
    sums = rows.moments(layer, queries, wanted)
    held = replace(layer, **{name: getattr(layer, name).double() for name in ("q", "k", "lam", "gain")}).rows(queries)
    errors = []
    for name, x in (("A1", held.a1), ("D", held.d)):
        exact = {"total": x.abs(), "squares": x.square(), "roots": x.abs().sqrt()}
        errors += [(sums[name][moment] / value.sum(-1) - 1).abs().max() for moment, value in exact.items()]
    return float(torch.stack(errors).max())


def section(name: str, title: str, models: str, shown, numbers: dict, options: Namespace) -> Section:
    """Return one part as it is kept."""
    command = f"python -m benchmarks.costs --part {name}" + (f" --device {options.device}" if options.device != "cpu" else "")
    command += f" --length {options.length}" if options.length else ""
    return Section(name, title, command, models, [shown], numbers=numbers, machine=results.machine(options.device), load=LOAD)


PARTS = {"measure": measure, "proof": proof, "ranks": ranks, "kernels": kernels, "big": big}


def main() -> None:
    """Measure the parts that are wanted."""
    parser = results.parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=["measure", "proof", "ranks"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--length", type=int, help="tokens, instead of the usual ones")
    parser.add_argument("--threads", type=int, help="of torch")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: there is no CUDA device; leave out --device")
    if options.threads:
        torch.set_num_threads(options.threads)
    for part in options.part:
        results.keep("costs", [PARTS[part](options)], options)


if __name__ == "__main__":
    main()
