"""Check the files and settings of a model before anything is built, fetched or run.

Models come from strangers. Their weights are safetensors and cannot run code, but their settings can make transformers fetch
code, or build modules that fill all memory. So every number in them is compared with the weights.
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

from diffscope.errors import CorruptFile, UnsupportedModel, translated
from diffscope.fields import shown

INDEX = "model.safetensors.index.json"
CODE = "auto_map"  # the field of a configuration that names the model's own code
PACKED = "quantization_config"
ADAPTER = "adapter_config.json"
READ = (".json", ".safetensors", ".txt", ".model", ".jinja")  # suffixes of the files that a model is read from

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
MOST_LAYERS = 1000  # each is built on the meta device, to learn how large the model is
MOST_EXPERTS = 100_000  # in one layer
MOST_IN_ALL = 1_000_000  # experts in all layers, which may be built on the meta device too
LABELS = "num_labels"
MOST_LABELS = 30_000  # classes, and entries of any list
EXTENTS = re.compile(r"\w*(theta|position|length|len|seq|window|context|seed|limit|factor)\w*", re.ASCII)
EXTENT = 10**10  # the most of a length or a base of RoPE
MOST_GROWTH = 1000  # times that a tokenizer may lengthen a text; real ones stay far below
NUMBER = 10**7  # the most of all else, or the numbers in the weights if these are more


class Weights(NamedTuple):
    """Tensors, and numbers in all of them, that a model's files hold."""

    tensors: int
    numbers: int


def check_regular(folder: Path) -> None:
    """Refuse a folder in which a file of the model is a pipe, a device, a folder or a broken link."""
    for file in sorted(each for pattern in ("*", "*_templates/*") for each in folder.glob(pattern) if each.suffix in READ):
        if not file.is_file():
            raise CorruptFile(f"{shown(file.name)} in {folder} is no regular file; put a copy of the model's own file there")


def check_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter: transformers would open its weights, or a pickle, without our checks."""
    if (folder / ADAPTER).exists():
        raise UnsupportedModel(
            f"{folder} has an adapter ({ADAPTER}) beside the model; merge them with merge_and_unload and save that, or open the "
            "model with peft and pass it to diffscope.load"
        )


def check_asked(name: str, fields: Mapping[str, Any], trust: bool) -> None:
    """Refuse settings that make transformers fetch and run compiled code, unless `trust`."""
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
    """Refuse a dtype that is none: transformers accepts any attribute of torch."""
    for field in ("dtype", "torch_dtype"):
        value = fields.get(field)
        if isinstance(value, str) and value != "auto" and not isinstance(getattr(torch, value, None), torch.dtype):
            raise UnsupportedModel(f"config.json of {name} says {field} = {shown(value)}, which is no dtype of torch; correct it")


def check_implementation(name: str, field: str, value: Any) -> None:
    """Refuse an implementation of attention or experts that is neither built in nor registered in this process."""
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
    """Refuse a configuration whose counts are larger than its weights allow.

    Parameters
    ----------
    name : str
        Of the model.
    fields : mapping
        Of its config.json.
    weights : Weights or None
        None if its weights are still to be fetched.
    """
    numbers = EXTENT if weights is None else weights.numbers
    # Experts are not compared with the tensors: one tensor may hold all experts of a layer.
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
    """Refuse a tokenizer.json whose replacements make a text many times longer: in a chain they could fill all memory."""
    malformed = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
    with translated(CorruptFile, f"{file} cannot be read as a tokenizer", "copy it again", errors=malformed):
        fields = json.loads(file.read_bytes())
        growth = max(_growth(fields.get(part) or {}) for part in ("normalizer", "decoder"))
    if growth > MOST_GROWTH:
        raise CorruptFile(f"{file} makes texts up to {growth:.3g} times longer, which could fill all memory; copy it again")


def _growth(step: Mapping[str, Any]) -> float:
    """Return how many times longer a step of a tokenizer can make a text."""
    if step.get("type") == "Sequence":
        return math.prod(map(_growth, step.get("normalizers") or step.get("decoders") or []))
    if step.get("type") != "Replace":
        return 1.0
    pattern = step["pattern"].get("String")  # a regular expression may match one character
    return max(1.0, len(step["content"]) / max(len(pattern or ""), 1))


def _all_fields(fields: Any) -> Iterator[tuple[str, Any]]:
    """Yield every field with its value, including those in nested tables and lists, without recursion."""
    rest = [("", fields)]
    while rest:
        field, value = rest.pop()
        yield field, value
        if isinstance(value, Mapping):
            rest.extend((str(name), each) for name, each in value.items())
        elif isinstance(value, list):
            rest.extend((field, each) for each in value)
