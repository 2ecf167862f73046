"""Running text that a training passes through from beginning to end, again and again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diffscope.errors import DiffscopeError
from diffscope.tasks.text import TextStream


@dataclass
class Passes(TextStream):
    """Running text that is sampled window after window, pass after pass.

    The text is cut into windows of one length. Each pass draws the order of its windows anew,
    and where the first window begins. Every window is moved to the next word border, so neighbours overlap by a few tokens, or
    leave a few out.
    """

    length: int  # tokens of a window
    seed: tuple[int, ...]
    taken: int = 0  # windows taken so far
    _pass: int = field(default=-1, init=False, repr=False)
    _starts: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64), init=False, repr=False)

    def __post_init__(self):
        self._borders = np.flatnonzero(self.cuts)
        # Tokens to the next word border, or from the last one to the end.
        self._most = int(np.diff(self._borders, prepend=0, append=len(self.ids)).max())
        if self.windows < 1:
            raise DiffscopeError(f"a text of {len(self.ids)} tokens has no windows of {self.length}; give a longer text")

    @property
    def windows(self) -> int:
        """Return the number of windows in a pass."""
        return (len(self.ids) - self._most) // self.length - 1

    def sample(self, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the first `length` tokens of the next window, and which of them begin a word; nothing is drawn from `rng`."""
        number, at = divmod(self.taken, self.windows)
        if number != self._pass:
            self._starts = self._starts_of(number)
            self._pass = number
        self.taken += 1
        window = slice(self._starts[at], self._starts[at] + length)
        return np.asarray(self.ids[window], dtype=np.int64), np.asarray(self.cuts[window])  # those of a file are smaller

    def _starts_of(self, number: int) -> np.ndarray:
        """Return where the windows of a pass begin, in its order, (window,)."""
        rng = np.random.default_rng([*self.seed, number])
        starts = int(rng.integers(self.length)) + self.length * rng.permutation(self.windows)
        return self._borders[np.searchsorted(self._borders, starts)]
