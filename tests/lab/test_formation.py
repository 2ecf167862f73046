"""When a run counts as formed, by the criterion of its recipe, and when it reached shares of right answers."""

from dataclasses import replace

import pytest

from diffscope.lab.training import train_cohort
from diffscope.lab.training.cohort import ONSETS
from diffscope.lab.training.formation import formation, formation_limit
from diffscope.lab.training.onsets import Criterion, onsets_of
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.runs import tuning_run
from diffscope.lab.training.stages import Tuning
from diffscope.storage.statistics import open_statistics
from tests.lab.small_recipes import pair


def rows(*shares, name="retrieval", stages=(0,) * 9):
    return [{"step": 10 * i, "stage": stage, name: share} for i, (share, stage) in enumerate(zip(shares, stages))]


@pytest.mark.parametrize(
    "criterion, curve, step",
    [
        ("twice", rows(0.96, 0.9, 0.95, 0.95), 20),
        ("mean of three", rows(0.8, 0.96, 0.94, 0.9), 20),  # 0.9 over the first three, known at the last of them
        ("mean of three", rows(0.8, 0.95, 0.94, 0.9), 30),
        ("mean of three", rows(1.0, 1.0), None),
        ("mean of three", rows(1.0, 1.0, 1.0, stages=(0, 0, 1)), None),
        ("mean of three", rows(0.9, 0.9, 0.9, name="copied"), 20),
    ],
)
def test_a_run_forms_by_the_criterion_of_its_recipe(criterion, curve, step):
    assert formation(curve, replace(pair(), formed_by=criterion)) == step


def test_a_stage_may_name_another_share():
    stages = tuple(replace(stage, formed=0.5) for stage in pair().stages)
    recipe = replace(pair(), formed_by="mean of three", stages=stages)
    assert formation(rows(0.4, 0.5, 0.6), recipe) == 20


def test_a_run_that_has_not_formed_ends_with_the_stage_that_has_to_form():
    first, second = (replace(stage, steps=steps) for stage, steps in zip(pair().stages, (10, 20), strict=True))
    forming = [replace(stage, formed=0.9) for stage in (first, second)]
    cases = {(first, second): 30, (forming[0], second): 10, (first, forming[1]): 30, tuple(forming): 10, (first,): 10}
    assert {stages: formation_limit(replace(pair(), stages=stages)) for stages in cases} == cases


def test_a_tuning_run_forms_by_the_share_of_its_stage(tmp_path, monkeypatch):
    stage = replace(pair().stages[0], formed=0.5)
    recipe = replace(pair(), stages=(stage,), tuning=Tuning((1e-3,), (100,), 20))
    curve = [row | {"answer_loss": 1.0, "seconds": 1.0} for row in rows(0.4, 0.5, 0.6)]
    monkeypatch.setattr(train_cohort, "train_run", lambda *_, **__: None)
    monkeypatch.setattr(train_cohort, "read_metrics", lambda folder: curve)
    run = tuning_run(recipe, "diff", 1e-3, 100)
    target = run.result(tmp_path)
    target.parent.mkdir(parents=True)
    train_cohort._tune(run.spec, target, recipe, tmp_path, "cpu", None)
    assert open_statistics(target)["formation"] == 10


def test_the_criterion_decides_what_is_trained_and_old_recipes_do_not_name_it():
    recipe = Recipe.load("laptop")
    assert "formed_by" not in recipe.trains("diff") and "formed_by" not in recipe.as_dict()
    assert replace(recipe, formed_by="mean of three").trains("diff") != recipe.trains("diff")


def test_onsets_are_the_first_step_with_a_share_right(laptop_runs):
    kept = open_statistics(laptop_runs / "laptop/diff/seed-0/scores.nc")  # along which it was evaluated every 25 steps
    assert [onsets_of(kept["retrieval"], Criterion(share)).item() for share in ONSETS] == [325, 400, 400]
