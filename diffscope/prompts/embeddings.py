"""Read prompts that are given as embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffscope.errors import PromptError
from diffscope.fields import shown

EMBEDDINGS = "inputs_embeds"


@dataclass(frozen=True, eq=False)
class Embedded:
    """A prompt given as embeddings.

    Attributes
    ----------
    embeddings : Tensor (token, hidden)
    ids : list of int, optional
        The ids of its tokens, if they are known.
    """

    embeddings: Tensor
    ids: list[int] | None = None


def as_embeddings(value: Any) -> tuple[list[Tensor], bool]:
    """Return embeddings as one tensor (token, hidden) a prompt, and whether they are a batch.

    Raises PromptError if they are not floats (token, hidden) or (batch, token, hidden).
    """
    try:
        embeddings = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise PromptError(f"{EMBEDDINGS} is {shown(value)}; give a tensor (token, hidden), or (batch, token, hidden)") from None
    if embeddings.dim() not in (2, 3) or not embeddings.is_floating_point() or 0 in embeddings.shape:
        kind = f"{str(embeddings.dtype).removeprefix('torch.')} of shape {tuple(embeddings.shape)}"
        raise PromptError(f"{EMBEDDINGS} is {kind}; give floats (token, hidden), or (batch, token, hidden)")
    return (list(embeddings), True) if embeddings.dim() == 3 else ([embeddings], False)
