"""What was kept of a training: its checkpoints, by step, and the model that came of it at the last one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from diffscope.cards import CARD_FILE
from diffscope.errors import CorruptFile, first_line
from diffscope.lab.training.run import METRICS, read_metrics
from diffscope.models.loading import locate, steps_of
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.trained_on import template_of


@dataclass(frozen=True)
class Checkpoints:
    """The models along a training.

    Attributes
    ----------
    names : dict of int to str
        By step, in order, what each is loaded by (``mini-diff@100``); none of a model of which no checkpoints were kept.
    template : str
        The needle sentence that it was trained on last.
    """

    names: dict[int, str]
    template: str = TEMPLATE

    @property
    def last(self) -> int:
        """The last step."""
        return max(self.names)


def checkpoints_of(model: str) -> Checkpoints:
    """The checkpoints of a bundled model or of a run's folder, and at its last step the model itself.

    Where nothing says after how many steps the model was saved, its checkpoints are all there is.

    Raises
    ------
    ModelNotFound
        There is no such model.
    CorruptFile
        What was written down of its training cannot be read.
    """
    folder, weights = locate(model)
    kept = steps_of(model) if folder == weights else ()
    if folder is None or not kept:
        return Checkpoints({})
    names = {step: f"{model}@{step}" for step in kept}
    last = _last_step(folder)
    if last is not None:
        names[last] = model
    return Checkpoints(dict(sorted(names.items())), template_of(model))


def _last_step(folder: Path) -> int | None:
    """The last step of a training, by the card of a bundled model or by the files of a run."""
    card = folder / CARD_FILE
    try:
        if card.is_file():
            return int(json.loads(card.read_text(encoding="utf-8"))["curves"][-1]["step"])
        rows = read_metrics(folder) if (folder / METRICS).is_file() else []
        return int(rows[-1]["step"]) if rows else None
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptFile(f"what {folder} says of its training cannot be read ({first_line(error)}); copy it again") from None
