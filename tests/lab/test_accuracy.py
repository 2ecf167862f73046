"""Accuracy beside chance, of one model and of the checkpoints of a training."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import diffscope
from diffscope.errors import CorruptFile, DiffscopeError, PromptError
from diffscope.lab.accuracy import accuracy_of, accuracy_over_training, exact_by_depth
from diffscope.lab.training.run import METRICS, checkpoints_of, note_run, save_checkpoint, write_metrics
from diffscope.models.folders import RUN, steps_of
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.sampling import draw
from tests import tiny
from tests.tokenizers_of_kinds import tokenizer


@pytest.fixture
def run(tmp_path):
    """A run's folder with two checkpoints, of which the last is the end of its training."""
    model = tiny.own("v1")
    model.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    for step in (0, 40):
        save_checkpoint(model, tmp_path / "checkpoints" / f"step-{step:06d}")
    return tmp_path


def test_the_model_itself_stands_at_the_last_step_of_its_training(run):
    names = checkpoints_of("mini-diff").names
    *kept, last = names.items()
    assert kept == [(step, f"mini-diff@{step}") for step in steps_of("mini-diff")] and last == (max(names), "mini-diff")
    assert checkpoints_of("mini-standard").names == {} and checkpoints_of("mini-diff@0").names == {}
    assert checkpoints_of(str(run)).names == {0: f"{run}@0", 40: f"{run}@40"}  # nothing says when it ended
    write_metrics(run, [{"step": 10}, {"step": 40}])
    assert checkpoints_of(str(run)).names == {0: f"{run}@0", 40: str(run)}
    write_metrics(run, [{"step": 10}, {"step": 50}])
    kept = checkpoints_of(str(run))
    assert kept.names == {0: f"{run}@0", 40: f"{run}@40", 50: str(run)} and kept.last == 50 and kept.template == TEMPLATE
    stages = [{"needles": [2, 4], "template": f" {{city}}{mark} {{number}}."} for mark in (":", "")]
    recipe = json.dumps({"stages": stages})
    note_run(run / RUN, 0, {"recipe": recipe}, {"device": "cpu"})
    assert checkpoints_of(str(run)).template == " {city} {number}."


def test_what_is_written_of_a_training_may_be_damaged(run):
    (run / METRICS).write_text('{"step": ')
    with pytest.raises(CorruptFile, match="the record of the training in .* cannot be read"):
        checkpoints_of(str(run))


def test_every_checkpoint_is_scored_on_the_same_prompts_with_intervals():
    told = []
    names = {0: "mini-diff@0", 1900: "mini-diff"}
    template = checkpoints_of("mini-diff").template
    answers = accuracy_over_training(names, 10, 96, template=template, progress=lambda *said: told.append(said))
    assert told == [(0, 2, "asking mini-diff@0"), (1, 2, "asking mini-diff")]
    assert answers["exact"].values.tolist() == [0.0, 1.0] and answers["standard_error"].values.tolist() == [0.0, 0.0]
    z2 = 1.959964**2  # Wilson's interval where all or none are right
    np.testing.assert_allclose(answers["exact_low"].values, [0, 10 / (10 + z2)], atol=1e-6)
    np.testing.assert_allclose(answers["exact_high"].values, [z2 / (10 + z2), 1], atol=1e-6)
    assert answers.attrs["chance"] == 0.25 and answers.attrs["prompts"] == 10
    for step, name in names.items():
        scope = diffscope.load(name)
        prompts = draw(Retrieval(scope.tokenizer, held_out=True, template=template), 10, 96, 4, 60_000)
        assert float(answers["log_odds"].sel(step=step)) == pytest.approx(accuracy_of(scope, prompts).log_odds)
    assert "0 % at step 0 (95 % 0 to 28) and 100 % at step 1900 (95 % 72 to 100)" in answers.attrs["sentence"]


def test_of_prompts_without_distractors_chance_is_said_to_be_unknown():
    answers = accuracy_over_training({400: "mini-diff"}, 3, 100, needles=1)  # too few for every depth, which is no matter here
    assert math.isnan(answers.attrs["chance"]) and "nan" not in answers.attrs["sentence"]
    assert answers.attrs["sentence"].endswith("; chance is not known: no prompt names its distractors.")


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(DiffscopeError, match="no checkpoint"):
        accuracy_over_training({})
    for asked in ({"prompts": 0}, {"prompts": 1.5}, {"needles": 0}, {"seed": -1}):
        with pytest.raises(DiffscopeError, match="a whole number from [01], and not"):
            accuracy_over_training({0: "mini-diff@0"}, **asked)
    with pytest.raises(PromptError, match=r"positions for (512|1024)"):
        accuracy_over_training({0: "mini-diff@0"}, 10, 2000)
    with pytest.raises(PromptError, match="tokenizer"):
        accuracy_over_training({0: "x"}, 10, opener=lambda name: diffscope.load(tiny.own("v1")))


def test_exact_answers_are_summarised_by_depth():
    right = np.array([True, False, True, True, True] * 10)
    scores = exact_by_depth(right)
    assert scores["retrieval"] == 0.8 and scores["by_depth"]["0.25"] == 0.0 and scores["by_depth"]["1.0"] == 1.0
    assert scores["interval"] == pytest.approx([0.6696, 0.8876], abs=1e-3)  # Wilson, 40 of 50


def test_a_model_that_never_learned_it_answers_at_chance():
    task = Retrieval(tokenizer("qwen"))
    scope = diffscope.load(tiny.standard("llama"), tokenizer=task.tokenizer)
    accuracy = accuracy_of(scope, draw(task, 10, 180, 4, 0))
    assert accuracy.at_chance and accuracy.chance == 0.25 and accuracy.blind == pytest.approx(-math.log(3))
    assert "answers at chance" in accuracy.sentence and "does not answer" in accuracy.sentence
    trained = diffscope.load("mini-diff")
    accuracy = accuracy_of(trained, draw(Retrieval(trained.tokenizer), 10, 128, 4, 0))
    assert not accuracy.at_chance and accuracy.log_odds_low > 0 and "at chance" not in accuracy.sentence


def test_prompts_too_few_to_be_told_from_chance_and_those_left_out_are_said():
    trained = diffscope.load("mini-diff")
    alone, other = draw(Retrieval(trained.tokenizer), 2, 128, 4, 0)
    accuracy = accuracy_of(trained, [alone, replace(other, distractors=[])])
    assert (accuracy.prompts, accuracy.left_out, accuracy.at_chance, accuracy.as_dict()["at_chance"]) == (1, 1, False, None)
    assert (
        "100.0% of 1 prompt exactly (1 prompt without distractors left out); these are too few prompts to tell"
        in accuracy.sentence
    )


def test_a_prompt_beyond_the_model_is_refused_in_one_line():
    task = Retrieval(tokenizer("gpt2"))
    scope = diffscope.load(tiny.standard("gpt2"), tokenizer=task.tokenizer)
    with pytest.raises(PromptError, match="has positions for 256"):
        accuracy_of(scope, draw(task, 10, 300, 4, 0))
