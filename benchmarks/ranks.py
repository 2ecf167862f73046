"""Effective ranks without the map, against all singular values of the map: error, stated half-width, sweeps, seconds.

python -m benchmarks.ranks                                     # all kinds of map of 4,096 tokens
python -m benchmarks.ranks --length 1024 --tolerance 0.02 --kinds sink local
python -m benchmarks.ranks --length 65536 --device cuda --no-exact
"""

from __future__ import annotations

import argparse
import platform
import time

import torch

from diffscope.attention.layer import LayerAttention, Pairing
from diffscope.stats import estimated_rank
from diffscope.stats.formulas import rank
from diffscope.stats.implicit_map import MAPS as PLAIN
from diffscope.stats.implicit_map import PERMUTED, ImplicitMaps

WIDTH = 64
KINDS = ("diffuse", "random", "sharp", "sink", "local", "previous token")
MAPS = ("A1", "D", "permuted D")


def queries_and_keys(kind: str, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one map: (token, width) each, float64."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, n, WIDTH, generator=generator, dtype=torch.float64)
    if kind == "diffuse":  # a few directions carry the scores
        decay = torch.arange(1, WIDTH + 1, dtype=torch.float64).reciprocal()
        return q * decay, k * decay * 4
    if kind == "sink":  # next to all weight on the first key
        q, k = q * 1.5, k.clone()
        q[:, 0], k[:, 0], k[0] = 8, 0, 0
        k[0, 0] = 9.6
        return q, k
    if kind == "local":  # the last few keys, by rotary positions
        turn = torch.arange(n)[:, None] * 10_000 ** (-torch.arange(WIDTH // 2, dtype=torch.float64) / (WIDTH // 2))
        where = 1.6 * torch.cat([turn.cos(), turn.sin()], dim=-1)
        return 0.2 * q + where, 0.2 * k + where
    if kind == "previous token":  # next to all weight there, so nearly all singular values are the same
        turn = torch.arange(n)[:, None] * 3 * torch.rand(WIDTH // 2, generator=generator, dtype=torch.float64)
        before = turn - turn[1]
        return tuple(3 * torch.cat([x.cos(), x.sin()], dim=-1) for x in (before, turn))
    return q * {"random": 2, "sharp": 6}[kind], k


def layer_of(kind: str, n: int, device: str) -> LayerAttention:
    """One differential head whose first map is of that kind, and the second random."""
    both = [queries_and_keys(kind, n, 0), queries_and_keys("random", n, 100)]
    q, k = (torch.stack(x)[None].float().to(device) for x in zip(*both, strict=True))  # (1, map, token, width)
    return LayerAttention(
        layer=0,
        family="benchmark",
        q=q,
        k=k,
        v=torch.zeros(1, 1, n, 4, device=device),
        scale=WIDTH**-0.5,
        pairing=Pairing.stripes(1, device=device),
        lengths=(n,),
        lam=torch.full((1, 1, 1), 0.8, device=device),
    )


def exact(layer: LayerAttention, name: str) -> torch.Tensor:
    """Of the whole map: every definition, then every residual."""
    held = ImplicitMaps(layer, 0).times({name: torch.eye(layer.n_keys, device=layer.q.device)})[name]
    sigma = rank.singular_values(held).cpu()
    return torch.cat([rank.ranks(sigma), rank.rank_residual(sigma)])


def estimated(layer: LayerAttention, name: str, tolerance: float, products: str | None) -> rank.Estimate:
    return estimated_rank.estimate(ImplicitMaps(layer, 0, products=products), [name], tolerance)[name]


def timed(work, *arguments):
    """The result of some work, and its seconds."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--maps", nargs="+", choices=(*PLAIN, *(PERMUTED + name for name in PLAIN)), default=MAPS)
    parser.add_argument("--tolerance", type=float, default=estimated_rank.TOLERANCE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--products", choices=("blocks", "attention"), help="by default attention kernels on CUDA")
    parser.add_argument("--no-exact", action="store_true", help="longer than singular values can be had")
    options = parser.parse_args()
    device = (
        torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(f"{options.length} tokens, {device}, torch {torch.__version__}; half-widths within {options.tolerance:.0%}")
    print(f"{'kind':14} {'map':11} {'definition':13} {'exact':>9} {'estimate':>9} {'half-width':>10} {'error':>8} sweeps seconds")
    labels = (*rank.DEFINITIONS, *(f"residual {r}" for r in rank.RESIDUAL_RANKS))
    unknown = torch.full((len(labels),), torch.nan), torch.nan
    for kind in options.kinds:
        layer = layer_of(kind, options.length, options.device)
        for name in options.maps:
            estimate, fast = timed(estimated, layer, name, options.tolerance, options.products)
            truth, slow = unknown if options.no_exact else timed(exact, layer, name)
            values = torch.cat([estimate.ranks, estimate.residuals]).tolist()
            errors = torch.cat([estimate.ranks_error, estimate.residuals_error]).tolist()
            for label, value, error, true in zip(labels, values, errors, truth.tolist(), strict=True):
                print(
                    f"{kind:14} {name:11} {label:13} {true:9.4g} {value:9.4g} {error / value:10.3%} {value / true - 1:+8.3%} "
                    f"{estimate.sweeps:6} {fast:.1f} (exact {slow:.1f}) {estimate.why.get(label, '')}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
