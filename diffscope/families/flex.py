"""FlexAttention as it is looked at: compiled apart, so that what the model has compiled stays as it is.

A capture runs nothing that is compiled (see ``diffscope.families.compilation``), but FlexAttention uncompiled writes whole
maps out. What torch compiles it keeps by the function's code, where another dtype or length would change what runs later.
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
    """An attention function; transformers' FlexAttention as one that is compiled apart.

    Under a dispatch mode torch would not compile it, ever again: there it runs uncompiled.
    """
    return _forward() if function is flex_attention_forward and _get_current_dispatch_mode() is None else function


def compiled(function: Callable) -> Callable:
    """A function in which what is compiled runs so, unless under a dispatch mode."""

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
    """A function with code of its own, in which some global names mean something else."""
    code = function.__code__.replace()
    copied = FunctionType(code, {**function.__globals__, **names}, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
