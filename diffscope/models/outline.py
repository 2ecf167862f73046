"""What a model's files say of it before any of it is loaded: its tensors, the memory it takes, whether the two agree."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import get_safetensors_metadata, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from diffscope.attention.memory import free_memory
from diffscope.errors import CorruptFile, ModelNotFound, OutOfMemoryAhead, UnsupportedModel, first_line
from diffscope.models.loading import check_weights, locate, unreadable

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CODE = "auto_map"  # where a configuration names the code that comes with a model
COUNTS = re.compile(r"(num|n)_\w*(layer|expert|block)s?", re.ASCII)
MOST = 1000  # of layers, or of experts: each is made, if only on paper, to learn how large the model is


class Stored(NamedTuple):
    """A tensor as the header of a file describes it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Outline:
    """A model before it is loaded.

    Attributes
    ----------
    name : str
    kind : str
        ``model_type`` of its config.json; empty of a model of timm.
    parameters : int
        Numbers in its files.
    nbytes : int
        What it takes in memory, in bytes.
    code : tuple of str
        Classes that are code of its own, which it needs; empty where transformers knows it.
    """

    name: str
    kind: str
    parameters: int
    nbytes: int
    code: tuple[str, ...] = ()


def outline(name: str) -> Outline:
    """What a model's files say of it; nothing of its weights is read, and no code of its own is run.

    Parameters
    ----------
    name : str
        As of :func:`diffscope.load`. Of a model of the hub that is not on this machine, the headers of its files are fetched.

    Raises
    ------
    ModelNotFound
        There is no such model, or it is not to be had from the hub.
    CorruptFile
        A file is damaged, or the weights are not those of the configuration.
    UnsupportedModel
        No model can be made from its configuration.
    """
    home, weights = locate(name)
    if home is None or weights is None:
        home = weights = _cached(name)
    if home is None or weights is None:
        tensors, nbytes = _on_hub(name)
        fields = _fields_on_hub(name)
    else:
        tensors, nbytes = stored_tensors(weights)
        fields = read_fields(home / "config.json")
    kind = str(fields.get("model_type") or "")
    count = sum(math.prod(tensor.shape) for tensor in tensors.values())
    if "architecture" in fields or "quantization_config" in fields:  # timm's, and packed numbers
        return Outline(name, kind, count, nbytes)
    if kind not in CONFIG_MAPPING:
        return Outline(name, kind, count, nbytes, named_code(fields) or (kind or "no model_type",))
    model = on_paper(name, fields, len(tensors))
    check_fit(name, tensors, model)
    return Outline(name, kind, count, sum(map(_nbytes, (*model.parameters(), *model.buffers()))))


def check_memory(model: Outline, device: torch.device | str = "cpu") -> float:
    """The memory that is free for a model, in bytes.

    Raises
    ------
    OutOfMemoryAhead
        The model takes more.
    """
    free = free_memory(torch.device(device))
    if model.nbytes > free:
        raise OutOfMemoryAhead(
            f"{model.name} takes {model.nbytes / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; "
            "use a smaller model, or one saved in half precision"
        )
    return free


def stored_tensors(folder: Path) -> tuple[dict[str, Stored], int]:
    """The tensors that a model's folder holds, by name, and the bytes of their files.

    A header has to account for every byte of its file: tensors that overlap, leave gaps, or are of other sizes than they say are
    refused, as is a file that is cut.

    Raises
    ------
    ModelNotFound, CorruptFile
    """
    check_weights(folder)
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
    try:
        with safe_open(file, framework="pt") as weights:
            parts = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118 (it is no dict)
            return {name: Stored(part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise unreadable(file, error) from None


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


def read_fields(file: Path) -> dict[str, Any]:
    """The fields of a JSON file such as config.json.

    Raises
    ------
    CorruptFile
        It is no JSON object.
    """
    try:
        fields = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{file} is broken JSON ({first_line(error)}); copy it again") from None
    if not isinstance(fields, dict):
        raise CorruptFile(f"{file} is no JSON object; copy it again")
    return fields


def named_code(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of a model's own code that its configuration names."""
    named = fields.get(CODE)
    values = named.values() if isinstance(named, dict) else [named] if named else []
    return tuple(dict.fromkeys(map(str, values)))


def on_paper(name: str, fields: Mapping[str, Any], tensors: int) -> nn.Module:
    """The model that a configuration describes, without memory for its weights.

    Raises
    ------
    UnsupportedModel
        It describes none, or more layers than there are tensors.
    """
    for field, count in _counts(fields):
        if count > min(MOST, max(tensors, 1)):
            raise UnsupportedModel(
                f"config.json of {name} says {field} = {count:,}, and there are {tensors:,} tensors of weights"
            )
    try:
        config: PretrainedConfig = AutoConfig.for_model(**fields)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except Exception as error:  # a model's class may raise anything where a field means nothing to it
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UnsupportedModel(f"{name} cannot be built from its config.json ({reason})") from None


def _counts(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Fields that count layers or experts, those of nested configurations too."""
    for field, value in fields.items():
        if isinstance(value, dict):
            yield from _counts(value)
        elif isinstance(value, int) and COUNTS.fullmatch(field):
            yield field, value


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


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _cached(name: str) -> Path | None:
    """The folder of a model of the hub that was fetched before."""
    try:
        config = try_to_load_from_cache(name, "config.json")
    except ValueError as error:
        raise ModelNotFound(f"no model {name!r}: not a folder, and no id of the hub ({first_line(error)})") from None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if any(folder.glob("*.safetensors")) else None


def _on_hub(name: str) -> tuple[dict[str, Stored], int]:
    """The same as of :func:`stored_tensors`, from the headers of files on the hub."""
    try:
        files = get_safetensors_metadata(name).files_metadata.values()
    except Exception as error:  # the hub's client may raise anything
        raise ModelNotFound(f"no model {name!r}: not a folder, and not to be had from the hub ({first_line(error)})") from None
    headers = [file.tensors for file in files]
    tensors = {each: Stored(str(info.dtype), tuple(info.shape)) for header in headers for each, info in header.items()}
    nbytes = sum(max((info.data_offsets[1] for info in header.values()), default=0) for header in headers)
    return tensors, nbytes


def _fields_on_hub(name: str) -> dict[str, Any]:
    try:
        return PretrainedConfig.get_config_dict(name)[0]
    except Exception as error:
        raise ModelNotFound(f"config.json of {name} is not to be had from the hub ({first_line(error)})") from None
