"""The study's trainings are matched, use no seed of its pilots, and go one after the other."""

from dataclasses import replace

import pytest

from diffscope.errors import DiffscopeError
from diffscope.lab.items import Outcome
from diffscope.lab.training.stages import FORMED_IN_ALL
from studies.subtraction import train as module

PILOTS = {900}
ARMS = {
    "sinks": {"diff", "plus", "d-plus", "shared-a2", "standard", "standard-norm"},
    "sinks-tied": {"diff", "plus", "d-plus", "shared-a2", "standard", "standard-norm"},
    "mechanism": {"diff"},
    "text": {"diff", "plus", "standard-norm", "standard"},
    "lookup": {"diff", "plus", "d-plus", "shared-a2", "standard-norm"},
}


def recipe(part):
    return module.Recipe.load(str(module.Path(module.__file__).with_name(f"{part}.toml")))


@pytest.mark.parametrize("part", module.PARTS)
def test_arms_are_matched_and_weights_are_kept(part):
    loaded = recipe(part)
    rows = loaded.table(loaded.vocab_size + (273 if loaded.words else 0))
    assert {row["arm"] for row in rows} == ARMS[part]
    assert all(abs(row["ratio"] - 1) < 0.01 for row in rows)
    tuning = set(loaded.tuning.seeds) if loaded.tuning else set()
    assert loaded.keep_weights and not PILOTS & {*loaded.seeds, *tuning}


def test_recipes_declare_what_the_study_says():
    text, lookup, mechanism = recipe("text"), recipe("lookup"), recipe("mechanism")
    (stage,) = text.stages
    assert stage.steps * stage.shapes[0][0] * stage.shapes[0][1] == 16_384_000 and stage.planted == 0.05
    assert lookup.tuning.rule == FORMED_IN_ALL and len(lookup.tuning.seeds) == 4 and lookup.formed_by == "mean of three"
    assert {length for _, length in lookup.stages[1].shapes} == set(lookup.grid.lengths)
    first = module.Recipe.load("laptop")
    assert mechanism.stages == first.stages and mechanism.seeds == first.seeds and mechanism.learning_rate == 4e-3
    assert mechanism.formed_by == first.formed_by and mechanism.model == first.model


def test_the_two_recipes_of_copies_differ_in_one_thing():
    tied = recipe("sinks-tied")
    model = {**tied.model, "tie_word_embeddings": False}
    assert replace(tied, name="sinks", model=model) == recipe("sinks")


def test_parts_are_trained_in_order_and_one_without_its_corpus_is_named(monkeypatch, tmp_path):
    trained, told = [], []
    monkeypatch.setattr(module, "train_cohort", lambda cohort, **_: trained.append(cohort.out.name) or Outcome((), {}, ()))
    assert module.train(module.PARTS, tmp_path, None, told.append) == 1
    assert trained == ["sinks", "sinks-tied", "mechanism", "lookup"]
    assert [line for line in told if "give --text FOLDER" in line] == [line for line in told if line.startswith("text")]


def test_the_status_of_a_part_that_has_not_begun_is_of_its_pilots(tmp_path, capsys):
    module.show(("text", "sinks"), tmp_path / "none", None, processes=2)
    text, sinks, *arms = capsys.readouterr().out.splitlines()
    assert "give --text FOLDER" in text and len(arms) == 6
    assert sinks == f"sinks: at most {72 * 2000 * module.PILOTS['sinks'] / 2 / 3600:.1f} hours of 2 processes are left; not begun"
    assert not (tmp_path / "none").exists()


def test_a_second_process_does_not_train_at_once(tmp_path):
    with module.queue_of(tmp_path), pytest.raises(DiffscopeError, match="is being trained already"), module.queue_of(tmp_path):
        pass
    with module.queue_of(tmp_path):
        pass
