"""Load vision models that timm wrote."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers.utils import cached_file

from diffscope.errors import CorruptFile, MissingExtra, ModelNotFound, UnsupportedModel, translated

TIMM_WEIGHTS = "model.safetensors"


def is_of_timm(fields: dict) -> bool:
    """Return whether the fields of a config.json, as transformers reads them, were written by timm."""
    return "architecture" in fields and fields.get("model_type") in (None, "timm_wrapper")


def fetched(name: str) -> Path:
    """Download a model of timm from the hub and return its local folder.

    Raises
    ------
    ModelNotFound
        The hub lacks the model, or its safetensors.
    """
    with translated(ModelNotFound, f"{TIMM_WEIGHTS} of {name} is not to be had from the hub"):
        files = [Path(cached_file(name, file)) for file in ("config.json", TIMM_WEIGHTS)]
    return files[0].parent


def load_timm(name: str, folder: Path, dtype: torch.dtype | None = None) -> nn.Module:
    """Load a vision model from a folder that timm wrote: config.json and model.safetensors.

    Raises MissingExtra without timm, UnsupportedModel if it cannot build the model, and CorruptFile if the weights do not fit.
    """
    remedy = "pip install 'diffscope-attention[vision]', with the torchvision that fits your torch"
    problem = f"{name} is a model of timm, which cannot be imported"
    # A torchvision that was built for another torch raises RuntimeError.
    with translated(MissingExtra, problem, remedy, errors=(ImportError, RuntimeError)):
        import timm
    file = folder / TIMM_WEIGHTS
    if not file.is_file():
        raise CorruptFile(f"{folder} has no {TIMM_WEIGHTS}, which a model of timm needs; save it with timm.models.save_for_hf")
    with translated(UnsupportedModel, f"{name} cannot be built by timm {timm.__version__}"):
        # Only the architecture is built: timm itself might open a pickle.
        model = timm.create_model(f"local-dir:{folder}", pretrained=False, dtype=dtype)
    unreadable = (OSError, SafetensorError, RuntimeError)
    with translated(CorruptFile, f"the weights of {name} cannot be loaded", "copy them again", errors=unreadable):
        report = model.load_state_dict(load_file(file), strict=False)
    for names, problem in ((report.missing_keys, "lack"), (report.unexpected_keys, "hold beyond the model")):
        if names:
            raise CorruptFile(
                f"the weights of {name} {problem} {len(names)} tensors, the first {names[0]!r}; save the model again"
            )
    return model
