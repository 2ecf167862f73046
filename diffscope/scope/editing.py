"""Blocks of edits on one model: what each adds while it is open, in whatever order they are closed."""

from __future__ import annotations

import atexit
import warnings
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from diffscope.edits import Edit
from diffscope.errors import DiffscopeError, DiffscopeWarning
from diffscope.families.compilation import as_written
from diffscope.families.hooks import this_thread
from diffscope.scope.state import state_of

if TYPE_CHECKING:
    from diffscope.scope.scope import Scope


class EditBlock(ContextDecorator, AbstractContextManager["Scope"]):
    """What :meth:`Scope.edit` gives: edits that act from its entry to its exit.

    Attributes
    ----------
    edits : tuple of Edit
    """

    def __init__(self, scope: Scope, edits: tuple[Edit, ...]) -> None:
        self.edits = edits
        self._scope = scope
        self._thread: object | None = None  # that entered it; None while it is not open
        self._open = ExitStack()

    def _recreate_cm(self) -> EditBlock:
        """A block of its own for each call of a function that this one decorates."""
        return EditBlock(self._scope, self.edits)

    def __enter__(self) -> Scope:
        if self._thread is not None:
            raise DiffscopeError("this block of edits is open already; close it first, or open another with scope.edit(...)")
        state_of(self._scope.model).close_dropped()
        with ExitStack() as entered:
            entered.enter_context(self._scope.lock)
            entered.enter_context(as_written())
            entered.enter_context(self._scope.editing(self.edits))
            self._open = entered.pop_all()
        self._thread = this_thread()
        _OPEN.add(self)
        return self._scope

    def __exit__(self, *raised: Any) -> None:
        if self._thread is not this_thread():
            how = "is not open" if self._thread is None else "was opened by another thread, which alone can close it"
            raise DiffscopeError(f"this block of edits {how}; open and close it in one thread, best by `with scope.edit(...):`")
        self._thread = None
        _OPEN.discard(self)
        self._open.close()

    def __del__(self) -> None:
        if self._thread is None:
            return
        if self._thread is this_thread():
            self.__exit__()
            end = "which closed it"
        else:
            state_of(self._scope.model).dropped.append((self._thread, self._open))
            end = "and stays open until the thread that opened it uses the model again"
        made = "; ".join(map(str, self.edits))
        warnings.warn(
            f"nobody holds an open block of edits ({made}) any more, {end}; use `with scope.edit(...):`",
            DiffscopeWarning,
            stacklevel=2,
        )


_OPEN: WeakSet[EditBlock] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the blocks that are still open when the program ends, while all that they need is there."""
    for block in list(_OPEN):
        block._thread = None
        with suppress(RuntimeError):  # the model's lock, which another thread holds
            block._open.close()
