"""Load the transformers of diffusers, which denoise latents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from diffscope.errors import CorruptFile, MissingExtra, UnsupportedModel, translated
from diffscope.fields import shown
from diffscope.models.stored import Stored

CLASS = "_class_name"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def is_of_diffusers(fields: dict[str, Any]) -> bool:
    """Return whether the fields of a config.json were written by diffusers."""
    return CLASS in fields and "_diffusers_version" in fields


def load_denoiser(
    name: str, folder: Path, tensors: Mapping[str, Stored], fields: dict[str, Any], dtype: torch.dtype | None = None
) -> nn.Module:
    """Load a model of diffusers from a folder with config.json and safetensors; by default in the dtype of its weights.

    Raises MissingExtra without diffusers, UnsupportedModel if it has no such model, and CorruptFile if the weights do not fit.
    """
    problem = f"{name} is a model of diffusers, which cannot be imported"
    with translated(MissingExtra, problem, "pip install 'diffscope-attention[audio]'", errors=(ImportError, RuntimeError)):
        import diffusers
    kind = getattr(diffusers, str(fields[CLASS]), None)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)):
        raise UnsupportedModel(
            f"config.json of {name} says {CLASS} = {shown(fields[CLASS])}, no model of diffusers {diffusers.__version__}; "
            "give the folder of a transformer, or install the diffusers that has it"
        )
    stored = Counter(tensor.dtype for tensor in tensors.values())
    usual = DTYPES.get(stored.most_common(1)[0][0], torch.float32) if stored else torch.float32
    unreadable = (OSError, SafetensorError, RuntimeError, ValueError)
    with translated(CorruptFile, f"the weights of {name} cannot be loaded", "copy them again", errors=unreadable):
        model, report = kind.from_pretrained(
            folder,
            torch_dtype=dtype or usual,
            use_safetensors=True,
            local_files_only=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    for names, problem in ((report["missing_keys"], "lack"), (report["unexpected_keys"], "hold beyond the model")):
        if names:
            raise CorruptFile(
                f"the weights of {name} {problem} {len(names)} tensors, the first {sorted(names)[0]!r}; save the model again"
            )
    return model
