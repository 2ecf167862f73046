"""Measure statistics of many prompts on one model, in prompts a second; the ways take turns, each with a model of its own."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import torch

import diffscope
from benchmarks.engine import subjects
from benchmarks.engine.methods import METHODS, values_of
from benchmarks.engine.script import Values
from benchmarks.meter import Meter
from benchmarks.results import table
from diffscope.tables.table import Table

SIZES = {256: ("bundled", 32), 2048: ("random", 8)}  # tokens: the model, and how many prompts
AT_ONCE = 4096  # tokens
PEERS = ("TransformerLens", "nnsight", "numpy, full maps")
CLOSE = 5e-3  # of a value and 0.01
UNCOMPARED = {"argmax", "negative_count", "near_zero"}  # positions and counts, which may differ where float32 cannot tell
BASE = "diffscope, one by one"
Way = Callable[[], list[Values]]


def ways(subject: str, tokens: int, count: int) -> dict[str, Way]:
    """Prepare every way: a call takes the statistics of all prompts."""

    def make() -> torch.nn.Module:
        return subjects.SUBJECTS[subject](tokens, "cpu")

    scope = diffscope.load(make())
    generator = torch.Generator().manual_seed(0)
    prompts = list(torch.randint(2, scope.model.config.vocab_size, (count, 1, tokens), generator=generator))
    ids = [prompt[0].tolist() for prompt in prompts]
    size = max(1, AT_ONCE // tokens)

    def in_batches() -> list[Values]:
        batches = [scope.measure(ids[start : start + size], "row") for start in range(0, count, size)]
        return [values_of(batch.isel(prompt=index)) for batch in batches for index in range(batch.sizes["prompt"])]

    def one_by_one() -> list[Values]:
        return [values_of(scope.measure(prompt, "row")) for prompt in ids]

    prepared: dict[str, Way] = {"diffscope, in batches": in_batches, BASE: one_by_one}
    for name in PEERS:
        runs = [METHODS[name](make(), prompt) for prompt in prompts]  # a model can be bridged once
        prepared[name] = lambda runs=runs: [run() for run in runs]  # type: ignore[misc]
    return prepared


def largest_difference(values: Values, reference: Values) -> float:
    """Return the largest difference of a statistic relative to its size."""
    compared = set(reference) - UNCOMPARED
    differences = [np.abs(values[name] - reference[name]) / (1e-2 + np.abs(reference[name])) for name in compared]
    return max(float(np.nanmax(difference)) for difference in differences)


def measure(tokens: int, count: int, rounds: int) -> list[dict]:
    """Return prompts a second of every way, and its largest difference from diffscope's own values, one by one."""
    subject, _ = SIZES[tokens]
    prepared = ways(subject, tokens, count)
    first = {name: way() for name, way in prepared.items()}
    errors = {name: max(map(largest_difference, values, first[BASE])) for name, values in first.items()}
    seconds: dict[str, list[float]] = {name: [] for name in prepared}
    for _ in range(rounds):
        for name, way in prepared.items():
            seconds[name].append(Meter().measure(way).seconds)
    return [
        {
            "tokens": tokens,
            "method": name,
            "prompts a second": count / statistics.median(taken),
            "difference": errors[name],
            "state": "ok" if errors[name] < CLOSE else "differs",
        }
        for name, taken in seconds.items()
    ]


def table_of(caption: str, records: list[dict]) -> Table:
    """Return a table of all ways."""
    columns = ("tokens", "method", "prompts a second", "difference", "state")
    rows = [
        [f"{of['tokens']:,}", of["method"], f"{of['prompts a second']:.3g}", f"{of['difference']:.0e}", of["state"]]
        for of in records
    ]
    return table(caption, columns, rows)
