"""Computing in the precision that is asked for, whatever torch.autocast and TF32 the caller has on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

DEVICES = ("cpu", "cuda", "mps", "xpu")
HALF = (torch.float16, torch.bfloat16)

P = ParamSpec("P")
R = TypeVar("R")


def exactly(function: Callable[P, R]) -> Callable[P, R]:
    """A function that ``torch.autocast`` does not reach: its products are as precise as what is multiplied."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            for device in filter(torch.is_autocast_enabled, DEVICES):
                stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return call


def without_tf32(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose float32 products are in float32; the caller's setting for them is back when it is done.

    torch has two settings for that, which have to agree: the one that the caller used is changed.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not tf32_allowed():
            return function(*args, **kwargs)
        products = torch.backends.cuda.matmul
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            before = ""  # the newer one
        newer = products.fp32_precision
        try:
            if before:
                torch.set_float32_matmul_precision("highest")
            else:
                products.fp32_precision = "ieee"
            return function(*args, **kwargs)
        finally:
            if before:
                torch.set_float32_matmul_precision(before)
            else:
                products.fp32_precision = newer

    return call


def tf32_allowed() -> bool:
    """Whether float32 products on a GPU may be made in TF32.

    torch has two settings for that, and reading the older one raises once the newer allows it and the older does not.
    """
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:
        return torch.backends.cuda.matmul.fp32_precision != "ieee"
