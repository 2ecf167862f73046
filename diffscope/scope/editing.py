"""Blocks of edits on one model: what each adds while it is open, in whatever order they are closed."""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from typing import TYPE_CHECKING, Any

from diffscope.edits import Edit
from diffscope.errors import DiffscopeError, DiffscopeWarning
from diffscope.scope.holding import as_written

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
        self._thread: int | None = None  # that entered it; None while it is not open
        self._open = ExitStack()

    def _recreate_cm(self) -> EditBlock:
        """A block of its own for each call of a function that this one decorates."""
        return EditBlock(self._scope, self.edits)

    def __enter__(self) -> Scope:
        if self._thread is not None:
            raise DiffscopeError("this block of edits is open already; close it first, or open another with scope.edit(...)")
        with ExitStack() as entered:
            entered.enter_context(self._scope.lock)
            entered.enter_context(as_written())
            entered.enter_context(self._scope.editing(self.edits))
            self._open = entered.pop_all()
        self._thread = threading.get_ident()
        return self._scope

    def __exit__(self, *raised: Any) -> None:
        if self._thread != threading.get_ident():
            how = "is not open" if self._thread is None else "was opened by another thread, which alone can close it"
            raise DiffscopeError(f"this block of edits {how}; open and close it in one thread, best by `with scope.edit(...):`")
        self._thread = None
        self._open.close()

    def __del__(self) -> None:
        if self._thread is None or sys.is_finalizing():
            return
        mine = self._thread == threading.get_ident()
        end = "which closed it" if mine else "and stays open, since only the thread that opened it can close it"
        if mine:
            self.__exit__()
        made = "; ".join(map(str, self.edits))
        warnings.warn(
            f"nobody holds an open block of edits ({made}) any more, {end}; use `with scope.edit(...):`",
            DiffscopeWarning,
            stacklevel=2,
        )
