"""Tests on a trained family: arms that differ in one thing, on the same prompts, with seeds as the unit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr
from scipy.stats import norm
from statsmodels.api import GLM, families

from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, NONE, Missing, Quantity, Test

ROOM = 0.02  # of exact answers, that a cell has to leave to both arms
POINTS = 0.02  # share of exact answers that matters
SEED_000 = "seed 000"
OF_SEEDS = "Three seeds are few: what is small beside their spread stays open. All arms had the same steps and learning rate."
GAIN = Quantity("DIFF − standard, exact answers among competing sentences", POINTS)
STATISTIC = "share of exact answers over all lengths and all noise above 0, arm minus arm, prompt by prompt"
SAME = ("same prompts, data, order, steps, schedule; parameters within 1 %",)


def _gap(arm: str, words: str) -> Quantity:
    return Quantity(f"DIFF − {arm} ({words}), exact answers among competing sentences", POINTS)


def _compared(id: str, claim: str, source: str, arms: dict[str, str], predictions: dict, limits: str, unable: str = "") -> Test:
    quantities = {"gain": GAIN, **{arm: _gap(arm, words) for arm, words in arms.items()}}
    return Test(id, claim, source, STATISTIC, SAME, quantities, predictions, "family", limits, unable)


REMAINS_OR_CLOSES = "If DIFF gains nothing over standard attention there is no gap to explain, and both accounts fail."
HALF_WIDTH = _compared(
    "half-width",
    "DIFF's gain is that of finer heads: standard attention with half the width and twice the heads has it too.",
    f"{SEED_000}, question 3",
    {"half-width": "twice the heads of half the width"},
    {"NC": {"gain": ABOVE, "half-width": ABOVE}, "SP": {"gain": ABOVE, "half-width": NONE}},
    REMAINS_OR_CLOSES,
)
GEOMETRY = _compared(
    "head-geometry",
    "DIFF's gain is subtraction, not its fewer and wider heads.",
    "microsoft/unilm issue 1716",
    {"double-width": "DIFF's head count at double width", "lambda-0": "A1 alone, values of double width"},
    {
        "NC": {"gain": ABOVE, "double-width": ABOVE, "lambda-0": ABOVE},
        "SP": {"gain": ABOVE, "double-width": ABOVE, "lambda-0": ABOVE},
    },
    REMAINS_OR_CLOSES,
    unable="both accounts predict the same",
)
SIGNED = _compared(
    "signed-mask",
    "One softmax with a learned signed mask does what two maps do.",
    f"{SEED_000}, experiment 3 for sparsification",
    {"signed": "one softmax times a learned signed mask"},
    {"NC": {"gain": ABOVE, "signed": ABOVE}, "SP": {"gain": ABOVE, "signed": NONE}},
    REMAINS_OR_CLOSES,
)
GATED = _compared(
    "gated",
    "Two softmax heads with a learned signed gate do what subtraction does.",
    f"{SEED_000}: gated attention is a notable absence",
    {"gated": "two softmax heads with separate values, one with a signed gate"},
    {"NC": {"gain": ABOVE, "gated": ABOVE}},
    REMAINS_OR_CLOSES,
)
NORM = _compared(
    "norm",
    "The norm after the subtraction does the heavy lifting.",
    f"{SEED_000}, question 2",
    {"scalar": "one number a head for the norm", "no-norm": "no norm", "standard-norm": "standard attention with the norm"},
    {"NC": {"gain": ABOVE, "no-norm": NONE}},
    "The gain survives without the norm if DIFF is ahead of standard attention and not of itself without the norm.",
)
LAMBDA_ONE = Test(
    id="lambda-1",
    claim="Fixing λ at 1 throughout, pure cancellation, is better among many distractors, if worse on average.",
    source=f"{SEED_000}, experiment 2 for noise cancellation",
    statistic="λ fixed at 1 − learned λ: exact answers at the most noise, and loss on text that nothing gives away (nats; "
    "learned − fixed)",
    controls=SAME,
    quantities={
        "distractors": Quantity("λ = 1 − learned λ, exact answers at the most competing sentences", POINTS),
        "text": Quantity("loss on text that nothing gives away, learned λ − λ = 1 (nats)", 0.05),
    },
    predictions={"NC": {"distractors": ABOVE}, "SP": {"distractors": NONE}},
    needs="family",
    limits=OF_SEEDS,
)
TOP_K = Test(
    id="top-k",
    claim="Standard attention that keeps its k largest weights has DIFF's gain.",
    source=f"{SEED_000}, experiment 1 for sparsification",
    statistic=f"{STATISTIC}; k the best of those trained",
    controls=SAME,
    quantities={"gain": GAIN, "best": Quantity("DIFF − the best top-k, exact answers among competing sentences", POINTS)},
    predictions={"NC": {"gain": ABOVE, "best": ABOVE}, "SP": {"gain": ABOVE, "best": NONE}},
    needs="family",
    limits=f"{REMAINS_OR_CLOSES} The best k is chosen on the prompts that it is then judged on.",
)
NOISE_LENGTH = Test(
    id="noise-length",
    claim="The benefit grows with noise at fixed length (cancellation), or with length at any noise (sparsification).",
    source=f"{SEED_000}: the sparsification reading is testable",
    statistic="of each seed a binomial model of the answers of DIFF and standard: logit ~ arm × (noise + log2 length + noise × "
    "log2 length); the coefficients that go with DIFF, per 16 competing sentences and per doubling, at the middle of the grid",
    controls=("full grid: length and noise move apart", *SAME),
    quantities={
        "noise": Quantity("benefit of DIFF per 16 competing sentences (logits)", 0.25),
        "length": Quantity("benefit of DIFF per doubling of length (logits)", 0.25),
        "both": Quantity("benefit per doubling and 16 competing sentences (logits)", 0.25),
    },
    predictions={"NC": {"noise": ABOVE}, "SP": {"length": ABOVE}},
    needs="family",
    limits=f"Cells in which an arm has more than 98 % or less than 2 % right are left out. {OF_SEEDS}",
)
FAITHFULNESS = Test(
    id="faithfulness",
    claim="DIFF answers from the context rather than being more conservative.",
    source=f"{SEED_000}, question 4",
    statistic='saying "unknown" to questions without and with an answer, as signal detection: d′ and criterion c of each seed, '
    "DIFF − standard (log-linear correction, Hautus 1995)",
    controls=SAME,
    quantities={
        "d": Quantity("d′ of DIFF − d′ of standard", 0.2),
        "c": Quantity("criterion c of DIFF − that of standard (above: more conservative)", 0.2),
    },
    predictions={"NC": {"d": ABOVE, "c": NONE}},
    needs="family",
    limits="c above with d′ unchanged would be conservatism, not faithfulness.",
)
FORMATION = Test(
    id="formation",
    claim="The lookup circuit forms earlier in DIFF.",
    source="FIELD_GUIDE: gains not reproduced at small scale (unilm 1637, 1663)",
    statistic="restricted mean number of steps until retrieval exceeds 90 % (a run that never does counts with all its steps), "
    "arm − DIFF",
    controls=("head count at double width", *SAME),
    quantities={
        "standard": Quantity("steps by which standard attention is later than DIFF", 25),
        "double-width": Quantity("steps by which DIFF's head count at double width is later", 25),
    },
    predictions={"NC": {"standard": ABOVE, "double-width": ABOVE}},
    needs="family",
    limits=f"Evaluated at one noise and length: whether it is earlier with noise or with length is not asked. {OF_SEEDS}",
)


def answers(family: xr.Dataset, arm: str, noises=None) -> xr.DataArray:
    """Exact answers, (seed, prompt), mean over lengths and noises, by default all above 0."""
    found = of_arm(_of(family, "exact_match"), arm)
    found = found.sel(noise=found["noise"] > 0 if noises is None else noises)
    return found.mean(("length", "noise")).transpose("seed", "prompt")


def _of(family: xr.Dataset, name: str) -> xr.DataArray:
    if name not in family:
        raise Missing(f"a family whose {name} was measured")
    return family[name]


def of_arm(values: xr.DataArray, arm: str) -> xr.DataArray:
    """The values of one arm, or word that it is missing."""
    if arm not in values["arm"].values:
        raise Missing(f"a family with the arm {arm!r}")
    return values.sel(arm=arm)


def _seeds(*arms: xr.DataArray) -> list[np.ndarray]:
    """Values of the seeds that all arms have."""
    there = np.logical_and.reduce([arm.notnull().any([d for d in arm.dims if d != "seed"]).values for arm in arms])
    if there.sum() < 2:
        raise Missing("two finished seeds at least of the arms that it compares")
    return [arm.values[there].reshape(there.sum(), -1) for arm in arms]


def _minus(a: xr.DataArray, b: xr.DataArray) -> Observed:
    left, right = _seeds(a, b)
    return Observed(left - right)


def compared(test: Test) -> Callable[[xr.Dataset], dict[str, Observed]]:
    """DIFF minus standard, and minus each arm that the test names."""

    def observe(family: xr.Dataset) -> dict[str, Observed]:
        arms = {name: "standard" if name == "gain" else name for name in test.quantities}
        return {name: _minus(answers(family, "diff"), answers(family, arm)) for name, arm in arms.items()}

    return observe


def lambda_one(family: xr.Dataset) -> dict[str, Observed]:
    most = [int(family["noise"].max())]
    loss = _of(family, "text").sel(token="other", drop=True)
    return {
        "distractors": _minus(answers(family, "lambda-1", most), answers(family, "diff", most)),
        "text": _minus(of_arm(loss, "diff"), of_arm(loss, "lambda-1")),
    }


def top_k(family: xr.Dataset) -> dict[str, Observed]:
    arms = [str(arm) for arm in family["arm"].values if str(arm).startswith("top-")]
    if not arms:
        raise Missing("a family with an arm of top-k")
    best = max(arms, key=lambda arm: float(answers(family, arm).mean()))
    diff = answers(family, "diff")
    return {"gain": _minus(diff, answers(family, "standard")), "best": _minus(diff, answers(family, best))}


def noise_length(family: xr.Dataset) -> dict[str, Observed]:
    cells = xr.concat([of_arm(_of(family, "exact_match"), arm) for arm in ("diff", "standard")], "arm")
    cells = cells.transpose("seed", "arm", "length", "noise", "prompt")
    (found,) = _seeds(cells)
    found = found.reshape(-1, *cells.shape[1:])
    noise, length = np.meshgrid(family["noise"].values / 16, np.log2(family["length"].values.astype(float)))
    noise, length = (x.ravel() - x.mean() for x in (noise, length))
    terms = np.stack([np.ones_like(noise), noise, length, noise * length], 1)
    design = np.concatenate([np.hstack([terms, terms]), np.hstack([terms, 0 * terms])])  # the second four: of DIFF alone
    rates = found.mean((0, -1)).reshape(2, -1)  # (arm, cell)
    room = ((rates > ROOM) & (rates < 1 - ROOM)).all(0)  # where both have nearly all right, no benefit could show
    used = np.concatenate([room, room])
    if np.linalg.matrix_rank(design[used]) < design.shape[1]:
        raise Missing("a grid with more cells in which neither arm has nearly all or nearly none right")
    rows = []
    for one in found:
        right = one.sum(-1).reshape(-1) + 0.5  # so that a cell with no mistake has a finite logit
        counts = np.stack([right, one.shape[-1] + 1 - right], 1)
        rows.append(GLM(counts[used], design[used], family=families.Binomial()).fit().params[5:])
    return {name: Observed(np.array(rows)[:, [i]]) for i, name in enumerate(("noise", "length", "both"))}


def faithfulness(family: xr.Dataset) -> dict[str, Observed]:
    said = _of(family, "says_unknown")
    asked = said.sizes["noise"] * said.sizes["prompt"]
    rate = (said.sum(("noise", "prompt"), skipna=False) + 0.5) / (asked + 1)
    z = xr.apply_ufunc(norm.ppf, rate)
    hit, alarm = z.sel(question="unanswerable"), z.sel(question="answerable")
    d, c = hit - alarm, (hit + alarm) / 2  # saying "unknown" more often is more conservative
    return {name: _minus(of_arm(one, "diff"), of_arm(one, "standard")) for name, one in (("d", d), ("c", c))}


def formation(family: xr.Dataset) -> dict[str, Observed]:
    last = int(family["step"].max())
    steps = _of(family, "formation").fillna(last).where(family["finished"] == 1)
    return {arm: _minus(of_arm(steps, arm), of_arm(steps, "diff")) for arm in ("standard", "double-width")}


TESTS = {
    **{test: compared(test) for test in (HALF_WIDTH, GEOMETRY, SIGNED, GATED, NORM)},
    LAMBDA_ONE: lambda_one,
    TOP_K: top_k,
    NOISE_LENGTH: noise_length,
    FAITHFULNESS: faithfulness,
    FORMATION: formation,
}
