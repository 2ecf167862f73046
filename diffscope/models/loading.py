"""Load a model and its tokenizer by bundled name, folder or hub id, from safetensors only."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig

from diffscope.errors import (
    CorruptFile,
    DiffscopeError,
    DiffscopeWarning,
    ModelNotFound,
    UnsupportedModel,
    translated,
)
from diffscope.models.denoising import is_of_diffusers, load_denoiser
from diffscope.models.folders import TOKENIZER, locate, tokenizer_folder
from diffscope.models.hub import asked_of_hub
from diffscope.models.quiet import quietly
from diffscope.models.settings import (
    CODE,
    PACKED,
    Weights,
    check_adapter,
    check_asked,
    check_counts,
    check_dtype,
    check_growth,
    check_regular,
)
from diffscope.models.stored import (
    auto_class,
    check_header,
    check_size,
    in_all,
    is_built_in,
    on_paper,
    read_fields,
    stored_tensors,
)
from diffscope.models.vision import fetched, is_of_timm, load_timm
from diffscope.storage.checksum import check_sums

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TENSORS = (OSError, SafetensorError, RuntimeError)  # raised by damaged weights
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OTHERWISE = "open a model of another kind with its own class, and give the model: diffscope.load(model)"


def check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are pickles or missing, or of which a file has too large a header."""
    files = sorted(folder.glob("*.safetensors"))
    for file in files:  # diffusers reads files of other names than transformers
        check_header(file)
    if files:
        return
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise CorruptFile(
            f"{folder} offers its weights as a pickle ({pickles[0]}), which can run code when opened; "
            "convert them with save_pretrained(..., safe_serialization=True)"
        )
    raise ModelNotFound(f"{folder} holds no .safetensors weights; save the model there with save_pretrained")


def check_folders(home: Path, weights: Path) -> None:
    """Refuse a model whose files do not match the digests of their folders, or whose weights are pickles or missing."""
    tokenizer = tokenizer_folder(home)
    for folder in {place.absolute() for place in (home, weights, tokenizer) if place is not None}:
        check_regular(folder)
        check_adapter(folder)
        check_sums(folder)
    check_weights(weights)


def check_generation(folder: Path) -> bool:
    """Return whether a folder has a generation_config.json; CorruptFile if it is damaged, which transformers would ignore."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return False
    with translated(CorruptFile, f"{file} cannot be read", "copy it again, or remove it"):
        GenerationConfig.from_dict(json.loads(file.read_bytes()))
    return True


def read_settings(name: str, home: Path | None) -> dict[str, Any]:
    """Return the fields of a model's config.json; ModelNotFound if there is none, CorruptFile if it is damaged."""
    if home is not None:
        return read_fields(home / "config.json")
    with asked_of_hub(name):
        return PretrainedConfig.get_config_dict(name)[0]


def read_config(name: str, home: Path | None, **options) -> PretrainedConfig:
    """Return the configuration of a model of transformers; ModelNotFound or CorruptFile if it cannot be read."""
    if home is None:
        with asked_of_hub(name):
            return AutoConfig.from_pretrained(name, **options)
    # For a field of a wrong type, the first line has the field's name and the second says what is wrong.
    with translated(CorruptFile, f"{home / 'config.json'} cannot be read as a model's configuration", lines=2):
        return AutoConfig.from_pretrained(home, **options)


def check_settings(name: str, fields: dict[str, Any], held: Weights | None, implementation: Any, trust: bool) -> None:
    """Refuse settings that fetch and run code, or that describe more than the weights hold, before anything is built."""
    check_dtype(name, fields)
    check_asked(name, fields, trust)
    check_asked(name, {"attn_implementation": implementation}, trust)
    check_counts(name, fields, held)


@quietly()
def load_model(name: str, *, dtype=None, device=None, device_map=None, attn_implementation=None, trust_remote_code=False):
    """Load a model in evaluation mode, and its tokenizer, or None if it has none.

    Nothing is printed (:func:`diffscope.models.quiet.quietly`). A DiffscopeWarning names weights that the model does not use.

    Raises
    ------
    ModelNotFound
        There is no model of that name, or no weights in its folder.
    CorruptFile
        A file of it is damaged, is a pickle, or was changed; or the weights do not fit its config.json.
    UnsupportedModel
        Its settings ask for code to be run, describe more than its weights hold, or are of no language model.
    MissingExtra
        The model is one of timm or diffusers, which is not installed.
    """
    home, weights = locate(name)
    options = dict(trust_remote_code=trust_remote_code)
    source = name if home is None else home
    tensors = None
    if home is not None and weights is not None:
        check_folders(home, weights)
        tensors, _ = stored_tensors(weights)
    fields = read_settings(name, home)
    held = None if tensors is None else in_all(tensors)
    check_settings(name, fields, held, attn_implementation, trust_remote_code)
    foreign = "timm" if is_of_timm(fields) else "diffusers" if is_of_diffusers(fields) else None
    config = None if foreign else read_config(name, home, **options)
    if weights is not None and config is not None and not check_generation(weights):  # transformers would look for it on the hub
        options["generation_config"] = GenerationConfig.from_model_config(config)
    if config is None:
        if device_map is not None or attn_implementation is not None:
            raise UnsupportedModel(
                f"{name} is a model of {foreign}, which takes no device_map or attn_implementation; use device"
            )
        if foreign == "timm":
            model = load_timm(name, weights or fetched(name), dtype)
        elif tensors is None:
            raise ModelNotFound(
                f"{name} is a model of diffusers on the hub; load it with diffusers and give its transformer: "
                "diffscope.load(pipeline.transformer)"
            )
        else:
            model = load_denoiser(name, weights, tensors, fields, dtype)
        return (model if device is None else move(model, device)).eval(), None
    if held is not None and is_built_in(config) and not {CODE, PACKED} & fields.keys():
        check_size(name, held, on_paper(name, config))
    with (
        translated(UnsupportedModel, f"{name} cannot be built from its config.json"),
        translated(UnsupportedModel, f"{name} cannot be opened as a language model", OTHERWISE, errors=(ValueError, ImportError)),
        translated(CorruptFile, f"the weights of {name} cannot be loaded", "copy them again", errors=TENSORS),
    ):
        model, report = auto_class(config).from_pretrained(
            name if weights is None else weights,
            config=config,
            dtype=dtype or "auto",
            device_map=device_map,
            attn_implementation=attn_implementation,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    absent = sorted(report["missing_keys"])
    if absent:
        raise CorruptFile(f"the weights of {name} lack {len(absent)} tensors, the first {absent[0]!r}; they would be random")
    unread = sorted(report["unexpected_keys"])
    if unread:
        words = f"{len(unread)} tensors that the model has no place for, the first {unread[0]!r}"
        warnings.warn(f"the weights of {name} hold {words}; they were left out", DiffscopeWarning, stacklevel=2)
    if device is not None:
        model = move(model, device)
    return model.eval(), load_tokenizer(source, trust_remote_code)


def move(model: nn.Module, device) -> nn.Module:
    """Move a model to a device.

    Raises
    ------
    UnsupportedModel
        The device is unknown or absent, or too small.
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise UnsupportedModel(f"device {device!r} is unknown; use cpu, cuda or cuda:1") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedModel(f"device {device!r} was asked for, but torch sees no GPU here; use --device cpu")
    refused = (RuntimeError, NotImplementedError, AssertionError)
    with translated(UnsupportedModel, f"the model cannot be put on device {device!r}", errors=refused):
        return model.to(place)


def load_tokenizer(source, trust_remote_code: bool):
    """Load the tokenizer of a model, or that of its cohort; None if neither is saved.

    Raises
    ------
    CorruptFile
        The tokenizer is saved in a folder and cannot be read.
    """
    if isinstance(source, Path):
        source = tokenizer_folder(source)
        if source is None:
            return None
        if (source / TOKENIZER).is_file():
            check_growth(source / TOKENIZER)
    try:
        with translated(CorruptFile, f"the tokenizer in {source} cannot be read", "copy it again"):
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
            tokenizer("a")  # transformers notices settings of a wrong type only when the tokenizer is used
            return tokenizer
    except CorruptFile:
        if isinstance(source, Path):
            raise
        return None  # a model of the hub may have none


def named_dtype(dtype) -> torch.dtype | None:
    """Return a dtype that a model can have, which may be given by a name such as ``"bfloat16"`` or ``"bf16"``, or None.

    Raises
    ------
    DiffscopeError
        It is none of ``DTYPES``.
    """
    if dtype is None:
        return None
    long_names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    named = getattr(torch, long_names.get(dtype, dtype), None) if isinstance(dtype, str) else dtype
    if named not in DTYPES:
        raise DiffscopeError(f"a model has no dtype {dtype!r}; use float32, bfloat16, float16 or float64")
    return named
