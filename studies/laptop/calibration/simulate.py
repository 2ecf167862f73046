"""A trained cohort with a planted truth: what its tests must find, and what they must not, is known because it was put there.

- NC, cancellation: DIFF and its variants are better, the more so the more distractors there are at any length; λ = 1 most of
  all; they form earlier and tell unanswerable questions apart; noise that both maps share is rejected. It takes a minus, and no
  weight below 0.
- SP, sparsification: DIFF is better, the more so the longer the prompt is with any number of distractors, and so are a signed
  mask, gates and top-k; it forms earlier, and says "unknown" more often; shared noise is rejected no more than by another head's
  map. It takes a minus, and no weight below 0.
- SH, signed heads: DIFF is better whatever grows, and so is what has weights below 0, a signed mask and gates; without them, with
  a plus or with nothing below 0, it is as standard attention.
- both: half of each.
- neither: no arm differs from another but by chance.
- geometry: DIFF is better than standard attention, and whatever has its head count is as good, with two maps or one.
- harmed: DIFF is no better than standard attention, and the arms of sparsification are worse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from scipy.stats import norm

TRUTHS = ("NC", "SP", "both", "neither", "geometry", "harmed", "SH")
LENGTHS = (128, 256, 512)
DISTRACTORS = (8, 24, 48)
PROMPTS = 20  # a cell
DIFF = ("diff", "no-norm", "scalar", "diff-v2", "low-rank")
SPARSE = ("signed", "top-8", "gated")
MINUS = ("plus", "d-plus")  # DIFF with a plus; DIFF without what is below 0
ARMS = ("standard", "double-width", "lambda-1", "lambda-0", "standard-norm", *SPARSE, *DIFF, *MINUS)
MAIN = ("diff", "standard", "double-width", "signed")
FACTORS: Mapping[
    str, Mapping[str, tuple[float, float]]
] = {  # of an arm's benefit: that which grows with distractors, with length
    "NC": dict.fromkeys((*DIFF, "d-plus"), (1.0, 0.0)) | {"lambda-1": (2.0, 0.0)},
    "SP": dict.fromkeys((*DIFF, *SPARSE, "lambda-1", "d-plus"), (0.0, 1.0)),
    "SH": dict.fromkeys((*DIFF, "signed", "gated", "lambda-1"), (0.5, 0.5)),
    "both": dict.fromkeys((*DIFF, "d-plus"), (0.5, 0.5)) | dict.fromkeys(SPARSE, (0.0, 0.5)) | {"lambda-1": (1.0, 0.5)},
    "neither": {},
    "geometry": dict.fromkeys((*DIFF, *MINUS, "double-width", "lambda-0", "lambda-1"), (0.5, 0.5)),
    "harmed": dict.fromkeys(SPARSE, (0.0, -1.0)),
}
LIMIT = 2000  # steps after which a run that has not formed is given up


@dataclass(frozen=True)
class Sizes:
    """How large effects are, or how far paired differences of arms are spread over seeds.

    Attributes
    ----------
    log_odds : float
        Nats, at the middle of 24 and 48 distractors.
    slope : float
        Nats per doubling.
    steps : float
        Octaves by which the circuit forms earlier.
    rejection : float
        dB.
    text : float
        Nats a token.
    unknown : float
        Of d′ and of the criterion.
    """

    log_odds: float = 1.0
    slope: float = 0.5
    steps: float = 0.8
    rejection: float = 6.0
    text: float = 0.2
    unknown: float = 1.0


SPREADS = Sizes(log_odds=0.67, slope=0.4, steps=0.3, rejection=1.5, text=0.05, unknown=0.2)  # the middle of what pilots showed


def planted_cohort(
    truth: str,
    seeds: int = 8,
    effects: Sizes | None = None,
    spreads: Sizes = SPREADS,
    failures: float = 0.0,
    seed: int = 0,
    others: int | None = None,
    failing: Sequence[str] = ARMS,
) -> xr.Dataset:
    """Return what ``diffscope train`` would measure of such a cohort, evidence of its models included.

    Parameters
    ----------
    truth : {"NC", "SP", "SH", "both", "neither", "geometry", "harmed"}
    seeds : int
    effects : Sizes, optional
    spreads : Sizes
        Standard deviation over seeds of the difference of two arms.
    failures : float
        Probability that the circuit of a run never forms.
    seed : int
    others : int, optional
        Seeds of the arms beside the four main ones; by default as many.
    failing : sequence of str
        The arms whose runs may fail; by default all.
    """
    effects = effects or Sizes()
    rng = np.random.default_rng([seed, seeds, TRUTHS.index(truth)])
    shape = (len(ARMS), seeds)
    factors = np.array([FACTORS[truth].get(arm, (0.0, 0.0)) for arm in ARMS])  # (arm, account)
    total = factors.sum(1)
    finished = np.ones(shape, dtype=int)
    if others is not None:
        finished[[arm not in MAIN for arm in ARMS], others:] = 0
    fails = rng.random(shape) < failures
    formed = ~(fails & np.isin(ARMS, failing)[:, None]) & (finished == 1)
    continued = np.array([arm == "top-8" for arm in ARMS])[:, None]
    formed[continued[:, 0]] = formed[ARMS.index("standard")] & (finished[continued[:, 0]] == 1)

    def over_seeds(spread: float, *more: int) -> np.ndarray:
        return spread / np.sqrt(2) * rng.normal(size=(*shape, *more))

    earlier = np.clip(total, 0, 1)[:, None] * effects.steps
    steps = 2 ** (np.log2(700) - earlier + over_seeds(spreads.steps))
    scores = _log_odds(factors, effects, spreads, rng, shape)
    scores = np.where(formed[:, :, None, None, None], scores, np.nan)
    of_accounts = factors if truth not in ("geometry", "SH") else 0 * factors  # what neither of the two says anything of
    unknown = _unknown(of_accounts, effects, over_seeds(spreads.unknown, 2), rng)
    text = 4.5 - np.clip(total, 0, 1)[:, None, None] * effects.text + over_seeds(spreads.text, 2)
    of_diff = of_accounts[ARMS.index("diff"), 0] * effects.rejection + spreads.rejection * rng.normal(size=seeds)
    rejection = np.full(shape, np.nan)
    rejection[ARMS.index("diff")] = of_diff
    coords = {
        "arm": list(ARMS),
        "seed": range(seeds),
        "length": list(LENGTHS),
        "distractors": list(DISTRACTORS),
        "step": [25, LIMIT],
        "question": ["answerable", "unanswerable"],
        "token": ["hit", "other"],
    }
    return xr.Dataset(
        {
            "formation": (("arm", "seed"), np.where(formed & ~continued, np.clip(steps, 25, LIMIT) // 25 * 25, np.nan)),
            "formation_limit": float(LIMIT),
            "finished": (("arm", "seed"), finished),
            "log_odds": (("arm", "seed", "length", "distractors", "prompt"), scores),
            "exact_match": (("arm", "seed", "length", "distractors", "prompt"), np.where(np.isnan(scores), np.nan, scores > 0)),
            "says_unknown": (
                ("arm", "seed", "question", "distractors", "prompt"),
                np.where(formed[:, :, None, None, None], unknown, np.nan),
            ),
            "text": (("arm", "seed", "token"), np.where(formed[..., None], text, np.nan)),
            "rate": ("arm", [0.004 if arm in (*DIFF, *MINUS) else 0.002 for arm in ARMS]),
            "cmrr_over_paired": (("arm", "seed"), np.where(formed, rejection, np.nan)),
        },
        coords,
        {"recipe": json.dumps({"name": "planted", "continued": {"top-8": {"arm": "standard", "top_keys": 64}}})},
    )


def _log_odds(
    factors: np.ndarray, effects: Sizes, spreads: Sizes, rng: np.random.Generator, shape: tuple[int, int]
) -> np.ndarray:
    """Log-odds, (arm, seed, length, distractors, prompt); 128 tokens do not hold 48 distractors."""
    of_length = np.log2(np.array(LENGTHS) / 256)[:, None]
    of_distractors = np.log2(np.array(DISTRACTORS) / np.sqrt(24 * 48))
    growing = np.stack([of_distractors + 0 * of_length, of_length + 0 * of_distractors])  # (account, length, distractors)
    benefits = effects.log_odds + effects.slope * growing
    means = 9 - 0.7 * of_distractors - 0.5 * of_length + np.einsum("ak,kld->ald", factors, benefits)
    levels = spreads.log_odds / np.sqrt(2) * rng.normal(size=(*shape, 1, 1))
    slopes = np.einsum("ask,kld->asld", spreads.slope / np.sqrt(2) * rng.normal(size=(*shape, 2)), growing)
    scores = (means[:, None] + levels + slopes)[..., None] + 0.5 * rng.normal(size=(*shape, *growing.shape[1:], PROMPTS))
    scores[:, :, 0, -1] = np.nan
    return scores


def _unknown(factors: np.ndarray, effects: Sizes, spread: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whether "unknown" is said, (arm, seed, question, distractors, prompt)."""
    d = 1.5 + effects.unknown * factors[:, :1]
    criterion = -0.4 + effects.unknown * np.clip(factors[:, 1:], 0, 1)
    z = criterion[..., None] + d[..., None] * np.array([-0.5, 0.5]) + spread  # (arm, seed, question)
    counts = rng.binomial(PROMPTS, norm.cdf(z)[..., None], size=(*z.shape, len(DISTRACTORS)))
    return (np.arange(PROMPTS) < counts[..., None]).astype(float)
