"""Of how many patterns λA2 is made: five effective ranks over all queries, beside the uniform and the permuted control."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.evidence.matching import Match, matched
from diffscope.scope import Scope
from diffscope.stats.formulas.rank import (
    CONTROLS,
    DEFINITIONS,
    controlled_ranks,
    controlled_spectra,
    singular_values,
    uniform_map,
)
from diffscope.tasks.prompt import Prompt


def second_map_ranks(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Effective ranks of λA2, exact; a take, as :mod:`diffscope.evidence.flows` says.

    Returns
    -------
    Dataset
        ``rank`` (prompt, layer, head, definition, control), as the statistic ``effective_rank`` has it: the permuted control is
        the mean of several draws.
    """
    layers = scope.capture([prompt.ids for prompt in prompts]).layers
    layers = [matched(layer, match[number]) if match else layer for number, layer in enumerate(layers)]
    heads = max(layer.n_heads for layer in layers)
    ranks = np.full((len(prompts), len(layers), heads, len(DEFINITIONS), len(CONTROLS)), np.nan)
    for index in range(len(prompts)):
        for number, layer in enumerate(layers):
            own = layer.prompt(index)
            ranks[index, number, : own.n_heads] = _ranks_of_layer(own)
    dims = ("prompt", "layer", "head")
    return xr.Dataset(
        {"rank": ((*dims, "definition", "control"), ranks)}, {"definition": list(DEFINITIONS), "control": list(CONTROLS)}
    )


def _ranks_of_layer(layer: LayerAttention) -> np.ndarray:
    """(head, definition, control); NaN without a second map."""
    if not layer.differential:
        return np.full((layer.n_heads, len(DEFINITIONS), len(CONTROLS)), np.nan)
    visible = layer.visible()
    uniform = singular_values(uniform_map(visible).to(layer.dtype))
    rows = layer.rows()
    assert rows.a2 is not None
    spectra = []
    for head in range(layer.n_heads):
        second = rows.lam[head][:, None] * rows.a2[head]  # (query, key)
        spectra.append(controlled_spectra(second, visible, torch.Generator().manual_seed(head), uniform))
    return controlled_ranks(torch.stack(spectra))[0].cpu().numpy()
