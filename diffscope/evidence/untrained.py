"""Models that nobody trained, of a trained one's architecture."""

from __future__ import annotations

import hashlib

import torch

from diffscope.errors import Missing


def untrained_like(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Return a freshly initialised model of the same class and configuration; `seed` has its own random stream.

    Raises
    ------
    Missing
        The model cannot be made from its configuration.
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
