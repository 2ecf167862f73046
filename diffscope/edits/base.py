"""What every edit is: a label, the layers and heads it acts on, and how it changes a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from diffscope.attention.changes import Change
from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError, InsufficientMemory, UnsupportedModel, check_index
from diffscope.prompts.selection import Indices, as_indices

Make = Callable[[LayerAttention, tuple[int, ...]], LayerAttention]
WHOLE_MAPS_UP_TO = 4096  # tokens: beyond, an exact SVD or a stored mean map no longer fits


class Stage(IntEnum):
    """Where in the computation an edit acts; edits are made in this order, whatever the order they are given in."""

    FIELD = 0  # λ, which maps a head uses, its norm
    SCORES = 1
    MAPS = 2
    DIFFERENCE = 3
    OUTPUT = 4


@dataclass(frozen=True)
class Edit:
    """One change of the computation; made by the functions of ``diffscope.edits``.

    Attributes
    ----------
    label : str
    make : callable
        (layer, heads) → the changed layer; `heads` are the chosen ones, a tuple of int.
    layers, heads : tuple of int, optional
    stage : Stage
    whole : bool
        Whether it needs all rows of a map, which a cached step of generation does not have.
    placed : bool
        Whether it needs to know where in the text keys stand, which padding on the left and the cache of a window hide.
    """

    label: str
    make: Make
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    stage: Stage
    whole: bool = False
    placed: bool = False

    def __str__(self) -> str:
        chosen = [("layers", self.layers), ("heads", self.heads)]
        places = [f"{name} {', '.join(map(str, numbers))}" for name, numbers in chosen if numbers is not None]
        return f"{self.label} ({'; '.join(places)})" if places else self.label

    def check(self, layers: Sequence[int]) -> None:
        """Raise DiffscopeError unless the model has attention in the layers the edit names."""
        for layer in self.layers or ():
            check_index("layer", layer, layers, self.label)

    def concerns(self, layer: int) -> bool:
        """Whether it acts in the layer of this number."""
        return self.layers is None or layer in self.layers

    def __call__(self, layer: LayerAttention) -> LayerAttention:
        """The changed layer; the layer itself where the edit does not act."""
        if not self.concerns(layer.layer):
            return layer
        heads = tuple(range(layer.n_heads)) if self.heads is None else self.heads
        for head in heads:
            check_index("head", head, range(layer.n_heads), self.label)
        if self.whole:
            self._check_whole(layer)
        if self.placed:
            self._check_placed(layer)
        return self.make(layer, heads) if heads else layer

    def _check_whole(self, layer: LayerAttention) -> None:
        if layer.n_queries != layer.n_keys:
            raise DiffscopeError(
                f"{self.label}: needs whole maps, which a cached step does not have; generate with use_cache=False"
            )
        if layer.mask.kind == "given":
            raise DiffscopeError(
                f"{self.label}: needs to know what is padding; use scope.capture, scope.loss, or prompts of one length"
            )
        if layer.n_keys > WHOLE_MAPS_UP_TO:
            raise InsufficientMemory(
                f"{self.label}: needs whole maps, and {layer.n_keys} tokens are more than {WHOLE_MAPS_UP_TO}"
            )

    def _check_placed(self, layer: LayerAttention) -> None:
        if layer.mask.kind == "given":
            raise DiffscopeError(
                f"{self.label}: goes by positions and cannot tell padding from text here; use scope.capture, scope.loss, "
                "or prompts of one length"
            )
        if layer.mask.kind == "window" and layer.n_queries != layer.n_keys:
            raise DiffscopeError(f"{self.label}: a window's cache forgets where its keys stood; generate with use_cache=False")


def apply(edits: Sequence[Edit], layer: LayerAttention) -> LayerAttention:
    """A layer with edits made to it, by stage, and within a stage in the order given."""
    for edit in sorted(edits, key=lambda edit: edit.stage):
        layer = edit(layer)
    return layer


def field_edit(label: str, make: Make, layers: Indices, heads: Indices = None) -> Edit:
    """An edit that replaces fields of the layer: `make` as in :class:`Edit`."""
    return Edit(label, make, as_indices(layers), as_indices(heads), Stage.FIELD)


def row_edit(
    label: str,
    stage: Stage,
    change: Callable[[LayerAttention, tuple[int, ...]], Change],
    layers: Indices,
    heads: Indices,
    *,
    second: bool = False,
    whole: bool = False,
    placed: bool = False,
) -> Edit:
    """An edit that adds a change of rows; with `second` it needs a second map."""

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        if second:
            check_second(label, layer)
        return with_change(layer, change(layer, heads))

    return Edit(label, make, as_indices(layers), as_indices(heads), stage, whole, placed)


def with_change(layer: LayerAttention, change: Change) -> LayerAttention:
    """A layer with one more change of its rows."""
    return replace(layer, changes=(*layer.changes, change))


def check_second(label: str, layer: LayerAttention) -> None:
    """Raise UnsupportedModel unless the layer has a second map."""
    if not layer.differential:
        raise UnsupportedModel(f"{label}: layer {layer.layer} has no second map, so neither A2 nor λ can be changed")
