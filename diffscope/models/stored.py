"""What is stored in a model's files of weights, and the model that its configuration makes of them on paper."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from diffscope.errors import CorruptFile, UnsupportedModel, first_line
from diffscope.models.settings import INDEX, Weights
from diffscope.storage.atomic import is_pickle

WHOLE = "model.safetensors"
SETTING_BYTES = 4 * 2**20
LENGTH = 8  # bytes that say how long the header of a safetensors file is
HEADER_BYTES = 8 * 2**20  # of some 80,000 tensors
INDEX_BYTES = 32 * 2**20
TIMES = 2  # a model may hold as many numbers again that are not in its files: tied weights, tables of positions
ALLOWED = 2**26  # numbers that any model may make by itself


class Stored(NamedTuple):
    """A tensor as the header of a file describes it."""

    dtype: str
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> tuple[dict[str, Stored], int]:
    """The tensors that a model's folder holds, by name, and the bytes of their files.

    A header has to account for every byte of its file: tensors that overlap, leave gaps, or are of other sizes than they say are
    refused, as is a file that is cut.

    Raises
    ------
    CorruptFile
    """
    tensors: dict[str, Stored] = {}
    files = _files(folder)
    for file in files:
        tensors |= read_header(file)
    return tensors, sum(file.stat().st_size for file in files)


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by name, without their values.

    Raises
    ------
    CorruptFile
    """
    check_header(file)
    try:
        with safe_open(file, framework="pt"), open(file, "rb") as weights:  # the first refuses what does not fit the file
            header = json.loads(weights.read(int.from_bytes(weights.read(LENGTH), "little")))
            return {name: Stored(each["dtype"], tuple(each["shape"])) for name, each in header.items() if name != "__metadata__"}
    except (SafetensorError, OSError) as error:
        raise unreadable(file, error) from None


def unreadable(file: Path, error: Exception) -> CorruptFile:
    """The error to raise of a file of weights that is no safetensors: a pickle under its name, or a damaged one."""
    if file.is_file() and is_pickle(file):
        return CorruptFile(
            f"{file} is a pickle (as torch.save writes), not safetensors, and can run code when opened; "
            "convert it with save_pretrained(..., safe_serialization=True)"
        )
    return CorruptFile(f"{file} is truncated or damaged ({first_line(error)}); copy it again")


def _files(folder: Path) -> list[Path]:
    """The files of weights that transformers would read: the whole, or the parts that an index names."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if not (folder / INDEX).is_file():
        return sorted(folder.glob("*.safetensors"))
    parts = read_fields(folder / INDEX).get("weight_map")
    names = sorted({str(part) for part in parts.values()}) if isinstance(parts, dict) else []
    for name in names:
        if name != Path(name).name or not (folder / name).is_file():
            raise CorruptFile(f"{folder / INDEX} names {name!r}, which is not beside it; copy all parts of the model")
    return [folder / name for name in names]


def check_header(file: Path) -> None:
    """Refuse a safetensors file with a header that is larger than any of weights, before it is read.

    Raises
    ------
    CorruptFile
    """
    try:
        with open(file, "rb") as weights:
            length = int.from_bytes(weights.read(LENGTH), "little")
    except OSError as error:
        raise CorruptFile(f"{file} cannot be read ({first_line(error)}); copy it again") from None
    if HEADER_BYTES < length <= file.stat().st_size:
        raise CorruptFile(f"{file} has a header of {length / 2**20:,.0f} MiB, and {HEADER_BYTES / 2**20:.0f} MiB are read")


def read_fields(file: Path) -> dict[str, Any]:
    """The fields of a JSON file such as config.json.

    Raises
    ------
    CorruptFile
        It is no JSON object.
    """
    most = INDEX_BYTES if file.name == INDEX else SETTING_BYTES
    if file.is_file() and file.stat().st_size > most:
        size = file.stat().st_size / 2**20
        raise CorruptFile(f"{file} has {size:,.0f} MiB, and at most {most / 2**20:.0f} MiB are settings; copy it again")
    try:
        fields = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{file} cannot be read: it is broken JSON ({first_line(error)}); copy it again") from None
    if not isinstance(fields, dict):
        raise CorruptFile(f"{file} cannot be read: it is no JSON object; copy it again")
    return fields


def in_all(tensors: Mapping[str, Stored]) -> Weights:
    """How much tensors hold; empty ones do not count."""
    numbers = [math.prod(tensor.shape) for tensor in tensors.values()]
    return Weights(sum(1 for count in numbers if count), sum(numbers))


def on_paper(name: str, config: PretrainedConfig) -> nn.Module:
    """The model that a configuration describes, without memory for its weights.

    Raises
    ------
    UnsupportedModel
        It describes none.
    """
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(copy.deepcopy(config))  # which it sets its implementation of attention in
    except Exception as error:  # a model's class may raise anything where a field means nothing to it
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UnsupportedModel(f"{name} cannot be built from its config.json ({reason})") from None


def check_size(name: str, stored: Weights, model: nn.Module) -> None:
    """Raise CorruptFile where a model on paper has far more numbers than its weights: they would be made before they are missed.

    What a model computes by itself, such as masks and tables of positions, counts too.
    """
    made = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if made > TIMES * stored.numbers + ALLOWED:
        raise CorruptFile(
            f"the weights of {name} are {stored.numbers:,} numbers, and its config.json makes a model of {made:,}; "
            "take the config.json and the weights of one model"
        )


def check_fit(name: str, tensors: Mapping[str, Stored], model: nn.Module) -> None:
    """Raise CorruptFile where weights are not those of a model: another shape under the same name, or fewer numbers."""
    parameters = dict(model.named_parameters())
    for each in sorted(tensors.keys() & parameters.keys()):
        if tensors[each].shape != tuple(parameters[each].shape):
            raise CorruptFile(
                f"the weights of {name} do not fit its config.json: {each} is {_size(tensors[each].shape)}, and has to be "
                f"{_size(parameters[each].shape)}"
            )
    held = sum(math.prod(tensor.shape) for tensor in tensors.values())
    needed = sum(parameter.numel() for parameter in parameters.values())
    if held < needed:
        raise CorruptFile(
            f"the weights of {name} are {held:,} numbers, and its config.json asks for {needed:,}; the others would be random"
        )


def _size(shape) -> str:
    return " × ".join(map(str, shape)) or "one number"
