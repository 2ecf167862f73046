"""What figures ask of a capture: one prompt's part of it, and which places there are."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError, check_index
from diffscope.figures.escaping import readable
from diffscope.prompts.selection import is_last


def one_prompt(cap: Capture, prompt: int) -> Capture:
    """The prompt that a figure is of.

    Raises
    ------
    DiffscopeError
        There is no such prompt, or `cap` is no capture.
    """
    if not isinstance(cap, Capture):
        raise DiffscopeError(f"this figure is of a capture, not of a {type(cap).__name__}; make one with scope.capture(prompt)")
    try:
        return cap[prompt]
    except IndexError as error:
        raise DiffscopeError(str(error)) from None


def layer_at(cap: Capture, layer: int | None, head: int) -> LayerAttention:
    """The attention inputs of a layer by its number in the model, by default the first; it has the head asked for."""
    number = cap.layer_numbers[0] if layer is None else layer
    check_index("layer", number, cap.layer_numbers)
    check_index("head", head, range(cap.n_heads))
    return cap.layers[cap.layer_numbers.index(number)]


def visible_cells(layer: LayerAttention, queries, keys) -> np.ndarray:
    """Whether a query sees a key, (query, key)."""
    return layer.visible(np.array(queries)).cpu().numpy()[:, keys]


def window(choice, n: int, name: str) -> slice:
    """A slice, a (start, stop) pair, one position, "last" or None as a slice of at least one position."""
    if choice is None:
        return slice(0, n)
    choice = -1 if is_last(choice) else choice
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


def position_of(query: int | str, n: int) -> int:
    """A query of a prompt of n tokens, counted from 0: "last", or a position, from the end if it is negative.

    Raises
    ------
    DiffscopeError
        There is no such token.
    """
    query = -1 if is_last(query) else query
    if isinstance(query, str) or not -n <= query < n:
        raise DiffscopeError(f"there is no token {query}: the prompt has {n}")
    return query % n


def runs(positions) -> list[tuple[int, int]]:
    """Consecutive positions as (first, one past the last)."""
    positions = np.unique(np.asarray(positions, dtype=int))
    if positions.size == 0:
        return []
    cuts = np.flatnonzero(np.diff(positions) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(positions, cuts)]


def with_readable_tokens(data: xr.Dataset, cap: Capture) -> xr.Dataset:
    """Data whose coordinates of tokens, as far as there are any, are texts that can be read."""
    tokens = np.array(readable(cap.prompts[0]), dtype=object)
    names = {f"{dim}_token": (dim, tokens[data[dim].values].astype(str)) for dim in ("query", "key") if dim in data.dims}
    return data.assign_coords(names)


def edited(cap: Capture) -> str:
    """The edits that were on, in words; nothing where there were none."""
    return str(cap.facts.get("edits", ""))


def described(cap: Capture, layer: LayerAttention, head: int) -> dict:
    """What the data of a figure says about where it comes from."""
    return {
        "model": cap.model_name,
        "family": cap.family,
        "layer": layer.layer,
        "head": int(head),
        "n_tokens": cap.n_tokens,
        "mask": str(layer.mask.kind),
        "spans": {name: runs(positions) for name, positions in cap.spans.items()},
        "edits": edited(cap),
    }
