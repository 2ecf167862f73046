"""A study of every declared test, with estimates that are made up: what a study that is kept or shipped is like."""

from diffscope.hypotheses import TESTS, run
from diffscope.hypotheses.inference import Estimate
from diffscope.hypotheses.study import ALL, FRESH, Study

SEEDS = [0, 1, 2, 3, 4]
ARMS = ("standard", "diff")
NEW = [3, 4]  # seeds with a board of their own


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
    for board, seeds in ((ALL, len(SEEDS)), (FRESH, len(NEW))):
        results = {id: {name: estimate(1 + i, seeds) for i, name in enumerate(test.quantities)} for id, test in TESTS.items()}
        boards[board] = run(finished=results)
    facts = {
        "cohort": "planted",
        "recipe": "planted",
        "arms": {arm: SEEDS for arm in ARMS},
        "fresh": NEW,
        "settings": {"prompts": 10, "length": 160},
        "made_with": {"diffscope": "0"},
    }
    survival = [
        {"arm": arm, "runs": len(SEEDS), "formed": 4, "median": 300.0 + 50 * i, "restricted_mean": 412.5, "p": 0.25 * i or None}
        for i, arm in enumerate(ARMS)
    ]
    return Study(facts, boards, survival)
