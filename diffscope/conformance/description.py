"""Describe a layer's attention in words and numbers, and its differences from the paper's V1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffscope.attention.changes import Reshape
from diffscope.attention.layer import LayerAttention
from diffscope.families.base import HALVES, STRIPES, Convention
from diffscope.models import lambda_init_schedule
from diffscope.numbers import listed

REORDERED = "the same with weights in another order"


def schedule_offset(layer: int, lam_init: float) -> int | None:
    """Return the k nearest to 0, from −2 to 2, for which λ_init is the paper's of layer + k; None if no k fits."""
    offsets = sorted(range(-2, 3), key=abs)
    return next((k for k in offsets if abs(lam_init - lambda_init_schedule(layer + k)) < 1e-6), None)


def in_words(offset: int) -> str:
    """Write the layer whose number gives λ_init: l, l − 1, ..."""
    if offset == 0:
        return "l"
    return f"l + {offset}" if offset > 0 else f"l − {-offset}"


def shares_keys(layer: LayerAttention) -> bool:
    """Return whether both maps of any head attend to the same keys."""
    key_of_map = layer.pairing.key_of_map
    return bool((key_of_map[layer.pairing.of_branch(1)] == key_of_map[layer.pairing.of_branch(2)]).any())


def facts(layer: LayerAttention, convention: Convention | None) -> dict:
    """Describe one layer in words and numbers."""
    offset = None if layer.lam_init is None else schedule_offset(layer.layer, layer.lam_init)
    return {
        "layer": layer.layer,
        "heads": layer.n_heads,
        "d": layer.q.shape[-1],
        "value width": layer.v.shape[-1],
        "pairing": described_pairing(layer) if convention is None else convention.pairing,
        "pairing as attended": described_pairing(layer),
        "keys": described_keys(layer),
        "λ formula": _formula(layer, convention),
        "λ": _range(layer.lam) if layer.differential else None,
        "λ in float32": _range(layer.lam_fp32) if layer.differential else None,
        "λ_init": layer.lam_init,
        "λ_init is that of layer": None if offset is None else layer.layer + offset,
        "norm": described_norm(layer),
        "post-scale": layer.post_scale,
        "gate": layer.gate is not None,
        "soft cap": layer.soft_cap,
        "sink logits": layer.sink_logit is not None,
        "RoPE": "as the model's own" if convention is None else convention.rope,
        "mask": layer.mask.kind if layer.mask.window is None else f"window of {layer.mask.window}",
    }


def _formula(layer: LayerAttention, convention: Convention | None) -> str:
    if convention is not None:
        return convention.lam
    return "not stated by the family" if layer.differential else "none"


def _range(values: Tensor) -> list[float]:
    return [float(values.float().min()), float(values.float().max())]


def described_pairing(layer: LayerAttention) -> str:
    """Describe which query maps belong to head h, as read from the pairing itself."""
    if not layer.differential:
        return "one map a head"
    a1 = layer.pairing.of_branch(1).cpu()
    a2 = layer.pairing.of_branch(2).cpu()
    head = torch.arange(layer.n_heads)
    seconds = len(a2.unique())
    if seconds < layer.n_heads:
        return f"one A2 for {layer.n_heads // seconds} A1"
    if torch.equal(a1, 2 * head) and torch.equal(a2, 2 * head + 1):
        return STRIPES
    if torch.equal(a1, head) and torch.equal(a2, head + layer.n_heads):
        return HALVES
    return "a1 " + _numbers(a1) + "; a2 " + _numbers(a2)


def _numbers(index: Tensor) -> str:
    return " ".join(map(str, index.tolist()))


def described_keys(layer: LayerAttention) -> str:
    """Describe how query maps share key maps."""
    maps, keys = layer.q.shape[1], layer.k.shape[1]
    shared = "shared by both maps of a head" if layer.differential and shares_keys(layer) else "one a map"
    return shared if maps == keys else f"{keys} for {maps} query maps, {shared}"


def described_norm(layer: LayerAttention) -> str:
    """Describe the norm of the heads' outputs: its kind, its eps and whether it has a weight."""
    if layer.norm is None:
        return "none"
    return f"{layer.norm.kind}, eps {layer.norm.eps:g}, {'no weight' if layer.norm.weight is None else 'weight'}"


def _shown(layer: LayerAttention) -> Convention:
    """Return the convention that the tensors show. They do not show RoPE, which counts as the paper's."""
    return Convention(described_pairing(layer), "a number for each token or head", None, None, False, rope="interleaved")


def differences(layers: list[LayerAttention], conventions: Sequence[Convention | None]) -> list[str]:
    """List the differences from the paper's V1, as its authors published it, in the order of the computation.

    They are those of the first layer with two maps; if others have one, it is said of which.
    """
    single = [layer.layer for layer in layers if not layer.differential]
    pairs = list(zip(layers, conventions))
    layer, convention = next((pair for pair in pairs if pair[0].differential), pairs[0])
    scores = [
        (f"scores are capped: {layer.soft_cap or 0:g}·tanh(s/{layer.soft_cap or 0:g})", layer.soft_cap is not None),
        ("a sink logit takes part in each softmax: rows sum to less", any(each.sink_logit is not None for each in layers)),
    ]
    if not layer.differential:
        return ["one softmax map a head: no A2, no λ", *(line for line, holds in scores if holds)]
    convention = convention or _shown(layer)
    width, d = layer.v.shape[-1], layer.q.shape[-1]
    positive = Reshape(tuple(range(layer.n_heads)), "positive")
    lines = [
        (f"one softmax map a head in layer {listed(list(map(str, single)))}", bool(single)),
        *scores,
        ("several heads share one second map", "one A2" in described_pairing(layer)),
        (f"head h owns the query maps {HALVES} instead of {STRIPES} ({REORDERED})", convention.pairing == HALVES),
        (f"RoPE pairs the halves of a head instead of neighbours ({REORDERED})", convention.rope == "half"),
        (f"RoPE: {convention.rope}", convention.rope not in ("half", "interleaved")),
        ("both maps of a head look at the same keys", shares_keys(layer)),
        (f"λ = {convention.lam} instead of one number a layer", layer.lam[0].numel() > 1),
        ("λ is negative: A2 is added, D = A1 + |λ|·A2", bool((layer.lam <= 0).all() and layer.lam.any())),
        ("negative weights of D are set to 0", any(change == positive for change in layer.changes)),
        (f"values are {width} wide instead of 2d = {2 * d}", width != 2 * d),
        ("no norm of the heads' outputs", layer.norm is None),
        ("the norm has no learned weight", layer.norm is not None and layer.norm.weight is None),
        ("no factor (1 − λ_init) after the norm", layer.post_scale == 1),
        (f"λ_init of layer l is the paper's of {in_words(convention.schedule or 0)}", bool(convention.schedule)),
        ("the first map has a factor of its own", bool((layer.gain != 1).any())),
        ("a gate multiplies the output", layer.gate is not None),
        ("attention is not causal", layer.mask.kind == "full"),
        ("attention has a window in some layers", any(each.mask.kind == "window" for each in layers)),
    ]
    return [line for line, holds in lines if holds]
