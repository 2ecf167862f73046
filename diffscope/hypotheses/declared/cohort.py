"""Tests on a trained cohort: arms that differ in one thing, on the same prompts, with seeds as the unit."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, logrank, norm, permutation_test
from statsmodels.api import GLM, MixedLM, families
from statsmodels.tools.sm_exceptions import ConvergenceWarning

from diffscope.hypotheses.inference import LEVEL, Estimate, Observed
from diffscope.hypotheses.rules import ABOVE, NONE, Missing, Quantity, Test

ROOM = 0.02  # of exact answers, that a cell has to leave to both arms
EXCHANGED = 1000  # ways to exchange the labels of runs
POINTS = 0.02  # share of exact answers that matters
SEED_000 = "seed 000"
OF_SEEDS = "What is small beside the spread of the seeds stays open. All arms had the same steps and learning rate."
GAIN = Quantity("DIFF − standard, exact answers among distractors", POINTS)
STATISTIC = "share of exact answers over all lengths and all numbers of distractors above 0, arm minus arm, prompt by prompt"
SAME = ("same prompts, data, order, steps, schedule; parameters within 1 %",)


NO_GAP = "If DIFF gains nothing over standard attention there is no gap to explain, and both accounts fail."
IN_PART = "SP says that the arm gains something itself, however much of the gap remains; both, that it closes in part."


def _gap(arm: str, words: str) -> Quantity:
    return Quantity(f"DIFF − {arm} ({words}), exact answers among distractors", POINTS)


def _own(arm: str, words: str) -> Quantity:
    return Quantity(f"{arm} ({words}) − standard, exact answers among distractors", POINTS)


def _compared(id: str, claim: str, source: str, quantities: dict, predictions: dict, unable: str = "") -> Test:
    limits = NO_GAP if "own" not in quantities else f"{NO_GAP} {IN_PART}"
    return Test(id, claim, source, STATISTIC, SAME, {"gain": GAIN, **quantities}, predictions, "cohort", limits, unable)


# A gap that closes shows as a gain of the arm's own: that two arms are equal no few seeds can show.
REMAINS, CLOSES = {"gain": ABOVE, "gap": ABOVE}, {"gain": ABOVE, "own": ABOVE}
HALF_WIDTH = _compared(
    "half-width",
    "DIFF's gain is that of finer heads: standard attention with half the width and twice the heads has it too.",
    f"{SEED_000}, question 3",
    {of: make("half-width", "twice the heads of half the width") for of, make in (("gap", _gap), ("own", _own))},
    {"NC": REMAINS, "SP": CLOSES},
)
GEOMETRY = _compared(
    "head-geometry",
    "DIFF's gain is subtraction, not its fewer and wider heads.",
    "microsoft/unilm issue 1716",
    {
        "double-width": _gap("double-width", "DIFF's head count at double width"),
        "lambda-0": _gap("lambda-0", "A1 alone, values of double width"),
    },
    dict.fromkeys(("NC", "SP"), {"gain": ABOVE, "double-width": ABOVE, "lambda-0": ABOVE}),
    unable="both accounts predict the same",
)
SIGNED = _compared(
    "signed-mask",
    "One softmax with a learned signed mask does what two maps do.",
    f"{SEED_000}, experiment 3 for sparsification",
    {of: make("signed", "one softmax times a learned signed mask") for of, make in (("gap", _gap), ("own", _own))},
    {"NC": REMAINS, "SP": CLOSES},
)
GATED = _compared(
    "gated",
    "Two softmax heads with a learned signed gate do what subtraction does.",
    f"{SEED_000}: gated attention is a notable absence",
    {of: make("gated", "two softmax heads, one with a signed gate") for of, make in (("gap", _gap), ("own", _own))},
    {"NC": REMAINS},
    unable="sparsification predicts nothing of a gate, and the gap may remain with it too",
)
NORM = _compared(
    "norm",
    "The norm after the subtraction does the heavy lifting.",
    f"{SEED_000}, question 2",
    {
        "no-norm": _own("no-norm", "DIFF without the norm"),
        "scalar": _own("scalar", "DIFF with one number a head for the norm"),
        "standard-norm": _own("standard-norm", "standard attention with the norm"),
    },
    {"NC": {"gain": ABOVE, "no-norm": ABOVE}},
    unable="sparsification would survive without the norm as well",
)
LAMBDA_ONE = Test(
    id="lambda-1",
    claim="Fixing λ at 1 throughout, pure cancellation, is better among many distractors, if worse on average.",
    source=f"{SEED_000}, experiment 2 for noise cancellation",
    statistic="λ fixed at 1 − learned λ: exact answers with the most distractors, and loss on text that nothing gives away (nats; "
    "learned − fixed)",
    controls=SAME,
    quantities={
        "distractors": Quantity("λ = 1 − learned λ, exact answers at the most distractors", POINTS),
        "text": Quantity("loss on text that nothing gives away, learned λ − λ = 1 (nats)", 0.05),
    },
    predictions={"NC": {"distractors": ABOVE}, "SP": {"distractors": NONE}},
    needs="cohort",
    limits=OF_SEEDS,
)
TOP_K = Test(
    id="top-k",
    claim="Standard attention that keeps its k largest weights has DIFF's gain.",
    source=f"{SEED_000}, experiment 1 for sparsification",
    statistic=f"{STATISTIC}; k the best with the other seeds",
    controls=SAME,
    quantities={
        "gain": GAIN,
        "gap": _gap("the best top-k", "the k largest weights"),
        "own": _own("the best top-k", "the k largest weights"),
    },
    predictions={"NC": REMAINS, "SP": CLOSES},
    needs="cohort",
    limits=f"{NO_GAP} {IN_PART} The best k of a seed is the one that is best with the others.",
)
DISTRACTORS_LENGTH = Test(
    id="distractors-length",
    claim="The benefit grows with distractors at fixed length (cancellation), or with length at any number of distractors (sparsification).",
    source=f"{SEED_000}: the sparsification reading is testable",
    statistic="of each seed a binomial model of the answers of DIFF and standard: logit ~ arm × (distractors + log2 length + distractors × "
    "log2 length); the coefficients that go with DIFF, per 16 distractors and per doubling, at the middle of the grid",
    controls=("full grid: length and distractors move apart", *SAME),
    quantities={
        "distractors": Quantity("benefit of DIFF per 16 distractors (logits)", 0.25),
        "length": Quantity("benefit of DIFF per doubling of length (logits)", 0.25),
        "both": Quantity("benefit per doubling and 16 distractors (logits)", 0.25),
        "mixed_distractors": Quantity("benefit per 16 distractors by the mixed model (logits)", 0.25),
        "mixed_length": Quantity("benefit per doubling of length by the mixed model (logits)", 0.25),
    },
    predictions={"NC": {"distractors": ABOVE}, "SP": {"length": ABOVE}},
    needs="cohort",
    limits="Cells in which an arm has more than 98 % or less than 2 % right are left out. The mixed model (of the benefit in "
    "each cell and seed, with an intercept of each seed) is shown beside, and not judged: its z finds too much with few seeds. "
    f"{OF_SEEDS}",
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
    needs="cohort",
    limits="c above with d′ unchanged would be conservatism, not faithfulness.",
)
FORMATION = Test(
    id="formation",
    claim="The lookup circuit forms earlier in DIFF.",
    source="FIELD_GUIDE: gains not reproduced at small scale (unilm 1637, 1663)",
    statistic="restricted mean number of steps until retrieval exceeds 90 % (a run that never does counts with all its steps), "
    "arm − DIFF; beside it the log-rank statistic, its p by exchanging the arms of runs",
    controls=("head count at double width", *SAME),
    quantities={
        "standard": Quantity("steps by which standard attention is later than DIFF", 25),
        "double-width": Quantity("steps by which DIFF's head count at double width is later", 25),
        "standard_logrank": Quantity("standard attention later than DIFF, log-rank z", 1.0),
        "double-width_logrank": Quantity("DIFF's head count at double width later than DIFF, log-rank z", 1.0),
    },
    predictions={"NC": {"standard": ABOVE, "double-width": ABOVE}},
    needs="cohort",
    limits=f"Evaluated at one number of distractors and length: whether it is earlier with distractors or with length is not asked. {OF_SEEDS}",
)


def answers(cohort: xr.Dataset, arm: str, distractors=None) -> xr.DataArray:
    """Exact answers, (seed, prompt), mean over lengths and distractors, by default all above 0."""
    found = of_arm(_of(cohort, "exact_match"), arm)
    found = found.sel(distractors=found["distractors"] > 0 if distractors is None else distractors)
    return found.mean(("length", "distractors")).transpose("seed", "prompt")


def _of(cohort: xr.Dataset, name: str) -> xr.DataArray:
    if name not in cohort:
        raise Missing(f"a cohort whose {name} was measured")
    return cohort[name]


def of_arm(values: xr.DataArray, arm: str) -> xr.DataArray:
    """The values of one arm, or word that it is missing."""
    if arm not in values["arm"].values:
        raise Missing(f"a cohort with the arm {arm!r}")
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


def of_arms(*, gap: str = "", **arms: tuple[str, str]) -> Callable[[xr.Dataset], dict[str, Observed]]:
    """DIFF minus standard, and arm minus arm as named; `gap` is an arm compared with both."""
    both = {"gap": ("diff", gap), "own": (gap, "standard")} if gap else {}

    def observe(cohort: xr.Dataset) -> dict[str, Observed]:
        found = {"gain": ("diff", "standard"), **both, **arms}
        return {name: _minus(*(answers(cohort, arm) for arm in two)) for name, two in found.items()}

    return observe


def lambda_one(cohort: xr.Dataset) -> dict[str, Observed]:
    most = [int(cohort["distractors"].max())]
    loss = _of(cohort, "text").sel(token="other", drop=True)
    return {
        "distractors": _minus(answers(cohort, "lambda-1", most), answers(cohort, "diff", most)),
        "text": _minus(of_arm(loss, "diff"), of_arm(loss, "lambda-1")),
    }


def top_k(cohort: xr.Dataset) -> dict[str, Observed]:
    arms = [str(arm) for arm in cohort["arm"].values if str(arm).startswith("top-")]
    if not arms:
        raise Missing("a cohort with an arm of top-k")
    diff, standard = answers(cohort, "diff"), answers(cohort, "standard")
    each = xr.concat([answers(cohort, arm) for arm in arms], "k")  # (k, seed, prompt)
    means = each.mean("prompt")
    best = xr.concat([_best_of_others(means, i) for i in range(each.sizes["seed"])], "seed").assign_coords(seed=each["seed"])
    chosen = each.isel(k=best)
    return {"gain": _minus(diff, standard), "gap": _minus(diff, chosen), "own": _minus(chosen, standard)}


def _best_of_others(means: xr.DataArray, seed: int) -> xr.DataArray:
    """Which k answers best with all seeds but one, of those that were trained with that one."""
    others = means.drop_isel(seed=seed).mean("seed")
    there = means.isel(seed=seed, drop=True).notnull() & others.notnull()
    return others.where(there, -1).argmax("k")


def distractors_length(cohort: xr.Dataset) -> dict[str, Observed]:
    order = ("seed", "length", "distractors", "prompt")
    cells = [of_arm(_of(cohort, "exact_match"), arm).transpose(*order) for arm in ("diff", "standard")]
    found = np.stack(
        [one.reshape(-1, *cells[0].shape[1:]) for one in _seeds(*cells)], 1
    )  # (seed, arm, length, distractors, prompt)
    distractors, length = np.meshgrid(cohort["distractors"].values / 16, np.log2(cohort["length"].values.astype(float)))
    distractors, length = (x.ravel() - x.mean() for x in (distractors, length))
    terms = np.stack([np.ones_like(distractors), distractors, length, distractors * length], 1)
    design = np.concatenate([np.hstack([terms, terms]), np.hstack([terms, 0 * terms])])  # the second four: of DIFF alone
    rates = found.mean((0, -1)).reshape(2, -1)  # (arm, cell)
    room = ((rates > ROOM) & (rates < 1 - ROOM)).all(0)  # where both have nearly all right, no benefit could show
    used = np.concatenate([room, room])
    if not used.any() or np.linalg.matrix_rank(design[used]) < design.shape[1]:
        raise Missing("a grid with more cells in which neither arm has nearly all or nearly none right")
    right = found.sum(-1) + 0.5  # so that a cell with no mistake has a finite logit
    counts = np.stack([right, found.shape[-1] + 1 - right], -1).reshape(len(found), -1, 2)  # (seed, arm and cell, right or wrong)
    rows = [GLM(one[used], design[used], family=families.Binomial()).fit().params[5:] for one in counts]
    made = {name: Observed(np.array(rows)[:, [i]]) for i, name in enumerate(("distractors", "length", "both"))}
    logits = np.log(counts[..., 0] / counts[..., 1]).reshape(len(found), 2, -1)[..., room]  # (seed, arm, cell)
    return made | _mixed(logits[:, 0] - logits[:, 1], terms[room], found.shape[-1])


def _mixed(benefit: np.ndarray, terms: np.ndarray, prompts: int) -> dict[str, Estimate]:
    """Slopes of the benefit (seed, cell) on terms (cell, term) by a linear mixed model with an intercept of each seed."""
    seeds, cells = benefit.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # where seeds do not differ their variance is on its boundary
        fit = MixedLM(benefit.ravel(), np.tile(terms, (seeds, 1)), np.repeat(np.arange(seeds), cells)).fit()
    made = {}
    for at, name in ((1, "mixed_distractors"), (2, "mixed_length")):
        value, error = float(fit.fe_params[at]), float(fit.bse_fe[at])
        reach = norm.ppf(1 - LEVEL / 2) * error
        p = float(2 * norm.sf(abs(value) / error))
        numbers = value, value - reach, value + reach, -reach, reach, p, prompts, seeds, 0
        made[name] = Estimate(*numbers, "by a linear mixed model (z)")
    return made


def faithfulness(cohort: xr.Dataset) -> dict[str, Observed]:
    said = _of(cohort, "says_unknown")
    asked = said.sizes["distractors"] * said.sizes["prompt"]
    rate = (said.sum(("distractors", "prompt"), skipna=False) + 0.5) / (asked + 1)
    z = xr.apply_ufunc(norm.ppf, rate)
    hit, alarm = z.sel(question="unanswerable"), z.sel(question="answerable")
    d, c = hit - alarm, (hit + alarm) / 2  # saying "unknown" more often is more conservative
    return {name: _minus(of_arm(one, "diff"), of_arm(one, "standard")) for name, one in (("d", d), ("c", c))}


def formation(cohort: xr.Dataset) -> dict[str, Observed | Estimate]:
    last = int(cohort["step"].max())
    steps = _of(cohort, "formation").where(cohort["finished"] == 1)
    counted = steps.fillna(last).where(cohort["finished"] == 1)
    made = {arm: _minus(of_arm(counted, arm), of_arm(counted, "diff")) for arm in ("standard", "double-width")}
    formed = steps.notnull()
    for arm in tuple(made):
        runs, events = (_seeds(of_arm(x, arm), of_arm(x, "diff")) for x in (counted, formed.where(cohort["finished"] == 1)))
        made[f"{arm}_logrank"] = log_rank(*(np.ravel(x) for x in (*runs, *events)))
    return made


def log_rank(later: np.ndarray, earlier: np.ndarray, later_formed: np.ndarray, earlier_formed: np.ndarray) -> Estimate:
    """Are runs later than others to form, those that never do included? Log-rank z, its p by exchanging the labels of runs.

    Parameters
    ----------
    later, earlier : ndarray (run,)
        Steps until the circuit formed, or the last step of a run in which it did not.
    later_formed, earlier_formed : ndarray (run,), bool
    """
    steps, formed = np.concatenate([later, earlier]), np.concatenate([later_formed, earlier_formed]).astype(bool)

    def z(own: np.ndarray, others: np.ndarray) -> float:
        both = (CensoredData(uncensored=steps[one][formed[one]], right=steps[one][~formed[one]]) for one in (others, own))
        with np.errstate(invalid="ignore"):
            found = logrank(*both).statistic
        return found if np.isfinite(found) else 0.0  # where none ever formed

    runs = np.arange(len(steps))
    samples = runs[: len(later)], runs[len(later) :]
    rng = np.random.default_rng(0)
    found = permutation_test(samples, z, permutation_type="independent", n_resamples=EXCHANGED, vectorized=False, rng=rng)
    low, high = np.quantile(found.null_distribution, (LEVEL / 2, 1 - LEVEL / 2))
    numbers = float(found.statistic), *[float("nan")] * 2, float(low), float(high), float(found.pvalue)
    return Estimate(*numbers, 1, len(later), 0, "labels of runs exchanged")


TESTS = {
    HALF_WIDTH: of_arms(gap="half-width"),
    GEOMETRY: of_arms(**{arm: ("diff", arm) for arm in ("double-width", "lambda-0")}),
    SIGNED: of_arms(gap="signed"),
    GATED: of_arms(gap="gated"),
    NORM: of_arms(**{arm: (arm, "standard") for arm in ("no-norm", "scalar", "standard-norm")}),
    LAMBDA_ONE: lambda_one,
    TOP_K: top_k,
    DISTRACTORS_LENGTH: distractors_length,
    FAITHFULNESS: faithfulness,
    FORMATION: formation,
}
