"""What holds for one model, however many scopes look into it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import chain
from weakref import WeakKeyDictionary

from torch import nn

from diffscope.edits import Edit
from diffscope.errors import DiffscopeError
from diffscope.families import Family
from diffscope.proof.fidelity import Fidelity
from diffscope.proof.formula import Formulas


@dataclass
class State:
    """What holds for one model."""

    lock: threading.RLock = field(default_factory=threading.RLock)  # whoever runs the model holds it
    blocks: dict[object, tuple[Edit, ...]] = field(default_factory=dict)  # the edits of every open block, as they were opened
    hooks: ExitStack | None = None  # that make the edits, while a block with any is open
    edited_as: str = ""  # the family by which they do
    lengths: tuple[int, ...] | None = None  # tokens of each prompt that is being run, where they are known
    unedited: dict[int, Fidelity] | None = None  # by layer, what a capture under edits proves before they act
    formulas: Formulas = field(default_factory=Formulas)
    further: dict[str, set[int]] = field(default_factory=dict)  # by family, the numbers of layers that were seen to be run

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of all open blocks."""
        return tuple(chain.from_iterable(self.blocks.values()))

    def open_block(self, family: Family, edits: tuple[Edit, ...], hooks: Callable[[], AbstractContextManager[None]]) -> object:
        """Add edits to those of the blocks that are open.

        Parameters
        ----------
        family : Family
        edits : tuple of Edit
        hooks : callable
            Gives the context in which all edits act; it is entered with the first block that has any, and left with the last.

        Returns
        -------
        object
            What :meth:`close_block` takes.
        """
        if edits:
            self.check_family(family)
            if self.hooks is None:
                with ExitStack() as entered:
                    entered.enter_context(hooks())
                    self.hooks = entered.pop_all()
                self.edited_as = family.name
        key = object()
        self.blocks[key] = edits
        return key

    def close_block(self, key: object) -> None:
        """Take the edits of one block away, which need not be the last that was opened."""
        del self.blocks[key]
        if self.hooks is not None and not self.edits:
            hooks = self.hooks
            self.hooks = None
            hooks.close()

    def check_family(self, family: Family) -> None:
        """Raise DiffscopeError where the model is under edits that read it as another family."""
        if self.hooks is not None and self.edited_as != family.name:
            raise DiffscopeError(
                f"the model is under edits made by family {self.edited_as!r}, and this scope reads it by family {family.name!r}; "
                "close them first, or use one family for both"
            )


_STATES: WeakKeyDictionary[nn.Module, State] = WeakKeyDictionary()
_NEW = threading.Lock()  # two threads may open models at once


def state_of(model: nn.Module) -> State:
    """What holds for a model. Models that share a configuration share a lock, since being observed is written into it."""
    with _NEW:
        if model not in _STATES:
            config = getattr(model, "config", None)
            sharing = (s for other, s in _STATES.items() if config is not None and getattr(other, "config", None) is config)
            beside = next(sharing, None)
            _STATES[model] = State() if beside is None else State(lock=beside.lock)
        return _STATES[model]
