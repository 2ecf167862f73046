"""How many heads each layer of a model has."""

from __future__ import annotations

from collections.abc import Sequence

from diffscope.scope.scope import Scope

ENOUGH = 8  # tokens, to see what heads there are


def heads_by_layer(scope: Scope, ids: Sequence[int], *, with_a2: bool = False) -> dict[int, int]:
    """Return how many heads each layer has, by the layer's number; if `with_a2`, only of layers that have a second map."""
    layers = scope.capture(list(ids)[:ENOUGH]).layers
    return {layer.layer: layer.n_heads for layer in layers if layer.differential or not with_a2}
