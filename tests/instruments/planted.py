"""Captures whose maps are what one says: scores are given, and queries and keys made of them."""

from dataclasses import replace

import numpy as np
import torch

from diffscope.attention.components import Pairing
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.capture.capture import Capture
from diffscope.prompts.encoded import Encoded


def layer_of(scores, lam=0.5, second=True, **more):
    """A layer of one prompt whose scores are given: (map, query, key), first maps before second ones; values are random."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    maps, _, n = scores.shape
    heads = maps // 2 if second else maps
    pairing = Pairing.halves(heads) if second else Pairing.plain(heads)
    pairing = replace(pairing, key_of_map=torch.arange(maps), value_of_head=torch.arange(heads))
    keys = torch.eye(n, dtype=torch.float64).expand(1, maps, n, n)
    values = torch.randn(1, heads, n, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fields = dict(lam=torch.as_tensor(lam, dtype=torch.float64).reshape(1, -1, 1)) if second else {}
    return LayerAttention(0, "planted", scores[None], keys, values, 1.0, pairing, (n,), **fields | more)


def capture_of(*layers, spans=None):
    """One layer of a prompt as a capture; of several prompts of one length as that of a batch, each of another token."""
    prompts = []
    for number, layer in enumerate(layers):
        n = layer.n_keys
        named = {"sink": (0,)} | {name: tuple(at) for name, at in (spans or {}).items()}
        prompts.append(Encoded(None, (number,) * n, (str(number),) * n, ((0, 0),) * n, named))
    together = layers[0]
    if len(layers) > 1:
        fields = {name: torch.cat([getattr(layer, name) for layer in layers]) for name in ("q", "k", "v", "lam", "lam_fp32")}
        together = replace(together, **fields, lengths=tuple(layer.n_keys for layer in layers))
    proof = Fidelity(0.0, 1.0, 1, True, "")
    outliers = np.zeros((1, len(layers), 6))
    return Capture(prompts, [together], [proof], [[]] * len(layers), outliers, {"model": "planted"}, batch=len(layers) > 1)
