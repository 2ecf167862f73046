"""Read whole numbers, such as token ids, from lists, tensors and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffscope.errors import PromptError
from diffscope.fields import shown


def as_lists(values: Any, bools: bool = False) -> Any:
    """Return a tensor, or anything that numpy reads as an array, as lists in lists, and all else as it is.

    Raises ValueError if it holds neither whole numbers nor text.

    Parameters
    ----------
    bools : bool
        Whether true and false may be in it, as 1 and 0.
    """
    if isinstance(values, str) or not (isinstance(values, Tensor) or hasattr(values, "__array__")):
        return values
    if isinstance(values, Tensor):
        if values.is_meta or values.is_nested or values.is_quantized or values.layout != torch.strided:
            raise ValueError("a tensor that is sparse, nested or quantised, or without values, has none to read")
        whole = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    else:
        values = np.asanyarray(values)
        whole = values.dtype.kind in "iuUTO"
    kind = str(values.dtype).removeprefix("torch.")
    if bools and kind == "bool":
        return (values * 1).tolist()
    if not whole:
        raise ValueError(f"{kind} is no type of whole numbers")
    return values.tolist()


def as_ids(values: Any, bools: bool = False) -> list[int]:
    """Return a row of whole numbers, a sequence, tensor or array (N,), as ints.

    numpy does not decide what a list holds: it reads true and false as 1 and 0 beside numbers, and numbers as texts beside texts.

    Raises ValueError if it holds anything else.

    Parameters
    ----------
    bools : bool
        Whether true and false may be in it, as 1 and 0.
    """
    values = as_lists(values, bools)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise ValueError(f"{shown(values)} is no row of whole numbers")
    ids = list(values)
    for index, value in enumerate(ids):
        if type(value) is not int:
            number = value.item() if isinstance(value, (Tensor, np.generic, np.ndarray)) and value.ndim == 0 else value
            if not isinstance(number, Integral) or (isinstance(number, bool) and not bools):
                raise ValueError(f"{shown(value)} is no whole number")
            ids[index] = int(number)
    return ids


def is_scalar(value: Any) -> bool:
    """Return whether a value is a number, or None where one is missing, and no text or sequence."""
    return value is None or isinstance(value, (int, float, complex)) or getattr(value, "ndim", 1) == 0


def check_ids(ids: Sequence[int], vocabulary: int | None) -> None:
    """Raise PromptError if there are no ids, or if a model with a vocabulary of this size does not know them all."""
    if not ids:
        raise PromptError("the prompt is empty; give it at least one token of text")
    known = range(vocabulary or 2**31)
    if outside := next((token for token in (min(ids), max(ids)) if token not in known), None):
        size = f"the model's vocabulary of {vocabulary}" if vocabulary else "any vocabulary"
        raise PromptError(f"token id {outside} is outside {size}; use the model's own tokenizer")
