"""Torch's stance towards what is compiled: one for all threads, so that one place sets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from diffscope.errors import UnsupportedModel


class _Stance:
    """Whoever wants everything to run uncompiled, and whoever wants what is compiled to run so meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection within may close a context that nobody holds
        self._looks = 0
        self._exceptions = 0
        self._forced: AbstractContextManager[Any] | None = None
        self._setting = False

    def count(self, looks: int = 0, exceptions: int = 0) -> None:
        """Add to the number of contexts that are open, and set the stance that follows from them."""
        with self._lock:
            self._looks += looks
            self._exceptions += exceptions
            if self._setting:  # whoever is setting it looks again
                return
            self._setting = True
            try:
                while (wanted := self._looks > 0 and not self._exceptions) != (self._forced is not None):
                    forced, self._forced = self._forced, torch.compiler.set_stance("force_eager") if wanted else None
                    if forced is not None:
                        forced.__exit__(None, None, None)
            except RuntimeError:  # torch's own words are about stances
                self._looks -= looks
                self._exceptions -= exceptions
                raise UnsupportedModel(
                    "diffscope cannot look into a model from code that torch.compile runs; call it outside of that, or in a "
                    "function that torch.compiler.disable has decorated"
                ) from None
            finally:
                self._setting = False


_STANCE = _Stance()


@contextmanager
def as_written() -> Iterator[None]:
    """Run nothing compiled while the context is open: no whole model, part or function, in any thread.

    Compiled code would either leave out the hooks that look on, or be compiled anew with them. And whatever torch compiles during
    a look at a model, for another length or dtype, or finds that it cannot compile, would change what the model runs afterwards.
    What was compiled stays so. FlexAttention is compiled apart (``diffscope.families.flex``).
    """
    _STANCE.count(looks=1)
    try:
        yield
    finally:
        _STANCE.count(looks=-1)


@contextmanager
def as_compiled() -> Iterator[None]:
    """Run what is compiled so, although a context of :func:`as_written` is open; in other threads too, for that time."""
    _STANCE.count(exceptions=1)
    try:
        yield
    finally:
        _STANCE.count(exceptions=-1)
