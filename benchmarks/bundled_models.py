"""What the bundled pair loses when its attention is changed: λ, the second map, the norm, the first map.

    python benchmarks/bundled_models.py > docs/interventions.md

Every prompt is held-out text of 256 tokens with four needles; loss and answers come from one forward pass under each edit.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch
from scipy.stats import binomtest
from torch.nn.functional import cross_entropy

import diffscope
from diffscope import edits
from diffscope.lab.scoring import draw
from diffscope.tasks import Retrieval
from diffscope.tasks.trained_on import template_of

LENGTH, NEEDLES, ROWS = 256, 4, 25


@torch.no_grad()
def scores(scope, prompts, *active) -> dict[str, np.ndarray]:
    """Of each prompt under edits: loss over its text and over its answer (nats a token), and whether it is answered exactly."""
    values = {"text": [], "answer": [], "right": []}
    with scope.edit(*active):
        for start in range(0, len(prompts), ROWS):
            some = prompts[start : start + ROWS]
            ids = torch.tensor([prompt.ids + prompt.answer for prompt in some])
            logits = scope.model(ids[:, :-1], use_cache=False).logits
            losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")  # (prompt, token − 1)
            width = len(some[0].answer)
            values["text"].append(losses[:, :-width].mean(1))
            values["answer"].append(losses[:, -width:].mean(1))
            values["right"].append((logits[:, -width:].argmax(-1) == ids[:, -width:]).all(1))
    return {name: torch.cat(parts).numpy() for name, parts in values.items()}


def row(name: str, edited: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> str:
    """One line of a table; changes are of the same prompts, with their standard error."""
    right = edited["right"]
    low, high = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    change = edited["text"] - plain["text"]
    error = change.std(ddof=1) / len(change) ** 0.5
    text = f"{edited['text'].mean():.3f} | {change.mean():+.3f} ± {error:.3f}"
    return f"| {name} | {text} | {edited['answer'].mean():.3f} | {right.mean():.1%} ({low:.1%}–{high:.1%}) |"


HEADER = "| edit | loss of the text | change | loss of the answer | exact answers (95 %) |\n|---|---|---|---|---|"


def table(title: str, scope, prompts, plain, rows) -> None:
    print(f"\n## {title}\n\n{HEADER}\n{row('none', plain, plain)}")
    for name, edit in rows:
        start = time.perf_counter()
        print(row(name, scores(scope, prompts, edit), plain), flush=True)
        print(f"{title}: {name}, {time.perf_counter() - start:.0f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--averaged", type=int, default=100, help="prompts that means are taken over")
    parser.add_argument("--seed", type=int, default=20_000)
    options = parser.parse_args()
    diff, standard = diffscope.load("mini-diff"), diffscope.load("mini-standard")
    task = Retrieval(diff.tokenizer, held_out=True, template=template_of("mini-diff"))
    prompts = draw(task, options.prompts, LENGTH, NEEDLES, options.seed)
    others = [p.ids + p.answer[:-1] for p in draw(task, options.averaged, LENGTH, NEEDLES, options.seed + 1)]
    plain, baseline = scores(diff, prompts), scores(standard, prompts)
    print("# What the bundled pair loses when its attention is changed\n")
    print(
        f"`python benchmarks/bundled_models.py --prompts {options.prompts} --averaged {options.averaged} --seed {options.seed}`: "
        f"{options.prompts} held-out prompts of {LENGTH} tokens, {NEEDLES} needles, one question. Losses in nats a token, mean "
        "over tokens, then prompts; the change is of the same prompts, ± its standard error over prompts. An edit acts on all "
        "layers and heads at once. One pair, one seed: numbers of these two models, not of the architecture."
    )
    print(f"\n{HEADER}\n{row('mini-diff as trained', plain, plain)}\n{row('mini-standard as trained', baseline, baseline)}")
    lams = [(f"λ = {value:g}", edits.set_lambda(value)) for value in np.arange(0, 1.51, 0.25)]
    table("λ clamped (mini-diff)", diff, prompts, plain, lams)
    seconds = [(f"A2 of rank {rank}", edits.low_rank_a2(rank)) for rank in (1, 2, 4, 8, 32, 128)]
    seconds += [
        (f"A2 = its mean over {options.averaged} other prompts", edits.mean_a2(diff, others)),
        ("A2 = its mean by distance", edits.positional_a2(diff, others)),
        ("A2 uniform", edits.uniform_a2()),
        ("A2 = 0", edits.zero_a2()),
    ]
    table("The second map replaced (mini-diff)", diff, prompts, plain, seconds)
    norms = [("no norm", edits.remove_norm()), ("norm → one number a head", edits.scalar_norm(diff, others))]
    table("The norm replaced (mini-diff)", diff, prompts, plain, norms)
    shapes = [("\\|D\\|", edits.absolute_d()), ("D⁺", edits.d_plus()), ("A1 top-8", edits.top_k_a1(8))]
    table("The signs of D, and a sparse A1 (mini-diff)", diff, prompts, plain, shapes)
    table("The standard model's map made sparse", standard, prompts, baseline, [("A top-8", edits.top_k_a1(8))])


if __name__ == "__main__":
    main()
