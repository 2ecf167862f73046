"""Hold what is true of one model, however many scopes are opened on it: its lock, its open edits, what is being run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from diffscope.edits import Edit
from diffscope.errors import DiffscopeError
from diffscope.families import Family
from diffscope.families.threads import CURRENT
from diffscope.proof.float32 import Float32Proofs
from diffscope.proof.prove import EditedLayer


class OpenBlock(NamedTuple):
    """Edits of one open block, and the family by which the layers are read that they act on."""

    family: Family
    edits: tuple[Edit, ...]


@dataclass
class ModelState:
    """State of one model that all scopes on it share.

    Attributes
    ----------
    lock : threading.RLock
        Held by whoever runs the model.
    blocks : dict of object to OpenBlock
        The open blocks of edits, in the order in which they were opened.
    dropped : list of (object, ExitStack)
        By thread, blocks that another thread let go of without closing them.
    hooks : dict of str to ExitStack
        By family, the hooks that make the edits while any block is open.
    lengths : tuple of int, optional
        Tokens of each prompt that is being run; None if they are not known.
    key_lengths : tuple of int, optional
        Their tokens on the side that cross-attention looks at; None if they are not known.
    pack : tuple of int, optional
        Tokens of each sequence, if the one prompt that is being run is a pack of several.
    edited : dict of (str, int) to EditedLayer, optional
        While a capture is made, by family and layer the layers that edits changed, until the capture takes them.
    float32 : Float32Proofs
    layers_run : dict of str to set of int
        By family, the numbers of the layers that have been run.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    blocks: dict[object, OpenBlock] = field(default_factory=dict)
    dropped: list[tuple[object, ExitStack]] = field(default_factory=list)
    hooks: dict[str, ExitStack] = field(default_factory=dict)
    lengths: tuple[int, ...] | None = None
    key_lengths: tuple[int, ...] | None = None
    pack: tuple[int, ...] | None = None
    edited: dict[tuple[str, int], EditedLayer] | None = None
    float32: Float32Proofs = field(default_factory=Float32Proofs)
    layers_run: dict[str, set[int]] = field(default_factory=dict)

    def edits(self, family: Family | None = None) -> tuple[Edit, ...]:
        """Return the edits of all open blocks, or those that act on the layers that a family reads: most models have but one."""
        blocks = (block for block in self.blocks.values() if family is None or block.family.name == family.name)
        return tuple(chain.from_iterable(block.edits for block in blocks))

    def check_family(self, model: nn.Module, family: Family) -> None:
        """Refuse to read layers as one family while open edits read them as another.

        Raises
        ------
        DiffscopeError
            Both families read the same layer.
        """
        others = {block.family.name: block.family for block in self.blocks.values() if block.edits}
        others.pop(family.name, None)
        for name, other in others.items():
            if not set(family.modules(model)).isdisjoint(other.modules(model)):
                raise DiffscopeError(
                    f"the model is under edits that read its layers as family {name!r}, and this scope reads them as family "
                    f"{family.name!r}; close those first, or use one family for both"
                )

    def open_block(self, family: Family, edits: tuple[Edit, ...], hooks: Callable[[], AbstractContextManager[None]]) -> object:
        """Add the edits of one more block.

        Parameters
        ----------
        family : Family
        edits : tuple of Edit
        hooks : callable
            Returns the context in which the edits of a family act. It is entered with the family's first block that has any, and
            left with its last.

        Returns
        -------
        object
            The key that :meth:`close_block` takes.
        """
        if edits and family.name not in self.hooks:
            with ExitStack() as entered:
                entered.enter_context(hooks())
                self.hooks[family.name] = entered.pop_all()
        key = object()
        self.blocks[key] = OpenBlock(family, edits)
        return key

    def close_block(self, key: object) -> None:
        """Take the edits of one block away, which need not be the last that was opened."""
        family, _ = self.blocks.pop(key)
        if family.name in self.hooks and not self.edits(family):
            self.hooks.pop(family.name).close()

    def close_dropped(self) -> None:
        """Close the blocks of this thread that another thread let go of, and could not close itself."""
        for entry in [entry for entry in self.dropped if entry[0] is CURRENT.thread]:
            self.dropped.remove(entry)
            entry[1].close()


_STATES: WeakKeyDictionary[nn.Module, ModelState] = WeakKeyDictionary()
_NEW = threading.Lock()  # two threads may open models at once


def state_of(model: nn.Module) -> ModelState:
    """Return the state of a model.

    Models that share a configuration share a lock, since observing a model is written into its configuration.
    """
    with _NEW:
        if model not in _STATES:
            config = getattr(model, "config", None)
            sharing = (s for other, s in _STATES.items() if config is not None and getattr(other, "config", None) is config)
            other = next(sharing, None)
            _STATES[model] = ModelState() if other is None else ModelState(lock=other.lock)
        return _STATES[model]
