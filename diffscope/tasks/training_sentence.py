"""The sentence of retrieval prompts that a model was trained on, as its folder says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import nn

from diffscope.cards import CARD_FILE
from diffscope.errors import ModelNotFound
from diffscope.models.folders import CHECKPOINTS, RUN, locate
from diffscope.storage.checksum import carries_digest, read_proven_json
from diffscope.tasks.retrieval import TEMPLATE

FOREIGN = (OSError, ValueError, TypeError, LookupError, AttributeError)  # of another program's file with the same name


def template_of(model: str | nn.Module) -> str:
    """Return the sentence that a model was trained on, or the usual one; see :func:`training_template`."""
    return training_template(model) or TEMPLATE


def training_template(model: str | nn.Module) -> str | None:
    """Return the sentence that a model was trained on last, or None if nothing says so.

    Raises CorruptFile if the record of a training is damaged.

    Parameters
    ----------
    model : str or torch.nn.Module
        A bundled name, or the folder of a model or of a checkpoint; or a model that was loaded from one.
    """
    folder = _folder_of(model)
    return None if folder is None else last_template(_recipe_in(folder))


def _folder_of(model: str | nn.Module) -> Path | None:
    """Return the folder of a model, which of a checkpoint is that of its training; None if it has none here."""
    if not isinstance(model, nn.Module):
        with suppress(ModelNotFound):
            return locate(model)[0]
        return None
    folder = Path(str(getattr(model, "name_or_path", "")))
    if not folder.name:  # an empty name would be the working directory
        return None
    return folder.parents[1] if folder.parent.name == CHECKPOINTS else folder


def last_template(recipe: Mapping) -> str | None:
    """Return the sentence of the last stage of a recipe that has needles; None if all is plain text."""
    with suppress(TypeError, AttributeError):
        for stage in reversed(recipe.get("stages") or []):
            if any(stage.get("needles") or ()):
                return str(stage.get("template", TEMPLATE))
    return None


def _recipe_in(folder: Path) -> Mapping:
    """Return the recipe in a model's card or in the record of its training; empty if there is none."""
    card, run = folder / CARD_FILE, folder / RUN
    with suppress(*FOREIGN):
        return dict(json.loads(card.read_text(encoding="utf-8"))["recipe"])
    if run.is_file() and carries_digest(run):
        return dict(json.loads(read_proven_json(run, f"copy {folder} again")["recipe"]))
    with suppress(*FOREIGN):
        return dict(json.loads(json.loads(run.read_text(encoding="utf-8"))["recipe"]))
    return {}


def template_mismatches(template: str, models: Mapping[str, str | nn.Module]) -> list[str]:
    """Return a sentence for each model, by its name, that was trained on another template than it is asked in."""
    known = {name: training_template(model) for name, model in models.items()}
    return [
        f"{name} was trained on “{sentence.strip()}” and is asked in “{template.strip()}”"
        for name, sentence in known.items()
        if sentence not in (None, template)
    ]
