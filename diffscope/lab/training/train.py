"""Train one arm of a matched cohort: same data, same order, same steps, and resumable to the step.

What a step trains on depends on the seed and the step's number alone, so all arms see the same prompts in the same order
and a run that was killed goes on exactly where its last saved state stands.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from diffscope import __version__
from diffscope.errors import CorruptFile, DiffscopeError, MissingExtra
from diffscope.lab.jobs.job import alone
from diffscope.lab.jobs.job import threads as torch_threads
from diffscope.lab.scoring import exact_answers, mixture
from diffscope.lab.training.optimizer import Optimizer
from diffscope.lab.training.recipe import Recipe
from diffscope.models import DiffForCausalLM
from diffscope.models.loading import move
from diffscope.tasks.corpus import fingerprint, standard_library_text
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.tokenizer import CITIES, train_tokenizer

WEIGHTS, RUN = "model.safetensors", "run.json"
SAVE_EVERY = 50
LOG_EVERY = 10
GIVEN_AWAY, TEXT, NO_KIND = 1, 0, -1  # kinds of target, see Retrieval.training_rows


def tokenizer_for(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The cohort's tokenizer: learned from the training text and the needle sentence, so its words are single tokens."""
    return _tokenizer(recipe.vocab_size, recipe.words)


@cache
def _tokenizer(vocab_size: int, words: tuple[str, ...]) -> PreTrainedTokenizerFast:
    sentences = [TEMPLATE.partition("{number}")[0].format(city=city) for city in CITIES] * 40
    return train_tokenizer([*standard_library_text(held_out=False), *sentences], vocab_size, words)


def losses(logits: torch.Tensor, ids: torch.Tensor, kind: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean loss on answers an earlier mention gives away, that on all but numbers, and the share of those answers' tokens right.

    logits (row, token, vocabulary), ids (row, token), kind (row, token).
    """
    # What each token is to say next; the last one's target is of no kind. To cut it off would cost a copy of all logits.
    target, kind = ids.roll(-1, 1), kind.roll(-1, 1)
    kind[:, -1] = NO_KIND
    each = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    answers = kind == GIVEN_AWAY
    right = (logits.detach()[answers].argmax(-1) == target[answers]).float().mean()
    return each[answers].mean(), each[kind == TEXT].mean(), right


def facts_of_run(device: str = "cpu") -> dict:
    """What a training depends on beside its recipe, for the model card."""
    return {
        "revision": revision(),
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "fingerprint": fingerprint(standard_library_text(held_out=False)),
    }


def revision() -> str:
    """The last commit that changed the package, "+" where it was changed since; its version outside of a checkout of its own."""

    def git(*asked: str) -> str:
        called = ["git", "-C", str(Path(__file__).parents[2]), *asked, "--", "."]
        return subprocess.run(called, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("log", "-1", "--format=%h")
        return commit + "+" * bool(git("status", "--porcelain")) if commit else __version__
    except (OSError, subprocess.CalledProcessError):
        return __version__


def recipe_text(recipe: Recipe, arm: str) -> str:
    """What a run depends on, beside its seed and the versions of libraries, as text."""
    text = fingerprint(standard_library_text(held_out=False))
    return json.dumps({**recipe.trains(arm), "training_text": text}, sort_keys=True)


@torch.no_grad()
def initialise(model, seed: int) -> None:
    """Draw every random tensor of a fresh model from a stream of its own, given by the seed and its name.

    So tensors that two arms have in common, in name and shape, begin equal. What begins at one constant stays as it is.
    """
    config = model.config
    for name, tensor in model.named_parameters():
        if (tensor == tensor.flatten()[0]).all():
            continue
        stream = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7])
        drawn = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(stream))
        scale = config.initializer_range if tensor.dim() == 2 else config.lambda_std_dev
        tensor.copy_(drawn * scale)
    if config.pad_token_id is not None:
        model.get_input_embeddings().weight[config.pad_token_id] = 0


def weights_of(model) -> dict[str, torch.Tensor]:
    """Every tensor of a model once: an output matrix that is the embedding is left out."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def save_state(path: Path, step: int, model, optimizer: Optimizer, metrics: list[dict], recipe: str) -> None:
    """Weights, optimizer and metrics in one file, replaced in one move."""
    tensors = {f"model/{name}": p for name, p in weights_of(model).items()}
    tensors.update({f"optimizer/{name}": value for name, value in optimizer.state().items()})
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    unfinished = path.with_suffix(".unfinished")
    save_file(tensors, unfinished, metadata={"step": str(step), "metrics": json.dumps(metrics), "recipe": recipe})
    os.replace(unfinished, path)


def saved_step(path: Path, recipe: str) -> int:
    """The step at which a run was saved last, 0 if it was not.

    Raises
    ------
    DiffscopeError
        It was written under another recipe, or the file is damaged.
    """
    if not path.exists():
        return 0
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
    except SafetensorError as error:
        raise CorruptFile(f"{path} is damaged ({error}); remove {path.parent} and train again") from None
    _check_same(path.parent, facts["recipe"], recipe)
    return int(facts["step"])


def restore_state(path: Path, model, optimizer: Optimizer, recipe: str) -> tuple[int, list[dict]]:
    """Load what :func:`save_state` wrote; (0, []) if there is nothing. Raises as :func:`saved_step`."""
    step = saved_step(path, recipe)
    if step == 0:
        return 0, []
    with safe_open(path, framework="pt") as file:
        metrics = json.loads(file.metadata()["metrics"])
    tensors = load_file(path, device=str(model.device))
    weights = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    optimizer.restore({name.removeprefix("optimizer/"): t for name, t in tensors.items() if name.startswith("optimizer/")})
    return step, metrics


def save_checkpoint(model, folder: Path) -> None:
    """Weights in half precision under a name that appears only when all is written."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().half().contiguous().cpu() for name, p in weights_of(model).items()}
    save_file(tensors, unfinished / WEIGHTS, metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed after it had written this one, or of another
    os.replace(unfinished, folder)


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
        Processor threads.
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
        TensorBoard is asked for and its writer is not installed.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    seed = recipe.seeds[0] if seed is None else seed
    recipe.config(arm, recipe.vocab_size)  # an unknown arm is refused before anything is made
    check_tools(device, tensorboard)
    folder, text = Path(out) / arm / f"seed-{seed}", recipe_text(recipe, arm)
    board = Path(out) / "tensorboard" / arm / f"seed-{seed}" if tensorboard else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder), torch_threads(threads or torch.get_num_threads()):
        if not _is_finished(folder, text):
            _train(recipe, arm, seed, folder, text, device, board, progress)
    return folder


def check_tools(device: str, tensorboard: bool) -> None:
    """Raise where the device, or TensorBoard's writer if that is asked for, is not there."""
    move(torch.nn.Identity(), device)
    if tensorboard and not find_spec("tensorboardX"):
        raise MissingExtra('--tensorboard needs tensorboardX; install it with: pip install "diffscope-attention[lab]"')


def _is_finished(folder: Path, recipe: str) -> bool:
    """Whether the model is there, which appears last; its state need not be."""
    if not (folder / WEIGHTS).is_file():
        return False
    _check_same(folder, json.loads((folder / RUN).read_text(encoding="utf-8")).get("recipe"), recipe)
    return True


def _check_same(folder: Path, before: str | None, recipe: str) -> None:
    if before == recipe:
        return
    old, new = json.loads(before or "{}"), json.loads(recipe)
    differ = ", ".join(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))
    why = f"it differs in {differ}" if old else "it does not say which"
    raise DiffscopeError(f"{folder} was begun with another recipe ({why}); train into another folder, or remove it")


def _train(recipe: Recipe, arm: str, seed: int, folder: Path, text: str, device: str, board: Path | None, progress) -> None:
    tokenizer, state = tokenizer_for(recipe), folder / "state.safetensors"
    with torch.random.fork_rng(devices=[]):
        model = DiffForCausalLM(recipe.config(arm, len(tokenizer)))
    initialise(model, seed)
    model.to(device)
    optimizer = Optimizer(model, recipe.weight_decay)
    start, metrics = restore_state(state, model, optimizer, text)
    folder.mkdir(exist_ok=True)
    task, unseen = (Retrieval(tokenizer, held_out=held_out) for held_out in (False, True))
    tasks = {stage.template: task.with_template(stage.template) for stage in recipe.stages}
    scored, keep = mixture(recipe.evaluation, unseen), recipe.saved_steps()
    forward = _compiled(model) if recipe.compiled else model
    working = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    _note_run(folder / RUN, start, {"arm": arm, "seed": seed, "recipe": text}, facts_of_run(device))
    if start == 0:
        save_checkpoint(model, folder / "checkpoints" / "step-000000")
    began = time.monotonic() - (metrics[-1]["seconds"] if metrics else 0.0)
    with events(board, metrics) as write_events:
        for step in range(start, recipe.steps):
            stage, done = recipe.stage(step), step + 1
            drawn = stage.draw(tasks[stage.template], np.random.default_rng([seed, step]))
            seen = _step(forward, model, optimizer, drawn, stage.text_weight, recipe.rate(step), working)
            evaluates = done % recipe.evaluate_every == 0 or done == recipe.steps
            if evaluates or done % LOG_EVERY == 0:
                row = {name: round(value.item(), 5) for name, value in seen.items()}
                _check_finite(row, arm, seed, done)
                row |= {"step": done, "length": drawn[0].shape[1], "seconds": round(time.monotonic() - began, 1)}
                if evaluates:
                    with working:
                        row["retrieval"] = float(exact_answers(model, scored).mean())
                metrics.append(row)
                write_events(row)
                if progress:
                    progress(done, recipe.steps, f"answer loss {row['answer_loss']:.3f}, text loss {row['text_loss']:.3f}")
            if done in keep:
                save_checkpoint(model, folder / "checkpoints" / f"step-{done:06d}")
            if done % SAVE_EVERY == 0 or done == recipe.steps:
                save_state(state, done, model, optimizer, metrics, text)
                write_metrics(folder / "metrics.jsonl", metrics)
    write_metrics(folder / "metrics.jsonl", metrics)  # a run killed after its last state has not
    _finish(folder, model, tokenizer)


def _note_run(path: Path, start: int, identity: dict, facts: dict) -> None:
    """Keep what a run is and under what it was begun, and, where it was something else, gone on with from step `start`."""
    before = json.loads(path.read_text(encoding="utf-8")) if start and path.is_file() else facts
    begun = {name: before[name] for name in before.keys() - {"gone_on"}}
    last = {**begun, **(before.get("gone_on") or [{}])[-1]}
    gone_on = [{"step": start, **facts}] if any(last.get(name) != value for name, value in facts.items()) else []
    said = {**begun, **identity, "gone_on": [*before.get("gone_on", []), *gone_on]}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(said, sort_keys=True), encoding="utf-8")
    os.replace(unfinished, path)


def _compiled(model):
    """The model compiled by itself: torch counts compilations by code, of which the arms of a cohort share much."""
    torch.compiler.reset()
    return torch.compile(model)


def _check_finite(row: dict, arm: str, seed: int, step: int) -> None:
    if not all(math.isfinite(row[name]) for name in ("answer_loss", "text_loss", "gradient_norm")):
        raise DiffscopeError(f"{arm}, seed {seed}: the loss is not finite at step {step}; try a smaller learning rate")


def _finish(folder: Path, model, tokenizer) -> None:
    """Save the model as Hugging Face does; its weights, by which a run is known to be finished, appear last and in one move."""
    unfinished = folder / "unfinished"
    for part in (model, tokenizer):
        part.save_pretrained(unfinished)
    for file in sorted(unfinished.iterdir(), key=lambda file: file.name == WEIGHTS):
        os.replace(file, folder / file.name)
    unfinished.rmdir()


def _step(forward, model, optimizer: Optimizer, drawn, text_weight: float, rate: float, working) -> dict[str, torch.Tensor]:
    """One step of training; what is logged of it."""
    ids, kind = (torch.from_numpy(x).to(model.device) for x in drawn)
    with working:
        logits = forward(ids, use_cache=False).logits
    answers, text, right = losses(logits, ids, kind)
    (answers + text_weight * text).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(rate)
    return dict(answer_loss=answers, text_loss=text, answer_tokens_right=right, gradient_norm=norm)


@contextmanager
def events(folder: Path | None, metrics: list[dict]) -> Iterator[Callable[[dict], None]]:
    """Write rows of metrics as TensorBoard's events, those of before again, or do nothing without a folder.

    What a killed run wrote last was lost on the way or will be done anew: TensorBoard is told to leave out all of it.
    """
    if folder is None:
        yield lambda row: None
        return
    from tensorboardX import SummaryWriter

    def write(row: dict) -> None:
        for name in row.keys() - {"step", "length"}:
            writer.add_scalar(name, row[name], row["step"])

    with SummaryWriter(str(folder), purge_step=0) as writer:
        for row in metrics:
            write(row)
        yield write


def write_metrics(path: Path, metrics: list[dict]) -> None:
    """One JSON object a line, replaced in one move."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in metrics), encoding="utf-8")
    os.replace(unfinished, path)
