"""Statistics of many prompts on one model: prompts a second, diffscope beside what a user would write instead.

python -m benchmarks.sweeps                       # 32 prompts of 256 tokens, 8 of 2,048
python -m benchmarks.sweeps --out benchmarks/results/sweeps.json

Models: mini-diff at 256 tokens (4 layers of 2 heads), a DiffLlama layer of 8 heads, d = 64, at 2,048. Statistics: all row
statistics of A1, A2 and D for every head and query. diffscope proves every layer as well, in batches (``measure`` of a list) or
one prompt after another; the others prove nothing. The ways take turns in one process, each with a model of its own, prepared
beforehand; the median of the rounds counts. Values are compared with diffscope's own, one by one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import diffscope
from benchmarks.engine import report, subjects
from benchmarks.engine.methods import METHODS, values_of
from benchmarks.engine.script import Values
from diffscope.stats.definitions import ROW

SIZES = {256: ("bundled", 32), 2048: ("random", 8)}  # tokens: the model, and how many prompts
AT_ONCE = 4096  # tokens
PEERS = ("TransformerLens", "nnsight", "numpy, full maps")
CLOSE = 5e-3  # of a value and 0.01; positions and counts may differ where float32 cannot tell
Way = Callable[[], list[Values]]


def prompts_of(model: torch.nn.Module, tokens: int, count: int) -> list[Tensor]:
    """Random prompts, each (1, token)."""
    generator = torch.Generator().manual_seed(0)
    return list(torch.randint(2, model.config.vocab_size, (count, 1, tokens), generator=generator))


def ways(subject: str, tokens: int, count: int) -> dict[str, Way]:
    """Every way, prepared: a call takes the statistics of all prompts."""

    def make() -> torch.nn.Module:
        return subjects.SUBJECTS[subject](tokens, "cpu")

    scope = diffscope.load(make())
    prompts = prompts_of(scope.model, tokens, count)
    ids = [prompt[0].tolist() for prompt in prompts]
    size = max(1, AT_ONCE // tokens)

    def in_batches() -> list[Values]:
        batches = [scope.measure(ids[start : start + size], list(ROW)) for start in range(0, count, size)]
        return [values_of(batch.isel(prompt=index)) for batch in batches for index in range(batch.sizes["prompt"])]

    def one_by_one() -> list[Values]:
        return [values_of(scope.measure(prompt, list(ROW))) for prompt in ids]

    prepared: dict[str, Way] = {"diffscope, in batches": in_batches, "diffscope, one by one": one_by_one}
    for name in PEERS:
        runs = [METHODS[name](make(), prompt) for prompt in prompts]  # a model can be bridged once
        prepared[name] = lambda runs=runs: [run() for run in runs]  # type: ignore[misc]
    return prepared


def largest_difference(values: Values, reference: Values) -> float:
    """The largest difference of a statistic relative to its size, of those that are no positions and no counts."""
    compared = set(reference) - {"argmax", "negative_count", "near_zero"}
    differences = [np.abs(values[name] - reference[name]) / (1e-2 + np.abs(reference[name])) for name in compared]
    return max(float(np.nanmax(difference)) for difference in differences)


def measure(subject: str, tokens: int, count: int, rounds: int) -> dict[str, dict]:
    """Prompts a second of every way."""
    prepared = ways(subject, tokens, count)
    first = {name: way() for name, way in prepared.items()}
    reference = first["diffscope, one by one"]
    errors = {name: max(map(largest_difference, values, reference)) for name, values in first.items()}
    seconds: dict[str, list[float]] = {name: [] for name in prepared}
    for _ in range(rounds):
        for name, way in prepared.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    rates = {name: count / statistics.median(taken) for name, taken in seconds.items()}
    return {
        name: {"prompts_a_second": rate, "difference": errors[name], "state": "ok" if errors[name] < CLOSE else "differs"}
        for name, rate in rates.items()
    }


def table(results: dict[int, dict[str, dict]]) -> str:
    lines = ["| tokens | way | prompts a second | × one by one | difference | state |", "|---|---|---|---|---|---|"]
    for tokens, ways in results.items():
        own = ways["diffscope, one by one"]["prompts_a_second"]
        for name, result in ways.items():
            rate = result["prompts_a_second"]
            lines.append(
                f"| {tokens:,} | {name} | {rate:.3g} | {rate / own:.2f} | {result['difference']:.0e} | {result['state']} |"
            )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--prompts", type=int, help="how many, instead of the usual number")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    machine = report.machine("cpu")
    warning = report.load_warning()
    results = {}
    for tokens in options.tokens:
        subject, count = SIZES[tokens]
        results[tokens] = measure(subject, tokens, options.prompts or count, options.rounds)
    print("\n".join(filter(None, (machine, warning, table(results)))))
    if options.out:
        record = {"machine": machine, "warning": warning, "results": results}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
