"""Prompts that nobody worded are in the sentence that the model was trained on."""

import json
import shutil

import pytest

import diffscope
from diffscope import readings
from diffscope.cli import main
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.hypotheses import Settings, gather
from diffscope.lab.plan import Plan
from diffscope.lab.training.run import save_checkpoint
from diffscope.models.loading import load_model
from diffscope.storage.checksum import write_proven_json
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.training_sentence import template_mismatches, template_of, training_template
from tests import tiny

SHORT = " {city} {number}."


@pytest.fixture
def run(tmp_path):
    """A run's folder whose last stage was of short sentences."""
    folder = tmp_path / "run"
    tiny.own("v1").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    stages = [{"needles": [2, 4]}, {"needles": [2, 24], "template": SHORT}, {"text_weight": 1.0}]  # in the end plain text
    write_proven_json(folder / "run.json", {"recipe": json.dumps({"stages": stages})})
    return folder


def test_the_last_stage_with_needles_says_it_and_of_other_models_nothing_does(run, tmp_path, monkeypatch):
    assert training_template(str(run)) == template_of(str(run)) == SHORT
    scope = diffscope.load(run)
    save_checkpoint(scope.model, run / "checkpoints" / "step-000040")
    assert (
        training_template(f"{run}@40")
        == training_template(diffscope.load(f"{run}@40").model)
        == training_template(scope.model)
        == SHORT
    )
    for name in ("someone/model", "never saved", ""):
        assert training_template(name) is None and template_of(name) == TEMPLATE
    monkeypatch.chdir(run)
    assert training_template(tiny.own("v1")) is None  # wherever one stands
    for number, content in enumerate(('{"recipe": "of another program"}', "[]", '{"recipe": {"stages": ["a"]}}', "{")):
        for name in ("run.json", "card.json"):
            other = shutil.copytree(run, tmp_path / f"{number}-{name}", ignore=shutil.ignore_patterns("run.json"))
            (other / name).write_text(content)
            assert training_template(str(other)) is None, (name, content)
    before = json.dumps({"recipe": json.dumps({"stages": [{"needles": [2, 4], "template": SHORT}]})})  # without a digest
    (other / "run.json").write_text(before)
    assert training_template(str(other)) == SHORT
    (run / "run.json").write_text((run / "run.json").read_text().replace("city", "town"))
    with pytest.raises(CorruptFile, match="copy .* again"):
        template_of(str(run))


def test_bundled_models_say_it():
    from diffscope.models import bundled

    for card in bundled():
        assert (training_template(card["name"]) is not None) == (card["task"] != "copies"), card["name"]
    assert template_of("mini-text") == SHORT and template_of("mini-sinks") == TEMPLATE


def test_prompts_are_drawn_in_it(run):
    model, tokenizer = load_model(str(run))
    scope = diffscope.Scope(model, tokenizer, "as the app calls it")
    read = tokenizer.decode

    def asks_shortly(ids):
        return "magic" not in read(ids) and len(ids) > 10

    assert asks_shortly(Settings(prompts=1, length=48).prompts_for(scope)[0].ids)
    assert not asks_shortly(Settings(prompts=1, length=80, template=TEMPLATE).prompts_for(scope)[0].ids)
    assert all(asks_shortly(ids) for ids in readings.synthetic_prompts(scope, 48, 2))
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
    write_proven_json(tmp_path / "other" / "run.json", {"recipe": json.dumps({"stages": [{"needles": [2, 4]}]})})
    both = [str(run), str(tmp_path / "other")]
    (prompts,) = Plan.of({**table, "models": [str(run), "someone/model"]}).sets  # which nothing is known of
    assert prompts.fields["template"] == SHORT
    with pytest.raises(DiffscopeError, match="different sentences; say which with template"):
        Plan.of({**table, "models": both})
    (prompts,) = Plan.of({**table, "models": both, "prompts": {**table["prompts"], "template": TEMPLATE}}).sets
    assert prompts.fields["template"] == TEMPLATE
    Plan.of({**table, "models": both, "prompts": {"task": "recall", "length": 48}})


def test_two_models_are_asked_the_same_and_it_is_told(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other", ignore=shutil.ignore_patterns("run.json"))
    record = {"recipe": json.dumps({"stages": [{"needles": [2, 4]}]})}
    write_proven_json(other / "run.json", record)
    subjects = gather([str(run)], [str(other)], needs={"pair"}, settings=Settings(prompts=2, length=80))
    assert subjects.settings.template == SHORT
    diff, standard = subjects.pair.diff.prompts, subjects.pair.standard.prompts
    assert [prompt.ids for prompt in diff] == [prompt.ids for prompt in standard]
    assert subjects.statements[0] == f"{other} was trained on “{TEMPLATE.strip()}” and is asked in “{SHORT.strip()}”"
    assert template_mismatches(SHORT, {"a": str(run), "b": "someone/model"}) == []


def test_evaluate_asks_in_it(run, capsys):
    given = ["evaluate", "--model", str(run), "--prompts", "10", "--looks", "10", "--length", "48"]  # in which no longer ones fit
    assert main(given) == 0
    assert f"“{SHORT.strip()}”" in capsys.readouterr().out
    assert main([*given, "--template", TEMPLATE]) == 2
