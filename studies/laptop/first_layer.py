"""The page ``first_layer.md``: where the second map of the bundled mini-diff looks, and what the answer loses without it.

mini-diff is the DIFF model of seed 5 of the study's cohort, the one of its eight whose weights are shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

import diffscope
from diffscope import edits
from diffscope.edits import Edit
from diffscope.evidence.ablations import answers
from diffscope.evidence.signs import previous_token_share
from diffscope.render import pipe_table
from diffscope.scope import Scope
from diffscope.tasks import Retrieval
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.sampling import draw
from diffscope.tasks.training_sentence import template_of
from studies.markdown import mean

MODEL = "mini-diff"
LENGTH, NEEDLES, PROMPTS, SEED = 256, 25, 100, 70_000
STEPS = (0, 200, 400)
LAMBDAS = (0.5, 0.75, 1.0, 1.25)
MAPS = ("A1", "A2")
EDITS: dict[str, Callable[..., Edit]] = {
    "without A2": edits.zero_a2,
    "negative weights of D set to 0": edits.d_plus,
    "A2 uniform": edits.uniform_a2,
    "one A2 for the layer's heads, their mean": edits.share_a2,
}


def prompts_for(scope: Scope, count: int) -> list[Prompt]:
    """Held-out text with 24 distractors and one question."""
    task = Retrieval(scope.tokenizer, held_out=True, template=template_of(MODEL))
    return draw(task, count, LENGTH, NEEDLES, SEED)


def before_the_number(scope: Scope, prompts: Sequence[Prompt]) -> dict[str, np.ndarray]:
    """Return what A1 and A2 give to the token before the number that is asked for, (prompt, layer, head)."""
    shares = previous_token_share(scope, prompts)
    return {name: shares[name.lower()].values for name in MAPS}


def rises(scope: Scope, prompts: Sequence[Prompt], layers: int) -> Iterator[tuple[str, list[np.ndarray]]]:
    """By how much the answer's loss rises under each edit of one layer, (prompt,) in nats, by layer."""
    before = answers(scope, prompts).loss
    for words, edit in EDITS.items():
        yield words, [answers(scope, prompts, edit(layers=layer)).loss - before for layer in range(layers)]
    for value in LAMBDAS:
        yield (
            f"λ = {value:g}",
            [answers(scope, prompts, edits.set_lambda(value, layers=layer)).loss - before for layer in range(layers)],
        )


def page(count: int = PROMPTS) -> str:
    """All of it, as Markdown."""
    scope = diffscope.load(MODEL)
    prompts = prompts_for(scope, count)
    masses = before_the_number(scope, prompts)
    layers, heads = masses["A1"].shape[1:]
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    looks = [(f"layer {layer}, head {head}", *(mean(masses[name][:, layer, head]) for name in MAPS)) for layer, head in places]
    named = [f"layer {layer}" for layer in range(layers)]
    costs = [(words, *map(mean, by_layer)) for words, by_layer in rises(scope, prompts, layers)]
    learned = answers(scope, prompts)
    return (
        "# The second map of mini-diff, layer by layer\n\n"
        f"The DIFF model of seed 5, the one of the cohort's eight whose weights are shipped, on {count} held-out prompts of "
        f"{LENGTH} tokens with {NEEDLES - 1} distractors, of which it answers {learned.right.mean():.0%} "
        f"(loss {learned.loss.mean():.2f} nats). Means with 95 % intervals over prompts: of "
        "this model, and of no other. Read after the study, and corrected for nothing. [The second study](subtraction.md) does "
        "the same with all eight seeds, trained again.\n\n"
        "## What the token before the number gets\n\nQuery: the number that is asked for, where the text states it. Key: the "
        f"token before it, the end of its city.\n\n{pipe_table(('', *MAPS), looks)}\n"
        f"## The same along the training, layer 0\n\n{pipe_table(('step', 'λ', *_columns(heads)), _along(prompts, count))}\n"
        "## What the answer loses\n\nRise of its loss in nats, one layer changed at a time; its λ at the end is "
        f"{', '.join(f'{lam:.2f}' for lam in _lambdas(scope, prompts))}.\n\n{pipe_table(('', *named), costs)}"
    )


def _columns(heads: int) -> list[str]:
    return [f"{name}, head {head}" for name in MAPS for head in range(heads)]


def _lambdas(scope: Scope, prompts: Sequence[Prompt]) -> list[float]:
    return [float(layer.lam.mean()) for layer in scope.capture(prompts[0].ids).layers]


def _along(prompts: Sequence[Prompt], count: int) -> list[tuple[str, ...]]:
    rows = []
    for step in (*STEPS, None):
        scope = diffscope.load(MODEL if step is None else f"{MODEL}@{step}")
        masses = before_the_number(scope, prompts)
        means = [f"{masses[name][:, 0, head].mean():.2f}" for name in MAPS for head in range(masses[name].shape[2])]
        rows.append(("end" if step is None else str(step), f"{_lambdas(scope, prompts)[0]:.2f}", *means))
    return rows
