"""Measure what a proof sees: how well captures are rebuilt, and which planted mistakes are refused.

python -m benchmarks.proof
python -m benchmarks.proof --part fidelity --device cuda --lengths 2048 --implementations eager sdpa flex_attention
flash_attention_2
python -m benchmarks.proof --part mistakes --lengths 16384 65536 --seeds 1
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

import diffscope
from benchmarks import results
from benchmarks.results import Section, table
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError, FidelityError, first_line
from diffscope.families import AttentionPass
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.proof.fidelity import fidelities
from diffscope.proof.tolerance import TOLERANCE
from tests.layouts import axolotl, gated, gdla, grouped, motif, phi4flash, unilm
from tests.tiny import awake

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 65_536,
}
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
HALF_AND_FULL = ("float32", "bfloat16", "float16")
WIDTHS = {"heads of 8": (32, 4), "heads of 64": (128, 2)}  # hidden size and maps: one layer of two heads, or of one


# How well captures are rebuilt.


def models() -> dict[str, Callable[[], nn.Module]]:
    """Return what makes a random model of each family."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    own = {f"own {kind}": partial(_own, kind) for kind in ("v1", "v2", "standard")}
    return own | {
        "diffllama": lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SHAPE, **heads)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, **heads)),
    }


def _own(kind: str) -> nn.Module:
    return DiffForCausalLM(DiffConfig(attention=kind, num_attention_heads=4, num_key_value_heads=2, **SHAPE))


def layouts() -> dict[str, Callable[[], nn.Module]]:
    """Return what makes a tiny awake model of each documented layout; their attention is their own."""
    long = {"max_position_embeddings": 65_536}
    named = {of.__name__.rpartition(".")[2]: partial(of.tiny, **long) for of in (motif, grouped, gdla, phi4flash, gated, axolotl)}
    return named | {f"unilm {kind}": partial(unilm.tiny, kind=kind, kv_heads=2) for kind in ("naive", "flash1", "v2")}


def worst(model: nn.Module, length: int) -> tuple[str, bool]:
    """Return the largest error, with a tolerance that is wider than of small scores; and whether the reading was refused."""
    ids = torch.randint(2, 900, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    try:
        proof = diffscope.load(model).capture(ids).fidelity
        wider = float(proof.tolerance.max()) > TOLERANCE[model.dtype]
        return f"{float(proof.error.max()):.1e}" + (f" of {float(proof.tolerance.max()):.2g}" if wider else ""), False
    except FidelityError as error:
        return first_line(error)[:60], True
    except (DiffscopeError, ValueError, ImportError, torch.OutOfMemoryError) as error:
        return first_line(error)[:60], False


def fidelity(options: Namespace) -> Section:
    """Rebuild family × dtype × attention implementation × length."""
    lengths = options.lengths or ([32] if options.quick else [256, 2048])
    implementations = options.implementations or (["sdpa"] if options.quick else ["eager", "sdpa"])
    rows, refused = [], []

    def add(name: str, dtype: str, implementation: str, model: nn.Module) -> None:
        cells = [worst(model, length) for length in lengths]
        rows.append([name, dtype, implementation, *(text for text, _ in cells)])
        refused.extend(f"{name}, {dtype}, {implementation}" for _, wrong in cells if wrong)

    for name, make in models().items():
        for dtype in options.dtypes or HALF_AND_FULL:
            for implementation in implementations:
                model = awake(make()).eval().to(options.device, DTYPES[dtype])
                try:
                    model.set_attn_implementation(implementation)
                except (ImportError, ValueError) as error:
                    rows.append([name, dtype, implementation, *[first_line(error)[:60]] * len(lengths)])
                    continue
                add(name, dtype, implementation, model)
    for name, make in {} if options.quick or max(lengths) > 4096 else layouts().items():  # these hold whole maps
        for dtype in options.dtypes or HALF_AND_FULL:
            add(f"{name} (layout)", dtype, "its own", make().to(options.device, DTYPES[dtype]))
    caption = (
        "The largest deviation of the rebuilt attention output, in units of what rounding acts on; zero means the same "
        "operations in the same order. Tolerances: float32 2e-5, float16 0.015, bfloat16 0.1, and more where it is said."
    )
    shown = table(caption, ("family", "dtype", "attention", *(f"{n:,} tokens" for n in lengths)), rows)
    words = "random models 512 wide whose attention is sharp, and the documented layouts 64 wide"
    return section("fidelity", "Fidelity", words, shown, {"refused": refused}, options)


# Which planted mistakes are refused.


def swapped(layer: LayerAttention) -> LayerAttention:
    """Return a layer whose first map is taken for its second."""
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
    """Return a DiffLlama of one layer with random weights that make its attention sharp."""
    hidden, maps = WIDTHS[heads]
    torch.manual_seed(seed)
    shape = {"hidden_size": hidden, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 900}
    heads_too = {"num_attention_heads": maps, "num_key_value_heads": maps, "max_position_embeddings": max(256, length)}
    return awake(DiffLlamaForCausalLM(DiffLlamaConfig(**shape, **heads_too)), seed).eval().to(dtype)


def in_tolerances(proof: Fidelity) -> float:
    """Return the error of a proof over its tolerance."""
    return proof.error / proof.tolerance


@dataclass
class Read:
    """What a family read of one layer, and what the model produced there: of a model in half precision in float32 too."""

    layer: LayerAttention
    observed: Tensor
    in_float32: tuple[LayerAttention, Tensor] | None

    def proof(self, mistake: Callable[[LayerAttention], LayerAttention] = lambda layer: layer) -> Fidelity:
        """Return of the proofs the one with the largest error, in tolerances; λ is pinned by the one in float32."""
        (proof,) = fidelities([mistake(self.layer)], [self.observed], decide=False)
        if self.in_float32 is None:
            return proof
        layer, observed = self.in_float32
        (wide,) = fidelities([mistake(layer)], [observed], decide=False)
        return replace(max(proof, wide, key=in_tolerances), lam_within=wide.lam_within)


def read(model: nn.Module, ids: list[int]) -> Read:
    """Return what diffscope reads of a model of one layer on one prompt."""
    scope = diffscope.load(model)
    seen: list[tuple[LayerAttention, Tensor]] = []

    class Recorded(type(scope.family)):
        def readings(self, passage: AttentionPass) -> Iterator[LayerAttention]:
            for layer in super().readings(passage):
                seen.append((layer, passage.observed))
                yield layer

    scope.family = Recorded()
    scope.capture(ids)
    layer, observed = seen[-1]
    return Read(layer, observed, seen[0] if seen[0][0].q.dtype != layer.q.dtype else None)


def refusals(proofs: list[Fidelity]) -> str:
    """Return how often a mistake is refused, and its least error in tolerances."""
    times = [in_tolerances(proof) for proof in proofs]
    refused = sum(each > 1 for each in times)
    word = "refused" if refused == len(proofs) else f"refused {refused} of {len(proofs)}" if refused else "passed"
    return f"{word}, {min(times):.2g}"


def mistakes(options: Namespace) -> Section:
    """Plant mistake × length × dtype in random DiffLlamas of narrow and of usual heads."""
    rows = []
    for heads in list(WIDTHS)[:1] if options.quick else WIDTHS:
        for length in options.lengths or ([50] if options.quick else [100, 1000, 4096]):
            for dtype in options.dtypes or DTYPES:
                reads = []
                for seed in range(1 if options.quick else options.seeds):
                    ids = torch.randint(2, 900, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
                    reads.append(read(diffllama(heads, seed, DTYPES[dtype], length), ids))
                right = [each.proof() for each in reads]
                most = max(right, key=in_tolerances)
                passed = f"{'passed' if most.error <= most.tolerance else 'REFUSED'}, {most.error:.1e} of {most.tolerance:.2g}"
                cells = [heads, dtype, f"{length:,}", passed, f"{max(proof.lam_within for proof in right):.1e}"]
                rows.append(cells + [refusals([each.proof(mistake) for each in reads]) for mistake in MISTAKES.values()])
    header = ["model", "dtype", "tokens", "none: error of tolerance", "λ pinned to ±", *MISTAKES]
    caption = (
        "“none” is the right reading. Of each mistake: whether it is refused, and its least error over the seeds in "
        "tolerances. Of half precision the float32 run of the layer is part of the proof. What is not in the table was not run."
    )
    words = "random DiffLlamas of one layer on a CPU with SDPA"
    return section("mistakes", "Mistakes that a proof refuses", words, table(caption, header, rows), {}, options)


def section(name: str, title: str, models: str, shown, numbers: dict, options: Namespace) -> Section:
    """Return one part as it is kept, with the command that measures it again."""
    given = [f"--lengths {' '.join(map(str, options.lengths))}"] if options.lengths else []
    given += [f"--device {options.device}"] if options.device != "cpu" else []
    command = " ".join([f"python -m benchmarks.proof --part {name}", *given])
    return Section(name, title, command, models, [shown], numbers=numbers, machine=results.machine(options.device))


PARTS = {"fidelity": fidelity, "mistakes": mistakes}


def main() -> None:
    """Measure the parts that are wanted; exit 1 if a right reading was refused."""
    parser = results.parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(DTYPES))
    parser.add_argument("--implementations", nargs="+", help="of attention, for the part fidelity")
    parser.add_argument("--seeds", type=int, default=3, help="for the part mistakes")
    options = parser.parse_args()
    sections = [PARTS[part](options) for part in options.part]
    results.keep("proof", sections, options)
    sys.exit(int(any(section.numbers.get("refused") for section in sections)))


if __name__ == "__main__":
    main()
