"""A trained cohort: planted accounts are told apart, statistics are those of the textbooks, no failed run is dropped unseen."""

import json
from collections import Counter

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from statsmodels.duration.survfunc import survdiff

from diffscope.hypotheses import TESTS, report, run, summary
from diffscope.hypotheses.accounts import ACCOUNTS, AGAINST, FOR, SILENT
from diffscope.hypotheses.cohort import BASELINES, formed, steps_to_form
from diffscope.hypotheses.shipped import power_of
from diffscope.hypotheses.statistics import failures_at_worst, first_to_form
from diffscope.hypotheses.tests import PRIMARIES
from studies.laptop.calibration import power
from studies.laptop.calibration.simulate import Sizes, planted_cohort
from studies.laptop.results import read_result

STRONG = Sizes(log_odds=2.0, slope=1.0, steps=1.0, rejection=8.0)
OF_COHORTS = [id for id, test in TESTS.items() if test.needs == "cohort" and test.judged]
TIGHT = Sizes(log_odds=0.4, slope=0.2, steps=0.15, rejection=0.5, text=0.05, unknown=0.1)


@pytest.mark.parametrize(
    "truth, expected",
    [
        (
            "NC",
            {
                "formation": (SILENT, SILENT, SILENT),
                "distractors-or-length": (FOR, AGAINST, SILENT),
                "common-noise": (FOR, AGAINST, SILENT),
                "signed-mask": (FOR, AGAINST, AGAINST),
                "top-k": (SILENT, AGAINST, SILENT),
                "lambda-1": (FOR, SILENT, SILENT),
                "plus": (SILENT, SILENT, SILENT),
                "d-plus": (SILENT, SILENT, AGAINST),
            },
        ),
        (
            "SP",
            {
                "distractors-or-length": (AGAINST, FOR, SILENT),
                "common-noise": (AGAINST, SILENT, SILENT),
                "signed-mask": (AGAINST, SILENT, SILENT),
                "top-k": (AGAINST, FOR, AGAINST),
                "d-plus": (SILENT, SILENT, AGAINST),
            },
        ),
        (
            "SH",
            {
                "formation": (SILENT, SILENT, SILENT),
                "distractors": (SILENT, SILENT, SILENT),
                "distractors-or-length": (AGAINST, AGAINST, SILENT),
                "common-noise": (AGAINST, SILENT, SILENT),
                "signed-mask": (AGAINST, SILENT, SILENT),
                "top-k": (SILENT, AGAINST, SILENT),
                "plus": (SILENT, SILENT, SILENT),
                "d-plus": (AGAINST, AGAINST, FOR),
            },
        ),
        ("both", {"distractors": (SILENT, SILENT, SILENT), "d-plus": (SILENT, SILENT, AGAINST)}),
        ("neither", {"distractors": (AGAINST, AGAINST, AGAINST), "plus": (AGAINST, AGAINST, AGAINST)}),
        ("geometry", {"distractors": (AGAINST, AGAINST, AGAINST), "plus": (AGAINST, AGAINST, AGAINST)}),
        ("harmed", {"distractors": (AGAINST, AGAINST, AGAINST), "gated": (AGAINST, AGAINST, AGAINST)}),
    ],
)
def test_planted_truths_are_told_apart(truth, expected):
    board = run(OF_COHORTS, cohort=planted_cohort(truth, 8, STRONG, TIGHT))
    words = {verdict.test.id: verdict.verdicts for verdict in board}
    assert {id: tuple(words[id].values()) for id in expected} == expected
    borne_out = {account for by_account in words.values() for account, word in by_account.items() if word == FOR}
    assert borne_out <= ({truth} if truth in ACCOUNTS else {"NC", "SP"} if truth == "both" else set())
    refuted = {account for by_account in words.values() for account, word in by_account.items() if word == AGAINST}
    assert truth not in refuted


def test_the_slopes_are_least_squares_over_the_cells_that_exist():
    cohort = planted_cohort("NC", 5, STRONG, TIGHT)
    results = TESTS["distractors-or-length"].measure(cohort)
    cells = cohort["log_odds"].mean("prompt")
    gap = (cells.sel(arm="diff") - cells.sel(arm="standard")).values  # (seed, length, distractors)
    length, distractors = np.meshgrid(np.log2(cohort["length"]), np.log2(cohort["distractors"]), indexing="ij")
    for place, seed in enumerate(gap):
        there = np.isfinite(seed)
        assert there.sum() == 8
        design = np.stack([np.ones(8), distractors[there], length[there]], 1)
        _, of_distractors, of_length = np.linalg.lstsq(design, seed[there])[0]
        wanted = {"standard": of_distractors - of_length, "standard_distractors": of_distractors, "standard_length": of_length}
        assert {name: results[name].values[place, 0] for name in wanted} == pytest.approx(wanted)


def test_a_grid_in_which_both_move_together_is_refused():
    cohort = planted_cohort("NC", 5)
    cohort["log_odds"] = cohort["log_odds"].where(cohort["length"] / cohort["distractors"] < 17).where(cohort["length"] == 128)
    (verdict,) = run("distractors-or-length", cohort=cohort)
    assert verdict.shown == "needs a grid in which length and the number of distractors move apart"


def test_a_failed_run_counts_where_it_can_and_is_named_where_it_cannot():
    cohort = planted_cohort("NC", 8, STRONG, TIGHT)
    for name in ("formation", "log_odds", "says_unknown", "cmrr_over_paired"):
        cohort[name].loc[{"arm": "standard", "seed": 4}] = np.nan
    formation, distractors = run(["formation", "distractors"], cohort=cohort)
    assert formation.estimates["standard"].seeds == 8
    steps = cohort["formation"].fillna(2000)
    wanted = np.log2(steps.sel(arm="diff") / steps.sel(arm="standard")).mean().item()
    assert formation.estimates["standard"].value == pytest.approx(wanted)
    assert distractors.estimates["standard"].seeds == 7 and distractors.estimates["double-width"].seeds == 8
    assert "Left out of DIFF − standard: seed 4 (standard never formed)" in distractors.sentence
    worst = distractors.estimates["standard_worst"]
    gap = (cohort["log_odds"].sel(arm="diff") - cohort["log_odds"].sel(arm="standard")).mean(("prompt", "length"))
    gaps = gap.sel(distractors=[24, 48]).mean("distractors").fillna(np.inf).values
    assert worst.seeds == 8 and worst.value == pytest.approx(np.median(gaps)) and worst.p == 2 / 256


def test_seeds_of_a_comparison_are_paired_by_name():
    cohort = planted_cohort("neither", 6, spreads=TIGHT)
    cohort["finished"].loc[{"arm": "signed", "seed": [0, 3]}] = 0
    cohort["log_odds"].loc[{"arm": "signed", "seed": [0, 3]}] = np.nan
    results = TESTS["signed-mask"].measure(cohort.assign_coords(seed=[10, 11, 12, 13, 14, 15]))
    assert results["own"].seeds == (11, 12, 14, 15) and results["own"].values.shape == (4, 1)


def test_an_arm_that_continues_another_has_formed_and_has_no_time_of_its_own():
    cohort = planted_cohort("NC", 6, failures=0.3, seed=3)
    continued, of_standard = (formed(cohort).sel(arm=arm).values for arm in ("top-8", "standard"))
    assert (continued == of_standard).all() and 0 < continued.sum() < 6
    assert np.isnan(steps_to_form(cohort).sel(arm="top-8").values[continued]).all()
    assert "top-8" not in TESTS["formation-arms"].measure(cohort)
    assert TESTS["top-k"].measure(cohort)["own"].values.size == continued.sum()


def test_of_when_it_formed_a_cohort_in_which_nothing_did_says_nothing():
    cohort = planted_cohort("NC", 8, STRONG, TIGHT)
    cohort.attrs["recipe"] = json.dumps({"continued": {"signed": {"arm": "standard"}}})
    assert np.isnan(steps_to_form(cohort).sel(arm="signed")).all()
    for name in ("formation", "log_odds"):
        cohort[name].loc[{"arm": ["diff", "standard"]}] = np.nan
    (verdict,) = run("formation", cohort=cohort)
    assert verdict.shown == "needs a run of DIFF or of standard attention in which the circuit formed"
    cohort["formation"][:] = np.nan
    (verdict,) = run("formation", cohort=cohort)
    assert verdict.shown == "needs a cohort in which the circuit formed in some run"


def test_rates_of_the_arms_are_said():
    cohort = planted_cohort("neither", 5)
    formation, mask = run(["formation", "signed-mask"], cohort=cohort)
    assert "DIFF 0.004, standard 0.002, each arm's best, so what differs is in part the rate" in formation.sentence
    assert "Learning rates: signed 0.002, standard 0.002." in mask.sentence


def test_the_log_rank_of_pairs_is_that_of_strata():
    rng = np.random.default_rng(0)
    steps, other = rng.integers(10, 40, (2, 12)) * 25.0
    formed, other_formed = rng.random((2, 12)) > 0.25
    steps, other = np.where(formed, steps, 1000), np.where(other_formed, other, 1000)
    result = first_to_form(steps, other, formed, other_formed)
    both = np.concatenate([steps, other]), np.concatenate([formed, other_formed]).astype(int)
    chi2, _ = survdiff(*both, np.repeat([0, 1], 12), strata=np.tile(np.arange(12), 2))
    assert result.value**2 == pytest.approx(chi2)
    never = np.zeros(6, dtype=bool)
    late = first_to_form(np.full(6, 1000.0), np.full(6, 200.0), never, ~never)
    assert late.value == pytest.approx(np.sqrt(6)) and late.p == 2 / 64
    assert first_to_form(np.full(6, 1000.0), np.full(6, 1000.0), never, never).p == 1
    assert (
        first_to_form(np.full(6, 1000.0), np.full(6, 1000.0), never, ~never).p == 2 / 64
    )  # formed when the others were given up


def test_failures_at_worst_are_ranks():
    values = np.array([3.0, np.nan, 2.0, 5.0, 4.0, np.nan])
    other = np.array([1.0, 2.0, np.nan, 1.0, 1.0, np.nan])  # differences: 2, worst, best, 4, 3, none
    result = failures_at_worst(values, other)
    ranks = np.array([1.0, -4.5, 4.5, 3.0, 2.0, 0.0]) + np.sign([1, -1, 1, 1, 1, 0])  # Wilcoxon's, ties and zeros by midranks
    assert result.value == 2.5 and result.p == pytest.approx(
        stats.permutation_test((ranks,), np.sum, permutation_type="samples", n_resamples=64).pvalue
    )
    shifted = failures_at_worst(np.arange(8.0) + 1, np.zeros(8))
    assert (shifted.value, shifted.low, shifted.high, shifted.p) == (4.5, 1, 8, 2 / 256)
    assert np.isnan(failures_at_worst(np.full(4, np.nan), np.ones(4)).value)


def test_faithfulness_is_signal_detection():
    unknown = np.zeros((3, 2, 2, 1, 99))  # arm, seed, question, distractors, prompt
    unknown[1, :, 1, 0, :80] = 1  # DIFF says "unknown" to 80 of 99 unanswerable questions, and to no others
    arms = ["standard", "diff", "double-width"]
    coords = {"arm": arms, "seed": [0, 1], "question": ["answerable", "unanswerable"]}
    dataset = xr.Dataset(
        {
            "says_unknown": (("arm", "seed", "question", "distractors", "prompt"), unknown),
            "formation": (("arm", "seed"), np.full((3, 2), 300.0)),
            "finished": (("arm", "seed"), np.ones((3, 2))),
        },
        coords,
    )
    observed = TESTS["faithfulness"].measure(dataset)
    rare = stats.norm.ppf(0.5 / 100)
    often = stats.norm.ppf(80.5 / 100)
    assert observed["d"].values.ravel() == pytest.approx([often - rare] * 2)
    assert observed["c"].values.ravel() == pytest.approx([(often + rare) / 2 - rare] * 2)


def test_a_run_that_never_formed_has_no_log_odds_though_it_was_scored():
    """In a recipe of one stage every run comes to the end and is scored."""
    cohort = planted_cohort("neither", 8, STRONG, TIGHT)
    retrieval = xr.zeros_like(cohort["formation"]).expand_dims(step=cohort["step"])
    failed = (cohort["arm"] == "standard") & cohort["seed"].isin([1, 3, 5])
    scored = cohort.assign(
        retrieval=retrieval, formation=cohort["formation"].where(~failed), log_odds=cohort["log_odds"] - 8 * failed
    )
    left = cohort.assign(retrieval=retrieval, **{name: cohort[name].where(~failed) for name in ("formation", "log_odds")})
    (of_scored,), (of_left,) = (run("distractors", cohort=each) for each in (scored, left))
    ours, theirs = (verdict.estimates["standard"] for verdict in (of_scored, of_left))
    assert (ours.seeds, ours.value, ours.low, ours.high) == pytest.approx((5, theirs.value, theirs.low, theirs.high))
    assert of_scored.verdicts == of_left.verdicts


def test_holm_is_over_all_primaries_whichever_are_asked_for():
    cohort = planted_cohort("NC", 8, STRONG, TIGHT)
    (alone,) = run("formation", cohort=cohort)
    together = run(list(PRIMARIES), cohort=cohort)
    assert alone.estimates["standard"].p == 2 / 256 and set(alone.corrected.values()) == {4 * 2 / 256}
    assert [verdict.verdicts["NC"] for verdict in together] == [SILENT, SILENT, FOR, FOR]
    assert all(verdict.test.holds("NC", verdict.states) for verdict in together)
    assert all(p <= 4 * 2 / 256 for verdict in together for p in verdict.corrected.values())


def test_a_primary_has_the_largest_p_of_its_comparisons():
    cohort = planted_cohort("geometry", 8, STRONG, TIGHT)
    (verdict,) = run("formation", cohort=cohort)
    p = [verdict.estimates[arm].p for arm in BASELINES]
    assert p[0] == 2 / 256 and p[1] > 0.05
    assert set(verdict.corrected.values()) == {min(4 * p[1], 1.0)}


def test_the_p_that_is_corrected_is_the_one_that_is_printed():
    """Signs of seven seeds cannot be turned in enough ways for four primaries; of eight they can, and the board says so."""
    for seeds, word in ((7, "open"), (8, "for")):
        (verdict,) = run("common-noise", cohort=planted_cohort("NC", seeds, STRONG, TIGHT))
        estimate = verdict.estimates["diff"]
        assert estimate.p == 2 / 2**seeds and verdict.corrected["diff"] == pytest.approx(4 * estimate.p) != 4 * estimate.p_t
        assert f"p = {estimate.p:.3g} by sign flips" in verdict.sentence and verdict.verdicts["NC"] == word
        assert ("too few for sign flips" in summary([verdict])) == (seeds == 7)
    (mechanism,) = run("lambda-1", cohort=planted_cohort("NC", 8, STRONG, TIGHT))
    assert mechanism.corrected["distractors"] == mechanism.estimates["distractors"].p_t < 2 / 256


@pytest.mark.parametrize("seeds", [3, 4])
def test_fewer_seeds_do_not_make_a_primary_pass(seeds):
    """Student's t of four seeds that agree gives a p that sign flips cannot."""
    (verdict,) = run("common-noise", cohort=planted_cohort("NC", seeds, STRONG, TIGHT))
    estimate = verdict.estimates["diff"]
    assert estimate.p < 0.05 and estimate.low > 3
    assert verdict.verdicts["NC"] == "open" and verdict.p == min(1, 4 * 2 / 2**seeds)
    cells = dict(zip(report.COLUMNS, report.rows(verdict)[0]))
    assert cells["p (sign flips or untrained models)"] == "–" and cells["p (Student's t)"] == f"{estimate.p:.3g}"
    assert f"p = {2 / 2**seeds:.3g}, the least of sign flips of {seeds} seeds" in verdict.sentence
    assert "too few for sign flips" in summary([verdict])


def test_power_is_of_the_tests_that_a_board_runs():
    """Observed as one and judged cohort by cohort, or each as a cohort of its own."""
    options = {"effects": Sizes(log_odds=1.5, slope=0.75, steps=0.4, rejection=4.0), "failures": 0.125}
    shares, together = power.primaries("NC", 5, seeds=8, **options)
    many = planted_cohort("NC", 40, **options)
    counts = Counter()
    found = 0
    for number in range(5):
        cohort = many.isel(seed=slice(8 * number, 8 * number + 8))
        board = run(list(PRIMARIES), cohort=cohort)
        found += any(verdict.test.holds("NC", verdict.states) for verdict in board)
        for id in PRIMARIES:
            (alone,) = run(id, cohort=cohort)
            counts.update((id, word) for word in power.of_accounts(alone.verdicts))
            counts.update((id, f"{account} holds") for account in ACCOUNTS if alone.test.holds(account, alone.states))
    assert {(id, verdict): share for id, of in shares.items() for verdict, share in of.items()} == {
        place: n / 5 for place, n in counts.items()
    }
    assert together == found / 5 and len(counts) > 4


def test_heads_of_the_premise_are_left_out_too():
    cohort = planted_cohort("neither", 8, STRONG, TIGHT)
    heads = np.zeros((cohort.sizes["arm"], 8, 2, 2))
    heads[..., 0, 1] = 16.0  # one head does it all
    cohort["cmrr_over_paired_by_head"] = ("arm", "seed", "layer", "head"), heads
    cohort["answer_mass"] = ("arm", "seed", "layer", "head"), np.ones_like(heads)
    cohort["cmrr_over_paired"] = cohort["cmrr_over_paired"] + 4.0
    (verdict,) = run("common-noise", cohort=cohort)
    assert verdict.verdicts["NC"] == FOR and "the head of each seed that raises it most" in verdict.decisive()


def test_the_board_says_what_it_supports_together():
    ids = [test.id for test in TESTS.values() if test.needs == "cohort"]
    shown = {truth: run(ids, cohort=planted_cohort(truth, 8, STRONG, TIGHT)) for truth in ("NC", "SP", "SH", "neither")}
    words = {truth: summary(board) for truth, board in shown.items()}
    assert "the primary tests support noise cancellation; they speak against sparsification" in words["NC"]
    assert "the primary tests support sparsification; they speak against noise cancellation" in words["SP"]
    assert (
        "support none of the three accounts; they speak against noise cancellation and sparsification; mechanism" in words["SH"]
    )
    assert "which are explored and do not decide, speak for signed heads" in words["SH"]
    assert "support none of the three accounts" in words["neither"] and "for it: nothing" in words["neither"]
    assert "it holds, and says nothing of why: NC, SP and SH predict the same" in words["NC"]
    assert "a cohort whose log_odds_near was measured (for near-duplicates)" in words["NC"]
    assert "Missing: a cohort with the evidence of its runs (for allocation)" in words["NC"]
    (slope,) = (verdict for verdict in shown["NC"] if verdict.test.id == "distractors-or-length")
    apart = summary([slope, *(verdict for verdict in shown["SP"] if verdict.test.id == "common-noise")])
    assert "the primary tests contradict each other on noise cancellation" in apart and "against it: common-noise" in apart
    page = report.markdown(shown["NC"][::-1], "title")
    primaries, others = ([page.index(f"\n## {id}: ") for id in ids if (id in PRIMARIES) is first] for first in (True, False))
    assert max(primaries) < min(others) and max(others) < page.index("## Together")


def test_boards_say_the_power_that_was_simulated():
    """The smallest effect that is found in four of five cohorts, with how often it is where runs fail."""
    kept = read_result("power")
    of_board = [row for row in kept["power"] if (row["spreads"], row["seeds"]) == ("middle", 8)]
    rows = {(row["test"], row["effect"], row["failed"]): row["found"] for row in of_board}
    effects = {"formation": "0.8 octaves", "distractors": "1.5 nats", "common-noise": "4.5 dB"}
    assert power.sentences(kept) == {id: power_of(id) for id in PRIMARIES}
    for id, effect in effects.items():
        size = float(effect.partition(" ")[0])
        words = power_of(id)
        assert f"an effect of {effect} is found in {rows[id, size, power.NO_RUN]:.0%}" in words
        assert words.endswith(f"in {rows[id, size, power.EACH]:.0%}")
        smaller = [found for (test, of, failed), found in rows.items() if test == id and of < size and failed == power.NO_RUN]
        assert all(found < 0.8 for found in smaller)
