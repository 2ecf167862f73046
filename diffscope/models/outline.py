"""The outline of a model, read from its files before it is loaded: its tensors, the memory it takes, whether the two agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_safetensors_metadata, try_to_load_from_cache
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from diffscope.attention.memory import free_memory
from diffscope.errors import InsufficientMemory, ModelNotFound, UnsupportedModel, translated
from diffscope.models.denoising import CLASS, is_of_diffusers
from diffscope.models.folders import locate
from diffscope.models.hub import asked_of_hub
from diffscope.models.loading import check_weights, read_settings
from diffscope.models.settings import CODE, PACKED, check_asked, check_counts, check_regular
from diffscope.models.stored import Stored, check_fit, check_size, in_all, on_paper, stored_tensors


@dataclass(frozen=True)
class Outline:
    """A model before it is loaded.

    Attributes
    ----------
    name : str
    kind : str
        ``model_type`` of its config.json, or its class in diffusers; empty of a model of timm.
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
    """Read what a model's files say of it; nothing of its weights is read, and no code of its own is run.

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
    else:
        check_regular(home)
        check_weights(weights)
        tensors, nbytes = stored_tensors(weights)
    fields = read_settings(name, home)
    held = in_all(tensors)
    check_counts(name, fields, held)
    kind = str(fields.get("model_type") or (is_of_diffusers(fields) and fields[CLASS]) or "")
    if "architecture" in fields or is_of_diffusers(fields) or PACKED in fields:  # timm's, diffusers', and packed numbers
        return Outline(name, kind, held.numbers, nbytes)
    if kind not in CONFIG_MAPPING:
        return Outline(name, kind, held.numbers, nbytes, named_code(fields) or (kind or "no model_type",))
    check_asked(name, fields, trust=False)
    model = on_paper(name, _configuration(name, fields))
    check_fit(name, tensors, model)
    check_size(name, held, model)
    return Outline(name, kind, held.numbers, sum(map(_nbytes, (*model.parameters(), *model.buffers()))))


def check_memory(model: Outline) -> float:
    """Return the memory of this machine that is free for a model, in bytes.

    Raises
    ------
    InsufficientMemory
        The model takes more.
    """
    free = free_memory(torch.device("cpu"))
    if model.nbytes > free:
        raise InsufficientMemory(
            f"{model.name} takes {model.nbytes / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; "
            "use a smaller model, or one saved in half precision"
        )
    return free


def named_code(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes of a model's own code that its configuration names."""
    named = fields.get(CODE)
    values = named.values() if isinstance(named, dict) else [named] if named else []
    return tuple(dict.fromkeys(map(str, values)))


def _configuration(name: str, fields: Mapping[str, Any]) -> PretrainedConfig:
    with translated(UnsupportedModel, f"{name} cannot be built from its config.json"):
        return AutoConfig.for_model(**json.loads(json.dumps(dict(fields)), object_hook=_special_number))


def _special_number(table: dict[str, Any]) -> Any:
    """Return the number that transformers writes as a table because JSON has none such: an infinity, or NaN."""
    return float(table["__float__"]) if table.keys() == {"__float__"} else table


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _cached(name: str) -> Path | None:
    """Return the folder of a model of the hub that was fetched before."""
    with translated(ModelNotFound, f"no model {name!r}: not a folder, and no id of the hub", errors=ValueError):
        config = try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if any(folder.glob("*.safetensors")) else None


def _on_hub(name: str) -> tuple[dict[str, Stored], int]:
    """Return the same as :func:`stored_tensors`, from the headers of files on the hub."""
    with asked_of_hub(name):
        files = get_safetensors_metadata(name).files_metadata.values()
    headers = [file.tensors for file in files]
    tensors = {each: Stored(str(info.dtype), tuple(info.shape)) for header in headers for each, info in header.items()}
    nbytes = sum(max((info.data_offsets[1] for info in header.values()), default=0) for header in headers)
    return tensors, nbytes
