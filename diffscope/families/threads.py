"""Act in one thread alone, and see from the stacks of calls what threads are running."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from traceback import walk_stack
from typing import Any

from torch import nn
from torch.utils import checkpoint

from diffscope.errors import DiffscopeWarning


class _Current(threading.local):
    """Hold, as `thread`, an object of the current thread alone: Python gives the number of a thread that ended to another one."""

    def __init__(self) -> None:
        self.thread = object()


CURRENT = _Current()


def others_run_modules() -> bool:
    """Return whether another thread is within a module, and may have read which implementation to use and not yet used it."""
    own, call = threading.get_ident(), nn.Module._call_impl.__code__
    tops = [frame for thread, frame in sys._current_frames().items() if thread != own]
    return any(frame.f_code is call for top in tops for frame, _ in walk_stack(top))


def within_checkpoint() -> bool:
    """Return whether what runs is run by torch.utils.checkpoint, for the first time or again."""
    return any(frame.f_code.co_filename == checkpoint.__file__ for frame, _ in walk_stack(sys._getframe()))


class Hook:
    """A forward hook that acts in the thread alone that made it: in others the model runs as if nobody looked on.

    It acts on the very module that it is registered on: in a copy of that, or a pickle, it does nothing.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act
        self._thread = CURRENT.thread

    def __call__(self, *given: Any) -> Any:
        return self._act(*given) if CURRENT.thread is self._thread else None

    def __reduce__(self) -> tuple:
        return Hook, (_nothing,)


def _nothing(*given: Any) -> None:
    """Do nothing."""


class WarnsOtherThreads(Hook):
    """Warn other threads once that edits do not act in their runs."""

    def __init__(self) -> None:
        super().__init__(_nothing)
        self._warned = False

    def __call__(self, module: nn.Module, args: tuple) -> None:
        if self._warned or CURRENT.thread is self._thread:
            return
        self._warned = True
        words = (
            f"{type(module).__name__} is edited in another thread, and this run of it is not; run it in the thread that "
            "opened scope.edit to have it edited"
        )
        warnings.warn_explicit(words, DiffscopeWarning, __name__, 1, registry={})  # for each block of edits anew
