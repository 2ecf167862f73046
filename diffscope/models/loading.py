"""Find a model by bundled name, folder or hub id, and load it from safetensors only."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import cached_file

from diffscope.errors import (
    CorruptFile,
    DiffscopeError,
    DiffscopeWarning,
    MissingExtra,
    ModelNotFound,
    UnsupportedModel,
    first_line,
)
from diffscope.models.cards import BUNDLED, bundled
from diffscope.models.quiet import quietly
from diffscope.models.settings import (
    CODE,
    PACKED,
    check_adapter,
    check_asked,
    check_counts,
    check_dtype,
    check_growth,
    check_regular,
)
from diffscope.models.stored import check_header, check_size, in_all, on_paper, read_fields, stored_tensors, unreadable
from diffscope.storage.checksum import check_sums

TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (TOKENIZER, "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TIMM_WEIGHTS = "model.safetensors"


def locate(name: str) -> tuple[Path | None, Path | None]:
    """The folder of a model's configuration and tokenizer, and that of its weights; None and None for a possible hub id.

    ``mini-diff@308`` is the bundled model as it was after 308 steps of training, ``FOLDER@400`` that of a run.

    Raises
    ------
    ModelNotFound
        There is no such checkpoint, or the name is neither bundled nor a model's folder nor a possible hub id.
    """
    base, at, step = name.rpartition("@")
    if at and not Path(name).expanduser().is_dir() and (_folder(base) / "config.json").is_file():
        steps = checkpoints(_folder(base))
        if not step.isdigit() or int(step) not in steps:
            raise ModelNotFound(f"{base} has no checkpoint {step!r}; kept are the steps {', '.join(map(str, steps)) or 'none'}")
        return _folder(base), steps[int(step)]
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
    return {int(step): path for step, path in steps.items() if step.isdigit()}


def steps_of(name: str) -> tuple[int, ...]:
    """The steps of the checkpoints beside a model, each of which is opened as NAME@STEP; none where none were kept.

    Parameters
    ----------
    name : str
        A bundled name, a run's folder or a hub id; also that of one of its checkpoints, NAME@STEP.
    """
    try:
        folder, _ = locate(name)
    except ModelNotFound:
        return ()
    return () if folder is None else tuple(sorted(checkpoints(folder)))


def without_step(name: str) -> str:
    """The name of the model that a checkpoint NAME@STEP is of; of any other name that name."""
    base, _, step = name.rpartition("@")
    return base if step.isdigit() and int(step) in steps_of(base) else name


def _folder(name: str) -> Path:
    """The folder of the bundled model of this name, else the name as a path."""
    bundled = BUNDLED / name
    try:
        return bundled if (bundled / "config.json").is_file() else Path(name).expanduser()
    except (OSError, RuntimeError) as error:  # too long a name; the home of nobody
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ModelNotFound(f"no model {name[:80]!r}: it is no path ({reason})") from None


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
        check_header(file)
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise unreadable(file, error) from None


def check_folders(home: Path, weights: Path) -> None:
    """Refuse a model whose files are not those that their folders' digests were made of, or are no weights to be opened.

    Raises
    ------
    ModelNotFound, CorruptFile
    """
    tokenizer = tokenizer_folder(home)
    for folder in {place.absolute() for place in (home, weights, tokenizer) if place is not None}:
        check_regular(folder)
        check_adapter(folder)
        check_sums(folder)
    check_weights(weights)


def check_generation(folder: Path) -> bool:
    """Whether a folder has a generation_config.json; transformers would pass over a damaged one.

    Raises
    ------
    CorruptFile
    """
    file = folder / "generation_config.json"
    if not file.is_file():
        return False
    try:
        GenerationConfig.from_dict(json.loads(file.read_bytes()))
    except Exception as error:  # whatever its fields may be
        raise CorruptFile(f"{file} cannot be read ({first_line(error)}); copy it again, or remove it") from None
    return True


def read_settings(name: str, home: Path | None) -> dict[str, Any]:
    """The fields of a model's config.json, as they stand there.

    Raises
    ------
    ModelNotFound, CorruptFile
    """
    if home is not None:
        return read_fields(home / "config.json")
    try:
        return PretrainedConfig.get_config_dict(name)[0]
    except Exception as error:  # the hub's client may raise anything
        raise _no_config(name, home, error) from None


def read_config(name: str, home: Path | None, **options) -> PretrainedConfig:
    """The configuration of a model of transformers.

    Raises
    ------
    ModelNotFound, CorruptFile
    """
    try:
        return AutoConfig.from_pretrained(name if home is None else home, **options)
    except Exception as error:  # a configuration's class may raise anything
        raise _no_config(name, home, error) from None


def _no_config(name: str, home: Path | None, error: Exception) -> DiffscopeError:
    if home is None:
        return ModelNotFound(f"no model {name!r}: not a folder, and not to be had from the hub ({first_line(error)})")
    # Of a field of the wrong type the first line has the name, and the second what is wrong with it.
    reason = " ".join(str(error).split("\n")[:2])
    return CorruptFile(f"{home / 'config.json'} cannot be read as a model's configuration ({' '.join(reason.split())[:200]})")


def check_settings(name: str, fields: dict[str, Any], weights: Path | None, implementation: Any, trust: bool) -> None:
    """Refuse settings that would fetch code and run it, or build more than the weights are of, before anything is built.

    Raises
    ------
    CorruptFile, UnsupportedModel
    """
    check_dtype(name, fields)
    check_asked(name, fields, trust)
    check_asked(name, {"attn_implementation": implementation}, trust)
    check_counts(name, fields, None if weights is None else in_all(stored_tensors(weights)[0]))


@quietly()
def load_model(name: str, *, dtype=None, device=None, device_map=None, attn_implementation=None, trust_remote_code=False):
    """A model in evaluation mode, and its tokenizer, None if it comes without one.

    Nothing is printed (:func:`diffscope.models.quiet.quietly`). Weights that the model has no place for are named in a
    DiffscopeWarning.

    Raises
    ------
    ModelNotFound, CorruptFile, UnsupportedModel
    MissingExtra
        It is a model of timm, which is not installed.
    """
    home, weights = locate(name)
    options = dict(trust_remote_code=trust_remote_code)
    source = name if home is None else home
    if home is not None and weights is not None:
        check_folders(home, weights)
    fields = read_settings(name, home)
    check_settings(name, fields, weights, attn_implementation, trust_remote_code)
    config = None if is_of_timm(fields) else read_config(name, home, **options)
    if weights is not None and config is not None and not check_generation(weights):  # else it is looked for on the hub
        options["generation_config"] = GenerationConfig.from_model_config(config)
    if config is None:
        if device_map is not None or attn_implementation is not None:
            raise UnsupportedModel(f"{name} is a model of timm, which takes no device_map or attn_implementation; use device")
        model = load_timm(name, weights or fetched(name), dtype)
        return (model if device is None else move(model, device)).eval(), None
    if weights is not None and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not {CODE, PACKED} & fields.keys():
        check_size(name, in_all(stored_tensors(weights)[0]), on_paper(name, config))
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
        raise CorruptFile(f"the weights of {name} cannot be loaded ({first_line(error)}); copy them again") from None
    except (ValueError, ImportError) as error:
        raise UnsupportedModel(f"{name} cannot be opened as a language model ({first_line(error)})") from None
    except Exception as error:  # a model's class may raise anything where a field means nothing to it
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UnsupportedModel(f"{name} cannot be built from its config.json ({reason})") from None
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


def is_of_timm(fields: dict) -> bool:
    """Whether the fields of a config.json, as transformers reads them, were written by timm."""
    return "architecture" in fields and fields.get("model_type") in (None, "timm_wrapper")


def fetched(name: str) -> Path:
    """The local folder into which a model of timm is downloaded from the hub.

    Raises
    ------
    ModelNotFound
        The hub does not have it, or has no safetensors of it.
    """
    try:
        files = [Path(cached_file(name, file)) for file in ("config.json", TIMM_WEIGHTS)]
    except Exception as error:  # the hub's client may raise anything
        raise ModelNotFound(f"{TIMM_WEIGHTS} of {name} is not to be had from the hub ({first_line(error)})") from None
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
            f"{name} is a model of timm, which cannot be imported ({first_line(error)}); "
            "pip install 'diffscope-attention[vision]', with the torchvision that fits your torch"
        ) from None
    file = folder / TIMM_WEIGHTS
    if not file.is_file():
        raise CorruptFile(f"{folder} has no {TIMM_WEIGHTS}, which a model of timm needs; save it with timm.models.save_for_hf")
    try:
        # The architecture alone: which file timm itself would take, and whether it is a pickle, does not matter here.
        model = timm.create_model(f"local-dir:{folder}", pretrained=False, dtype=dtype)
    except Exception as error:  # a model's class may raise anything
        raise UnsupportedModel(f"{name} cannot be built by timm {timm.__version__} ({first_line(error)})") from None
    try:
        report = model.load_state_dict(load_file(file), strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CorruptFile(f"the weights of {name} cannot be loaded ({first_line(error)}); copy them again") from None
    for names, problem in ((report.missing_keys, "lack"), (report.unexpected_keys, "hold beyond the model")):
        if names:
            raise CorruptFile(
                f"the weights of {name} {problem} {len(names)} tensors, the first {names[0]!r}; save the model again"
            )
    return model


def move(model: nn.Module, device) -> nn.Module:
    """Move a model to a device.

    Raises
    ------
    UnsupportedModel
        The device is unknown or absent, or too small.
    """
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UnsupportedModel(f"device {device!r} is unknown; use cpu, cuda or cuda:1") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedModel(f"device {device!r} was asked for, but torch sees no GPU here; use --device cpu")
    try:
        return model.to(place)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise UnsupportedModel(f"the model cannot be put on device {device!r} ({first_line(error)})") from None


def load_tokenizer(source, trust_remote_code: bool):
    """The tokenizer of a model, or None where none is saved; that of its cohort, where a run of one has none of its own.

    Raises
    ------
    CorruptFile
        One is saved and cannot be read.
    """
    if isinstance(source, Path):
        source = tokenizer_folder(source)
        if source is None:
            return None
        if (source / TOKENIZER).is_file():
            check_growth(source / TOKENIZER)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        tokenizer("a")  # settings of a wrong type are noticed only when it is used
        return tokenizer
    except Exception as error:  # a tokenizer's class may raise anything
        if isinstance(source, Path):
            raise CorruptFile(f"the tokenizer in {source} cannot be read ({first_line(error)}); copy it again") from None
        return None


def tokenizer_folder(folder: Path) -> Path | None:
    """Where the tokenizer of a model's folder lies: there, or for COHORT/ARM/seed-N without one in COHORT; or None."""
    folder = folder.absolute()
    folders = [folder, folder.parents[1]] if folder.name.startswith("seed-") else [folder]
    return next((place for place in folders if any((place / name).is_file() for name in TOKENIZER_FILES)), None)


def named_dtype(dtype) -> torch.dtype | None:
    """A dtype, also by a name such as ``"bfloat16"`` or ``"bf16"``; None stays None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    long_names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    named = getattr(torch, long_names.get(dtype, dtype), None)
    if not isinstance(named, torch.dtype):
        raise DiffscopeError(f"dtype {dtype!r} is unknown; use float32, bfloat16, float16 or float64")
    return named
