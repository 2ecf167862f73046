"""Captures whose maps are what one says: scores are given, and queries and keys made of them."""

from dataclasses import replace

import torch

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Mask, Pairing
from diffscope.capture import Capture, CaptureBatch
from diffscope.prompts import Encoded
from diffscope.proof.fidelity import Fidelity


def layer_of(scores, lam=0.5, second=True, values=None, **more):
    """A layer of one prompt whose scores are given: (map, query, key), first maps before second ones."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    maps, _, n = scores.shape
    heads = maps // 2 if second else maps
    pairing = Pairing.halves(heads) if second else Pairing.plain(heads)
    keys = torch.eye(n, dtype=torch.float64).expand(maps, n, n)
    if values is None:
        values = torch.randn(heads, n, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fields = dict(lam=torch.as_tensor(lam, dtype=torch.float64).reshape(1, -1, 1)) if second else {}
    pairing = replace(pairing, key_of_map=torch.arange(maps), value_of_head=torch.arange(heads))
    return LayerAttention(0, "planted", scores[None], keys[None], values[None], 1.0, pairing, (n,), **fields | more)


def capture_of(*layers, spans=None, ids=None):
    """One layer of each of some prompts as a capture: a batch of several, or of one where `ids` are given in a list."""
    prompts = []
    for number, layer in enumerate(layers):
        n = layer.n_keys
        tokens = tuple(range(n)) if ids is None else tuple(ids[number])
        named = {"sink": (0,)} | {name: tuple(at) for name, at in (spans or {}).items()}
        prompts.append(Encoded(None, tokens, tuple(map(str, tokens)), ((0, 0),) * n, named))
    proof = Fidelity(0.0, 1.0, 1, True, "")
    facts = {"model": "planted", "family": "planted"}
    kind = Capture if len(layers) == 1 else CaptureBatch
    return kind(prompts, [joined(layers)], [proof], [[]] * len(layers), torch.zeros(1, len(layers), 6).numpy(), facts)


def joined(layers):
    """Layers of one prompt each, of one length, as one of a batch."""
    if len(layers) == 1:
        return layers[0]
    fields = {name: torch.cat([getattr(layer, name) for layer in layers]) for name in ("q", "k", "v", "lam", "gain", "lam_fp32")}
    return replace(layers[0], **fields, lengths=tuple(layer.n_keys for layer in layers))


__all__ = ["Mask", "capture_of", "layer_of"]
