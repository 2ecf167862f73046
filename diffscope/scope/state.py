"""What holds for one model, however many scopes look into it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from diffscope.attention.fidelity import Fidelity
from diffscope.edits import Edit
from diffscope.errors import DiffscopeError
from diffscope.families import Family
from diffscope.families.hooks import this_thread
from diffscope.proof.float32 import Float32Proofs


class Block(NamedTuple):
    """Some edits, and the family by which the layers are read that they act on."""

    family: Family
    edits: tuple[Edit, ...]


@dataclass
class State:
    """What holds for one model."""

    lock: threading.RLock = field(default_factory=threading.RLock)  # whoever runs the model holds it
    blocks: dict[object, Block] = field(default_factory=dict)  # that are open, in the order in which they were opened
    dropped: list[tuple[object, ExitStack]] = field(default_factory=list)  # by thread, blocks that another thread let go of
    hooks: dict[str, ExitStack] = field(default_factory=dict)  # by family, those that make the edits while any is open
    lengths: tuple[int, ...] | None = None  # tokens of each prompt that is being run, where they are known
    pack: tuple[int, ...] | None = None  # tokens of each sequence, where the one prompt being run is a pack of several
    proofs_before_edits: dict[tuple[str, int], Fidelity] | None = None  # of a capture being made, by family and layer
    float32: Float32Proofs = field(default_factory=Float32Proofs)
    layers_run: dict[str, set[int]] = field(default_factory=dict)  # by family, the numbers of layers that were seen to be run

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of all open blocks."""
        return tuple(chain.from_iterable(block.edits for block in self.blocks.values()))

    def edits_by(self, family: Family) -> tuple[Edit, ...]:
        """Those that act on the layers that a family reads: most models have layers of one family alone."""
        return tuple(chain.from_iterable(block.edits for block in self.blocks.values() if block.family.name == family.name))

    def check_family(self, model: nn.Module, family: Family) -> None:
        """Raise DiffscopeError where layers that a family reads are under edits that read them as another family."""
        layers = set(family.modules(model))
        others = {block.family.name: block.family for block in self.blocks.values() if block.edits}
        for name, other in others.items():
            if name != family.name and not layers.isdisjoint(other.modules(model)):
                raise DiffscopeError(
                    f"the model is under edits that read its layers as family {name!r}, and this scope reads them as family "
                    f"{family.name!r}; close those first, or use one family for both"
                )

    def open_block(self, family: Family, edits: tuple[Edit, ...], hooks: Callable[[], AbstractContextManager[None]]) -> object:
        """Add edits to those of the blocks that are open.

        Parameters
        ----------
        family : Family
        edits : tuple of Edit
        hooks : callable
            Gives the context in which the edits of a family act; it is entered with the first block that has any, and left with
            the last.

        Returns
        -------
        object
            What :meth:`close_block` takes.
        """
        if edits and family.name not in self.hooks:
            with ExitStack() as entered:
                entered.enter_context(hooks())
                self.hooks[family.name] = entered.pop_all()
        key = object()
        self.blocks[key] = Block(family, edits)
        return key

    def close_block(self, key: object) -> None:
        """Take the edits of one block away, which need not be the last that was opened."""
        family, _ = self.blocks.pop(key)
        if family.name in self.hooks and not self.edits_by(family):
            self.hooks.pop(family.name).close()

    def close_dropped(self) -> None:
        """Close the blocks of this thread that nobody holds any more: another thread that let go of them could not."""
        mine = [entry for entry in self.dropped if entry[0] is this_thread()]
        for entry in mine:
            self.dropped.remove(entry)
            entry[1].close()


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
