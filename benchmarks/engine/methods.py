"""What a user would run: functions of a model and a prompt that prepare it and return the run itself.

A run returns values by statistic, (layer, map, head, query, ...), or None where it is only a forward pass.
Nothing is imported before a method is prepared, so that a process holds what its own method needs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from benchmarks.engine import script, subjects
from benchmarks.engine.script import Values

Run = Callable[[], Values | None]


def with_diffscope(model: nn.Module, ids: Tensor) -> Run:
    """Measure with diffscope: a capture with its proof, and all statistics."""
    import diffscope

    scope = diffscope.load(model)
    return lambda: values_of(scope.measure(ids[0].tolist(), "row"))


def capture(model: nn.Module, ids: Tensor) -> Run:
    """Capture with its proof, without statistics."""
    import diffscope

    scope = diffscope.load(model)

    def run() -> None:
        scope.capture(ids[0].tolist())

    return run


def measured_capture(model: nn.Module, ids: Tensor) -> Run:
    """Measure the statistics of a capture at hand."""
    import diffscope

    captured = diffscope.load(model).capture(ids[0].tolist())
    return lambda: values_of(captured.measure("row"))


def values_of(dataset: xr.Dataset) -> Values:
    """Return values of a Dataset by statistic, (layer, map, head, query, ...)."""
    return {name: values.transpose("layer", "map", "head", "query", ...).values for name, values in dataset.items()}


def eager(model: nn.Module, ids: Tensor) -> Run:
    """Take the attention weights of the library, then run the script; head h has the maps h and h + H."""
    model.set_attn_implementation("eager")

    @torch.no_grad()
    def run() -> Values:
        weights = model(ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions
        return _of_weights(model, [of_layer[0] for of_layer in weights])

    return run


def _of_weights(model: nn.Module, weights: list[Tensor]) -> Values:
    """Run the script on maps (map, query, key) of each layer."""
    layers = []
    for module, of_layer in zip(subjects.attentions(model), weights):
        a1, a2 = (half.cpu().numpy() for half in of_layer.chunk(2))
        layers.append(script.head_by_head(a1, a2, subjects.lambda_of(module)))
    return script.stacked(layers)


def numpy_maps(model: nn.Module, ids: Tensor) -> Run:
    """Compute all maps by numpy from q and k, and run the script on all of them at once."""

    def run() -> Values:
        layers = []
        for module, (q, k) in zip(subjects.attentions(model), subjects.projected(model, ids)):
            a1, a2 = np.split(_softmax(q.cpu().numpy(), k.cpu().numpy()), 2)
            layers.append(script.all_at_once(a1, a2, subjects.lambda_of(module)))
        return script.stacked(layers)

    return run


def _softmax(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return causal maps (map, query, key) from q and k (map, token, d)."""
    maps = q @ k.transpose(0, 2, 1)
    maps *= np.float32(q.shape[-1] ** -0.5)
    maps[:, ~np.tri(q.shape[1], dtype=bool)] = -np.inf
    maps -= maps.max(-1, keepdims=True)
    np.exp(maps, out=maps)
    maps /= maps.sum(-1, keepdims=True)
    return maps


def transformer_lens(model: nn.Module, ids: Tensor) -> Run:
    """Cache the hook points of both maps by ``run_with_cache``, then run the script."""
    from diffscope import lens

    modules = subjects.attentions(model)
    bridge = lens.boot(model)

    @torch.no_grad()
    def run() -> Values:
        _, cache = bridge.run_with_cache(ids, names_filter=lambda name: name.endswith(("hook_a1", "hook_a2")))
        layers = []
        for number, module in enumerate(modules):
            a1, a2 = (cache[f"blocks.{number}.attn.hook_{name}"][0].cpu().numpy() for name in ("a1", "a2"))
            layers.append(script.head_by_head(a1, a2, subjects.lambda_of(module)))
        return script.stacked(layers)

    return run


def nnsight(model: nn.Module, ids: Tensor) -> Run:
    """Save the attention weights in a trace, then run the script."""
    import nnsight

    model.set_attn_implementation("eager")
    traced = nnsight.NNsight(model)

    @torch.no_grad()
    def run() -> Values:
        with traced.trace(ids, use_cache=False, logits_to_keep=1):
            weights = nnsight.save([layer.self_attn.output[1] for layer in traced.model.layers])
        return _of_weights(model, [of_layer[0] for of_layer in weights])

    return run


def model_forward(model: nn.Module, ids: Tensor) -> Run:
    """Run the model alone, without statistics."""

    @torch.no_grad()
    def run() -> None:
        model(ids, use_cache=False, logits_to_keep=1)

    return run


def attention_forward(model: nn.Module, ids: Tensor) -> Run:
    """Run the attention calls of the layers alone: two each, for the two halves of the values, as wide as the keys."""
    layers = []
    for q, k, v in subjects.projected(model, ids, "qkv"):
        layers += [(q[None], k[None], half.repeat(2, 1, 1)[None]) for half in v.chunk(2)]

    @torch.no_grad()
    def run() -> None:
        for q, k, v in layers:
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return run


METHODS: dict[str, Callable[[nn.Module, Tensor], Run]] = {
    "attention forward": attention_forward,
    "model forward": model_forward,
    "diffscope": with_diffscope,
    "eager + numpy": eager,
    "numpy, full maps": numpy_maps,
    "TransformerLens": transformer_lens,
    "nnsight": nnsight,
    "capture alone": capture,
    "Capture.measure alone": measured_capture,
}
FORWARDS = ("attention forward", "model forward")
PARTS = ("capture alone", "Capture.measure alone")
