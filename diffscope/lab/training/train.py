"""Train one arm of a matched cohort: same data, same order, same steps, and resumable to the step.

The data of a step depend on the seed, the stage and the step's number within it alone, so all arms see the same prompts in the
same order, and a run that was killed goes on exactly from its last saved state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.lab.training.board import watching
from diffscope.lab.training.drawing import Draws
from diffscope.lab.training.evaluations import evaluations
from diffscope.lab.training.formation import formation
from diffscope.lab.training.initialisation import initialise, losses, tokenizer_for
from diffscope.lab.training.kept_weights import keep_weights
from diffscope.lab.training.optimizer import Optimizer
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import (
    STATE,
    facts_of_run,
    is_finished,
    note_run,
    read_metrics,
    read_weights,
    recipe_text,
    restore_state,
    save_checkpoint,
    save_model,
    save_state,
    save_weights,
    write_metrics,
)
from diffscope.lab.training.runs import SCORES
from diffscope.lab.training.stages import LOG_EVERY, RETRIEVAL
from diffscope.models import DiffForCausalLM
from diffscope.models.folders import CHECKPOINTS, RUN, checkpoint_folder
from diffscope.models.loading import move
from diffscope.storage.atomic import remove

SAVE_EVERY = 50  # steps
FORMED_WEIGHTS = "formed.safetensors"  # what another arm goes on from
UNDEFINED = ("answer_loss", "answer_tokens_right")  # NaN in a step without answers


class NotFormed(DiffscopeError):
    """The arm that a run continues never formed with this seed."""


class Diverged(DiffscopeError):
    """A loss is not finite."""


def train_run(
    recipe: Recipe,
    arm: str,
    seed: int,
    folder: Path,
    device: str,
    *,
    board: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Train one run into its folder, whose lock this process holds; what is finished stays as it is.

    Parameters
    ----------
    board : Path, optional
        Where the metrics go for TensorBoard, with what a monitor measures.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not is_finished(folder, recipe_text(recipe, arm)):
        _train(recipe, arm, seed, folder, device, board, progress)
    if recipe.keep_weights:
        keep_weights(folder)
        (folder / STATE).unlink(missing_ok=True)


def check_tools(device: str, tensorboard: bool) -> None:
    """Raise where the device does not exist, or TensorBoard's writer is needed and not installed."""
    move(torch.nn.Identity(), device)
    if tensorboard and not find_spec("tensorboardX"):
        raise MissingExtra('--tensorboard needs tensorboardX; install it with: pip install "diffscope-attention[lab]"')


@dataclass(frozen=True)
class Place:
    """A place in a training."""

    stage: int
    step: int = 0  # done in this stage
    done: int = 0  # in all

    def next(self) -> Place:
        return replace(self, step=self.step + 1, done=self.done + 1)


class _Trainer:
    """A model in training, with its training prompts and its evaluations."""

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
        self.draws = Draws(recipe, self.tokenizer, seed)
        self.evaluations = evaluations(recipe, self.tokenizer, seed)

    def step(self, place: Place) -> tuple[dict[str, torch.Tensor], int]:
        """Train one step; return its losses for the log, and the length of its prompts in tokens."""
        stage = self.recipe.stages[place.stage]
        if place.step == 0 and stage.warmup:
            self.optimizer = Optimizer(self.model, self.recipe.weight_decay)
        continued = self.recipe.continued.get(self.arm)
        if continued is not None:
            last = self.recipe.arms[self.arm]["top_keys"]
            begins = place.stage == self.recipe.first_stage(self.arm)
            self.model.config.top_keys = continued.keys(place.step, stage.steps, last) if begins else last
        drawn = self.draws.rows(place.stage, place.step)
        ids, kind = (torch.from_numpy(array).to(self.model.device) for array in drawn)  # (row, token)
        with self.autocast:
            logits = self.forward(ids, use_cache=False).logits
        answers, text, every, right = losses(logits, ids, kind)
        if stage.task != RETRIEVAL:
            loss = every
        elif stage.plain_text:
            loss = stage.text_weight * text
        else:
            loss = answers + stage.text_weight * text
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(self.recipe.learning_rate * stage.share_of_rate(place.step))
        values = dict(text_loss=text, gradient_norm=norm)
        if not stage.plain_text:
            values |= dict(answer_loss=answers, answer_tokens_right=right)
        if stage.task != RETRIEVAL:
            values |= dict(loss=every)
        return values, ids.shape[1]

    def row(self, values: dict[str, torch.Tensor], length: int, place: Place, seconds: float) -> dict:
        """Return a row of metrics, with the scores of :func:`~diffscope.lab.training.evaluations.evaluations` if it evaluates.

        Raises Diverged if a loss is not finite.
        """
        row = {name: round(value.item(), 5) for name, value in values.items()}
        if self.recipe.stages[place.stage].task != RETRIEVAL:
            row = {name: value for name, value in row.items() if name not in UNDEFINED or math.isfinite(value)}
        if not all(math.isfinite(value) for name, value in row.items() if name != "answer_tokens_right"):
            raise Diverged(
                f"{self.arm}, seed {self.seed}: the loss is not finite at step {place.done}; try a smaller learning rate"
            )
        row |= {"step": place.done, "stage": place.stage, "length": length, "seconds": round(seconds, 1)}
        if self.evaluates(place):
            with torch.no_grad(), self.autocast:
                for evaluate in self.evaluations:
                    row |= evaluate(self.model)
        return row

    def evaluates(self, place: Place) -> bool:
        last = place.step == self.recipe.stages[place.stage].steps
        return bool(self.evaluations) and (place.done % self.recipe.evaluate_every == 0 or last)


class _Clock:
    """A clock of work: processor time on the CPU, so that a run that was stopped for a while does not count it."""

    def __init__(self, device: str, before: float):
        self.now = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.monotonic
        self.began = self.now() - before

    @property
    def seconds(self) -> float:
        return self.now() - self.began


def _train(recipe: Recipe, arm: str, seed: int, folder: Path, device: str, board: Path | None, progress) -> None:
    """Train one run to its end, from its saved state if it has one."""
    text = recipe_text(recipe, arm)
    trainer = _Trainer(recipe, arm, seed, device)
    place, metrics = _restored(trainer, folder, text)
    folder.mkdir(exist_ok=True)
    note_run(folder / RUN, place.done, {"arm": arm, "seed": seed, "recipe": text}, facts_of_run(recipe, device))
    clock = _Clock(device, metrics[-1]["seconds"] if metrics else 0.0)
    most = recipe.most_steps(arm)
    if place.done == 0:
        remove(folder / CHECKPOINTS)  # of a run that was killed before its first state, perhaps of another recipe
        save_checkpoint(trainer.model, checkpoint_folder(folder, 0))
    watched = (folder, trainer.model, Draws(recipe, trainer.tokenizer, seed), recipe.first_stage(arm))
    with watching(board, *watched, metrics) as watch:
        while place.stage < len(recipe.stages):
            stage = recipe.stages[place.stage]
            values, length = trainer.step(place)
            place = place.next()
            row = None
            if trainer.evaluates(place) or place.done % LOG_EVERY == 0 or place.step == stage.steps:
                try:
                    row = trainer.row(values, length, place, clock.seconds)
                except Diverged:
                    write_metrics(folder, metrics)
                    raise
                metrics.append(row)
                if progress:
                    progress(place.done, most, _note(row))
            watch(place.done, row)
            of_stage = [row for row in metrics if row["stage"] == place.stage]
            formed = stage.formed is not None and formation(of_stage, recipe) is not None
            ends = formed or place.step == stage.steps
            if ends or place.done in recipe.checkpoints:
                save_checkpoint(trainer.model, checkpoint_folder(folder, place.done))
            if ends:
                place = _next_stage(trainer, folder, place, formed)
            if ends or place.done % SAVE_EVERY == 0:
                save_state(folder / STATE, vars(place), trainer.model, trainer.optimizer, metrics, text)
                write_metrics(folder, metrics)
    write_metrics(folder, metrics)  # a run killed right after its last state was saved has not written them
    save_model(folder, trainer.model, trainer.tokenizer)


def _restored(trainer: _Trainer, folder: Path, text: str) -> tuple[Place, list[dict]]:
    """Return the place at which a run resumes, and its log; a new run that continues another arm gets that arm's weights.

    Raises NotFormed if that one never formed, and DiffscopeError if it has not been trained yet.
    """
    restored = restore_state(folder / STATE, trainer.model, trainer.optimizer, text)
    if restored is not None:
        place, metrics = restored
        return Place(**place), metrics
    continued = trainer.recipe.continued.get(trainer.arm)
    if continued is not None:
        before = folder.parents[1] / continued.arm / folder.name
        if not is_finished(before, recipe_text(trainer.recipe, continued.arm)):
            scored = (before / SCORES).is_file()  # a copy of kept runs, which has no models
            missing = "has no model; remove that folder to train it again" if scored else "is not trained yet; train that first"
            raise DiffscopeError(f"{trainer.arm} continues {continued.arm}, of which {before} {missing}")
        if formation(read_metrics(before), trainer.recipe) is None and trainer.recipe.stages[0].formed is not None:
            raise NotFormed(f"{continued.arm}, seed {trainer.seed}, which {trainer.arm} continues, never formed")
        if not (before / FORMED_WEIGHTS).is_file():
            raise DiffscopeError(
                f"{before} has no {FORMED_WEIGHTS}, with which {trainer.arm} begins; remove that folder and train it again"
            )
        read_weights(before / FORMED_WEIGHTS, trainer.model)
    return Place(trainer.recipe.first_stage(trainer.arm)), []


def _next_stage(trainer: _Trainer, folder: Path, place: Place, formed: bool) -> Place:
    """Return the place after a stage: the next stage, or the end of the run if it should have formed and has not."""
    stages = trainer.recipe.stages
    if stages[place.stage].formed is not None and not formed:
        return replace(place, stage=len(stages), step=0)
    if place.stage == 0 and any(trainer.arm == continued.arm for continued in trainer.recipe.continued.values()):
        save_weights(folder / FORMED_WEIGHTS, trainer.model)
    return replace(place, stage=place.stage + 1, step=0)


def _note(row: dict) -> str:
    names = [name for name in ("answer_loss", "text_loss") if name in row]
    return ", ".join(f"{name.replace('_', ' ')} {row[name]:.3f}" for name in names)


def _compiled(model):
    """Compile the model anew: torch limits compilations by code, and the arms of a cohort share much of theirs."""
    torch.compiler.reset()
    return torch.compile(model)
