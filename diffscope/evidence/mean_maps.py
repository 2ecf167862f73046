"""λ beside the coefficient that fits the mean map over prompts: one λ cannot follow each prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

FARTHEST = 6.0  # octaves


def lambda_distance(
    pairs: Sequence[tuple[Tensor, Tensor]], lams: Sequence[Tensor], irrelevant: Sequence[Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """How far λ is from λ* on irrelevant tokens, of the maps of each layer averaged over prompts key by key.

    λ* is the coefficient that leaves least of the mean first maps of all heads of a layer, sum <Ā1, Ā2> / sum <Ā2, Ā2>.

    Parameters
    ----------
    pairs : sequence of (Tensor, Tensor), one a layer
        A1 and A2 of the last query, (prompt, head, key).
    lams : sequence of Tensor (prompt, head), one a layer
        λ over the gain of A1.
    irrelevant : sequence of bool Tensor (key,), one a prompt

    Returns
    -------
    ndarray (layer,)
        λ*.
    ndarray (prompt,)
        |log2(λ/λ*)|, at most 6, mean over layers: its mean over prompts is that of all prompts together, and their spread is what
        leaving out each in turn changes, as the jackknife has it.
    """
    if not pairs:
        return np.zeros(0), np.zeros(len(irrelevant))
    fits = [_fits(*pair, irrelevant) for pair in pairs]  # (1 + prompt,) each: of all prompts, and without each
    distances = np.mean([_octaves(lam, fit) for lam, fit in zip(lams, fits)], 0)
    count = len(irrelevant)
    return np.array([fit[0] for fit in fits]), distances[0] - (count - 1) * (distances[1:] - distances[1:].mean())


def _fits(a1: Tensor, a2: Tensor, irrelevant: Sequence[Tensor]) -> np.ndarray:
    """λ* of the mean map, of all prompts and then without each in turn."""
    on = torch.zeros(len(a1), 1, a1.shape[-1], dtype=torch.bool, device=a1.device)
    for row, keys in zip(on, irrelevant):
        row[0, : len(keys)] = keys.to(a1.device)
    a1, a2 = (a.double() * on for a in (a1, a2))
    first, second = (torch.cat([a.sum(0)[None], a.sum(0) - a]) for a in (a1, a2))  # (1 + prompt, head, key)
    return ((first * second).sum((1, 2)) / (second * second).sum((1, 2))).cpu().numpy()


def _octaves(lam: Tensor, fits: np.ndarray) -> np.ndarray:
    lam = lam.double().mean(1).cpu().numpy()  # (prompt,)
    count = len(lam)
    lams = np.concatenate([[lam.mean()], (lam.sum() - lam) / max(count - 1, 1)])
    ratio = np.clip(lams / fits, 2.0**-FARTHEST, 2.0**FARTHEST)  # λ at or below 0 is as far as can be
    return np.abs(np.log2(ratio))
