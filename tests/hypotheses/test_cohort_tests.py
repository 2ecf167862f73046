"""A trained cohort: planted accounts are told apart, and its statistics are those of the textbooks."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from diffscope.errors import DiffscopeError
from diffscope.hypotheses import run
from diffscope.hypotheses.declared import cohort
from diffscope.hypotheses.planted import planted_cohort


def test_a_gap_that_closes_and_one_that_remains(cohort_of_rates):
    closes, remains, lacking, formed = run(["half-width", "signed-mask", "gated", "formation"], cohort=cohort_of_rates)
    assert (closes.verdict, remains.verdict) == ("SP", "NC")
    assert lacking.verdict == "needs a cohort with the arm 'gated'"
    assert formed.estimates["standard"].value == 173 and formed.verdict == "NC"


def test_effects_of_distractors_and_of_length_are_found_apart(cohort_of_rates):
    rng = np.random.default_rng(1)
    cells = cohort_of_rates["exact_match"].sel(arm=["standard", "diff"])
    distractors = cells["distractors"] / 16
    length = np.log2(cells["length"])
    benefit = 1.5 * (distractors - distractors.mean()) - 0.75 * (length - length.mean())
    logit = xr.where(cells["arm"] == "diff", benefit, 0.0).broadcast_like(cells)
    answers = (rng.random(cells.shape) < 1 / (1 + np.exp(-logit.transpose(*cells.dims).values))).astype(float)

    def observed(values):
        return cohort.distractors_length.observe(xr.Dataset({"exact_match": cells.copy(data=values)}))

    slopes = {name: float(observed(answers)[name].values.mean()) for name in ("distractors", "length", "both")}
    assert slopes["distractors"] == pytest.approx(1.5, abs=0.4)
    assert slopes["length"] == pytest.approx(-0.75, abs=0.2)
    assert abs(slopes["both"]) < 0.5
    with pytest.raises(DiffscopeError, match="neither arm"):
        observed(np.ones_like(answers))
    full = answers.copy()
    full[:, :, :, 0] = 1  # nothing can show where all is right
    assert float(observed(full)["distractors"].values.mean()) == pytest.approx(1.5, abs=0.6)


def test_faithfulness_is_signal_detection():
    unknown = np.zeros((2, 2, 2, 1, 99))  # arm, seed, question, distractors, prompt
    unknown[1, :, 1, 0, :80] = 1  # DIFF says "unknown" to 80 of 99 unanswerable questions, and to no others
    coords = {"arm": ["standard", "diff"], "seed": [0, 1], "question": ["answerable", "unanswerable"]}
    dataset = xr.Dataset({"says_unknown": (("arm", "seed", "question", "distractors", "prompt"), unknown)}, coords)
    observed = cohort.faithfulness.observe(dataset)
    rare = stats.norm.ppf(0.5 / 100)
    often = stats.norm.ppf(80.5 / 100)
    assert observed["d"].values.ravel() == pytest.approx([often - rare] * 2)
    assert observed["c"].values.ravel() == pytest.approx([(often + rare) / 2 - rare] * 2)


def test_arms_that_never_form_count_in_the_log_rank():
    never = np.full(4, 850.0)
    early = np.array([100.0, 125, 150, 175])
    formed = np.ones(4, dtype=bool)
    result = cohort.log_rank(never, early, ~formed, formed)
    assert result.value > 2 and result.p == pytest.approx(2 / 70)  # the most extreme of the ways to choose 4 of 8, both sides
    assert cohort.log_rank(early, never, formed, ~formed).value == pytest.approx(-result.value)
    assert cohort.log_rank(never, never, ~formed, ~formed).value == 0


def test_the_best_k_is_chosen_by_the_other_seeds():
    rates = {"standard": [0.5] * 3, "diff": [0.5] * 3, "top-2": [0.9, 0.1, 0.1], "top-8": [0.4, 0.4, 0.4]}
    exact = np.array(list(rates.values()))[:, :, None, None, None] * np.ones((4, 3, 1, 2, 5))
    coords = {"arm": list(rates), "seed": range(3), "length": [128], "distractors": [0, 4]}
    dataset = xr.Dataset({"exact_match": (("arm", "seed", "length", "distractors", "prompt"), exact)}, coords)
    gain = cohort.top_k.observe(dataset)["own"].values[:, 0]
    assert gain == pytest.approx([-0.1, -0.4, -0.4])  # top-2 is best with seed 0, which does not choose


def test_a_seed_with_one_arm_is_left_out_of_distractors_and_length():
    whole = planted_cohort("NC", 4, 1.0)
    partly = whole.copy(deep=True)
    partly["exact_match"].loc[{"arm": "standard", "seed": 3}] = np.nan
    slopes, wanted = (
        cohort.distractors_length.observe(dataset)["distractors"].values for dataset in (partly, whole.isel(seed=slice(3)))
    )
    assert slopes == pytest.approx(wanted) and len(slopes) == 3


@pytest.mark.parametrize("truth, expected", [("NC", ["NC"]), ("SP", ["SP"]), ("neither", ["inconclusive", "neither"])])
def test_planted_cohorts_are_told_apart(truth, expected):
    ids = ["half-width", "signed-mask", "top-k", "distractors-length"]
    for verdict in run(ids, cohort=planted_cohort(truth, 8, 1.5, spread=0.2)):
        assert verdict.verdict in expected, verdict.sentence


def test_the_mixed_model_agrees_with_the_slopes_of_each_seed():
    observed = cohort.distractors_length.observe(planted_cohort("NC", 5, 1.0))
    for name in ("distractors", "length"):
        mixed = observed[f"mixed_{name}"]
        assert abs(float(observed[name].values.mean()) - mixed.value) < 0.4 and mixed.low < mixed.value < mixed.high
    assert observed["mixed_distractors"].p < 1e-4
