"""Make untrained models of a trained one's architecture, and give their layers its spread of scores and its λ.

So neither explains a difference between them.
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
    """How far apart a layer's scores are, and its λ.

    Attributes
    ----------
    spread : Tensor (map,)
        Standard deviation over keys of the last query's scores, mean over prompts.
    lam : Tensor (head,), or None of standard attention
        λ of the last query, mean over prompts: of a λ that follows the token, the mean is all that is kept.
    """

    spread: torch.Tensor
    lam: torch.Tensor | None


def match_of(layer: LayerAttention) -> Match:
    """Return the spread and the λ of a layer."""
    keys = layer.k[:, layer.pairing.key_of_map]  # (batch, map, key, d)
    last = torch.tensor(layer.lengths, device=keys.device) - 1
    queries = layer.q[torch.arange(len(last), device=keys.device), :, last]  # (batch, map, d)
    scores = (keys @ queries[..., None])[..., 0].float() * layer.scale  # (batch, map, key)
    spread = torch.stack([row[:, :n].std(-1) for row, n in zip(scores, layer.lengths)]).mean(0)
    if not layer.differential:
        return Match(spread, None)
    lam = layer.lam.expand(len(last), layer.n_heads, layer.n_queries)
    return Match(spread, torch.stack([row[:, n - 1] for row, n in zip(lam, layer.lengths)]).float().mean(0))


def mean_match(batches: Sequence[LayerAttention]) -> Match:
    """Return the spread and the λ of a layer on several batches of prompts, mean over all prompts."""
    matches = [match_of(layer) for layer in batches]
    counts = torch.tensor([len(layer.lengths) for layer in batches], device=matches[0].spread.device)
    shares = (counts / counts.sum())[:, None]  # (batch, 1)
    lams = [match.lam for match in matches if match.lam is not None]
    spread = (torch.stack([match.spread for match in matches]) * shares).sum(0)
    return Match(spread, (torch.stack(lams) * shares).sum(0) if lams else None)


def matched(layer: LayerAttention, match: Match | None) -> LayerAttention:
    """Return the layer with its last query's scores as far apart as those of another, map by map, and with the λ of its heads."""
    if match is None:
        return layer
    factor = match.spread / match_of(layer).spread
    layer = replace(layer, q=layer.q * factor[:, None, None].to(layer.q.dtype))
    if match.lam is None or not layer.differential:
        return layer
    lam = match.lam[None, :, None].to(layer.lam.dtype)
    return replace(layer, lam=lam, lam_fp32=lam.float())
