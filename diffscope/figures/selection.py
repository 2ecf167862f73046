"""What figures ask of a capture: one prompt's part of it, and which places there are."""

from __future__ import annotations

import numpy as np

from diffscope.attention.indexing import check_index
from diffscope.errors import DiffscopeError


def of_prompt(value, prompt: int):
    """A batch keeps a list of what a single prompt keeps once."""
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return value[prompt]
    return value


def layer_numbers(cap) -> list[int]:
    """The layers of a capture as the model numbers them: a model need not have attention in every layer."""
    return [int(layer.layer) for layer in cap.layers]


def check_place(cap, layer: int | None = None, head: int | None = None) -> None:
    """Refuse a layer or a head that the capture does not have."""
    check_index("layer", layer, layer_numbers(cap))
    check_index("head", head, range(cap.n_heads))


def layer_of(cap, layer: int, prompt: int):
    """The attention inputs of one layer, by its number in the model, and one prompt."""
    return cap.layers[layer_numbers(cap).index(layer)].prompt(prompt)


def visible_cells(cap, layer: int, prompt: int, queries, keys, bin: int = 1) -> np.ndarray:
    """Whether a query sees a key, (query, key); of bins, given by their first positions, whether any query sees any key."""
    found = layer_of(cap, layer, prompt)
    if bin == 1:
        return found.visible(np.array(queries)).cpu().numpy()[:, keys]
    rows = [found.visible(slice(first, first + bin)).any(0).cpu().numpy() for first in queries]  # N of N² at a time
    return np.logical_or.reduceat(np.stack(rows), keys, axis=1)


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
        "mask": str(layer_of(cap, layer, prompt).mask.kind),
        "spans": {name: runs(where) for name, where in of_prompt(cap.spans, prompt).items()},
    }
