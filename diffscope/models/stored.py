"""Read the headers of a model's weights, and build its model on the meta device, to compare both."""

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
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
)

from diffscope.errors import CorruptFile, UnsupportedModel, first_line, translated
from diffscope.models.settings import INDEX, Weights
from diffscope.storage.atomic import is_pickle

WHOLE = "model.safetensors"
SETTING_BYTES = 4 * 2**20
LENGTH = 8  # bytes with the length of a safetensors header
HEADER_BYTES = 8 * 2**20  # about 80,000 tensors
INDEX_BYTES = 32 * 2**20
TIMES = 2  # tied weights and tables of positions may double the numbers of the files
ALLOWED = 2**26  # numbers that any model may compute itself


class Stored(NamedTuple):
    """A tensor as the header of a file describes it."""

    dtype: str
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> tuple[dict[str, Stored], int]:
    """Return the tensors in a model's folder, by name, and the bytes of their files.

    A header must account for every byte of its file. Tensors that overlap, leave gaps or have another size than stated are
    refused, as are truncated files.
    """
    tensors: dict[str, Stored] = {}
    files = _files(folder)
    for file in files:
        tensors |= read_header(file)
    return tensors, sum(file.stat().st_size for file in files)


def read_header(file: Path) -> dict[str, Stored]:
    """Return the tensors of a safetensors file by name, without their values; CorruptFile if it is damaged."""
    check_header(file)
    try:
        with safe_open(file, framework="pt"), open(file, "rb") as weights:  # the first refuses what does not fit the file
            header = json.loads(weights.read(int.from_bytes(weights.read(LENGTH), "little")))
            return {name: Stored(each["dtype"], tuple(each["shape"])) for name, each in header.items() if name != "__metadata__"}
    except (SafetensorError, OSError) as error:
        raise unreadable(file, error) from None


def unreadable(file: Path, error: Exception) -> CorruptFile:
    """Return the error for a file of weights that cannot be opened: it is a pickle, or damaged."""
    if file.is_file() and is_pickle(file):
        return CorruptFile(
            f"{file} is a pickle (as torch.save writes), not safetensors, and can run code when opened; "
            "convert it with save_pretrained(..., safe_serialization=True)"
        )
    return CorruptFile(f"{file} is truncated or damaged ({first_line(error)}); copy it again")


def _files(folder: Path) -> list[Path]:
    """Return the files of weights that transformers would read: one file, or the parts that an index names."""
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
    """Refuse a safetensors file whose header is too large for one of weights, before it is read."""
    with translated(CorruptFile, f"{file} cannot be read", "copy it again", errors=OSError), open(file, "rb") as weights:
        length = int.from_bytes(weights.read(LENGTH), "little")
    if HEADER_BYTES < length <= file.stat().st_size:
        raise CorruptFile(f"{file} has a header of {length / 2**20:,.0f} MiB, and {HEADER_BYTES / 2**20:.0f} MiB are read")


def read_fields(file: Path) -> dict[str, Any]:
    """Return the fields of a JSON file such as config.json.

    Raises
    ------
    CorruptFile
        The file is not a JSON object.
    """
    most = INDEX_BYTES if file.name == INDEX else SETTING_BYTES
    if file.is_file() and file.stat().st_size > most:
        size = file.stat().st_size / 2**20
        raise CorruptFile(f"{file} has {size:,.0f} MiB, and at most {most / 2**20:.0f} MiB are settings; copy it again")
    problem = f"{file} cannot be read: it is broken JSON"
    with translated(CorruptFile, problem, "copy it again", errors=(ValueError, RecursionError)):
        fields = json.loads(file.read_bytes())
    if not isinstance(fields, dict):
        raise CorruptFile(f"{file} cannot be read: it is no JSON object; copy it again")
    return fields


def in_all(tensors: Mapping[str, Stored]) -> Weights:
    """Count tensors and their numbers, without empty tensors."""
    numbers = [math.prod(tensor.shape) for tensor in tensors.values()]
    return Weights(sum(1 for count in numbers if count), sum(numbers))


def auto_class(config: PretrainedConfig) -> Any:
    """Return the class of transformers that opens a model: of an encoder with a decoder, or else of a language model."""
    of_two = {
        AutoModelForSeq2SeqLM: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        AutoModelForSpeechSeq2Seq: MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    }
    known = of_two if getattr(config, "is_encoder_decoder", False) else {}
    return next((auto for auto, models in known.items() if type(config) in models), AutoModelForCausalLM)


def is_built_in(config: PretrainedConfig) -> bool:
    """Return whether transformers itself has the model of a configuration."""
    return auto_class(config) is not AutoModelForCausalLM or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def on_paper(name: str, config: PretrainedConfig) -> nn.Module:
    """Return the model that a configuration describes, on the meta device: without memory for its weights.

    Raises
    ------
    UnsupportedModel
        It describes no model.
    """
    with translated(UnsupportedModel, f"{name} cannot be built from its config.json"), torch.device("meta"):
        return auto_class(config).from_config(copy.deepcopy(config))  # it sets the attention implementation in the copy


def check_size(name: str, stored: Weights, model: nn.Module) -> None:
    """Raise CorruptFile if a model has far more numbers than its weights, which transformers would allocate at random.

    Masks, tables of positions and other buffers count too.
    """
    made = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if made > TIMES * stored.numbers + ALLOWED:
        raise CorruptFile(
            f"the weights of {name} are {stored.numbers:,} numbers, and its config.json makes a model of {made:,}; "
            "take the config.json and the weights of one model"
        )


def check_fit(name: str, tensors: Mapping[str, Stored], model: nn.Module) -> None:
    """Raise CorruptFile if weights do not fit a model: another shape under the same name, or fewer numbers."""
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
