"""Capture a DIFF V1 of a 3B shape with random weights: time, memory, fidelity.

python benchmarks/large.py --device cuda --dtype bfloat16 --length 8192
python benchmarks/large.py --layers 2 --hidden 512 --heads 2 --length 1024      # a small one, anywhere
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

import diffscope
from diffscope.models import DiffConfig, DiffForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--heads", type=int, default=12)
    options = parser.parse_args()
    config = DiffConfig(
        attention="v1",
        hidden_size=options.hidden,
        intermediate_size=8 * options.hidden // 3,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        vocab_size=32_000,
        max_position_embeddings=options.length,
    )
    dtype, cuda = getattr(torch, options.dtype), options.device.startswith("cuda")
    with torch.device(options.device):
        model = DiffForCausalLM(config).to(dtype).eval()
    ids = torch.randint(2, 32_000, (options.length,), generator=torch.Generator().manual_seed(0)).tolist()

    def forward():
        return model(torch.tensor([ids], device=options.device), use_cache=False, logits_to_keep=1)

    def timed(work):
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        result = work()
        if cuda:
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return result, time.perf_counter() - start, peak

    with torch.no_grad():
        forward()
        _, plain, plain_peak = timed(forward)
    capture, took, peak = timed(lambda: diffscope.load(model).capture(ids))
    held = sum(t.untyped_storage().nbytes() for layer in capture.layers for t in layer.dismantle()[0].values())
    device = torch.cuda.get_device_name() if cuda else "cpu"
    size = model.num_parameters() / 1e9
    print(f"{size:.2f}e9 parameters, {options.length} tokens, {options.dtype}, {device}, torch {torch.__version__}")
    print(f"plain forward {plain:.2f} s, peak {plain_peak / 2**30:.2f} GiB")
    print(f"capture with its proof {took:.2f} s, peak {peak / 2**30:.2f} GiB")
    print(f"held {held / 2**30:.2f} GiB; fidelity worst {float(capture.fidelity.error.max()):.2e}")


if __name__ == "__main__":
    main()
