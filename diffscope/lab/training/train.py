"""Train one arm of a matched cohort: same data, same order, same steps, and resumable to the step.

The data of a step depend on the seed and the step's number alone, so all arms see the same prompts in the same order, and a run
that was killed goes on exactly from its last saved state.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.lab.jobs.job import locked, torch_threads
from diffscope.lab.scoring import exact_answers, mixture
from diffscope.lab.training.optimizer import Optimizer
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run_folder import (
    METRICS,
    RUN,
    STATE,
    events,
    facts_of_run,
    is_finished,
    note_run,
    recipe_text,
    restore_state,
    save_checkpoint,
    save_model,
    save_state,
    write_metrics,
)
from diffscope.models import DiffForCausalLM
from diffscope.models.loading import move
from diffscope.tasks.corpus import standard_library_text
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.tokenizer import CITIES, train_tokenizer

SAVE_EVERY = 50  # steps
LOG_EVERY = 10  # steps
# Kinds of target, see Retrieval.training_rows
TEXT = 0
GIVEN_AWAY = 1
NO_KIND = -1


def tokenizer_for(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The cohort's tokenizer, learned from the training text and the needle sentence, so that its words are single tokens."""
    return _tokenizer(recipe.vocab_size, recipe.words)


@cache
def _tokenizer(vocab_size: int, words: tuple[str, ...]) -> PreTrainedTokenizerFast:
    sentences = [TEMPLATE.partition("{number}")[0].format(city=city) for city in CITIES] * 40
    return train_tokenizer([*standard_library_text(held_out=False), *sentences], vocab_size, words)


def losses(logits: torch.Tensor, ids: torch.Tensor, kind: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses of one step of training.

    Parameters
    ----------
    logits : Tensor (row, token, vocabulary)
    ids : Tensor (row, token)
    kind : Tensor (row, token)
        As :meth:`~diffscope.tasks.Retrieval.training_rows` gives it.

    Returns
    -------
    answers : Tensor ()
        Mean cross-entropy, in nats, on the answers that an earlier mention gives away.
    text : Tensor ()
        The same on everything but numbers.
    right : Tensor ()
        Share of the tokens of those answers that are the first choice.
    """
    # The last token's target is of no kind. To cut it off would cost a copy of all logits.
    target = ids.roll(-1, 1)
    kind = kind.roll(-1, 1)
    kind[:, -1] = NO_KIND
    loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    answers = kind == GIVEN_AWAY
    right = (logits.detach()[answers].argmax(-1) == target[answers]).float().mean()
    return loss[answers].mean(), loss[kind == TEXT].mean(), right


@torch.no_grad()
def initialise(model, seed: int) -> None:
    """Draw every random tensor of a fresh model from a random stream of its own, given by the seed and the tensor's name.

    So tensors that two arms have in common, in name and shape, begin equal. Tensors that begin as one constant are left as they
    are.
    """
    config = model.config
    for name, tensor in model.named_parameters():
        if (tensor == tensor.flatten()[0]).all():
            continue
        stream = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7])
        values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(stream))
        scale = config.initializer_range if tensor.dim() == 2 else config.lambda_std_dev
        tensor.copy_(values * scale)
    if config.pad_token_id is not None:
        model.get_input_embeddings().weight[config.pad_token_id] = 0


def train(
    recipe: str | Recipe,
    arm: str,
    out: str | os.PathLike,
    *,
    seed: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    tensorboard: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Train one arm with one seed, or go on where an earlier run of it stopped.

    Parameters
    ----------
    recipe : str or Recipe
        A bundled recipe's name, a TOML file, or the recipe itself.
    arm : str
    out : path
        Gets ``ARM/seed-N/`` with the final model, its tokenizer, ``checkpoints/`` and ``metrics.jsonl``.
    seed : int, optional
        By default the recipe's first.
    threads : int, optional
        Processor threads; by default torch's.
    device : str
    tensorboard : bool
        Whether the metrics also go to ``out/tensorboard/ARM/seed-N``.
    progress : callable, optional
        Called with (steps done, steps in all, a short note).

    Returns
    -------
    Path
        The folder of the trained model.

    Raises
    ------
    DiffscopeError
        There is no such arm, or the folder holds a run of another recipe.
    MissingExtra
        `tensorboard` is set and tensorboardX is not installed.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    seed = recipe.seeds[0] if seed is None else seed
    recipe.config(arm, recipe.vocab_size)  # an unknown arm is refused before anything is made
    check_tools(device, tensorboard)
    folder = Path(out) / arm / f"seed-{seed}"
    board = Path(out) / "tensorboard" / arm / f"seed-{seed}" if tensorboard else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder), torch_threads(threads or torch.get_num_threads()):
        if not is_finished(folder, recipe_text(recipe, arm)):
            _train(recipe, arm, seed, folder, device, board, progress)
    return folder


def check_tools(device: str, tensorboard: bool) -> None:
    """Raise where the device does not exist, or TensorBoard's writer is needed and not installed.

    Raises
    ------
    UnsupportedModel, MissingExtra
    """
    move(torch.nn.Identity(), device)
    if tensorboard and not find_spec("tensorboardX"):
        raise MissingExtra('--tensorboard needs tensorboardX; install it with: pip install "diffscope-attention[lab]"')


class _Trainer:
    """A model in training, with the prompts that it trains on and is scored on along the way."""

    def __init__(self, recipe: Recipe, arm: str, seed: int, device: str):
        self.recipe = recipe
        self.arm = arm
        self.seed = seed
        self.tokenizer = tokenizer_for(recipe)
        with torch.random.fork_rng(devices=[]):
            self.model = DiffForCausalLM(recipe.config(arm, len(self.tokenizer)))
        initialise(self.model, seed)
        self.model.to(device)
        self.optimizer = Optimizer(self.model, recipe.weight_decay)
        self.forward = _compiled(self.model) if recipe.compiled else self.model
        self.autocast = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
        task = Retrieval(self.tokenizer, held_out=False)
        self.tasks = {stage.template: task.with_template(stage.template) for stage in recipe.stages}
        self.scored = mixture(recipe.evaluation, Retrieval(self.tokenizer, held_out=True))

    def step(self, number: int) -> tuple[dict[str, torch.Tensor], int]:
        """One step of training, counted from 0: what may be logged of it, and the length of its prompts in tokens."""
        stage = self.recipe.stage(number)
        drawn = stage.draw(self.tasks[stage.template], np.random.default_rng([self.seed, number]))
        ids, kind = (torch.from_numpy(array).to(self.model.device) for array in drawn)  # (row, token)
        with self.autocast:
            logits = self.forward(ids, use_cache=False).logits
        answers, text, right = losses(logits, ids, kind)
        (answers + stage.text_weight * text).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(self.recipe.rate(number))
        return dict(answer_loss=answers, text_loss=text, answer_tokens_right=right, gradient_norm=norm), ids.shape[1]

    def row(self, values: dict[str, torch.Tensor], length: int, done: int, seconds: float) -> dict:
        """A row of metrics after `done` steps, with ``retrieval`` where the recipe evaluates.

        Raises
        ------
        DiffscopeError
            A loss is not finite.
        """
        row = {name: round(value.item(), 5) for name, value in values.items()}
        if not all(math.isfinite(row[name]) for name in ("answer_loss", "text_loss", "gradient_norm")):
            raise DiffscopeError(
                f"{self.arm}, seed {self.seed}: the loss is not finite at step {done}; try a smaller learning rate"
            )
        row |= {"step": done, "length": length, "seconds": round(seconds, 1)}
        if self.evaluates(done):
            with self.autocast:
                row["retrieval"] = float(exact_answers(self.model, self.scored).mean())
        return row

    def evaluates(self, done: int) -> bool:
        return done % self.recipe.evaluate_every == 0 or done == self.recipe.steps


def _train(recipe: Recipe, arm: str, seed: int, folder: Path, device: str, board: Path | None, progress) -> None:
    """Train one run to its end, from its saved state if it has one."""
    text = recipe_text(recipe, arm)
    trainer = _Trainer(recipe, arm, seed, device)
    start, metrics = restore_state(folder / STATE, trainer.model, trainer.optimizer, text)
    folder.mkdir(exist_ok=True)
    note_run(folder / RUN, start, {"arm": arm, "seed": seed, "recipe": text}, facts_of_run(device))
    if start == 0:
        save_checkpoint(trainer.model, folder / "checkpoints" / "step-000000")
    saved_steps = recipe.saved_steps()
    began = time.monotonic() - (metrics[-1]["seconds"] if metrics else 0.0)
    with events(board, metrics) as write_events:
        for number in range(start, recipe.steps):
            done = number + 1
            values, length = trainer.step(number)
            if trainer.evaluates(done) or done % LOG_EVERY == 0:
                row = trainer.row(values, length, done, time.monotonic() - began)
                metrics.append(row)
                write_events(row)
                if progress:
                    progress(done, recipe.steps, f"answer loss {row['answer_loss']:.3f}, text loss {row['text_loss']:.3f}")
            if done in saved_steps:
                save_checkpoint(trainer.model, folder / "checkpoints" / f"step-{done:06d}")
            if done % SAVE_EVERY == 0 or done == recipe.steps:
                save_state(folder / STATE, done, trainer.model, trainer.optimizer, metrics, text)
                write_metrics(folder / METRICS, metrics)
    write_metrics(folder / METRICS, metrics)  # a run killed right after its last state was saved has not written them
    save_model(folder, trainer.model, trainer.tokenizer)


def _compiled(model):
    """The model, compiled anew: torch limits compilations by code, and the arms of a cohort share much of theirs."""
    torch.compiler.reset()
    return torch.compile(model)
