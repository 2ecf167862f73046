"""Compile FlexAttention separately for captures, so that the model's own compiled code stays as it is.

A capture runs nothing compiled (see ``diffscope.families.compilation``), but FlexAttention uncompiled writes whole maps to
memory. Torch stores compiled code by the function's code object, where another dtype or length would change what runs later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from types import FunctionType
from typing import Any

import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode
from transformers.integrations.flex_attention import flex_attention_forward

from diffscope.families.compilation import as_compiled

FLEX = "flex_attention"


def compiled_apart(function: Callable) -> Callable:
    """Return an attention function; transformers' FlexAttention as a copy that is compiled separately.

    Under a dispatch mode it runs uncompiled, because torch would refuse to compile it from then on.
    """
    return _forward() if function is flex_attention_forward and _get_current_dispatch_mode() is None else function


def compiled(function: Callable) -> Callable:
    """Return a function that runs compiled code compiled, unless a dispatch mode is active."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _get_current_dispatch_mode() is not None:
            return function(*args, **kwargs)
        with as_compiled():
            return function(*args, **kwargs)

    return call


@cache
def _forward() -> Callable:
    apart = compiled(torch.compile(_copied(flex_attention)))

    def attend(query: Any, key: Any, value: Any, training: bool = False, **options: Any) -> Any:
        return apart(query, key, value, **options)

    return _copied(flex_attention_forward, compile_friendly_flex_attention=attend)


def _copied(function: Any, **names: Any) -> Callable:
    """Return a copy of a function with its own code object and some global names replaced."""
    code = function.__code__.replace()
    copied = FunctionType(code, {**function.__globals__, **names}, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
