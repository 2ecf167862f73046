"""A cohort that is killed again and again, or trained on several machines, is the undisturbed one bit by bit."""

import json
import random
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.train_cohort import train_cohort
from diffscope.storage.statistics import open_statistics
from tests.forked import begun, ended
from tests.lab.small_recipes import PIECE, recipe_in

KILLS, KILLS_IN_FULL = 1, 5
STEPS, STEPS_IN_FULL = 60, 400  # the state of a run is saved every 50 steps


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, full):
    """Two arms, trained in this process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    steps = STEPS_IN_FULL if full else STEPS
    recipe = PIECE.replace("steps = 12", f"steps = {steps}").replace("evaluate_every = 5", f"evaluate_every = {steps // 4}")
    cohort = Cohort(recipe_in(folder, recipe.replace("seeds = [0, 1]", "seeds = [0]")), folder / "out")
    assert len(train_cohort(cohort).done) == 2
    return cohort


def stay(folder, recipe, seed):
    """Stand in for the taking of evidence: wait until killed, so that no run is scored."""
    time.sleep(600)


def train_in(recipe, out):
    train_cohort(Cohort(Recipe.load(str(recipe)), out), processes=2, evidence=stay)


def logged(out):
    """Count the rows that the runs have written together with their states."""
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/seed-*/metrics.jsonl"))


def trained(out):
    """Count the runs whose training is over."""
    return len(list(out.glob("*/seed-*/model.safetensors")))


def assert_equal(cohort, other):
    for item in cohort.planned():
        one, two = (item.result(folder).parent for folder in (cohort.out, other))
        *_, last = sorted(path.name for path in (one / "checkpoints").iterdir())
        for name in ("model.safetensors", f"checkpoints/{last}/model.safetensors"):
            left, right = load_file(one / name), load_file(two / name)
            assert left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
        curves = [(run / "metrics.jsonl").read_text().splitlines() for run in (one, two)]
        rows = [[json.loads(line) | {"seconds": 0} for line in lines] for lines in curves]
        assert rows[0] == rows[1]
        scores = [open_statistics(item.result(folder)).drop_vars("seconds") for folder in (cohort.out, other)]
        assert scores[0].equals(scores[1])


def killed(recipe, out, moment):
    """Train a cohort and kill it some seconds after it has saved a state; return whether a run was still being trained."""
    before = logged(out)
    process = begun(train_in, recipe, out)
    while logged(out) == before and trained(out) < 2 and process.is_alive():
        time.sleep(0.01)
    time.sleep(moment)
    process.kill()
    assert ended(process) == -signal.SIGKILL
    return trained(out) < 2


@pytest.mark.slow
def test_two_arms_killed_at_random_moments_are_bit_equal(undisturbed, tmp_path, full):
    draw = random.Random(0)
    recipe, kills = undisturbed.out.parent / "small.toml", KILLS_IN_FULL if full else KILLS
    out = tmp_path / "out"
    while not sum(killed(recipe, out, draw.uniform(0, 0.25)) for _ in range(kills)):  # a busy machine may come too late
        shutil.rmtree(out)
    assert len(train_cohort(Cohort(undisturbed.recipe, out), processes=2).done) == 2
    assert_equal(undisturbed, out)


@pytest.mark.full
def test_two_arms_on_two_nodes_of_a_ray_cluster_are_bit_equal(undisturbed, two_nodes, tmp_path):
    outcome = train_cohort(Cohort(undisturbed.recipe, tmp_path), ray=two_nodes.address)
    assert len(outcome.done) == 2 and not outcome.failed
    assert_equal(undisturbed, tmp_path)
