"""Keep what chosen heads attended with while a model trains, and draw their maps as images for trackers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.errors import check_index
from diffscope.scope.run import Run
from diffscope.scope.runners import Inputs
from diffscope.scope.scope import Scope

Head = tuple[int, int]  # the numbers of its layer, and of the head there
SIZE = 256  # bins or pixels a side
EMPTY, POSITIVE, NEGATIVE = (250, 250, 250), (9, 52, 110), (140, 45, 4)  # red, green, blue


def captured(scope: Scope, inputs: Inputs, layers: Collection[int]) -> Capture:
    """Capture the first of some prompts, and of its layers those with these numbers."""
    first = Inputs(inputs.prompts[:1], inputs.originals[:1], False, inputs.lengths[:1], False)
    kept: list[LayerAttention] = []
    run = Run(scope, lambda layer: kept.append(layer) if layer.layer in layers else None)
    with scope.exclusively(first.lengths, first.packed), torch.no_grad():
        run.make(first)
    at = [run.numbers.index(layer.layer) for layer in kept]
    assert run.outliers is not None
    return Capture(first.prompts, kept, [run.proofs[i] for i in at], run.next, run.outliers[at], run.facts(), False)


def images(capture: Capture, heads: Sequence[Head]) -> dict[str, np.ndarray]:
    """Draw A1, A2 and D of some heads, or the one map of standard attention.

    Raises DiffscopeError if there is no such head.

    Parameters
    ----------
    heads : sequence of (int, int)
        As (layer, head).

    Returns
    -------
    dict of str to ndarray of uint8, (row, column, 3)
        By flat names, such as ``diffscope/maps/layer_1/head_0/D``. Blue is positive and brown negative, each map on a scale of
        its own that goes with the root of a value. A long prompt is drawn in bins, whose largest values are seen.
    """
    found = {}
    for layer, head in heads:
        attention = capture.layer(layer)
        check_index("head", head, range(attention.n_heads))
        names = ["A1", "A2", "D"] if attention.differential else ["A1"]
        maps = capture.pooled_maps(layer, [head], names, size=SIZE)
        for name in names:
            found[f"diffscope/maps/layer_{layer}/head_{head}/{name}"] = _coloured(maps[name].isel(head=0).values)
    return found


def _coloured(values: np.ndarray) -> np.ndarray:
    """Return a map (query, key) in colours (row, column, 3); a small one is enlarged by a whole number."""
    values = np.nan_to_num(values)
    share = np.sqrt(np.abs(values) / (np.abs(values).max(initial=0.0) or 1.0))[..., None]
    end = np.where((values < 0)[..., None], NEGATIVE, POSITIVE)
    pixels = np.rint(np.asarray(EMPTY) * (1 - share) + end * share).astype(np.uint8)
    return np.kron(pixels, np.ones((max(1, SIZE // max(values.shape)),) * 2 + (1,), np.uint8))
