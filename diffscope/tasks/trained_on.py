"""What a model was trained to look up: the sentence of its retrieval prompts, where its folder says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import nn

from diffscope.cards import CARD_FILE
from diffscope.digests import carries_digest, read_proven_json
from diffscope.errors import ModelNotFound
from diffscope.models.loading import locate
from diffscope.tasks.retrieval import TEMPLATE

RUN = "run.json"  # what a training writes down of itself
CHECKPOINTS = "checkpoints"


def template_of(model: str | nn.Module) -> str:
    """The sentence to ask a model in: the one that it was trained on, or the usual one; as of :func:`sentence_of`."""
    return sentence_of(model) or TEMPLATE


def sentence_of(model: str | nn.Module) -> str | None:
    """The sentence that a model was trained on last, None where nothing says so.

    Parameters
    ----------
    model : str or torch.nn.Module
        A bundled name or a folder, of a checkpoint too; or a model that was loaded from one.

    Raises
    ------
    CorruptFile
        What a training wrote down of itself is damaged.
    """
    if isinstance(model, nn.Module):
        loaded = str(getattr(model, "name_or_path", ""))
        folder = _home(Path(loaded)) if loaded else None  # an empty name would be the folder that one stands in
    else:
        try:
            folder = locate(model)[0]
        except ModelNotFound:
            return None
    return None if folder is None else last_sentence(recipe_in(folder))


def _home(weights: Path) -> Path:
    """The folder of the model that weights are of: of a checkpoint it is that of its training."""
    return weights.parents[1] if weights.parent.name == CHECKPOINTS else weights


def last_sentence(recipe: Mapping) -> str | None:
    """The sentence of the last stage of a recipe that has needles; None where all is plain text."""
    with suppress(TypeError, AttributeError):  # another program's, under the same name
        for stage in reversed(recipe.get("stages") or []):
            if any(stage.get("needles") or ()):
                return str(stage.get("template", TEMPLATE))
    return None


def recipe_in(folder: Path) -> Mapping:
    """The recipe of a bundled model, by its card, or of a run, by its folder; empty where there is none of ours.

    Raises
    ------
    CorruptFile
        The file of a run is damaged.
    """
    card, run = folder / CARD_FILE, folder / RUN
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):  # another program's, under the same name
        if card.is_file():
            return dict(json.loads(card.read_text(encoding="utf-8"))["recipe"])
    if not run.is_file():
        return {}
    if carries_digest(run):
        return dict(json.loads(read_proven_json(run, f"copy {folder} again")["recipe"]))
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        return dict(json.loads(json.loads(run.read_text(encoding="utf-8"))["recipe"]))
    return {}


def asked_otherwise(template: str, models: Mapping[str, str | nn.Module]) -> list[str]:
    """Which models, by what they are called, were trained on another sentence than they are asked in; a sentence each."""
    known = {name: sentence_of(model) for name, model in models.items()}
    return [
        f"{name} was trained on “{sentence.strip()}” and is asked in “{template.strip()}”"
        for name, sentence in known.items()
        if sentence not in (None, template)
    ]
