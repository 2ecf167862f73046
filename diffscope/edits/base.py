"""Edit: a label, the layers and heads it acts on, and how it changes a layer; apply edits in the order of the computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from diffscope.attention.changes import Change
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast
from diffscope.errors import DiffscopeError, InsufficientMemory, PromptError, UnsupportedModel
from diffscope.numbers import numbered
from diffscope.prompts.selection import Indices, as_indices, indices_among

Make = Callable[[LayerAttention, tuple[int, ...]], LayerAttention | Change]
FULL_MAP_TOKENS = 4096  # beyond, an exact SVD or a stored mean map no longer fits


class Stage(IntEnum):
    """Stages of the computation; edits act in this order, whatever the order they are given in."""

    FIELD = 0  # λ, which maps a head uses, its norm
    SCORES = 1
    MAPS = 2
    DIFFERENCE = 3
    OUTPUT = 4


@dataclass(frozen=True)
class Edit:
    """One change of the computation; the functions of ``diffscope.edits`` make them.

    Attributes
    ----------
    label : str
    make : callable
        (layer, heads) → the layer with other fields, or a change of its rows; `heads` are the chosen ones, a tuple of int.
    stage : Stage
        What `make` changes.
    layers, heads : int or sequence of int, optional
        Where it acts, one at least; by default everywhere. Kept as tuples.
    needs_a2 : bool
        Whether a layer has to have a second map.
    needs_full_map : bool
        Whether it needs all rows of a map, which a cached step of generation does not have.
    needs_positions : bool
        Whether it needs the positions of keys in the text, which padding on the left and the cache of a window hide.
    queries, keys : tuple of int
        Token positions that it names. A capture or a loss is refused if no prompt has any of the queries, or of the keys.
    """

    label: str
    make: Make
    stage: Stage = Stage.FIELD
    layers: Indices = None
    heads: Indices = None
    needs_a2: bool = False
    needs_full_map: bool = False
    needs_positions: bool = False
    queries: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            chosen = as_indices(getattr(self, name))
            if chosen == ():
                raise DiffscopeError(f"{self.label}: {name} names none, so it would do nothing; leave it out for all of them")
            object.__setattr__(self, name, chosen)

    def __str__(self) -> str:
        chosen = [("layer", as_indices(self.layers)), ("head", as_indices(self.heads))]
        where = [numbered(name, numbers) for name, numbers in chosen if numbers is not None]
        return f"{self.label} ({'; '.join(where)})" if where else self.label

    def check(self, layers: Sequence[int]) -> None:
        """Raise DiffscopeError unless the model has attention in the layers that the edit names."""
        indices_among("layer", self.layers, layers, self.label)

    def applies_to(self, layer: int) -> bool:
        """Return whether it acts in the layer of this number."""
        layers = as_indices(self.layers)
        return layers is None or layer in layers

    def check_places(self, layer: LayerAttention) -> None:
        """Raise PromptError if no prompt has any of the queries, or of the keys, that the edit names: it would do nothing."""
        sides = ("query", self.queries, layer.lengths), ("key", self.keys, layer.key_lengths or layer.lengths)
        for what, named, lengths in sides:
            if self.applies_to(layer.layer) and min(named, default=0) >= max(lengths):
                raise PromptError(
                    f"{self.label}: layer {layer.layer} ({layer.kind}) has no {what} {min(named)}; choose from 0 to "
                    f"{max(lengths) - 1}, or other layers by layers="
                )

    def __call__(self, layer: LayerAttention, lengths_known: bool = True) -> LayerAttention:
        """Return the changed layer, or the layer itself if the edit does not act in it.

        Parameters
        ----------
        layer : LayerAttention
        lengths_known : bool
            Whether the layer's lengths say what is padding. In a bare call of a model only its mask may know, by a table.

        Raises
        ------
        UnsupportedModel
            The edit needs a second map, and the layer has none.
        DiffscopeError
            The layer has no such head; it is a cached step or may be padded, and the edit needs whole maps or positions.
        InsufficientMemory
            The edit needs whole maps, and the prompt is too long for them.
        """
        if not self.applies_to(layer.layer):
            return layer
        heads = indices_among("head", self.heads, range(layer.n_heads), self.label)
        if self.needs_full_map:
            self._check_full_map(layer, lengths_known)
        if self.needs_positions:
            self._check_positions(layer, lengths_known)
        if self.needs_a2:
            check_a2(self.label, layer)
        made = self.make(layer, heads)
        return with_change(layer, made) if isinstance(made, Change) else made

    def _check_full_map(self, layer: LayerAttention, lengths_known: bool) -> None:
        check_square(self.label, layer)
        if layer.n_queries != layer.n_keys:
            raise DiffscopeError(
                f"{self.label}: needs whole maps, which a cached step does not have; generate with use_cache=False"
            )
        if layer.mask.kind == "given" and not lengths_known:
            raise DiffscopeError(
                f"{self.label}: needs to know what is padding, and the call's mask does not say; use scope.capture or scope.loss"
            )
        check_tokens(self.label, layer.n_keys)

    def _check_positions(self, layer: LayerAttention, lengths_known: bool) -> None:
        if layer.mask.kind == "given" and not lengths_known:
            raise DiffscopeError(
                f"{self.label}: goes by positions, and the call's mask does not say what is padding; use scope.capture or "
                "scope.loss"
            )
        if layer.mask.kind == "window" and layer.n_queries != layer.n_keys:
            raise DiffscopeError(f"{self.label}: a window's cache forgets where its keys stood; generate with use_cache=False")


@without_autocast()
def apply(edits: Sequence[Edit], layer: LayerAttention, lengths_known: bool = True) -> LayerAttention:
    """Make edits to a layer, by stage, and within a stage in the order given; parameters and errors are those of an edit."""
    for edit in sorted(edits, key=lambda edit: edit.stage):
        layer = edit(layer, lengths_known)
    return layer


def with_change(layer: LayerAttention, change: Change) -> LayerAttention:
    """Add a change of its rows to a layer."""
    return replace(layer, changes=(*layer.changes, change))


def check_square(label: str, layer: LayerAttention) -> None:
    """Raise DiffscopeError for cross-attention, whose maps are not square."""
    if layer.kind == "cross":
        raise DiffscopeError(
            f"{label}: needs square maps, and layer {layer.layer} is cross-attention; leave it out by naming others in layers="
        )


def check_tokens(label: str, tokens: int) -> None:
    """Raise InsufficientMemory if whole maps of so many tokens are not kept."""
    if tokens > FULL_MAP_TOKENS:
        raise InsufficientMemory(
            f"{label}: needs whole maps, and {tokens:,} tokens are more than {FULL_MAP_TOKENS:,}; take a shorter prompt"
        )


def check_a2(label: str, layer: LayerAttention) -> None:
    """Raise UnsupportedModel unless the layer has a second map."""
    if not layer.differential:
        raise UnsupportedModel(f"{label}: layer {layer.layer} has no second map, so neither A2 nor λ can be changed")
