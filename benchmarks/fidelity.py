"""How well captures are rebuilt: family × dtype × attention implementation × length, on random models.

python -m benchmarks.fidelity --device cpu --lengths 256
python -m benchmarks.fidelity --device cuda --lengths 2048 16384 --implementations eager sdpa flex_attention flash_attention_2
"""

from __future__ import annotations

import argparse
import platform
import sys

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

import diffscope
from diffscope import DiffscopeError
from diffscope.errors import FidelityError
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.proof.fidelity import TOLERANCE
from tests.layouts import axolotl, gated, gdla, grouped, motif, phi4flash, unilm

SHAPE = dict(hidden_size=512, intermediate_size=512, num_hidden_layers=2, vocab_size=1000, max_position_embeddings=65_536)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def models():
    """Name and a function that makes a random model of each family."""
    for attention in ("v1", "v2", "standard"):
        config = DiffConfig(attention=attention, num_attention_heads=4, num_key_value_heads=2, **SHAPE)
        yield f"own {attention}", lambda config=config: DiffForCausalLM(config)
    heads = dict(num_attention_heads=8, num_key_value_heads=4)
    yield "diffllama", lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SHAPE, **heads))
    yield "llama", lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, **heads))


def layouts():
    """Name and a function that makes a tiny awake model of each documented layout; their attention is their own."""
    for layout in (motif, grouped, gdla, phi4flash, gated, axolotl):
        name = layout.__name__.rpartition(".")[2]
        yield f"{name} (layout)", lambda layout=layout: layout.tiny(max_position_embeddings=65_536)
    for kind in ("naive", "flash1", "v2"):
        yield f"unilm {kind} (layout)", lambda kind=kind: unilm.tiny(kind=kind, kv_heads=2)


def awake(model, seed: int = 0):
    """Weights with attention far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 2 / parameter.shape[1] ** 0.5)
    return model.eval()


def worst(model, length: int) -> tuple[str, bool]:
    """The largest error, with its tolerance where that is wider than of small scores; and whether the reading was refused."""
    ids = torch.randint(2, 900, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    try:
        proof = diffscope.load(model).capture(ids).fidelity
        wider = float(proof.tolerance.max()) > TOLERANCE[model.dtype]
        return f"{float(proof.error.max()):.1e}" + (f" of {float(proof.tolerance.max()):.2g}" if wider else ""), False
    except FidelityError as error:
        return str(error).partition("\n")[0][:60], True
    except (DiffscopeError, ValueError, ImportError, torch.OutOfMemoryError) as error:
        return str(error).partition("\n")[0][:60], False


def show(name: str, dtype: str, implementation: str, model, lengths: list[int]) -> bool:
    """Print a row, and return whether a reading was refused."""
    cells = [worst(model, length) for length in lengths]
    print(f"| {name} | {dtype} | {implementation} | {' | '.join(text for text, _ in cells)} |", flush=True)
    return any(refused for _, refused in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--implementations", nargs="+", default=["eager", "sdpa"])
    parser.add_argument("--layouts", action=argparse.BooleanOptionalAction, default=True, help="they hold whole maps")
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor() or platform.machine()
    print(
        f"torch {torch.__version__}, {device}; largest deviation in units of what rounding acts on (diffscope.proof.fidelity)\n"
    )
    print("| family | dtype | attention | " + " | ".join(f"{n} tokens" for n in options.lengths) + " |")
    print("|---|---|---|" + "---|" * len(options.lengths))
    refused = False
    for name, make in models():
        for dtype in options.dtypes:
            for implementation in options.implementations:
                model = awake(make()).to(options.device, DTYPES[dtype])
                try:
                    model.set_attn_implementation(implementation)
                except (ImportError, ValueError) as error:
                    print(f"| {name} | {dtype} | {implementation} | {str(error).partition(chr(10))[0][:60]} |", flush=True)
                    continue
                refused |= show(name, dtype, implementation, model, options.lengths)
    for name, make in layouts() if options.layouts else ():
        for dtype in options.dtypes:
            refused |= show(name, dtype, "its own", make().to(options.device, DTYPES[dtype]), options.lengths)
    sys.exit(int(refused))


if __name__ == "__main__":
    main()
