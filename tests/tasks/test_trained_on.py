"""Prompts that nobody worded are in the sentence that the model was trained on."""

import json
import shutil

import pytest

import diffscope
from diffscope import readings
from diffscope.cli import main
from diffscope.digests import write_proven_json
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.hypotheses.subjects import Settings
from diffscope.lab.sweeps.plan import Plan
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.trained_on import template_of
from tests import tiny

SHORT = " {city} {number}."


@pytest.fixture
def run(tmp_path):
    """A run's folder whose last stage was of short sentences."""
    folder = tmp_path / "run"
    tiny.own("v1").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    stages = [{"template": TEMPLATE}, {"template": SHORT}]
    write_proven_json(folder / "run.json", {"recipe": json.dumps({"stages": stages})})
    return folder


def test_the_last_stage_says_it_and_of_other_models_it_is_the_usual_one(run, tmp_path):
    assert template_of(str(run)) == SHORT
    shutil.copytree(run, tmp_path / "other")
    (tmp_path / "other" / "run.json").write_text('{"recipe": "of another program"}')
    for name in (str(tmp_path / "other"), "someone/model", "never saved", ""):
        assert template_of(name) == TEMPLATE
    damaged = (run / "run.json").read_text().replace("city", "town")
    (run / "run.json").write_text(damaged)
    with pytest.raises(CorruptFile, match="copy .* again"):
        template_of(str(run))


def test_prompts_are_drawn_in_it(run):
    scope = diffscope.load(run)
    read = scope.tokenizer.decode

    def asks_shortly(ids):
        return "magic" not in read(ids) and len(ids) > 10

    assert asks_shortly(Settings(prompts=1, length=48).prompts_for(scope)[0].ids)
    assert not asks_shortly(Settings(prompts=1, length=80, template=TEMPLATE).prompts_for(scope)[0].ids)
    assert all(asks_shortly(ids) for ids in readings.made_up(scope, 48, 2))
    reading = readings.depths(scope, [80], prompts=1)
    usual = readings.depths(scope, [80], prompts=1, task=diffscope.tasks.Retrieval(scope.tokenizer))
    assert reading.estimates.attrs["template"] == SHORT and usual.estimates.attrs["template"] == TEMPLATE
    with pytest.raises(DiffscopeError, match="measured on other prompts .template"):
        readings.contrast(reading.estimates, usual.estimates, ("short", "usual"))


def test_a_sweep_of_models_of_different_sentences_has_to_say_which(run, tmp_path):
    shutil.copytree(run, tmp_path / "other", ignore=shutil.ignore_patterns("run.json"))
    table = {"prompts": {"task": "controlled", "length": 48}, "statistics": ["gini"]}
    (prompts,) = Plan.of({**table, "models": str(run)}).sets
    assert prompts.fields["template"] == SHORT
    both = [str(run), str(tmp_path / "other")]
    with pytest.raises(DiffscopeError, match="different sentences; say which with template"):
        Plan.of({**table, "models": both})
    (prompts,) = Plan.of({**table, "models": both, "prompts": {**table["prompts"], "template": TEMPLATE}}).sets
    assert prompts.fields["template"] == TEMPLATE
    Plan.of({**table, "models": both, "prompts": {"task": "recall", "length": 48}})


def test_evaluate_asks_in_it(run, capsys):
    given = ["evaluate", "--model", str(run), "--prompts", "10", "--looks", "10", "--length", "48", "--json"]
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["template"] == SHORT
