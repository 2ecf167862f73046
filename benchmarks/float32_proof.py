"""What it costs to prove half-precision layers by their own modules in float32: seconds and memory a layer, beside the capture.

python -m benchmarks.float32_proof --length 2048
python -m benchmarks.float32_proof --length 2048 --device cuda
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import diffscope
from diffscope.proof.formula import Formulas

SHAPE = dict(hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, vocab_size=1000)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


MMAP_THRESHOLD = -3  # of mallopt in glibc


def give_back_what_is_freed() -> None:
    """Have every larger tensor's memory given back when it is freed, so that what the process holds is what is in use."""
    ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 2**16)


def resident() -> int:
    """Bytes of memory that the process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@contextmanager
def watched(device: str) -> Iterator[dict[str, float]]:
    """Seconds, and the peak of memory above what was held before, in MiB."""
    result: dict[str, float] = {}
    done = threading.Event()
    before = torch.cuda.memory_allocated() if device == "cuda" else resident()
    peak = before

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    thread = threading.Thread(target=sample)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    else:
        thread.start()
    start = time.perf_counter()
    yield result
    if device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    result["seconds"] = time.perf_counter() - start
    done.set()
    if device != "cuda":
        thread.join()
    result["MiB"] = (peak - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--attention", choices=["eager", "sdpa"], default="sdpa")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    give_back_what_is_freed()
    torch.manual_seed(0)
    config = DiffLlamaConfig(**SHAPE, num_hidden_layers=options.layers, attn_implementation=options.attention)
    model = DiffLlamaForCausalLM(config).to(options.device, DTYPES[options.dtype]).eval()
    scope = diffscope.load(model)
    ids = torch.randint(2, 900, (options.length,)).tolist()
    with torch.no_grad():
        model(torch.tensor([ids], device=options.device))  # what is loaded and compiled once is not counted
    scope.capture(ids)
    with watched(options.device) as first:
        proof = scope.capture(ids).fidelity
    with watched(options.device) as second, patch.object(Formulas, "prove"):
        scope.capture(ids)
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    print(
        f"{options.layers} layers of 32 maps (16 heads), 2048 wide, {options.length} tokens, {options.dtype}, {options.attention}"
    )
    print(f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"capture with the proof in float32: {first['seconds']:.2f} s, {first['MiB']:.0f} MiB")
    print(f"capture without it:                {second['seconds']:.2f} s, {second['MiB']:.0f} MiB")
    print(f"the proof, a layer: {(first['seconds'] - second['seconds']) / options.layers:.2f} s")
    print(f"largest error in float32: {float(proof.error_float32.max()):.1e}; decided: {bool(proof.decided.all())}")


if __name__ == "__main__":
    main()
