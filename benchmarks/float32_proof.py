"""What it costs to prove half-precision layers by their own modules in float32: seconds and memory a layer, beside the capture.

python -m benchmarks.float32_proof --length 2048
python -m benchmarks.float32_proof --length 2048 --device cuda
python -m benchmarks.float32_proof --length 2048 --layers 4 --hidden 1024 --maps 16 --threads 1
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
    """Seconds, those of the processor too, and the peak of memory above what was held before, in MiB."""
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
    start, used = time.perf_counter(), time.process_time()
    yield result
    if device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    result["seconds"], result["processor"] = time.perf_counter() - start, time.process_time() - used
    done.set()
    if device != "cuda":
        thread.join()
    result["MiB"] = (peak - before) / 2**20


def random_model(options: argparse.Namespace) -> DiffLlamaForCausalLM:
    """A model of the shape that is asked for."""
    torch.manual_seed(0)
    shape = dict(hidden_size=options.hidden, intermediate_size=4 * options.hidden, num_attention_heads=options.maps)
    shape |= dict(num_key_value_heads=options.maps // 4, num_hidden_layers=options.layers, vocab_size=1000)
    return DiffLlamaForCausalLM(DiffLlamaConfig(**shape, attn_implementation=options.attention))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--attention", choices=["eager", "sdpa"], default="sdpa")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=2048, help="width of the model")
    parser.add_argument("--maps", type=int, default=32, help="of a layer, a multiple of four")
    parser.add_argument("--threads", type=int, help="of torch")
    options = parser.parse_args()
    give_back_what_is_freed()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = random_model(options).to(options.device, DTYPES[options.dtype]).eval()
    scope = diffscope.load(model)
    ids = torch.randint(2, 900, (options.length,)).tolist()
    tokens = torch.tensor([ids], device=options.device)
    with torch.no_grad():
        model(tokens)  # what is loaded and compiled once is not counted
        with watched(options.device) as alone:
            model(tokens)
    scope.capture(ids)
    with watched(options.device) as first:
        proof = scope.capture(ids).fidelity
    with watched(options.device) as second, patch.object(Formulas, "prove"):
        scope.capture(ids)
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    shape = f"{options.layers} layers of {options.maps} maps ({options.maps // 2} heads), {options.hidden} wide"
    print(f"{shape}, {options.length} tokens, {options.dtype}, {options.attention}")
    print(f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for what, cost in (("the model alone", alone), ("capture with the proof in float32", first), ("capture without it", second)):
        print(f"{what + ':':34} {cost['seconds']:.2f} s, {cost['processor']:.2f} s of the processor, {cost['MiB']:.0f} MiB")
    print(f"the proof, a layer: {(first['seconds'] - second['seconds']) / options.layers:.2f} s")
    print(f"largest error in float32: {float(proof.error_float32.max()):.1e}; decided: {bool(proof.decided.all())}")


if __name__ == "__main__":
    main()
