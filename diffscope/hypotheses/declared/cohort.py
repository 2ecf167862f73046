"""Tests on a trained cohort: arms that differ in one thing, on the same prompts, with seeds as the unit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, logrank, norm, permutation_test
from statsmodels.api import GLM, MixedLM, families
from statsmodels.tools.sm_exceptions import ConvergenceWarning

from diffscope.hypotheses.declared.sources import REVIEW
from diffscope.hypotheses.inference import LEVEL, Estimate, Observed
from diffscope.hypotheses.rules import ABOVE, NONE, Declared, Missing, Quantity, declare

ROOM = 0.02  # of exact answers, that a cell has to leave to both arms
EXCHANGED = 1000  # ways to exchange the labels of runs
POINTS = 0.02  # share of exact answers that matters
OF_SEEDS = "What is small beside the spread of the seeds stays open. All arms had the same steps and learning rate."
GAIN = Quantity("DIFF − standard, exact answers among distractors", POINTS)
STATISTIC = "share of exact answers over all lengths and all numbers of distractors above 0, arm minus arm, prompt by prompt"
SAME = ("same prompts, data, order, steps, schedule; parameters within 1 %",)
NO_GAP = "If DIFF gains nothing over standard attention there is no gap to explain, and both accounts fail."
IN_PART = "SP says that the arm gains something itself, however much of the gap remains; both, that it closes in part."
# A gap that closes shows as a gain of the arm's own: that two arms are equal no few seeds can show.
REMAINS = {"gain": ABOVE, "gap": ABOVE}
CLOSES = {"gain": ABOVE, "own": ABOVE}


def of_gap(arm: str, words: str) -> Quantity:
    """What an arm lacks of DIFF."""
    return Quantity(f"DIFF − {arm} ({words}), exact answers among distractors", POINTS)


def of_arm(arm: str, words: str) -> Quantity:
    """What an arm gains on standard attention."""
    return Quantity(f"{arm} ({words}) − standard, exact answers among distractors", POINTS)


def gap_and_gain(arm: str, words: str) -> dict[str, tuple[tuple[str, str], Quantity]]:
    """What an arm lacks of DIFF, and what it gains itself: by name which arm is compared with which, and the quantity."""
    return {"gap": (("diff", arm), of_gap(arm, words)), "own": ((arm, "standard"), of_arm(arm, words))}


def compare_arms(
    id: str,
    claim: str,
    source: str,
    comparisons: Mapping[str, tuple[tuple[str, str], Quantity]],
    predictions: Mapping[str, Mapping[str, str]],
    unable: str = "",
) -> Declared:
    """A test of exact answers: DIFF's gain on standard attention, and arm minus arm as in `comparisons`."""
    comparisons = {"gain": (("diff", "standard"), GAIN), **comparisons}

    @declare(
        id=id,
        claim=claim,
        source=source,
        statistic=STATISTIC,
        controls=SAME,
        quantities={name: quantity for name, (_, quantity) in comparisons.items()},
        predictions=predictions,
        needs="cohort",
        limits=f"{NO_GAP} {IN_PART}" if "own" in comparisons else NO_GAP,
        unable=unable,
    )
    def observe(cohort: xr.Dataset) -> dict[str, Observed]:
        arms = {name: [exact_answers(cohort, arm) for arm in two] for name, (two, _) in comparisons.items()}
        return {name: minus(*two) for name, two in arms.items()}

    return observe


half_width = compare_arms(
    id="half-width",
    claim="DIFF's gain is that of finer heads: standard attention with half the width and twice the heads has it too.",
    source=f"{REVIEW}: question 3",
    comparisons=gap_and_gain("half-width", "twice the heads of half the width"),
    predictions={"NC": REMAINS, "SP": CLOSES},
)
head_geometry = compare_arms(
    id="head-geometry",
    claim="DIFF's gain is subtraction, not its fewer and wider heads.",
    source="microsoft/unilm issue 1716",
    comparisons={
        "double-width": (("diff", "double-width"), of_gap("double-width", "DIFF's head count at double width")),
        "lambda-0": (("diff", "lambda-0"), of_gap("lambda-0", "A1 alone, values of double width")),
    },
    predictions={account: {"gain": ABOVE, "double-width": ABOVE, "lambda-0": ABOVE} for account in ("NC", "SP")},
    unable="both accounts predict the same",
)
signed_mask = compare_arms(
    id="signed-mask",
    claim="One softmax with a learned signed mask does what two maps do.",
    source=f"{REVIEW}: experiment 3 for sparsification",
    comparisons=gap_and_gain("signed", "one softmax times a learned signed mask"),
    predictions={"NC": REMAINS, "SP": CLOSES},
)
gated = compare_arms(
    id="gated",
    claim="Two softmax heads with a learned signed gate do what subtraction does.",
    source=f"{REVIEW}: gated attention is a notable absence",
    comparisons=gap_and_gain("gated", "two softmax heads, one with a signed gate"),
    predictions={"NC": REMAINS},
    unable="sparsification predicts nothing of a gate, and the gap may remain with it too",
)
norm_of_heads = compare_arms(
    id="norm",
    claim="The norm after the subtraction does the heavy lifting.",
    source=f"{REVIEW}: question 2",
    comparisons={
        "no-norm": (("no-norm", "standard"), of_arm("no-norm", "DIFF without the norm")),
        "scalar": (("scalar", "standard"), of_arm("scalar", "DIFF with one number a head for the norm")),
        "standard-norm": (("standard-norm", "standard"), of_arm("standard-norm", "standard attention with the norm")),
    },
    predictions={"NC": {"gain": ABOVE, "no-norm": ABOVE}},
    unable="sparsification would survive without the norm as well",
)


@declare(
    id="lambda-1",
    claim="Fixing λ at 1 throughout, pure cancellation, is better among many distractors, if worse on average.",
    source=f"{REVIEW}: experiment 2 for noise cancellation",
    statistic="λ fixed at 1 − learned λ: exact answers with the most distractors, and loss on text that nothing gives away "
    "(nats; learned − fixed)",
    controls=SAME,
    quantities={
        "distractors": Quantity("λ = 1 − learned λ, exact answers at the most distractors", POINTS),
        "text": Quantity("loss on text that nothing gives away, learned λ − λ = 1 (nats)", 0.05),
    },
    predictions={"NC": {"distractors": ABOVE}, "SP": {"distractors": NONE}},
    needs="cohort",
    limits=OF_SEEDS,
)
def lambda_one(cohort: xr.Dataset) -> dict[str, Observed]:
    most = [int(cohort["distractors"].max())]
    loss = measured(cohort, "text").sel(token="other", drop=True)
    return {
        "distractors": minus(exact_answers(cohort, "lambda-1", most), exact_answers(cohort, "diff", most)),
        "text": minus(arm_of(loss, "diff"), arm_of(loss, "lambda-1")),
    }


@declare(
    id="top-k",
    claim="Standard attention that keeps its k largest weights has DIFF's gain.",
    source=f"{REVIEW}: experiment 1 for sparsification",
    statistic=f"{STATISTIC}; k the best with the other seeds",
    controls=SAME,
    quantities={
        "gain": GAIN,
        "gap": of_gap("the best top-k", "the k largest weights"),
        "own": of_arm("the best top-k", "the k largest weights"),
    },
    predictions={"NC": REMAINS, "SP": CLOSES},
    needs="cohort",
    limits=f"{NO_GAP} {IN_PART} The best k of a seed is the one that is best with the others.",
)
def top_k(cohort: xr.Dataset) -> dict[str, Observed]:
    arms = [str(arm) for arm in cohort["arm"].values if str(arm).startswith("top-")]
    if not arms:
        raise Missing("a cohort with an arm of top-k")
    diff = exact_answers(cohort, "diff")
    standard = exact_answers(cohort, "standard")
    each = xr.concat([exact_answers(cohort, arm) for arm in arms], "k")  # (k, seed, prompt)
    means = each.mean("prompt")
    best = xr.concat([best_of_others(means, seed) for seed in range(each.sizes["seed"])], "seed")
    chosen = each.isel(k=best.assign_coords(seed=each["seed"]))
    return {"gain": minus(diff, standard), "gap": minus(diff, chosen), "own": minus(chosen, standard)}


def best_of_others(means: xr.DataArray, seed: int) -> xr.DataArray:
    """Which k answers best with all seeds but one, of those that were trained with that one; `means` is (k, seed)."""
    others = means.drop_isel(seed=seed).mean("seed")
    trained = means.isel(seed=seed, drop=True).notnull() & others.notnull()
    return others.where(trained, -1).argmax("k")


@declare(
    id="distractors-length",
    claim="The benefit grows with distractors at fixed length (cancellation), or with length at any number of distractors "
    "(sparsification).",
    source=f"{REVIEW}: the sparsification reading is testable",
    statistic="of each seed a binomial model of the answers of DIFF and standard: logit ~ arm × (distractors + log2 length + "
    "distractors × log2 length); the coefficients that go with DIFF, per 16 distractors and per doubling, at the "
    "middle of the grid",
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
def distractors_length(cohort: xr.Dataset) -> dict[str, Observed | Estimate]:
    order = ("seed", "length", "distractors", "prompt")
    cells = [arm_of(measured(cohort, "exact_match"), arm).transpose(*order) for arm in ("diff", "standard")]
    shape = cells[0].shape[1:]
    answers = np.stack([values.reshape(-1, *shape) for values in of_seeds(*cells)], 1)  # (seed, arm, length, distractors, prompt)
    terms = _terms(cohort)
    design = np.concatenate([np.hstack([terms, terms]), np.hstack([terms, 0 * terms])])  # the second four: of DIFF alone
    rates = answers.mean((0, -1)).reshape(2, -1)  # (arm, cell)
    room = ((rates > ROOM) & (rates < 1 - ROOM)).all(0)  # where both have nearly all right, no benefit could show
    used = np.concatenate([room, room])
    if not used.any() or np.linalg.matrix_rank(design[used]) < design.shape[1]:
        raise Missing("a grid with more cells in which neither arm has nearly all or nearly none right")
    right = answers.sum(-1) + 0.5  # so that a cell with no mistake has a finite logit
    wrong = answers.shape[-1] + 1 - right
    counts = np.stack([right, wrong], -1).reshape(len(answers), -1, 2)  # (seed, arm and cell, right or wrong)
    slopes = [GLM(seed[used], design[used], family=families.Binomial()).fit().params[5:] for seed in counts]
    observed = {name: Observed(np.array(slopes)[:, [term]]) for term, name in enumerate(("distractors", "length", "both"))}
    logits = np.log(counts[..., 0] / counts[..., 1]).reshape(len(answers), 2, -1)[..., room]  # (seed, arm, cell)
    return observed | _mixed(logits[:, 0] - logits[:, 1], terms[room], answers.shape[-1])


def _terms(cohort: xr.Dataset) -> np.ndarray:
    """Terms of the model, (cell, term): 1, distractors over 16, log2 length, their product; the middle of the grid is 0."""
    distractors, length = np.meshgrid(cohort["distractors"].values / 16, np.log2(cohort["length"].values.astype(float)))
    distractors, length = (axis.ravel() - axis.mean() for axis in (distractors, length))
    return np.stack([np.ones_like(distractors), distractors, length, distractors * length], 1)


def _mixed(benefit: np.ndarray, terms: np.ndarray, prompts: int) -> dict[str, Estimate]:
    """Slopes of the benefit (seed, cell) on terms (cell, term) by a linear mixed model with an intercept of each seed."""
    seeds, cells = benefit.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # where seeds do not differ their variance is on its boundary
        fit = MixedLM(benefit.ravel(), np.tile(terms, (seeds, 1)), np.repeat(np.arange(seeds), cells)).fit()
    estimates = {}
    for term, name in ((1, "mixed_distractors"), (2, "mixed_length")):
        value = float(fit.fe_params[term])
        error = float(fit.bse_fe[term])
        reach = norm.ppf(1 - LEVEL / 2) * error
        estimates[name] = Estimate(
            value=value,
            low=value - reach,
            high=value + reach,
            null_low=-reach,
            null_high=reach,
            p=float(2 * norm.sf(abs(value) / error)),
            prompts=prompts,
            seeds=seeds,
            untrained=0,
            method="by a linear mixed model (z)",
        )
    return estimates


@declare(
    id="faithfulness",
    claim="DIFF answers from the context rather than being more conservative.",
    source=f"{REVIEW}: question 4",
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
def faithfulness(cohort: xr.Dataset) -> dict[str, Observed]:
    unknown = measured(cohort, "says_unknown")
    questions = unknown.sizes["distractors"] * unknown.sizes["prompt"]
    rate = (unknown.sum(("distractors", "prompt"), skipna=False) + 0.5) / (questions + 1)
    z = xr.apply_ufunc(norm.ppf, rate)
    hit = z.sel(question="unanswerable")
    alarm = z.sel(question="answerable")
    scores = {"d": hit - alarm, "c": (hit + alarm) / 2}  # saying "unknown" more often is more conservative
    return {name: minus(arm_of(score, "diff"), arm_of(score, "standard")) for name, score in scores.items()}


@declare(
    id="formation",
    claim="The lookup circuit forms earlier in DIFF.",
    source="microsoft/unilm issues 1637 and 1663: gains not reproduced at small scale",
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
    limits="Evaluated at one number of distractors and length: whether it is earlier with distractors or with length is not "
    f"asked. {OF_SEEDS}",
)
def formation(cohort: xr.Dataset) -> dict[str, Observed | Estimate]:
    finished = cohort["finished"] == 1
    formed_at = measured(cohort, "formation").where(finished)
    steps = formed_at.fillna(int(cohort["step"].max())).where(finished)
    formed = formed_at.notnull().where(finished)
    arms = ("standard", "double-width")
    observed: dict[str, Observed | Estimate] = {arm: minus(arm_of(steps, arm), arm_of(steps, "diff")) for arm in arms}
    for arm in arms:
        runs, events = (of_seeds(arm_of(values, arm), arm_of(values, "diff")) for values in (steps, formed))
        observed[f"{arm}_logrank"] = log_rank(*map(np.ravel, (*runs, *events)))
    return observed


def log_rank(later: np.ndarray, earlier: np.ndarray, later_formed: np.ndarray, earlier_formed: np.ndarray) -> Estimate:
    """Are runs later than others to form, those that never do included? Log-rank z, its p by exchanging the labels of runs.

    Parameters
    ----------
    later, earlier : ndarray (run,)
        Steps until the circuit formed, or the last step of a run in which it did not.
    later_formed, earlier_formed : ndarray (run,), bool
    """
    steps = np.concatenate([later, earlier])
    formed = np.concatenate([later_formed, earlier_formed]).astype(bool)

    def z(runs: np.ndarray, others: np.ndarray) -> float:
        groups = [CensoredData(uncensored=steps[at][formed[at]], right=steps[at][~formed[at]]) for at in (others, runs)]
        with np.errstate(invalid="ignore"):
            statistic = logrank(*groups).statistic
        return statistic if np.isfinite(statistic) else 0.0  # where none ever formed

    runs = np.arange(len(steps))
    samples = runs[: len(later)], runs[len(later) :]
    rng = np.random.default_rng(0)
    test = permutation_test(samples, z, permutation_type="independent", n_resamples=EXCHANGED, vectorized=False, rng=rng)
    null_low, null_high = np.quantile(test.null_distribution, (LEVEL / 2, 1 - LEVEL / 2))
    return Estimate(
        value=float(test.statistic),
        low=float("nan"),
        high=float("nan"),
        null_low=float(null_low),
        null_high=float(null_high),
        p=float(test.pvalue),
        prompts=1,
        seeds=len(later),
        untrained=0,
        method="labels of runs exchanged",
    )


def exact_answers(cohort: xr.Dataset, arm: str, distractors: list[int] | None = None) -> xr.DataArray:
    """Share of exact answers, (seed, prompt), mean over lengths and numbers of distractors, by default all above 0."""
    answers = arm_of(measured(cohort, "exact_match"), arm)
    answers = answers.sel(distractors=answers["distractors"] > 0 if distractors is None else distractors)
    return answers.mean(("length", "distractors")).transpose("seed", "prompt")


def measured(cohort: xr.Dataset, name: str) -> xr.DataArray:
    """A variable of the cohort, or Missing."""
    if name not in cohort:
        raise Missing(f"a cohort whose {name} was measured")
    return cohort[name]


def arm_of(values: xr.DataArray, arm: str) -> xr.DataArray:
    """The values of one arm, or Missing."""
    if arm not in values["arm"].values:
        raise Missing(f"a cohort with the arm {arm!r}")
    return values.sel(arm=arm)


def of_seeds(*arms: xr.DataArray) -> list[np.ndarray]:
    """The values (seed, rest) of the seeds that all arms have; Missing if they are fewer than two."""
    common = np.logical_and.reduce([arm.notnull().any([dim for dim in arm.dims if dim != "seed"]).values for arm in arms])
    if common.sum() < 2:
        raise Missing("two finished seeds at least of the arms that it compares")
    return [arm.values[common].reshape(common.sum(), -1) for arm in arms]


def minus(arm: xr.DataArray, other: xr.DataArray) -> Observed:
    """One arm minus another, seed by seed and prompt by prompt."""
    left, right = of_seeds(arm, other)
    return Observed(left - right)
