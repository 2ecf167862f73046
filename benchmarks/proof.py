"""Which mistakes a proof refuses: planted mistake × length × dtype, on random DiffLlamas of narrow and of usual heads.

python -m benchmarks.proof --lengths 100 1000 4096 --seeds 3
python -m benchmarks.proof --lengths 16384 65536 --seeds 1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import diffscope
from benchmarks.fidelity import awake
from diffscope.attention.layer import LayerAttention
from diffscope.families import Passage
from diffscope.proof.fidelity import Fidelity, fidelities

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
WIDTHS = {"heads of 8": (32, 4), "heads of 64": (128, 2)}  # hidden size and maps: one layer of two heads, or of one


def swapped(layer: LayerAttention) -> LayerAttention:
    pairing = layer.pairing
    return replace(layer, pairing=replace(pairing, a1=pairing.a2, a2=pairing.a1))


MISTAKES: dict[str, Callable[[LayerAttention], LayerAttention]] = {
    "λ × 1.001": lambda layer: replace(layer, lam=layer.lam * 1.001),
    "λ × 1.01": lambda layer: replace(layer, lam=layer.lam * 1.01),
    "scale × 1.001": lambda layer: replace(layer, scale=layer.scale * 1.001),
    "maps swapped": swapped,
    "halves of V swapped": lambda layer: replace(layer, v=torch.cat(layer.v.chunk(2, -1)[::-1], -1)),
    "eps × 10": lambda layer: replace(layer, norm=replace(layer.norm, eps=10 * layer.norm.eps)),
    "soft cap of 50": lambda layer: replace(layer, soft_cap=50.0),
}


def diffllama(heads: str, seed: int, dtype: torch.dtype, length: int) -> DiffLlamaForCausalLM:
    """A DiffLlama of one layer with random weights that make its attention sharp."""
    hidden, maps = WIDTHS[heads]
    torch.manual_seed(seed)
    config = DiffLlamaConfig(
        hidden_size=hidden,
        intermediate_size=32,
        num_hidden_layers=1,
        vocab_size=900,
        num_attention_heads=maps,
        num_key_value_heads=maps,
        max_position_embeddings=max(256, length),
    )
    return awake(DiffLlamaForCausalLM(config), seed).to(dtype)


def in_tolerances(proof: Fidelity) -> float:
    return proof.error / proof.tolerance


@dataclass
class Read:
    """What a family read of one layer, and what the model produced there: of a model in half precision in float32 too."""

    layer: LayerAttention
    observed: Tensor
    in_float32: tuple[LayerAttention, Tensor] | None

    def proof(self, mistake: Callable[[LayerAttention], LayerAttention] = lambda layer: layer) -> Fidelity:
        """Of the proofs the one with the largest error, in tolerances; λ is pinned by the one in float32."""
        (proof,) = fidelities([mistake(self.layer)], [self.observed], decide=False)
        if self.in_float32 is None:
            return proof
        layer, observed = self.in_float32
        (wide,) = fidelities([mistake(layer)], [observed], decide=False)
        return replace(max(proof, wide, key=in_tolerances), lam_within=wide.lam_within)


def read(model: torch.nn.Module, ids: list[int]) -> Read:
    """What diffscope reads of a model of one layer on one prompt."""
    scope = diffscope.load(model)
    seen: list[tuple[LayerAttention, Tensor]] = []

    class Recorded(type(scope.family)):
        def readings(self, passage: Passage) -> Iterator[LayerAttention]:
            for layer in super().readings(passage):
                seen.append((layer, passage.observed))
                yield layer

    scope.family = Recorded()
    scope.capture(ids)
    layer, observed = seen[-1]
    return Read(layer, observed, seen[0] if seen[0][0].q.dtype != layer.q.dtype else None)


def shown(proofs: list[Fidelity]) -> str:
    """How often a mistake is refused, and its least error in tolerances."""
    times = [in_tolerances(proof) for proof in proofs]
    refused = sum(each > 1 for each in times)
    word = "refused" if refused == len(proofs) else f"refused {refused} of {len(proofs)}" if refused else "passed"
    return f"{word}, {min(times):.2g}"


def row(heads: str, dtype: str, length: int, seeds: int) -> str:
    reads = []
    for seed in range(seeds):
        ids = torch.randint(2, 900, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
        reads.append(read(diffllama(heads, seed, DTYPES[dtype], length), ids))
    right = [each.proof() for each in reads]
    worst = max(right, key=in_tolerances)
    within = max(proof.lam_within for proof in right)
    refused = "passed" if worst.error <= worst.tolerance else "REFUSED"
    cells = [heads, dtype, f"{length:,}", f"{refused}, {worst.error:.1e} of {worst.tolerance:.2g}", f"{within:.1e}"]
    cells += [shown([each.proof(mistake) for each in reads]) for mistake in MISTAKES.values()]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 1000, 4096])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--heads", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    columns = ["model", "dtype", "tokens", "none: error of tolerance", "λ pinned to ±", *MISTAKES]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for heads in options.heads:
        for length in options.lengths:
            for dtype in options.dtypes:
                print(row(heads, dtype, length, options.seeds), flush=True)


if __name__ == "__main__":
    main()
