"""Show what watching a training costs, and which alarm an accident sets off.

python -m benchmarks.monitor
python -m benchmarks.monitor --part accident
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from statistics import median

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import diffscope
from benchmarks import results
from benchmarks.results import LOAD, Section, table
from diffscope.monitoring.schedule import stride
from diffscope.tasks.text import standard_library_text

SIZES = {"0.2 M": (64, 2), "3 M": (192, 6), "17 M": (384, 8)}  # width and layers
PROMPTS = (4, 16)  # of 128 tokens
QUERIES = (32, 64)
ROUNDS = 3
EVERY = 100
ACCIDENT = 150  # the step from which the learning rate is 30 times as large
AFTER, WATCHED = 100, 25  # steps after the accident that are trained, and around it that are measured
LENGTH = 128
COMMAND = "python -m benchmarks.monitor --part "
RATE = 1e-3


def model_of(width: int, layers: int, vocabulary: int) -> DiffLlamaForCausalLM:
    torch.manual_seed(0)
    config = DiffLlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=vocabulary,
    )
    return DiffLlamaForCausalLM(config).train()


def rows(count: int, held_out: bool = False) -> torch.Tensor:
    """Tokens of the bundled text, (row, token)."""
    tokenizer = diffscope.load("mini-diff").tokenizer
    ids: list[int] = []
    for text in standard_library_text(held_out):
        ids += tokenizer(text)["input_ids"]
        if len(ids) >= count * LENGTH:
            break
    return torch.tensor(ids[: count * LENGTH]).view(count, LENGTH)


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> float:
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def interleaved(acts: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median processor time of each of some calls, which take turns; a first round is not counted."""
    took: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(rounds + 1):
        for name, act in acts.items():
            began = time.process_time()
            act()
            if number:
                took[name].append(time.process_time() - began)
    return {name: median(times) for name, times in took.items()}


def cost(quick: bool) -> Section:
    """Time a measurement, and its share of a training on batches of 32 rows."""
    vocabulary = len(diffscope.load("mini-diff").tokenizer)
    batch, held_out = rows(32), rows(max(PROMPTS), held_out=True)
    lines, numbers = [], {}
    for size, (width, layers) in list(SIZES.items())[: 1 if quick else None]:
        model = model_of(width, layers, vocabulary)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        acts: dict[str, Callable[[], object]] = {"a step": partial(step_of, model, optimizer, batch)}
        for count, queries in product(PROMPTS, QUERIES):
            monitor = diffscope.monitor(model, held_out[:count], every=1, queries=queries, budget=None)
            acts[f"{count} {queries}"] = partial(lambda monitor, steps: monitor.step(next(steps)), monitor, itertools.count())
        took = interleaved(acts, 1 if quick else ROUNDS)
        training = took.pop("a step")
        for name, measuring in took.items():
            share = measuring / (measuring + EVERY * training)
            numbers[f"{size} {name}"] = [training, measuring, share]
            stretched = stride(EVERY, measuring, training, 0.02)
            lines.append([size, *name.split(), f"{training:.2f} s", f"{measuring:.2f} s", f"{100 * share:.2f} %", stretched])
    header = ["parameters", "prompts", "queries", "a step", "a measurement", f"share, every {EVERY} steps", "steps within 2 %"]
    text = (
        f"Prompts and rows of {LENGTH} tokens, batches of 32 rows, processor time in one thread, medians of {ROUNDS} rounds in "
        "which training and measurements take turns. The last column is what the default budget stretches `every=100` to."
    )
    shown = table("What a measurement of the usual statistics costs", header, lines)
    return Section("cost", "What watching a training costs", COMMAND + "cost", "DiffLlama", [shown], text, numbers, load=LOAD)


def accident(quick: bool) -> Section:
    """Make the learning rate 30 times as large: which alarm is set off, and when does the loss show it?"""
    begins = 10 if quick else ACCIDENT
    vocabulary = len(diffscope.load("mini-diff").tokenizer)
    model = model_of(64, 2, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    monitor = diffscope.monitor(model, rows(8, held_out=True), every=1, budget=None, queries=32)
    monitor.alert("entropy", below=0.5, map="A1")
    texts = rows(400)
    losses = []
    for step in range(begins + AFTER):
        if step == begins:
            for group in optimizer.param_groups:
                group["lr"] *= 30
        losses.append(step_of(model, optimizer, texts[torch.randint(len(texts), (8,))]))
        if abs(step - begins) <= WATCHED:
            monitor.step(step)
    highest = max(losses[max(0, begins - 50) : begins])
    shown = next((step for step, loss in enumerate(losses) if step >= begins and loss > highest), None)
    seen: dict[str, int] = {}
    for alert in monitor.alerts:
        seen.setdefault(alert.rule, alert.step)
    lines: list[list[object]] = [
        [f"loss above {highest:.2f}, the largest of the 50 steps before", shown],
        *map(list, seen.items()),
    ]
    part = table(f"The first step that shows it; the accident is at step {begins}", ["what shows it", "step"], lines)
    text = f"A DiffLlama of 0.2 M parameters whose learning rate becomes 30 times as large, followed for {AFTER} steps."
    numbers = {"losses": [round(loss, 4) for loss in losses], "alarms": seen}
    return Section("accident", "Which alarm an accident sets off", COMMAND + "accident", "DiffLlama", [part], text, numbers)


PARTS = {"cost": cost, "accident": accident}


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--part", choices=PARTS, help="by default all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.part] if options.part else PARTS:
        results.keep("monitor", [PARTS[name](options.quick)], options)


if __name__ == "__main__":
    main()
