"""Find the folders of a model by bundled name, folder or checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from diffscope.cards import BUNDLED, bundled
from diffscope.errors import ModelNotFound, first_line

RUN = "run.json"  # the record of a training
CHECKPOINTS = "checkpoints"  # in the folder of a run
TOKENIZER = "tokenizer.json"
PIPELINE, TRANSFORMER = "model_index.json", "transformer"  # of diffusers: what a pipeline has, and its part that attends
TOKENIZER_FILES = (TOKENIZER, "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def locate(name: str) -> tuple[Path | None, Path | None]:
    """Return the folder of a model's configuration and tokenizer, and that of its weights; both are None for a hub id.

    ``mini-diff@400`` is the bundled model after 400 steps of training, and ``FOLDER@400`` a checkpoint of a run.

    Raises
    ------
    ModelNotFound
        There is no such checkpoint, or the name is that of a file, or not bundled, not a model's folder, and not OWNER/NAME.
    """
    base, at, step = name.rpartition("@")
    if at and not Path(name).expanduser().is_dir() and (_folder(base) / "config.json").is_file():
        steps = checkpoints(_folder(base))
        if not step.isdecimal() or int(step) not in steps:
            raise ModelNotFound(f"{base} has no checkpoint {step!r}; saved steps: {', '.join(map(str, steps)) or 'none'}")
        return _folder(base), steps[int(step)]
    folder = _transformer_of(_folder(name))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"{folder} has no config.json; give the folder of a model that save_pretrained wrote")
        return folder, folder
    if folder.is_file():
        raise ModelNotFound(f"{folder} is a file; give the folder that it is in")
    if folder.is_absolute() or name.startswith(".") or name.count("/") != 1:
        known = ", ".join(model["name"] for model in bundled()) or "none"
        raise ModelNotFound(f"no model {name!r}: not bundled ({known}), not a folder, and not a hub id, which is OWNER/NAME")
    return None, None


def _transformer_of(folder: Path) -> Path:
    """Return the folder of the transformer in a pipeline that diffusers saved; any other folder as it is."""
    part = folder / TRANSFORMER
    return part if (folder / PIPELINE).is_file() and (part / "config.json").is_file() else folder


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a model's folder by training step."""
    steps = {path.name.removeprefix("step-"): path for path in sorted((folder / CHECKPOINTS).glob("step-*"))}
    return {int(step): path for step, path in steps.items() if step.isdecimal()}


def checkpoints_as_trained(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a model's folder that open as the models that were trained, by training step.

    None of top-k attention: k may have fallen along the training, and they are opened with the one it ended with.
    """
    kept = checkpoints(folder)
    if not kept:  # a pipeline has its configuration elsewhere
        return {}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {} if config.get("attention") == "top_k" else kept


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies in a model's folder."""
    return folder / CHECKPOINTS / f"step-{step:06d}"


def steps_of(name: str) -> tuple[int, ...]:
    """Return the training steps of a model's checkpoints, each of which opens as NAME@STEP; empty without checkpoints.

    Parameters
    ----------
    name : str
        A bundled name, the folder of a run, a hub id, or one of its checkpoints, NAME@STEP.
    """
    try:
        folder, _ = locate(name)
    except ModelNotFound:
        return ()
    return () if folder is None else tuple(sorted(checkpoints(folder)))


def without_step(name: str) -> str:
    """Return NAME of a checkpoint NAME@STEP, and any other name unchanged."""
    base, _, step = name.rpartition("@")
    return base if step.isdecimal() and int(step) in steps_of(base) else name


def _folder(name: str) -> Path:
    """Return the folder of the bundled model of this name, else the name as a path."""
    bundled = BUNDLED / name
    try:
        return bundled if (bundled / "config.json").is_file() else Path(name).expanduser()
    except (OSError, RuntimeError) as error:  # the name is too long, or of an unknown user's home
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ModelNotFound(f"no model {name[:80]!r}: it is no path ({reason})") from None


def tokenizer_folder(folder: Path) -> Path | None:
    """Return the folder of a model's tokenizer: its own, or that of its cohort (COHORT/ARM/seed-N); None without one."""
    folder = folder.absolute()
    folders = [folder, folder.parents[1]] if folder.name.startswith("seed-") else [folder]
    return next((place for place in folders if any((place / name).is_file() for name in TOKENIZER_FILES)), None)
