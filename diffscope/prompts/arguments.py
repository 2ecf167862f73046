"""Read prompts that are given as the arguments of a model's forward: of encoder-decoders, and of models that denoise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffscope.errors import PromptError
from diffscope.fields import shown
from diffscope.prompts.encoded import Encoded

FORM = "give a dict of what its forward takes, or a list of such dicts"


@dataclass(frozen=True, eq=False)
class Arguments:
    """A prompt, or a batch of them, as the arguments of a model's forward.

    Attributes
    ----------
    values : mapping of str
        Tensors lead with the prompts of the batch, also if there is one.
    tokens : sequence of str, optional
        Names of the queries.
    key_tokens : sequence of str or Encoded, optional
        Names of the tokens that cross-attention looks at; or these tokens with their text, in which spans are found.
    """

    values: Mapping[str, Any]
    tokens: Sequence[str] | None = None
    key_tokens: Sequence[str] | Encoded | None = None


def arguments_of(prompt: Any, known: Sequence[str], name: str) -> list[Arguments]:
    """Return the arguments of a forward as one :class:`Arguments` a prompt, each with tensors that lead with 1.

    Raises PromptError if it is something else, the forward takes no such argument, or its tensors are empty or of different
    numbers of prompts.

    Parameters
    ----------
    known : sequence of str
        The arguments that the forward takes.
    name : str
        Of the model, for messages.
    """
    if isinstance(prompt, (list, tuple)) and prompt:
        return [part for each in prompt for part in arguments_of(each, known, name)]
    if isinstance(prompt, Mapping):
        prompt = Arguments(dict(prompt))
    if not isinstance(prompt, Arguments):
        raise PromptError(f"{shown(prompt)} is no prompt of {name}; {FORM}")
    values = {key: value for key, value in prompt.values.items() if value is not None}
    if unknown := next((key for key in values if key not in known), None):
        raise PromptError(f"{name} takes no {unknown!r}; it takes {', '.join(known)}")
    tensors = {key: _leading(value) for key, value in values.items() if isinstance(value, (Tensor, list, tuple))}
    if empty := next((key for key, value in tensors.items() if not len(value)), None):
        raise PromptError(f"{empty} of a prompt is empty; give it at least one value")
    counts = {len(value) for value in tensors.values()}
    if len(counts) != 1:
        sizes = ", ".join(f"{key} {tuple(value.shape)}" for key, value in tensors.items()) or "no tensors"
        raise PromptError(f"a prompt of {name} has tensors that lead with the number of prompts, and this has {sizes}")
    return [
        Arguments(values | {key: value[at : at + 1] for key, value in tensors.items()}, prompt.tokens, prompt.key_tokens)
        for at in range(counts.pop())
    ]


def is_ids(prompt: Any) -> bool:
    """Return whether a prompt is token ids: whole numbers in a row, or rows of them."""
    if isinstance(prompt, (str, Mapping, Arguments)):
        return False
    try:
        tensor = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):
        return False
    return tensor.dim() in (1, 2) and tensor.numel() > 0 and not tensor.is_floating_point() and tensor.dtype != torch.bool


def _leading(value: Any) -> Tensor:
    """Return a tensor that leads with the prompts: a row of numbers is one prompt."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise PromptError(f"{shown(value)} is no tensor; give prompts of several lengths as a list of dicts") from None
    whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
    return tensor[None] if tensor.dim() == 1 and whole else tensor
