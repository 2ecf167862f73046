"""What figures ask of a capture: one prompt's part of it, and whether a place exists."""

from __future__ import annotations

import numpy as np

from diffscope.errors import DiffscopeError


def of_prompt(value, prompt: int):
    """A batch keeps a list of what a single prompt keeps once."""
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return value[prompt]
    return value


def within(number: int, there_are: int, what: str) -> None:
    if not 0 <= number < there_are:
        raise DiffscopeError(f"there is no {what} {number}: the model has {there_are}, from 0 to {there_are - 1}")


def window(choice, n: int, name: str) -> slice:
    """A slice, a (start, stop) pair, one position or None as a slice of at least one position."""
    if choice is None:
        return slice(0, n)
    if isinstance(choice, (int, np.integer)):
        start = int(choice) % n if -n <= choice < n else n
        choice = slice(start, start + 1)
    elif isinstance(choice, (tuple, list)) and len(choice) == 2:
        choice = slice(int(choice[0]), int(choice[1]))
    if not isinstance(choice, slice):
        raise DiffscopeError(f"{name} must be a slice or (start, stop), not {choice!r}")
    start, stop, step = choice.indices(n)
    if step != 1 or stop <= start:
        raise DiffscopeError(f"{name} {choice.start}:{choice.stop} holds no position of the prompt's {n} tokens")
    return slice(start, stop)


def differential(cap) -> bool:
    """Whether the maps of this capture have a second branch."""
    return any(layer.pairing.a2 is not None for layer in cap.layers)


def runs(positions) -> list[tuple[int, int]]:
    """Consecutive positions as (first, one past the last)."""
    positions = np.unique(np.asarray(positions, dtype=int))
    if positions.size == 0:
        return []
    cuts = np.flatnonzero(np.diff(positions) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(positions, cuts)]


def described(cap, layer: int, head: int, prompt: int) -> dict:
    """What the data of a figure says about where it comes from."""
    tokens = of_prompt(cap.tokens, prompt)
    return {
        "model": str(getattr(cap, "model_name", "") or ""),
        "family": str(cap.family),
        "layer": int(layer),
        "head": int(head),
        "n_tokens": len(tokens),
        "mask": str(cap.layers[layer].mask.kind),
        "spans": {name: runs(where) for name, where in of_prompt(cap.spans, prompt).items()},
    }
