"""Find a model by bundled name, folder or hub id, and load it from safetensors only."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PretrainedConfig
from transformers.utils import cached_file

from diffscope.errors import CorruptFile, DiffscopeError, MissingExtra, ModelNotFound, UnsupportedModel

BUNDLED = Path(__file__).parent / "bundled"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TIMM_WEIGHTS = "model.safetensors"


def bundled() -> list[dict]:
    """The models that come with diffscope.

    Returns
    -------
    list of dict
        name, path, attention, layers, heads, parameters, positions, scores, checkpoints (steps along training).
    """
    cards = sorted(BUNDLED.glob("*/card.json"))
    return [{**json.loads(card.read_text(encoding="utf-8"))["summary"], "path": str(card.parent)} for card in cards]


def locate(name: str) -> tuple[Path | None, Path | None]:
    """Folders of a model's configuration and tokenizer, and of its weights; None, None for what may be a hub id.

    ``mini-diff@400`` is the bundled model as it was after 400 steps of training, ``FOLDER@400`` that of a run.
    """
    base, at, step = name.rpartition("@")
    if at and not Path(name).expanduser().is_dir() and (_folder(base) / "config.json").is_file():
        kept = checkpoints(_folder(base))
        if not step.isdigit() or int(step) not in kept:
            raise ModelNotFound(f"{base} has no checkpoint {step!r}; kept are the steps {', '.join(map(str, kept)) or 'none'}")
        return _folder(base), kept[int(step)]
    folder = _folder(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"{folder} has no config.json; give the folder of a model that save_pretrained wrote")
        return folder, folder
    if folder.is_absolute() or name.startswith(".") or name.count("/") != 1:
        known = ", ".join(model["name"] for model in bundled()) or "none"
        raise ModelNotFound(f"no model {name!r}: not bundled ({known}), not a folder, and not a hub id, which is OWNER/NAME")
    return None, None


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints that a training has left in a model's folder, by step."""
    steps = {path.name.removeprefix("step-"): path for path in sorted((folder / "checkpoints").glob("step-*"))}
    return {int(step): path for step, path in steps.items() if step.isdigit()}  # unfinished ones have longer names


def _folder(name: str) -> Path:
    """The folder that a name stands for: of a bundled model, or on disk."""
    bundled = BUNDLED / name
    return bundled if (bundled / "config.json").is_file() else Path(name).expanduser()


def check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are pickles, missing or damaged.

    Raises
    ------
    ModelNotFound, CorruptFile
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            raise CorruptFile(
                f"{folder} offers its weights as a pickle ({pickles[0]}), which can run code when opened; "
                "convert them with save_pretrained(..., safe_serialization=True)"
            )
        raise ModelNotFound(f"{folder} holds no .safetensors weights; save the model there with save_pretrained")
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise CorruptFile(f"{file} is truncated or damaged ({error}); copy it again") from None


def load_model(name: str, *, dtype=None, device=None, device_map=None, attn_implementation=None, trust_remote_code=False):
    """A model in evaluation mode and its tokenizer (None if the folder has none).

    Raises
    ------
    ModelNotFound, CorruptFile, UnsupportedModel
    MissingExtra
        It is a model of timm, which is not installed.
    """
    home, weights = locate(name)
    options = dict(trust_remote_code=trust_remote_code)
    source = name if home is None else home
    try:
        of_timm = is_of_timm(PretrainedConfig.get_config_dict(source)[0])
        config = None if of_timm else AutoConfig.from_pretrained(source, **options)
    except Exception as error:  # a configuration's class may raise anything
        if home is not None:
            raise CorruptFile(f"{home / 'config.json'} cannot be read as a model's configuration ({_line(error)})") from None
        raise ModelNotFound(f"no model {name!r}: not a folder, and not to be had from the hub ({_line(error)})") from None
    if weights is not None:
        check_weights(weights)
        if config is not None and not (weights / "generation_config.json").is_file():  # else it is looked for on the hub
            options["generation_config"] = GenerationConfig.from_model_config(config)
    if of_timm:
        if device_map is not None or attn_implementation is not None:
            raise UnsupportedModel(f"{name} is a model of timm, which takes no device_map or attn_implementation; use device")
        model = load_timm(name, weights or fetched(name), dtype)
        return (model if device is None else move(model, device)).eval(), None
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            name if weights is None else weights,
            config=config,
            dtype=dtype or "auto",
            device_map=device_map,
            attn_implementation=attn_implementation,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CorruptFile(f"the weights of {name} cannot be loaded ({_line(error)}); copy them again") from None
    except (ValueError, ImportError) as error:
        raise UnsupportedModel(f"{name} cannot be opened as a language model ({_line(error)})") from None
    absent = sorted(report["missing_keys"])
    if absent:
        raise CorruptFile(f"the weights of {name} lack {len(absent)} tensors, the first {absent[0]!r}; they would be random")
    if device is not None:
        model = move(model, device)
    return model.eval(), load_tokenizer(source, trust_remote_code)


def is_of_timm(fields: dict) -> bool:
    """Whether a config.json, as transformers reads it, is one that timm wrote."""
    return "architecture" in fields and fields.get("model_type") in (None, "timm_wrapper")


def fetched(name: str) -> Path:
    """The local folder of a model of timm on the hub.

    Raises
    ------
    ModelNotFound
        It is not to be had, or offers no safetensors.
    """
    try:
        files = [Path(cached_file(name, file)) for file in ("config.json", TIMM_WEIGHTS)]
    except Exception as error:  # the hub's client may raise anything
        raise ModelNotFound(f"{TIMM_WEIGHTS} of {name} is not to be had from the hub ({_line(error)})") from None
    return files[0].parent


def load_timm(name: str, folder: Path, dtype: torch.dtype | None = None) -> nn.Module:
    """A vision model from a folder that timm wrote: config.json and model.safetensors.

    Raises
    ------
    MissingExtra, CorruptFile, UnsupportedModel
    """
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises the latter
        raise MissingExtra(
            f"{name} is a model of timm, which cannot be imported ({_line(error)}); pip install 'diffscope-attention[vision]', "
            "with the torchvision that fits your torch"
        ) from None
    file = folder / TIMM_WEIGHTS
    if not file.is_file():
        raise CorruptFile(f"{folder} has no {TIMM_WEIGHTS}, which a model of timm needs; save it with timm.models.save_for_hf")
    try:
        # The architecture alone: which file timm itself would take, and whether it is a pickle, does not matter here.
        model = timm.create_model(f"local-dir:{folder}", pretrained=False, dtype=dtype)
    except Exception as error:  # a model's class may raise anything
        raise UnsupportedModel(f"{name} cannot be built by timm {timm.__version__} ({_line(error)})") from None
    try:
        report = model.load_state_dict(load_file(file), strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CorruptFile(f"the weights of {name} cannot be loaded ({_line(error)}); copy them again") from None
    for names, says in ((report.missing_keys, "lack"), (report.unexpected_keys, "hold beyond the model")):
        if names:
            raise CorruptFile(f"the weights of {name} {says} {len(names)} tensors, the first {names[0]!r}; save the model again")
    return model


def move(model: nn.Module, device) -> nn.Module:
    """The model on a device, or one clear line."""
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UnsupportedModel(f"device {device!r} is unknown; use cpu, cuda or cuda:1") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedModel(f"device {device!r} was asked for, but torch sees no GPU here; use --device cpu")
    try:
        return model.to(place)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise UnsupportedModel(f"the model cannot be put on device {device!r} ({_line(error)})") from None


def load_tokenizer(source, trust_remote_code: bool):
    """The tokenizer of a model, or None where none is saved.

    Raises
    ------
    CorruptFile
        One is saved and cannot be read.
    """
    if isinstance(source, Path) and not any((source / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except Exception as error:  # a tokenizer's class may raise anything
        if isinstance(source, Path):
            raise CorruptFile(f"the tokenizer in {source} cannot be read ({_line(error)}); copy it again") from None
        return None


def _line(error: Exception) -> str:
    """The first line of a message, without the advice that follows."""
    return str(error).strip().partition("\n")[0][:160]


def named_dtype(dtype) -> torch.dtype | None:
    """A dtype, also by a name such as ``"bfloat16"`` or ``"bf16"``; None stays None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}.get(dtype, dtype), None)
    if not isinstance(found, torch.dtype):
        raise DiffscopeError(f"dtype {dtype!r} is unknown; use float32, bfloat16, float16 or float64")
    return found
