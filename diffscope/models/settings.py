"""What the files of a model may be, ask for and count, looked at before anything is built, fetched or run.

Whoever wrote a model may be anybody. Its weights cannot run code, since they are safetensors; its settings can have transformers
fetch code, or build what fills all memory. So every number in them is held against the weights that are there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_kernels_available

from diffscope.errors import CorruptFile, UnsupportedModel, first_line
from diffscope.fields import shown

INDEX = "model.safetensors.index.json"
CODE = "auto_map"  # where a configuration names the code that comes with a model
PACKED = "quantization_config"
ADAPTER = "adapter_config.json"
READ = (".json", ".safetensors", ".txt", ".model", ".jinja")  # how the names of the files end that a model is read from

IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?", re.ASCII)
BUILT_IN = {
    "eager",
    "sdpa",
    "flex_attention",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
    "grouped_mm",
    "batched_mm",
}
FLASH = "flash_attention"
KERNEL_QUANTISERS = ("eetq", "fbgemm_fp8", "fp8", "metal", "mxfp4")

PARTS = re.compile(r"(num|n)_\w*(layer|expert|block)s?|(encoder|decoder)_layers|depth", re.ASCII)
MOST_LAYERS = 1000  # each is made, if only on paper, to learn how large the model is
MOST_EXPERTS = 100_000  # in one layer
MOST_IN_ALL = 1_000_000  # experts in all layers: each may be made on paper too
LABELS = "num_labels"
MOST_LABELS = 30_000  # classes, and entries of any list
EXTENTS = re.compile(r"\w*(theta|position|length|len|seq|window|context|seed|limit|factor)\w*", re.ASCII)
EXTENT = 10**10  # the most of a length or a base of RoPE
MOST_GROWTH = 1000  # of a text by a tokenizer: no honest one comes near to it
NUMBER = 10**7  # the most of all else; of models with more numbers in their weights, that many


class Weights(NamedTuple):
    """How much a model's files hold: tensors, and numbers in all of them."""

    tensors: int
    numbers: int


def check_regular(folder: Path) -> None:
    """Refuse a folder in which what a model is read from is a pipe, a device, a folder, or a link that leads nowhere.

    Raises
    ------
    CorruptFile
    """
    for file in sorted(each for pattern in ("*", "*_templates/*") for each in folder.glob(pattern) if each.suffix in READ):
        if not file.is_file():
            raise CorruptFile(f"{shown(file.name)} in {folder} is no regular file; put a copy of the model's own file there")


def check_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter, whose other weights, or a pickle, would be opened beside those that were looked at.

    Raises
    ------
    UnsupportedModel
    """
    if (folder / ADAPTER).exists():
        raise UnsupportedModel(
            f"{folder} has an adapter ({ADAPTER}) beside the model; merge them with merge_and_unload and save that, or open the "
            "model with peft and pass it to diffscope.load"
        )


def check_asked(name: str, fields: Mapping[str, Any], trust: bool) -> None:
    """Refuse settings that would have transformers fetch compiled code and run it, unless whoever opens the model trusts it.

    Parameters
    ----------
    name : str
        Of the model.
    fields : mapping
        Of its config.json, or another file of settings.
    trust : bool

    Raises
    ------
    UnsupportedModel
    """
    if trust:
        return
    for field, value in _all_fields(fields):
        if IMPLEMENTATION.fullmatch(field) and value is not None:
            for each in value.values() if isinstance(value, dict) else [value]:
                check_implementation(name, field, each)
        if field == "quant_method" and value in KERNEL_QUANTISERS and is_kernels_available():
            raise UnsupportedModel(
                f"{name} is packed as {shown(value)}, for which compiled code would be fetched from the hub; if you trust that "
                "code, give trust_remote_code"
            )


def check_dtype(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse a dtype that is none: transformers takes whatever torch has by that name.

    Raises
    ------
    UnsupportedModel
    """
    for field in ("dtype", "torch_dtype"):
        value = fields.get(field)
        if isinstance(value, str) and value != "auto" and not isinstance(getattr(torch, value, None), torch.dtype):
            raise UnsupportedModel(f"config.json of {name} says {field} = {shown(value)}, which is no dtype of torch; correct it")


def check_implementation(name: str, field: str, value: Any) -> None:
    """Refuse an implementation of attention, or of experts, that is neither built in nor registered in this process.

    Raises
    ------
    UnsupportedModel
    """
    plain = value.removeprefix("paged|") if isinstance(value, str) else value
    known = value is None or plain in BUILT_IN or plain in list(ALL_ATTENTION_FUNCTIONS)
    # Without the package flash-attn, transformers would fetch its kernels from the hub.
    fetches = isinstance(plain, str) and plain.startswith(FLASH) and is_kernels_available()
    if not known or fetches:
        raise UnsupportedModel(
            f"{name} asks for {field} = {shown(value)}, which is not built in, so that code for it may be fetched from the hub "
            "and run; take it out of config.json, or give trust_remote_code if you trust that code"
        )


def check_counts(name: str, fields: Mapping[str, Any], weights: Weights | None) -> None:
    """Refuse a configuration that counts more than its weights can be of.

    Parameters
    ----------
    name : str
        Of the model.
    fields : mapping
        Of its config.json.
    weights : Weights or None
        None if its weights are still to be fetched.

    Raises
    ------
    UnsupportedModel
    """
    numbers = EXTENT if weights is None else weights.numbers
    # Experts are not held against the tensors: those of a layer may stand in one.
    layers = MOST_LAYERS if weights is None else min(MOST_LAYERS, weights.tensors)
    most_of = {"expert": min(MOST_EXPERTS, numbers), "layer": layers}
    largest = {"expert": 1, "layer": 1}
    for field, value in _all_fields(fields):
        if isinstance(value, (Mapping, list)) and len(value) > MOST_LABELS:
            raise UnsupportedModel(
                f"config.json of {name} has {len(value):,} entries in {shown(field)}, and at most {MOST_LABELS:,} are read"
            )
        if type(value) is not int:
            continue
        if PARTS.fullmatch(field):
            kind = "expert" if "expert" in field else "layer"
            most = most_of[kind]
            largest[kind] = max(largest[kind], value)
        elif field == LABELS:
            most = MOST_LABELS
        elif EXTENTS.fullmatch(field):
            most = EXTENT
        else:
            most = max(NUMBER, numbers)
        if value > most:
            raise UnsupportedModel(
                f"config.json of {name} says {field} = {value:,}, and at most {most:,} is possible with its weights; "
                "take the config.json and the weights of one model"
            )
    if math.prod(largest.values()) > MOST_IN_ALL:
        counts = " layers of ".join(f"{largest[kind]:,}" for kind in ("layer", "expert"))
        raise UnsupportedModel(f"config.json of {name} says {counts} experts, and at most {MOST_IN_ALL:,} in all are built")


def check_growth(file: Path) -> None:
    """Refuse a tokenizer.json whose replacements make a text many times longer: one after the other they could fill all memory.

    Raises
    ------
    CorruptFile
    """
    try:
        fields = json.loads(file.read_bytes())
        growth = max(_growth(fields.get(part) or {}) for part in ("normalizer", "decoder"))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CorruptFile(f"{file} cannot be read as a tokenizer ({first_line(error)}); copy it again") from None
    if growth > MOST_GROWTH:
        raise CorruptFile(f"{file} makes texts up to {growth:.3g} times longer, which could fill all memory; copy it again")


def _growth(step: Mapping[str, Any]) -> float:
    """How many times longer a step of a tokenizer can make a text."""
    if step.get("type") == "Sequence":
        return math.prod(map(_growth, step.get("normalizers") or step.get("decoders") or []))
    if step.get("type") != "Replace":
        return 1.0
    pattern = step["pattern"].get("String")  # a regular expression may match one character
    return max(1.0, len(step["content"]) / max(len(pattern or ""), 1))


def _all_fields(fields: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Every field with its value, those of nested tables and the entries of lists too, without recursion."""
    rest = [(field, fields)]
    while rest:
        field, value = rest.pop()
        yield field, value
        if isinstance(value, Mapping):
            rest.extend((str(name), each) for name, each in value.items())
        elif isinstance(value, list):
            rest.extend((field, each) for each in value)
