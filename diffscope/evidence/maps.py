"""Statistics of whole maps, over all queries: ranks of the second map, outliers of scores, likeness of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.evidence.untrained import Match, matched
from diffscope.scope import Scope
from diffscope.stats.ragged import stack_layers
from diffscope.stats.ranks.exact import (
    CONTROLS,
    DEFINITIONS,
    beside_controls,
    estimate,
    permuted_estimates,
    uniform_map,
)
from diffscope.tasks.prompt import Prompt

TAILS = {"logits": "logit_outliers", "outputs": "layer_output_outliers"}


def second_map_ranks(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Measure the exact effective ranks of λA2: of how many patterns it is made.

    Returns
    -------
    Dataset
        ``rank`` (prompt, layer, head, definition, control), as the statistic ``effective_rank`` has it: the permuted control is
        the mean of several draws.
    """
    layers = _captured(scope, prompts, match).layers
    ranks = [stack_layers([_ranks_of_layer(layer.prompt(index)) for layer in layers]) for index in range(len(prompts))]
    dims = ("prompt", "layer", "head")
    return xr.Dataset(
        {"rank": ((*dims, "definition", "control"), np.stack(ranks))},
        {"definition": list(DEFINITIONS), "control": list(CONTROLS)},
    )


def _ranks_of_layer(layer: LayerAttention) -> np.ndarray:
    """Return the ranks of one prompt, (head, definition, control); NaN without a second map."""
    if not layer.differential:
        return np.full((layer.n_heads, len(DEFINITIONS), len(CONTROLS)), np.nan)
    visible = layer.visible()
    uniform = estimate(uniform_map(visible).to(layer.dtype))
    rows = layer.rows()
    assert rows.a2 is not None
    tables = []
    for head in range(layer.n_heads):
        second = rows.lam[head][:, None] * rows.a2[head]  # (query, key)
        tables.append(beside_controls(estimate(second), uniform, permuted_estimates(second, visible, head))[0])
    return torch.stack(tables).numpy()


def tails(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Measure the largest over the median magnitude of scores and of layer outputs.

    Returns
    -------
    Dataset (prompt,)
        ``logits`` and ``outputs``, in octaves, mean over layers.
    """
    outliers = _captured(scope, prompts, match).measure(["logit_outliers"])
    ratios = {name: outliers[of].sel(outlier="top_1") / outliers[of].sel(outlier="median") for name, of in TAILS.items()}
    octaves = {name: np.log2(ratio.where(np.isfinite(ratio) & (ratio > 0))) for name, ratio in ratios.items()}
    return xr.Dataset({name: values.mean("layer").reset_coords(drop=True) for name, values in octaves.items()})


def likeness(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Measure how far apart the heads of a layer are: by the distance of their maps and the linear CKA of their outputs.

    Returns
    -------
    Dataset (prompt,)
        ``distance_d``, ``distance_a1`` and ``cka``, mean over layers; NaN if a layer has one head.
    """
    statistics = _captured(scope, prompts, match).measure(["map_distance", "head_cka"])
    distance = statistics["map_distance"].mean("layer")
    cka = statistics["head_cka"]
    others = cka.where(cka["head"] != cka["other_head"]).mean(("head", "other_head")).mean("layer")
    return xr.Dataset(
        {
            "distance_d": distance.sel(map="D", drop=True),
            "distance_a1": distance.sel(map="A1", drop=True),
            "cka": others,
        }
    )


def _captured(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None) -> Capture:
    """Capture prompts, with the layers made like others if there is a match."""
    cap = scope.capture([prompt.ids for prompt in prompts])
    return cap if match is None else replace(cap, layers=[matched(*two) for two in zip(cap.layers, match, strict=True)])
