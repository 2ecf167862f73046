"""Compute in the precision that is asked for, whatever torch.autocast and TF32 the caller has on.

Both context managers decorate functions as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

DEVICES = ("cpu", "cuda", "mps", "xpu")
HALF = (torch.float16, torch.bfloat16)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Turn ``torch.autocast`` off: products are as precise as what is multiplied."""
    with ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, DEVICES):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def without_tf32() -> Iterator[None]:
    """Make float32 products on a GPU in float32; at the end the caller's setting is restored.

    torch has two settings for that, which have to agree: the one that the caller used is changed.
    """
    if not tf32_allowed():
        yield
        return
    products = torch.backends.cuda.matmul
    newer = products.fp32_precision
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller used the newer one
        older = ""
    try:
        if older:
            torch.set_float32_matmul_precision("highest")
        else:
            products.fp32_precision = "ieee"
        yield
    finally:
        if older:
            torch.set_float32_matmul_precision(older)
        else:
            products.fp32_precision = newer


def tf32_allowed() -> bool:
    """Return whether float32 products on a GPU may be made in TF32.

    torch has two settings for that, and reading the older one raises once the newer allows it and the older does not.
    """
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:
        return torch.backends.cuda.matmul.fp32_precision != "ieee"
