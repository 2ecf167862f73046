"""Turn a finished run into a bundled model with its card: ``python tools/publish_models.py runs/mini``."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from diffscope.lab.scoring import draw, exact_answers, score
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.train import RUN
from diffscope.models.loading import BUNDLED
from diffscope.scope import load
from diffscope.tasks.examples import FILE, Example
from diffscope.tasks.retrieval import Prompt, Retrieval

# (tokens for the bundled tokenizer, needles, depth of the queried one)
KINDS = ((96, 2, 0.5), (128, 4, 0.0), (128, 4, 0.5), (256, 4, 0.25), (256, 4, 1.0), (256, 6, 0.5))
SCORED = dict(count=500, needles=4, seed=20_000)
CURVE = "| {step} | {length} | {answer_loss:.3f} | {text_loss:.3f} | {retrieval:.0%} |"
CARD = """---
license: apache-2.0
library_name: transformers
---
# {name}

{kind} of {parameters:,} parameters ({layers} layers, {heads} heads), trained by diffscope to look up numbers in real text.
One of a matched pair: the other arm has the same width, depth, data, order of data, steps and schedule. It exists to be looked
into: small enough for a laptop, and it really retrieves. It knows little English and is of no other use.

- **Command**: `{command}`, with the code of revision {revision}
- **Data**: documentation strings of the standard library of Python 3.11.7 (SHA-256 of the training text
  `{fingerprint}`), 8 % of modules held out by a hash of their path;
  needle sentences "The magic number: CITY N." drawn from seed {seed}.
- **Trained length**: {length} tokens. Torch {torch}, {threads} thread(s), float32, {minutes:.0f} minutes.
- **Exact answers** at {length} tokens, {needles} needles, one question, {prompts} unseen prompts over held-out text:
  **{retrieval:.1%}** (95 % interval {low:.1%} to {high:.1%}); by depth of the needle: {by_depth}.
- **Checkpoints** along training, half precision, opened as `{name}@STEP`: {checkpoints}.

| step | prompt length | answer loss | text loss | exact answers (60 prompts) |
|---|---|---|---|---|
{curve}

All logged points are in `card.json` under `curves`.
"""


def publish(run: Path, recipe: Recipe, arm: str) -> dict:
    """Copy one trained arm into the package, score it and write its card; returns the summary."""
    source, target = run / arm / f"seed-{recipe.seeds[0]}", BUNDLED / arm
    scope = load(source)
    task = Retrieval(scope.tokenizer, held_out=True)
    scores = score(exact_answers(scope.model, draw(task, length=recipe.length, **SCORED)))
    curves = [json.loads(line) for line in (source / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, target / name)
    kept = sorted((source / "checkpoints").glob("step-??????"))[:-1]  # the last one is the model itself
    for folder in kept:
        shutil.copytree(folder, target / "checkpoints" / folder.name)
    config = scope.model.config
    summary = {
        "name": arm,
        "attention": config.attention,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "parameters": scope.model.num_parameters(),
        "positions": recipe.length,
        "scores": scores,
        "checkpoints": [int(folder.name.removeprefix("step-")) for folder in kept],
    }
    ran = json.loads((source / RUN).read_text(encoding="utf-8"))
    facts = {
        "command": f"diffscope train {recipe.name} --arm {arm} --out runs/{recipe.name} --threads 1",
        "seed": recipe.seeds[0],
        "minutes": curves[-1]["seconds"] / 60,
        **{name: fact for name, fact in ran.items() if name != "recipe"},  # the card has it by itself
    }
    scored_on = {**SCORED, "length": recipe.length}
    card = {"summary": summary, "facts": facts, "scored_on": scored_on, "recipe": recipe.as_dict(), "curves": curves}
    (target / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (target / "README.md").write_text(_card(summary, facts, curves), encoding="utf-8")
    return summary


def _card(summary: dict, facts: dict, curves: list[dict]) -> str:
    kinds = {"v1": "A DIFF Transformer (V1)", "v2": "A DIFF Transformer (V2)", "standard": "A standard Transformer"}
    scores = summary["scores"]
    return CARD.format(
        **{**summary, **facts},
        kind=kinds[summary["attention"]],
        length=summary["positions"],
        needles=SCORED["needles"],
        prompts=scores["prompts"],
        retrieval=scores["retrieval"],
        low=scores["interval"][0],
        high=scores["interval"][1],
        by_depth=", ".join(f"{float(depth):.0%} {share:.1%}" for depth, share in scores["by_depth"].items()),
        curve="\n".join(CURVE.format(**row) for row in curves if "retrieval" in row),
    )


def as_example(task: Retrieval, prompt: Prompt, name: str) -> Example:
    """A generated prompt as text with character ranges, one a run of neighbouring tokens."""
    pieces = [task.tokenizer.decode([token]) for token in prompt.ids[1:]]  # without <bos>
    ends = np.concatenate([[0, 0], np.cumsum([len(piece) for piece in pieces])])  # of each token, <bos> included
    ranges = {}
    for span in ("answer", "needles", "query"):
        at = np.array(prompt.spans[span], dtype=int)
        runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1) if len(at) else []
        ranges[span] = [[int(ends[run[0]]), int(ends[run[-1] + 1])] for run in runs]
    return Example(name, "".join(pieces), ranges, task.tokenizer.decode(prompt.answer).strip())


def write_examples(task: Retrieval, seed: int = 7) -> None:
    """Draw the examples anew."""
    rng = np.random.default_rng(seed)
    drawn = []
    for length, needles, depth in KINDS:
        prompt = task.prompt(length, needles, rng, depth)
        name = f"{length} tokens, {needles} needles, answer at {round(100 * depth)} %"
        drawn.append(asdict(as_example(task, prompt, name)))
    FILE.write_text(json.dumps(drawn, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(run: str, recipe: str = "mini") -> None:
    """Publish every arm of a run, and draw the example prompts with its tokenizer."""
    chosen = Recipe.load(recipe)
    for arm in chosen.arms:
        summary = publish(Path(run), chosen, arm)
        sys.stdout.write(f"{arm}: {summary['scores']['retrieval']:.1%} exact answers\n")
    write_examples(Retrieval(load(arm).tokenizer, held_out=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
