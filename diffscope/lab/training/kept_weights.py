"""Weights of finished runs in half precision: small enough to keep, and to be asked what no evidence was taken of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from diffscope.lab.training.run import METRICS, WEIGHTS
from diffscope.models.folders import CHECKPOINTS, RUN
from diffscope.storage.atomic import remove, replacing
from diffscope.storage.checksum import write_sums

KEPT = "weights"  # in the folder of a cohort
CONFIG = "config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")  # the same of all runs, so it is kept once


def copy_in_half(run: Path, copy: Path) -> None:
    """Copy the model of a run, its weights in float16, into a folder that exists.

    ``diffscope.load`` opens it in float32: it differs from the model by the rounding of its weights to 11 significant bits.
    """
    tensors = {name: tensor.half() for name, tensor in load_file(run / WEIGHTS).items()}
    with replacing(copy / WEIGHTS) as unfinished:
        save_file(tensors, unfinished, metadata={"format": "pt"})
    shutil.copyfile(run / CONFIG, copy / CONFIG)
    write_sums(copy, (WEIGHTS, CONFIG))


def copy_tokenizer(run: Path, target: Path) -> None:
    """Copy the tokenizer of a run to where the runs ``target/ARM/seed-N`` find it."""
    for name in TOKENIZER:
        with replacing(target / name) as unfinished:
            shutil.copyfile(run / name, unfinished)
    write_sums(target, TOKENIZER)


def keep_weights(run: Path) -> Path:
    """Keep the weights of a finished run ``OUT/ARM/seed-N`` in ``OUT/weights/ARM/seed-N``, unless they are there already.

    Those of an earlier run, whose folder was removed to train it again, are replaced.

    Returns
    -------
    Path
        That folder. It has the model and its checkpoints in float16, its metrics and what it was made with; ``diffscope.load``
        opens it as it opens a run.
    """
    target = run.parents[1] / KEPT
    copy = target / run.parent.name / run.name
    if all((copy / name).is_file() and (copy / name).read_bytes() == (run / name).read_bytes() for name in (METRICS, RUN)):
        return copy
    remove(copy)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with replacing(copy, alone=True) as unfinished:
        unfinished.mkdir()
        copy_in_half(run, unfinished)
        for name in (METRICS, RUN):
            shutil.copyfile(run / name, unfinished / name)
        if (run / CHECKPOINTS).is_dir():
            shutil.copytree(run / CHECKPOINTS, unfinished / CHECKPOINTS, copy_function=_link)
        copy_tokenizer(run, target)
    return copy


def _link(source: str, target: str) -> None:
    """Share a file, or copy it if the file system cannot."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
