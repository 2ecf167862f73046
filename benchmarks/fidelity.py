"""How well captures are rebuilt: family × dtype × attention implementation × length, on random models.

python benchmarks/fidelity.py --device cpu --lengths 256
python benchmarks/fidelity.py --device cuda --lengths 2048 16384
"""

from __future__ import annotations

import argparse
import platform

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

import diffscope
from diffscope import DiffscopeError
from diffscope.models import DiffConfig, DiffForCausalLM

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


def awake(model):
    """Weights with attention far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 2 / parameter.shape[1] ** 0.5)
    return model.eval()


def worst(model, length: int) -> str:
    ids = torch.randint(2, 1000, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    try:
        return f"{float(diffscope.load(model).capture(ids).fidelity.error.max()):.1e}"
    except (DiffscopeError, ValueError, ImportError, torch.OutOfMemoryError) as error:
        return str(error).partition("\n")[0][:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--implementations", nargs="+", default=["eager", "sdpa"])
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {device}; largest deviation in units of what rounding acts on (diffscope.fidelity)\n")
    print("| family | dtype | attention | " + " | ".join(f"{n} tokens" for n in options.lengths) + " |")
    print("|---|---|---|" + "---|" * len(options.lengths))
    for name, make in models():
        for dtype in options.dtypes:
            for implementation in options.implementations:
                model = awake(make()).to(options.device, DTYPES[dtype])
                model.set_attn_implementation(implementation)
                cells = " | ".join(worst(model, n) for n in options.lengths)
                print(f"| {name} | {dtype} | {implementation} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
