"""What a model was trained to look up: the sentence of its retrieval prompts, where its folder says so."""

from __future__ import annotations

import json
from pathlib import Path

from diffscope.cards import CARD_FILE
from diffscope.digests import carries_digest, read_proven_json
from diffscope.errors import CorruptFile, ModelNotFound, first_line
from diffscope.models.loading import locate
from diffscope.tasks.retrieval import TEMPLATE

RUN = "run.json"  # what a training writes down of itself


def template_of(model: str) -> str:
    """The sentence that a model was trained on last; the usual one of models of which nothing says so.

    Parameters
    ----------
    model : str
        A bundled name or a folder, of a checkpoint too; of anything else it is the usual one.

    Raises
    ------
    CorruptFile
        What was written down of its training cannot be read.
    """
    try:
        folder, _ = locate(model)
    except ModelNotFound:  # a model that was never saved
        return TEMPLATE
    return TEMPLATE if folder is None else last_template(recipe_in(folder))


def last_template(recipe: dict) -> str:
    """The sentence of the last stage of a recipe."""
    return (recipe.get("stages") or [{}])[-1].get("template", TEMPLATE)


def recipe_in(folder: Path) -> dict:
    """The recipe of a bundled model, by its card, or of a run, by its folder; empty where there is none.

    Raises
    ------
    CorruptFile
        It cannot be read.
    """
    card, run = folder / CARD_FILE, folder / RUN
    try:
        if card.is_file():
            return dict(json.loads(card.read_text(encoding="utf-8")).get("recipe", {}))
        if run.is_file() and carries_digest(run):  # else it is another program's
            return dict(json.loads(read_proven_json(run, f"copy {folder} again")["recipe"]))
        return {}
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptFile(f"what {folder} says of its training cannot be read ({first_line(error)}); copy it again") from None
