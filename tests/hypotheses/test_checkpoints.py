"""Checkpoints of a training: growth and pulls that were planted are found, and several trainings are seeds."""

import numpy as np
import pytest

from diffscope.errors import Missing
from diffscope.evidence import take
from diffscope.evidence.quantities import OF_FLOWS, named
from diffscope.evidence.take import evidence_of
from diffscope.evidence.untrained import untrained_like
from diffscope.hypotheses import Settings, gather, run
from diffscope.hypotheses.measure import growth, late_mean, over_trainings
from diffscope.hypotheses.statistics import Sample
from diffscope.lab.training.run import save_checkpoint
from studies.laptop.calibration.synthetic import Planted, planted_models, simulated_models
from tests import tiny

STEPS = [0, 10, 50, 200, 800]


class Forming(Planted):
    """A truth that is there from the fourth checkpoint on."""

    def read(self, prompts, seed, match=None):
        return Planted("NC" if seed > 2 else "neither", layers=1).read(prompts, seed, match)


def test_growth_over_checkpoints_is_what_was_planted(prompts):
    """Maps that share their noise ever more, and such that never do."""
    few = prompts[:6]
    growing = planted_models(Forming("neither", layers=1), few, range(5), 15, STEPS)
    (verdict,) = run("noise-symmetry-training", checkpoints=[growing])
    assert verdict.verdicts["NC"] == "for", verdict.sentence
    flat = planted_models(Planted("neither", layers=1), few, range(5), 15, STEPS)
    (verdict,) = run("noise-symmetry-training", checkpoints=[flat])
    assert verdict.verdicts["NC"] in ("open", "against"), verdict.sentence
    steps = np.log2(1 + np.array([0.0, 10, 50]))
    assert growth(steps, (2 * steps)[:, None]) == pytest.approx(2 * steps[-1])


def test_a_pull_towards_shared_noise_is_found_and_so_is_its_opposite(prompts):
    planted = Planted("neither", layers=1)
    read = [planted.read(prompts, step) for step in range(4)]

    def evidence(pull, step, seed):
        return evidence_of(read[step], prompts, flows=named(OF_FLOWS, planted.flows(prompts, pull, seed)))

    null = [evidence(0.0, index % 4, 100 + index) for index in range(20)]
    for pull, expected in ((0.4, ["for"]), (-0.4, ["against"]), (0.0, ["open", "against"])):
        series = simulated_models([evidence(pull, step, step) for step in range(4)], null, STEPS[:4])
        (verdict,) = run("gradient-dynamics", checkpoints=[series])
        assert verdict.verdicts["NC"] in expected, verdict.sentence


def test_trainings_have_untrained_models_of_their_own_and_each_keeps_one(tokenizer, tmp_path, monkeypatch):
    model = tiny.own("v1", vocab_size=len(tokenizer), heads=2, num_hidden_layers=1)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    for step in (0, 4):
        save_checkpoint(model, tmp_path / "checkpoints" / f"step-{step:06d}")
    first, second = gather([str(tmp_path)] * 2, needs={"checkpoints"}, settings=Settings(prompts=1, length=96)).checkpoints
    steps = len(first.scopes)
    assert second.source.seed - first.source.seed == first.source.untrained == 3 * steps
    made = []
    monkeypatch.setattr(take, "untrained_like", lambda model, seed: made.append(seed) or untrained_like(model, seed))
    for label, of in (("sparser", first), ("sparser", second), ("previous", first)):
        of.tables(label)
    alone, other, shared = made[: 3 * steps], made[3 * steps : 6 * steps], made[6 * steps :]
    assert len({*alone, *other}) == 6 * steps  # another at each step
    by_step = np.reshape(shared, (steps, 3))  # but one for all steps of what takes long
    assert (by_step == by_step[0]).all() and len({*by_step[0]}) == 3


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


def test_what_some_trainings_lack_is_of_the_others_and_says_so():
    def measure(names):
        return {name: Sample(np.array([[1.0, 2.0]])) for name in names}

    for order in (["ab", "a"], ["a", "ab"]):
        joined = over_trainings(measure, order)
        assert joined["a"].values.shape == (2, 2) and joined["a"].note == ""
        assert joined["b"].values.shape == (1, 2) and joined["b"].note == "not measured in 1 of 2 trainings"
