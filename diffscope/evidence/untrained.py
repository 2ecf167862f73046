"""Make untrained models of a trained one's architecture, and give their layers its spread of scores, its λ and its gain on A1.

So none of them explains a difference between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from diffscope.attention.layer import LayerAttention
from diffscope.errors import Missing


def untrained_like(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Return a freshly initialised model of the same class and configuration; `seed` has its own random stream.

    Raises Missing if the model cannot be made from its configuration.
    """
    stream = int.from_bytes(hashlib.sha256(f"untrained {seed}".encode()).digest()[:7])
    parameter = next(model.parameters())
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream)
            untrained = type(model)(model.config)
    except (AttributeError, TypeError, ValueError) as error:
        raise Missing(f"an architecture of which an untrained model can be made ({error})") from None
    return untrained.to(device=parameter.device, dtype=parameter.dtype).eval()


@dataclass(frozen=True)
class Match:
    """How far apart a layer's scores are, and with what it subtracts.

    Attributes
    ----------
    spread : Tensor (map,)
        Standard deviation of the last query's scores over the keys that it sees, mean over prompts.
    lam, gain : Tensor (head,), or None of standard attention
        λ of the last query and what A1 is multiplied by there, mean over prompts: where they follow the token, the mean is all
        that is kept.
    """

    spread: torch.Tensor
    lam: torch.Tensor | None
    gain: torch.Tensor | None


def match_of(layer: LayerAttention) -> Match:
    """Return the spread, the λ and the gain of a layer."""
    keys = layer.k[:, layer.pairing.key_of_map]  # (batch, map, key, d)
    last = torch.tensor(layer.lengths, device=keys.device) - 1
    queries = layer.q[torch.arange(len(last), device=keys.device), :, last]  # (batch, map, d)
    scores = (keys @ queries[..., None])[..., 0].float() * layer.scale  # (batch, map, key)
    seen = [layer.prompt(index).visible([n - 1])[0] for index, n in enumerate(layer.lengths)]  # by prompt, (key,)
    spread = torch.stack([row[:, : len(keys)][:, keys].std(-1) for row, keys in zip(scores, seen)]).mean(0)
    if not layer.differential:
        return Match(spread, None, None)
    return Match(spread, _at_last(layer, layer.lam), _at_last(layer, layer.gain))


def _at_last(layer: LayerAttention, values: torch.Tensor) -> torch.Tensor:
    """Return values, broadcastable to (batch, head, query), at the last query of each prompt, the mean over prompts, (head,)."""
    every = values.expand(len(layer.lengths), layer.n_heads, layer.n_queries)
    return torch.stack([row[:, n - 1] for row, n in zip(every, layer.lengths)]).float().mean(0)


def mean_match(batches: Sequence[LayerAttention]) -> Match:
    """Return the spread, the λ and the gain of a layer on several batches of prompts, mean over all prompts."""
    matches = [match_of(layer) for layer in batches]
    counts = torch.tensor([len(layer.lengths) for layer in batches], device=matches[0].spread.device)
    shares = (counts / counts.sum())[:, None]  # (batch, 1)

    def mean(name: str) -> torch.Tensor | None:
        each = [values for match in matches if (values := getattr(match, name)) is not None]
        return (torch.stack(each) * shares).sum(0) if each else None

    spread = mean("spread")
    assert spread is not None  # every layer has one
    return Match(spread, mean("lam"), mean("gain"))


def matched(layer: LayerAttention, match: Match | None) -> LayerAttention:
    """Return the layer with scores of its last query as far apart as another's, by map, and with the λ and gain of its heads."""
    if match is None:
        return layer
    factor = match.spread / match_of(layer).spread
    layer = replace(layer, q=layer.q * factor[:, None, None].to(layer.q.dtype))
    if match.lam is None or match.gain is None or not layer.differential:
        return layer
    lam, gain = (each[None, :, None].to(layer.lam.dtype) for each in (match.lam, match.gain))
    return replace(layer, lam=lam, lam_fp32=lam.float(), gain=gain)
