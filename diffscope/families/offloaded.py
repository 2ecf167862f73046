"""Load weights that accelerate stores on the CPU or on disk until a module is run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn


@contextmanager
def weights_loaded(module: nn.Module) -> Iterator[None]:
    """Load the offloaded weights of a module and its submodules while the context is open."""
    with ExitStack() as stack:
        for part in module.modules():
            hook = vars(part).get("_hf_hook")
            if hook is not None and any(x.is_meta for x in part.parameters(getattr(hook, "place_submodules", False))):
                hook.pre_forward(part)
                stack.callback(hook.post_forward, part, None)
        yield
