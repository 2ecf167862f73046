"""What holds for one model, however many scopes look into it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch import nn

from diffscope.edits import Edit
from diffscope.proof.fidelity import Fidelity
from diffscope.proof.formula import Formulas


@dataclass
class State:
    """What holds for one model."""

    lock: threading.RLock = field(default_factory=threading.RLock)  # whoever runs the model holds it
    edits: tuple[Edit, ...] = ()
    lengths: tuple[int, ...] | None = None  # tokens of each prompt that is being run, where they are known
    pack: tuple[int, ...] | None = None  # tokens of each sequence, where the one prompt being run is a pack of several
    unedited: dict[int, Fidelity] | None = None  # by layer, what a capture under edits proves before they act
    formulas: Formulas = field(default_factory=Formulas)
    further: dict[str, set[int]] = field(default_factory=dict)  # by family, the numbers of layers that were seen to be run


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
