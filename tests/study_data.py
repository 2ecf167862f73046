"""A study of every declared test, with estimates that are made up: what a study that is kept or shipped is like."""

from diffscope.hypotheses import TESTS, run
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.study import ALL, WEIGHTS, Study
from diffscope.hypotheses.study_tables import arm_results
from studies.laptop.calibration.simulate import planted_cohort

SEEDS = [0, 1, 2, 3, 4]
ARMS = ("standard", "diff")
FEWER = [3, 4]  # seeds of the second board


def estimate(value: float, seeds: int) -> Estimate:
    return Estimate(
        value=value,
        low=value - 0.5,
        high=value + 0.5,
        null_low=-0.1,
        null_high=0.1,
        p=0.001,
        prompts=10,
        seeds=seeds,
        untrained=4,
        method="as planted",
        layers=(value / 4, 3 * value / 4),
    )


def study() -> Study:
    boards = {}
    for board, seeds in ((ALL, len(SEEDS)), (WEIGHTS, len(FEWER))):
        results = {id: {name: estimate(1 + i, seeds) for i, name in enumerate(test.quantities)} for id, test in TESTS.items()}
        boards[board] = run(finished=results)
    facts = {
        "cohort": "planted",
        "recipe": "planted",
        "arms": {arm: SEEDS for arm in ARMS},
        "settings": {"prompts": 10, "length": 160},
        "made_with": {"diffscope": "0"},
        "training": {
            "rate": {"standard": 0.002, "diff": 0.004},
            "parameters": {"standard": 701_000.0, "diff": 702_000.0},
            "rates_tried": [0.002, 0.004],
            "tuning_area": {"standard": [[1.5, 1.25], [None, 2.0]], "diff": [[1.0, 1.0], [0.5, 0.75]]},
            "tuning_formation": {"standard": [[700.0, 725.0], [None, None]], "diff": [[400.0, 425.0], [350.0, None]]},
            "failed": "standard, seed 2: killed",
        },
    }
    survival = [
        {"arm": arm, "runs": len(SEEDS), "formed": 4, "median": 300.0 + 50 * i, "restricted_mean": 412.5, "p": 0.25 * i or None}
        for i, arm in enumerate(ARMS)
    ]
    row = {"arm": "diff", "value": 0.5, "low": 0.25, "high": 0.75, "seeds": 5}
    described = [
        {**row, "quantity": "exact answers, one question", "step": "end", "layer": None},
        {**row, "arm": "standard", "quantity": "exact answers, one question", "step": "end", "layer": None, "value": 0.125},
        *({**row, "quantity": "λ", "step": step, "layer": layer} for step in (0, 25, "formed", "end") for layer in (0, 1)),
        {**row, "quantity": "noise gain", "step": "end", "layer": 1, "low": None, "high": None, "seeds": 2},
    ]
    return Study(
        facts, boards, survival, described, arm_results(planted_cohort("NC", len(SEEDS))), ["Found besides:", "one point"]
    )
