"""Checkpoints by step, and how a model answers along its training."""

import json

import numpy as np
import pytest

import diffscope
from diffscope.errors import CorruptFile, DiffscopeError, PromptError
from diffscope.lab.accuracy import standing
from diffscope.lab.along import answers_along
from diffscope.lab.scoring import draw
from diffscope.lab.training.checkpoints import checkpoints_of
from diffscope.lab.training.run import METRICS, RUN, note_run, save_checkpoint, write_metrics
from diffscope.models.loading import steps_of
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from tests import tiny


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
    with pytest.raises(CorruptFile, match="says of its training cannot be read"):
        checkpoints_of(str(run))


def test_every_checkpoint_is_asked_the_same_and_its_interval_is_told():
    told = []
    names = {0: "mini-diff@0", 1900: "mini-diff"}
    template = checkpoints_of("mini-diff").template
    answers = answers_along(names, 10, 96, template=template, progress=lambda *said: told.append(said))
    assert told == [(0, 2, "asking mini-diff@0"), (1, 2, "asking mini-diff")]
    assert answers["exact"].values.tolist() == [0.0, 1.0] and answers["standard_error"].values.tolist() == [0.0, 0.0]
    z2 = 1.959964**2  # Wilson's interval where all or none are right
    np.testing.assert_allclose(answers["exact_low"].values, [0, 10 / (10 + z2)], atol=1e-6)
    np.testing.assert_allclose(answers["exact_high"].values, [z2 / (10 + z2), 1], atol=1e-6)
    assert answers.attrs["chance"] == 0.25 and answers.attrs["prompts"] == 10
    for step, name in names.items():
        scope = diffscope.load(name)
        prompts = draw(Retrieval(scope.tokenizer, held_out=True, template=template), 10, 96, 4, 60_000)
        assert float(answers["log_odds"].sel(step=step)) == pytest.approx(standing(scope, prompts).log_odds)
    assert "0 % at step 0 (95 % 0 to 28) and 100 % at step 1900 (95 % 72 to 100)" in answers.attrs["sentence"]


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(DiffscopeError, match="no checkpoint"):
        answers_along({})
    with pytest.raises(PromptError, match=r"positions for (512|1024)"):
        answers_along({0: "mini-diff@0"}, 10, 2000)
    with pytest.raises(PromptError, match="tokenizer"):
        answers_along({0: "x"}, 10, opener=lambda name: diffscope.load(tiny.own("v1")))
