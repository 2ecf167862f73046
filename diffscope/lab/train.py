"""Train one arm of a matched family: same data, same order, same steps, and resumable to the step.

What a step trains on depends on the seed and the step's number alone, so all arms see the same prompts in the same order
and a run that was killed goes on exactly where its last saved state stands.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from diffscope.errors import DiffscopeError
from diffscope.lab.evaluate import draw, exact_answers
from diffscope.lab.optimizer import Optimizer
from diffscope.lab.recipe import Recipe
from diffscope.models import DiffForCausalLM
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.text import fingerprint, standard_library_text
from diffscope.tasks.vocabulary import CITIES, train_tokenizer

SAVE_EVERY = 50
LOG_EVERY = 10
GIVEN_AWAY, TEXT = 1, 0  # kinds of target, see Retrieval.training_rows


def tokenizer_for(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The family's tokenizer: learned from the training text and the needle sentence, so its words are single tokens."""
    sentences = [TEMPLATE.partition("{number}")[0].format(city=city) for city in CITIES] * 40
    return train_tokenizer([*standard_library_text(held_out=False), *sentences], recipe.vocab_size)


def losses(logits: torch.Tensor, ids: torch.Tensor, kind: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean loss on numbers an earlier mention gives away, mean loss on text, and the share of those numbers' tokens right.

    logits (row, token, vocabulary), ids (row, token), kind (row, token).
    """
    target, kind = ids[:, 1:], kind[:, 1:]
    each = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    right = (logits[:, :-1].argmax(-1) == target)[kind == GIVEN_AWAY].float().mean()
    return each[kind == GIVEN_AWAY].mean(), each[kind == TEXT].mean(), right


def facts_of_run() -> dict:
    """What a training depends on beside its recipe, for the model card."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "fingerprint": fingerprint(standard_library_text(held_out=False)),
    }


def recipe_text(recipe: Recipe) -> str:
    """A recipe as text, equal if and only if the recipes are."""
    return json.dumps(recipe.as_dict(), sort_keys=True)


def weights_of(model) -> dict[str, torch.Tensor]:
    """Every tensor of a model once: an output matrix that is the embedding is left out."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def save_state(path: Path, step: int, model, optimizer: Optimizer, metrics: list[dict], recipe: Recipe) -> None:
    """Weights, optimizer and metrics in one file, replaced in one move."""
    tensors = {f"model/{name}": p for name, p in weights_of(model).items()}
    tensors.update({f"optimizer/{name}": value for name, value in optimizer.state().items()})
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    unfinished = path.with_suffix(".unfinished")
    save_file(tensors, unfinished, metadata={"step": str(step), "metrics": json.dumps(metrics), "recipe": recipe_text(recipe)})
    os.replace(unfinished, path)


def restore_state(path: Path, model, optimizer: Optimizer, recipe: Recipe) -> tuple[int, list[dict]]:
    """Load what :func:`save_state` wrote; (0, []) if there is nothing.

    Raises
    ------
    DiffscopeError
        It was written under another recipe.
    """
    if not path.exists():
        return 0, []
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    if facts["recipe"] != recipe_text(recipe):
        raise DiffscopeError(f"{path.parent} was begun with another recipe; train into another folder, or remove it")
    tensors = load_file(path, device=str(model.device))
    weights = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    optimizer.restore({name.removeprefix("optimizer/"): t for name, t in tensors.items() if name.startswith("optimizer/")})
    return int(facts["step"]), json.loads(facts["metrics"])


def save_checkpoint(model, folder: Path) -> None:
    """Weights in half precision under a name that appears only when all is written."""
    if folder.exists():  # the run was killed after it had written this one
        return
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().half().contiguous().cpu() for name, p in weights_of(model).items()}
    save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
    os.replace(unfinished, folder)


def train(
    recipe: str | Recipe,
    arm: str,
    out: str | os.PathLike,
    *,
    threads: int | None = None,
    device: str = "cpu",
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Train one arm, or go on where an earlier run of it stopped.

    Parameters
    ----------
    recipe : str or Recipe
        A bundled recipe's name, a TOML file, or the recipe itself.
    arm : str
    out : path
        Gets ``ARM/`` with the final model, its tokenizer, ``checkpoints/`` and ``metrics.jsonl``.
    threads : int, optional
        Processor threads.
    progress : callable, optional
        Called with (steps done, steps in all, a short note).

    Returns
    -------
    Path
        The folder of the trained model.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    if threads:
        torch.set_num_threads(threads)
    recipe.config(arm, recipe.vocab_size)  # an unknown arm is refused before anything is made
    tokenizer = tokenizer_for(recipe)
    torch.manual_seed(recipe.seed)
    model = DiffForCausalLM(recipe.config(arm, len(tokenizer))).to(device)
    folder = Path(out) / arm
    folder.mkdir(parents=True, exist_ok=True)
    optimizer = Optimizer(model, recipe.weight_decay)
    state = folder / "state.safetensors"
    start, metrics = restore_state(state, model, optimizer, recipe)
    task, unseen = (Retrieval(tokenizer, held_out=held_out) for held_out in (False, True))
    tasks = {stage.template: task.with_template(stage.template) for stage in recipe.stages}
    keep = recipe.saved_steps()
    if start == 0:
        (folder / "run.json").write_text(json.dumps(facts_of_run()), encoding="utf-8")
        save_checkpoint(model, folder / "checkpoints" / "step-000000")
    began = time.monotonic() - (metrics[-1]["seconds"] if metrics else 0.0)
    for step in range(start, recipe.steps):
        stage = recipe.stage(step)
        rng = np.random.default_rng([recipe.seed, step])
        needles = int(rng.integers(stage.needles[0], stage.needles[1] + 1))
        drawn = tasks[stage.template].training_rows(stage.rows, stage.length, needles, stage.mentions, rng)
        ids, kind = (torch.from_numpy(x).to(device) for x in drawn)
        answers, text, right = losses(model(ids, use_cache=False).logits, ids, kind)
        (answers + stage.text_weight * text).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(recipe.rate(step))
        done = step + 1
        if done % LOG_EVERY == 0 or done == recipe.steps:
            row = dict(answer_loss=answers, text_loss=text, answer_tokens_right=right, gradient_norm=norm)
            row = {name: round(value.item(), 5) for name, value in row.items()}
            row |= {"step": done, "length": stage.length, "seconds": round(time.monotonic() - began, 1)}
            if done % recipe.evaluate_every == 0 or done == recipe.steps:
                prompts = draw(unseen, 60, max(stage.length, 72), needles=4, seed=recipe.seed + 1)
                row["retrieval"] = float(exact_answers(model, prompts).mean())
            metrics.append(row)
            if progress:
                progress(done, recipe.steps, f"answer loss {row['answer_loss']:.3f}, text loss {row['text_loss']:.3f}")
        if done in keep:
            save_checkpoint(model, folder / "checkpoints" / f"step-{done:06d}")
        if done % SAVE_EVERY == 0 or done == recipe.steps:
            save_state(state, done, model, optimizer, metrics, recipe)
            write_metrics(folder / "metrics.jsonl", metrics)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_metrics(path: Path, metrics: list[dict]) -> None:
    """One JSON object a line, replaced in one move."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in metrics), encoding="utf-8")
    os.replace(unfinished, path)
