"""Peak memory of `diffscope measure` on a long prompt, above that of loading the model.

    python benchmarks/memory.py --length 8192

Makes a folder with a random 4-layer DIFF V1 and a tokenizer, and runs the command line in fresh processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.tasks.tokenizer import train_tokenizer


def peak_of(*command: str) -> tuple[float, float]:
    """Seconds and peak resident MiB of a process of its own."""
    start = time.perf_counter()
    probe = "import resource,subprocess,sys; subprocess.run(sys.argv[1:],check=True,stdout=subprocess.DEVNULL); "
    probe += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    out = subprocess.run([sys.executable, "-c", probe, *command], check=True, capture_output=True, text=True).stdout
    return time.perf_counter() - start, int(out) / (1 if sys.platform == "linux" else 1024) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--stats", default="row")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as workspace:
        folder, prompt = Path(workspace) / "model", Path(workspace) / "prompt.txt"
        tokenizer = train_tokenizer(["a city has a number"] * 10, 270)
        torch.manual_seed(0)
        config = DiffConfig(
            attention="v1",
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=len(tokenizer),
            max_position_embeddings=65_536,
        )
        DiffForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        prompt.write_text(" a" * (options.length - 1), encoding="utf-8")  # a token each, and <bos>
        load = f"import diffscope; diffscope.load({str(folder)!r})"
        _, base = peak_of(sys.executable, "-c", load)
        words = ["measure", "--model", str(folder), "--prompt-file", str(prompt), "--stats", options.stats, "--json"]
        took, peak = peak_of(sys.executable, "-m", "diffscope", *words)
    print(f"{options.length} tokens, 4 layers x 4 heads, d = 64, statistics: {options.stats}")
    print(f"loading the model: {base:.0f} MiB; measuring: {peak:.0f} MiB in {took:.0f} s; above the model: {peak - base:.0f} MiB")


if __name__ == "__main__":
    main()
