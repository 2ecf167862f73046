"""The folder of a run: its state, checkpoints, final model, metrics, and what it was made with."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from diffscope.cards import CARD_FILE
from diffscope.errors import CorruptFile, DiffscopeError, first_line
from diffscope.lab.training.initialisation import text_digest
from diffscope.lab.training.optimizer import Optimizer
from diffscope.lab.training.recipe import Recipe
from diffscope.models.folders import RUN, checkpoints_as_trained, locate
from diffscope.storage.atomic import remove, replacing, write_text
from diffscope.storage.checksum import BLANK, KEY, read_proven, read_proven_json, seal, write_proven_json, write_sums
from diffscope.storage.provenance import VERSION
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.training_sentence import template_of

WEIGHTS = "model.safetensors"
METRICS = "metrics.jsonl"
STATE = "state.safetensors"


def facts_of_run(recipe: Recipe, device: str = "cpu") -> dict:
    """Return what a training depends on apart from its recipe and seed: code, device, versions, threads, text."""
    return {
        "revision": revision(),
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "fingerprint": text_digest(recipe),
    }


def revision() -> str:
    """Return the last commit that changed the package, with "+" if it was changed since; outside of a checkout its version."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[2]), *arguments, "--", "."]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("log", "-1", "--format=%h")
        changed = git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return VERSION
    if not commit:
        return VERSION
    return f"{commit}+" if changed else commit


def processor() -> str:
    """Return the processor's name; weights are equal bit by bit only on processors of one kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def recipe_text(recipe: Recipe, arm: str) -> str:
    """Return what a run depends on, apart from its seed and the versions of libraries, as JSON."""
    return json.dumps({**recipe.trains(arm), "training_text": text_digest(recipe)}, sort_keys=True)


def weights_of(model) -> dict[str, torch.Tensor]:
    """Return every tensor of a model once: an output matrix that is tied to the embedding is left out."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def save_state(path: Path, place: dict, model, optimizer: Optimizer, metrics: list[dict], recipe: str) -> None:
    """Write the state of a training, from which it can resume at `place`, into one file."""
    tensors = {f"model/{name}": p for name, p in weights_of(model).items()}
    tensors.update({f"optimizer/{name}": value for name, value in optimizer.state().items()})
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    facts = {"place": json.dumps(place), "metrics": json.dumps(metrics), "recipe": recipe}
    with replacing(path, alone=True) as unfinished:
        save_file(tensors, unfinished, metadata={KEY: BLANK, **facts})
        seal(unfinished)


def restore_state(path: Path, model, optimizer: Optimizer, recipe: str) -> tuple[dict, list[dict]] | None:
    """Load the state that :func:`save_state` wrote into a model and its optimizer.

    Raises DiffscopeError if the state was written under another recipe, and CorruptFile if the file is damaged.

    Returns
    -------
    (dict, list of dict) or None
        The place and the rows logged until then; None if nothing was saved.
    """
    if not path.exists():
        return None

    def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        with safe_open(path, framework="pt", device=str(model.device)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 (it has no iterator)

    tensors, facts = read_proven(path, read, f"remove {path.parent} and train again")
    check_same(path.parent, facts["recipe"], recipe)
    weights = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    optimizer.restore({name.removeprefix("optimizer/"): t for name, t in tensors.items() if name.startswith("optimizer/")})
    return json.loads(facts["place"]), json.loads(facts["metrics"])


def save_weights(path: Path, model) -> None:
    """Write a model's weights in full precision."""
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in weights_of(model).items()}
    with replacing(path, alone=True) as unfinished:
        save_file(tensors, unfinished, metadata={KEY: BLANK})
        seal(unfinished)


def read_weights(path: Path, model) -> None:
    """Load into a model the weights that :func:`save_weights` wrote.

    Raises CorruptFile if the file is damaged.
    """
    weights = read_proven(path, load_file, f"remove {path.parent} and train again")
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)


def save_checkpoint(model, folder: Path) -> None:
    """Write a model's weights in half precision; the folder appears when they are complete."""
    folder.parent.mkdir(exist_ok=True)
    remove(folder)  # of another run, or of this one before it was killed
    tensors = {name: p.detach().half().contiguous().cpu() for name, p in weights_of(model).items()}
    with replacing(folder, alone=True) as unfinished:
        unfinished.mkdir()
        save_file(tensors, unfinished / WEIGHTS, metadata={"format": "pt"})
        write_sums(unfinished, [WEIGHTS])


def is_finished(folder: Path, recipe: str) -> bool:
    """Return whether a run has its final model, which is written last; its state may have been removed."""
    if not (folder / WEIGHTS).is_file():
        return False
    check_same(folder, read_run(folder / RUN).get("recipe"), recipe)
    return True


def check_same(folder: Path, before: str | None, recipe: str) -> None:
    """Refuse to resume in the folder of a run that was begun with another recipe.

    Raises DiffscopeError if the two differ.

    Parameters
    ----------
    before, recipe : str
        What :func:`recipe_text` gave when the run began, and what it gives now.
    """
    if differing := differences(before, recipe):
        raise DiffscopeError(f"{folder} was begun with another recipe ({differing}); train into another folder, or remove it")


def check_recipe(folder: Path, recipe: Recipe, arm: str) -> None:
    """Refuse the folder of a run that another recipe trained; one with [tuning] may have given it any learning rate.

    Raises DiffscopeError if it is a run of another recipe or arm, or does not say of which.
    """
    recipe.config(arm, recipe.vocab_size)  # refuses an arm that the recipe has not
    before = read_run(folder / RUN).get("recipe") if (folder / RUN).is_file() else None
    rate = recipe.learning_rate if recipe.tuning is None else json.loads(before or "{}").get("learning_rate")
    check_same(folder, before, recipe_text(replace(recipe, learning_rate=rate), arm))


def differences(before: str | None, now: str) -> str:
    """Name the fields in which two JSON objects differ, as half a sentence; empty if they are equal."""
    if before == now:
        return ""
    old = json.loads(before or "{}")
    new = json.loads(now)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return f"it differs in {', '.join(names)}" if old else "it does not say which"


def note_run(path: Path, start: int, identity: dict, facts: dict) -> None:
    """Write what a run is and its facts (versions, device, …) into run.json; on resume at step `start`, append changed facts."""
    before = read_run(path) if start and path.is_file() else facts
    first = {name: before[name] for name in before.keys() - {"gone_on"}}
    gone_on = before.get("gone_on", [])
    last = {**first, **(gone_on or [{}])[-1]}
    if any(last.get(name) != value for name, value in facts.items()):
        gone_on = [*gone_on, {"step": start, **facts}]
    write_proven_json(path, {**first, **identity, "gone_on": gone_on})


def read_run(path: Path) -> dict:
    """Read what :func:`note_run` wrote.

    Raises CorruptFile if the file is damaged.
    """
    return read_proven_json(path, f"remove {path.parent} and train again")


def save_model(folder: Path, model, tokenizer) -> None:
    """Save the model as Hugging Face does; its weights, which mark a run as finished, appear last and in one move."""
    unfinished = folder / "unfinished"
    remove(unfinished)  # of this run before it was killed, perhaps with digests of other files
    for part in (model, tokenizer):
        part.save_pretrained(unfinished)
    write_sums(unfinished, [file.name for file in unfinished.iterdir()])
    for file in sorted(unfinished.iterdir(), key=lambda file: file.name == WEIGHTS):
        os.replace(file, folder / file.name)
    unfinished.rmdir()


def read_metrics(folder: Path) -> list[dict]:
    """Read the rows that a run logged."""
    return [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]


def write_metrics(folder: Path, metrics: list[dict]) -> None:
    """Write the rows that a run logged as JSON, one object a line."""
    write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in metrics), alone=True)


# Checkpoints


@dataclass(frozen=True)
class Checkpoints:
    """The models along a training.

    Attributes
    ----------
    names : dict of int to str
        By step, in order, the name that each is loaded by (``mini-diff@200``); empty if no checkpoints were saved.
    template : str
        The needle sentence of the last stage.
    """

    names: dict[int, str]
    template: str = TEMPLATE

    @property
    def last(self) -> int:
        """Return the last step."""
        return max(self.names)


def checkpoints_of(model: str) -> Checkpoints:
    """Return the checkpoints of a bundled model or of a run's folder, and at its last step the model itself.

    If the last step is not known, the model itself is left out.

    Raises ModelNotFound if there is no such model, and CorruptFile if the record of its training cannot be read.
    """
    folder, weights = locate(model)
    kept = sorted(checkpoints_as_trained(folder)) if folder is not None and folder == weights else ()
    if folder is None or not kept:
        return Checkpoints({})
    names = {step: f"{model}@{step}" for step in kept}
    last = last_step(folder)
    if last is not None:
        names[last] = model
    return Checkpoints(dict(sorted(names.items())), template_of(model))


def last_step(folder: Path) -> int | None:
    """Return the last step of a training, from the card of a bundled model or the metrics of a run; None if nothing says it.

    Raises CorruptFile if the record of the training cannot be read.
    """
    card = folder / CARD_FILE
    try:
        if card.is_file():
            return int(json.loads(card.read_text(encoding="utf-8"))["curves"][-1]["step"])
        rows = read_metrics(folder) if (folder / METRICS).is_file() else []
        return int(rows[-1]["step"]) if rows else None
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptFile(f"the record of the training in {folder} cannot be read ({first_line(error)}); copy it again") from None
