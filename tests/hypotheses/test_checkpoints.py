"""Checkpoints of a training: growth and pulls that were planted are found, and several trainings are seeds."""

from types import SimpleNamespace

import numpy as np
import pytest

from diffscope.cards import BUNDLED
from diffscope.errors import Missing
from diffscope.hypotheses import Settings, gather, run
from diffscope.hypotheses.board import over_trainings
from diffscope.hypotheses.declared.steps import growth, late_mean
from diffscope.hypotheses.planted import Planted, PlantedModels
from diffscope.hypotheses.statistics import Sample

STEPS = [f"m@{step}" for step in (0, 10, 50, 200, 800)]


class Forming(Planted):
    """A truth that is there from the fourth checkpoint on."""

    def read(self, prompts, seed, match=None):
        return Planted("NC" if seed > 2 else "neither", layers=2).read(prompts, seed, match)


class Tables(PlantedModels):
    """Planted models with tables that were taken already."""

    taken = None

    def measure_each(self, take):
        return self.taken


def test_growth_over_checkpoints_is_what_was_planted(prompts):
    """Maps that share their noise ever more, and such that never do."""
    growing = PlantedModels(Forming("neither", layers=2), prompts, seeds=range(5), count=15, names=STEPS)
    (verdict,) = run("noise-symmetry-training", checkpoints=[growing])
    assert verdict.verdicts["NC"] == "for", verdict.sentence
    flat = PlantedModels(Planted("neither", layers=2), prompts, seeds=range(5), count=15, names=STEPS)
    (verdict,) = run("noise-symmetry-training", checkpoints=[flat])
    assert verdict.verdicts["NC"] in ("open", "against"), verdict.sentence
    steps = np.log2(1 + np.array([0.0, 10, 50]))
    assert growth(steps, (2 * steps)[:, None]) == pytest.approx(2 * steps[-1])


def test_a_pull_towards_shared_noise_is_found_and_so_is_its_opposite(prompts):
    planted = Planted("neither", layers=2)
    null = [planted.flows(prompts, 0.0, 100 + index) for index in range(20)]
    for pull, expected in ((0.4, ["for"]), (-0.4, ["against"]), (0.0, ["open", "against"])):
        series = Tables(planted, prompts, seeds=range(4), count=20, names=STEPS[:4])
        series.taken = [planted.flows(prompts, pull, step) for step in range(4)], null
        (verdict,) = run("gradient-dynamics", checkpoints=[series])
        assert verdict.verdicts["NC"] in expected, verdict.sentence


def test_trainings_have_untrained_models_of_their_own_and_each_keeps_one():
    names = [str(BUNDLED / name) for name in ("mini-diff", "mini-diff")]
    first, second = gather(names, needs={"checkpoints"}, settings=Settings(prompts=10)).checkpoints
    steps = len(first.scopes)
    assert first.series and first.settings.first == 0
    assert second.settings.first == first.settings.untrained == 3 * steps
    first.last_queries = second.last_queries = [SimpleNamespace(matches=step) for step in range(steps)]
    weights = [
        [scope.model.lm_head.weight[5, 0].item() for scope, _ in series.untrained_models(in_a_row)]
        for series, in_a_row in ((first, 1), (second, 1), (first, steps))
    ]
    assert len({*weights[0], *weights[1]}) == 6 * steps
    rounds = [weights[2][start : start + steps] for start in range(0, 3 * steps, steps)]
    assert [len({*values}) for values in rounds] == [1, 1, 1] and len({*weights[2]}) == 3
    assert [match for _, match in first.untrained_models(steps)] == [*range(steps)] * 3


def test_later_checkpoints_count_more_and_the_first_not_at_all():
    values = np.array([[9.0, 9.0], [1.0, np.nan], [4.0, 2.0]])
    assert late_mean(np.log2(1 + np.array([0.0, 1, 3])), values).tolist() == [3.0, 2.0]


def test_trainings_that_are_left_out_are_counted():
    def measure(series):
        if series:
            raise Missing("a checkpoint that answers")
        return {"distance": Sample(np.array([[1.0, 2.0]]), np.arange(3.0))}

    joined = over_trainings(measure, [0, 1, 0])["distance"]
    assert joined.values.shape == (2, 2) and joined.untrained.tolist() == [0, 1, 2, 0, 1, 2]
    assert joined.note == "1 of 3 trainings are left out, for want of a checkpoint that answers"
    with pytest.raises(Missing):
        over_trainings(measure, [1, 1])
