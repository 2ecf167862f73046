"""Parts of a capture, and the same capture with other spans; none of them changes the capture that it is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError, check_index
from diffscope.prompts import selection

Queries = int | str | slice | Sequence[int]
RELEVANT = ("answer", "query", "sink")  # what the key set irrelevant is without


def any_capture(cap: Any) -> Capture:
    """Return a capture, or raise DiffscopeError if it is none."""
    if not isinstance(cap, Capture):
        raise DiffscopeError(f"this is said of a capture, not of a {type(cap).__name__}; make one with scope.capture(prompt)")
    cap.check_one_side("this reading")
    return cap


def query_positions(cap: Capture, queries: Queries) -> list[int]:
    """Return the positions of some queries of a prompt, from 0: by position, by a span's name, or "last"; refuse others."""
    return selection.query_positions(queries, cap.key_sets, cap.n_tokens).tolist()


def query_position(cap: Capture, query: int | str) -> int:
    """Return the position of one query, from 0: by position, "last", or the name of a span of one token; refuse others."""
    rows = query_positions(cap, query)
    if len(rows) > 1:
        raise DiffscopeError(f"one query is asked for here, and {query!r} has {len(rows)} tokens; give one position")
    return rows[0]


def only_layer(cap: Capture, layer: int) -> Capture:
    """Return one layer of a capture, by the model's number of it, as a capture; refuse one that there is not."""
    check_index("layer", layer, cap.layer_numbers)
    at = cap.layer_numbers.index(layer)
    outliers = cap.layer_output_outliers[at : at + 1]
    return replace(cap, layers=[cap.layers[at]], _proofs=[cap._proofs[at]], layer_output_outliers=outliers)


def relabelled(cap: Capture, spans: Mapping[str, Sequence[int]]) -> Capture:
    """Return a capture whose prompt has these spans, as token positions, in place of its own."""
    named = {name: tuple(sorted(at)) for name, at in spans.items()}
    return replace(cap, prompts=[replace(cap.prompts[0], spans=named)])


def with_fewest_spans(cap: Capture) -> Capture:
    """Return a capture with only the spans that the answer and irrelevant tokens follow from, since each span costs time."""
    return relabelled(cap, {name: at for name, at in cap.spans.items() if name in RELEVANT})


def uniform_attention(cap: Capture) -> Capture:
    """Return a capture with all scores 0, so that every query gives the same weight to each key that it sees."""
    layers = [
        replace(layer, q=torch.zeros_like(layer.q), sink_logit=None, position_bias=None, changes=()) for layer in cap.layers
    ]
    return replace(cap, layers=layers)


def visible_keys(layers: Sequence[LayerAttention], queries: Sequence[int]) -> np.ndarray:
    """Return which keys some queries of one prompt see in each layer, bool (layer, query, key)."""
    return np.stack([layer.prompt(0).visible(queries).cpu().numpy() for layer in layers])


def place_of(query: int, n: int) -> str:
    """Say where a query of a prompt of n tokens stands: at the last token."""
    return "at the last token" if query == n - 1 else f"at token {query}"


def irrelevant_in_words(spans: Mapping[str, Sequence[int]]) -> str:
    """Name the key set ``irrelevant``, which is all unmarked tokens if no answer is marked."""
    if "answer" in spans:
        return "irrelevant tokens"
    return f"all tokens but {sink_in_words(spans)}{' and the question' if 'query' in spans else ''}"


def sink_in_words(spans: Mapping[str, Sequence[int]]) -> str:
    """Name the span ``sink``, which is the first token unless another one is marked."""
    return "the first token" if list(spans["sink"]) == [0] else "the span marked as sink"


def shared_or_each(controls: Mapping[str, xr.DataArray]) -> dict[str, xr.DataArray]:
    """Return a control once, under no name, if all models share it, else one for each; undefined ones are left out.

    Controls are never averaged over models.
    """
    defined = {name: values for name, values in controls.items() if values.notnull().any()}
    if len(defined) == 1 == len(controls) or (len(defined) > 1 and _equal(list(defined.values()))):
        return {"": next(iter(defined.values()))}
    return defined


def _equal(controls: Sequence[xr.DataArray]) -> bool:
    """Return whether all have the same numbers at the same places."""
    first, *others = controls
    return all(values.shape == first.shape and np.allclose(values, first, equal_nan=True) for values in others)
