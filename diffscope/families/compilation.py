"""Set whether compiled models run compiled. Torch has one such stance for all threads, so one object sets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from diffscope.errors import UnsupportedModel


class _Stance:
    """Count the open contexts that want uncompiled runs, and those that want compiled ones, and set torch's stance."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection inside may close an abandoned context
        self._looks = 0
        self._exceptions = 0
        self._forced: AbstractContextManager[Any] | None = None
        self._setting = False

    def count(self, looks: int = 0, exceptions: int = 0) -> None:
        """Add to the number of contexts that are open, and set the stance that follows from them."""
        with self._lock:
            self._looks += looks
            self._exceptions += exceptions
            if self._setting:  # the call that is setting it reads the counts again
                return
            self._setting = True
            try:
                while (wanted := self._looks > 0 and not self._exceptions) != (self._forced is not None):
                    forced, self._forced = self._forced, torch.compiler.set_stance("force_eager") if wanted else None
                    if forced is not None:
                        forced.__exit__(None, None, None)
            except RuntimeError:  # torch's own message is about stances
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
    """Run models, modules and functions uncompiled, in every thread, while the context is open.

    Compiled code would skip the hooks of a capture, or be compiled again with them. Anything that torch compiles during a
    capture, for another length or dtype, or finds that it cannot compile, would change what the model runs afterwards. Code that
    was compiled before stays compiled. FlexAttention is compiled separately (``diffscope.families.flex``).
    """
    _STANCE.count(looks=1)
    try:
        yield
    finally:
        _STANCE.count(looks=-1)


@contextmanager
def as_compiled() -> Iterator[None]:
    """Run compiled code compiled, in every thread, although a context of :func:`as_written` is open."""
    _STANCE.count(exceptions=1)
    try:
        yield
    finally:
        _STANCE.count(exceptions=-1)
