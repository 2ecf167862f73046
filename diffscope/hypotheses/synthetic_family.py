"""A trained family with a planted truth: rates of exact answers by arm, seed, length and noise that follow one account.

*NC*: DIFF and its variants with λ gain with competing sentences at any length, λ = 1 most; nothing else does. *SP*: DIFF gains
with length at any noise, and finer heads, a signed mask and top-k gain as much. *Neither*: no arm gains anything.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.stats import norm

LENGTHS, NOISES, PROMPTS = (128, 256, 512), (0, 4, 8, 16), 100
DIFF = ("diff", "no-norm", "scalar", "lambda-1")
SPARSE = ("half-width", "signed", "top-2", "top-8", "top-32")
ARMS = ("standard", "standard-norm", "double-width", "lambda-0", "gated", *SPARSE, *DIFF)
LEVEL = 1.2  # logit of an exact answer where nothing helps


def planted_family(truth: str, seeds: int, effect: float, spread: float = 0.3, seed: int = 0) -> xr.Dataset:
    """What ``diffscope train`` would measure of such a family.

    Parameters
    ----------
    truth : {"NC", "SP", "neither"}
    seeds : int
    effect : float
        The mean gain over noises above 0, in logits.
    spread : float
        Standard deviation over seeds of an arm's level, in logits.
    seed : int
    """
    rng = np.random.default_rng([seed, seeds])
    noise, length = np.meshgrid(np.array(NOISES) / 16, np.log2(np.array(LENGTHS) / 256))  # (length, noise)
    gain = {"NC": noise / noise[:, 1:].mean(), "SP": 1 + length, "neither": 0 * noise}[truth] * effect
    who = {"NC": DIFF, "SP": (*DIFF, *SPARSE), "neither": ()}[truth]
    gains = np.stack([gain * (arm in who) * (1.5 if (truth, arm) == ("NC", "lambda-1") else 1) for arm in ARMS])
    levels = LEVEL + spread * rng.normal(size=(len(ARMS), seeds, 1, 1)) - noise - 0.3 * length
    rates = 1 / (1 + np.exp(-(levels + gains[:, None])))  # (arm, seed, length, noise)
    shown = rng.random((*rates.shape, PROMPTS)) < rates[..., None]
    coords = {"arm": list(ARMS), "seed": range(seeds), "length": list(LENGTHS), "noise": list(NOISES), "step": [25, 850]}
    family = xr.Dataset({"exact_match": (("arm", "seed", "length", "noise", "prompt"), shown.astype(float))}, coords)
    earlier = np.array([200.0 * (truth == "NC" and arm in DIFF) for arm in ARMS])[:, None]
    formed = (500 - earlier + 75 * rng.normal(size=(len(ARMS), seeds))).clip(25, 850) // 25 * 25
    family["formation"] = ("arm", "seed"), formed
    family["finished"] = ("arm", "seed"), np.ones((len(ARMS), seeds), dtype=int)
    apart = np.array([1.5 + effect * (truth == "NC" and arm in DIFF) for arm in ARMS])[:, None]  # d′ of saying "unknown"
    z = 0.5 * apart[..., None] * np.array([-1, 1]) - 0.4 + 0.15 * rng.normal(size=(len(ARMS), seeds, 2))
    said = rng.random((len(ARMS), seeds, 2, len(NOISES), PROMPTS)) < norm.cdf(z)[..., None, None]
    family["says_unknown"] = ("arm", "seed", "question", "noise", "prompt"), said.astype(float)
    losses = 2 + 0.02 * rng.normal(size=(len(ARMS), seeds, 2))
    family["text"] = ("arm", "seed", "token"), losses
    return family.assign_coords(question=["answerable", "unanswerable"], token=["hit", "other"])
