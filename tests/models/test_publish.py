"""Arms of a trained cohort become bundled models: scored as they are kept, with cards, never more than the wheel takes."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope import cards
from diffscope.errors import DiffscopeError
from diffscope.lab.accuracy import accuracy_of
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.initialisation import with_text
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.train_cohort import train_cohort
from diffscope.models import folders
from diffscope.storage.checksum import check_sums
from diffscope.tasks import Backcopy, Retrieval
from diffscope.tasks import training_sentence as trained_on
from diffscope.tasks.files import read_prompts
from diffscope.tasks.recall import Recall
from diffscope.tasks.sampling import draw
from diffscope.tasks.text_folder import SPLITS, TextFolder
from tests.lab.small_recipes import COPYING, PIECE, RUNNING, recipe_in, small_corpus, train
from tools import kinds_of_models
from tools import publish as tool
from tools.publish import card_text, publish

DOUBLE_WIDTH = '\ndouble-width = { attention = "standard", num_attention_heads = 2, num_key_value_heads = 2 }\n'


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    file = tmp_path_factory.mktemp("recipe") / "small.toml"
    file.write_text(PIECE.replace("\n[[stages]]", f"{DOUBLE_WIDTH}\n[[stages]]", 1))
    return Recipe.load(str(file))


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for arm in recipe.arms:
        train(recipe, arm, folder, seed=1)
    return folder


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Where models and examples go; what lies among the models."""
    monkeypatch.setitem(kinds_of_models.SCORED, "count", 10)
    monkeypatch.setitem(kinds_of_models.COPIES_SCORED, "sequences", 6)
    monkeypatch.setitem(kinds_of_models.COPIES_SCORED, "measured", 3)
    monkeypatch.setattr(kinds_of_models, "TEXT_EXAMPLES", (48,))
    monkeypatch.setattr(kinds_of_models, "DRAWS", 9)
    for module in (cards, folders):
        monkeypatch.setattr(module, "BUNDLED", tmp_path / "bundled")
    (tmp_path / "bundled" / "mini-diff").mkdir(parents=True)
    (tmp_path / "bundled" / "mini-diff" / "of-before.txt").write_text("another model")
    return {"target": tmp_path / "bundled", "examples": tmp_path / "examples.json"}


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_arms_of_a_cohort_become_bundled_models(run, recipe, places):
    summaries = publish(run, recipe, seed=1, **places)
    assert {summary["name"]: summary["checkpoints"] for summary in summaries} == {
        "mini-diff": [0, 5],  # the last step is the model itself
        "mini-standard": [],
    }
    assert not (places["target"] / "mini-diff" / "of-before.txt").exists()
    assert sorted(model["name"] for model in cards.bundled()) == ["mini-diff", "mini-standard"]
    for arm in ("diff", "standard"):
        kept, trained = places["target"] / f"mini-{arm}", diffscope.load(run / arm / "seed-1").model.state_dict()
        scope = diffscope.load(kept)
        for name, tensor in scope.model.state_dict().items():
            assert tensor.dtype == torch.float32 and torch.equal(tensor, trained[name].half().float()), name
        card = json.loads((kept / "card.json").read_text(encoding="utf-8"))
        prompts = draw(Retrieval(scope.tokenizer), 10, 64, 4, 20_000)
        assert card["summary"]["scores"]["retrieval"] == accuracy_of(scope, prompts).exact
        text = (kept / "README.md").read_text(encoding="utf-8")
        assert text == card_text(card["summary"], card["facts"], card["curves"])
        assert (
            f"--arm {arm} --seed 1" in text and "One of 3 matched arms" in text and "0.004 here" in text and '"CITY N."' in text
        )
        check_sums(kept)
    assert diffscope.load(f"{places['target'] / 'mini-diff'}@5").n_layers == 2
    for example in json.loads(places["examples"].read_text()):
        scope.capture(example["prompt"])


def test_a_model_of_running_text_has_its_losses_and_answers_on_its_card_and_examples_of_text(tmp_path, places, monkeypatch):
    folder, out = tmp_path / "corpus", tmp_path / "run"
    folder.mkdir()
    recipe = with_text(small_corpus(folder, recipe_in(tmp_path, RUNNING)), folder)
    assert not train_cohort(Cohort(recipe, out)).failed
    monkeypatch.setitem(kinds_of_models.TEXTS_SCORED, "length", 64)
    monkeypatch.setattr(kinds_of_models, "CORPUS", recipe.corpus)
    monkeypatch.setattr(kinds_of_models, "OF_EXAMPLES", "held_out")
    with pytest.raises(DiffscopeError, match="predicts no next word of 9 texts of 48 tokens"):
        publish(out / "weights", recipe, **places)
    assert not (places["target"] / "mini-text").exists()
    monkeypatch.setattr(kinds_of_models, "is_predicted", lambda scope, prompt: True)
    (summary,) = publish(out / "weights", recipe, **places)
    assert (summary["name"], summary["positions"], summary["checkpoints"]) == ("mini-text", 96, [])
    assert (places["target"] / "mini-diff" / "of-before.txt").exists()
    kept = places["target"] / "mini-text"
    scope = diffscope.load(kept)
    (example,) = read_prompts(places["examples"])
    cap = scope.capture(example.text, spans=example.spans)
    assert cap.n_tokens == 48 and example.answer in "".join(cap.tokens[at] for at in cap.spans["answer"])
    scores = summary["scores"]
    recalls = {split: Recall(scope.tokenizer, TextFolder(folder).texts(split)) for split in SPLITS}
    drawn = {
        "loss": recalls["held_out"].windows(64),
        "other_loss": recalls["other_domain"].windows(64, 64),
        "trained_loss": recalls["train"].rows(64, 64, np.random.default_rng(20_000)),
    }
    for name, (ids, _) in drawn.items():
        with torch.inference_mode():
            log_p = scope.model(torch.from_numpy(ids)).logits[:, :-1].double().log_softmax(-1)  # (text, token - 1, vocabulary)
        loss = -log_p.gather(-1, torch.from_numpy(ids)[:, 1:, None]).mean()
        assert scores[name] == pytest.approx(float(loss), rel=1e-5)
    assert scores["windows"] == len(drawn["loss"][0])
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    task = Retrieval(scope.tokenizer, template=" {city} {number}.", texts=TextFolder(folder).texts("held_out"))
    assert scores["retrieval"] == accuracy_of(scope, draw(task, 10, scores["tokens"], 4, 20_000)).exact
    text = (kept / "README.md").read_text(encoding="utf-8")
    assert f"trained on {scores['trained_loss']:.3f}" in text and recipe.corpus in text and "in 50% of" in text
    assert f"diffscope train {recipe.name} --text CORPUS --arm diff" in text and "--text CORPUS` trains it again" in text
    assert f"**{scores['perplexity']:.1f}**" in text and "\n| 10 | 96 | " in text
    assert trained_on.training_template(str(kept)) == task.template
    check_sums(kept)


def test_models_of_other_text_are_refused(run, recipe, places, tmp_path):
    bare = replace(recipe, stages=(replace(recipe.stages[0], needles=(0, 0), mentions=0),))
    for other in (bare, recipe_in(tmp_path, RUNNING)):
        with pytest.raises(DiffscopeError, match="its text is not that of the second study"):
            publish(run, other, **places)


def test_models_of_copies_have_on_their_cards_what_the_first_token_gets_and_examples_that_end_with_a_trigger(tmp_path, places):
    file = tmp_path / "sinks.toml"
    with_standard = DOUBLE_WIDTH.replace("double-width", "standard").replace("= 2", "= 4")
    file.write_text(COPYING.replace("\n[[stages]]", f"{with_standard}\n[[stages]]", 1))
    recipe = Recipe.load(str(file))
    for arm in recipe.arms:
        train(recipe, arm, tmp_path / "run", seed=3)
    summaries = publish(tmp_path / "run", recipe, seed=3, source=str(file), **places)
    assert [summary["name"] for summary in summaries] == ["mini-sinks", "mini-sinks-standard"]
    differential, standard = (summary["scores"]["first_token"] for summary in summaries)
    scope, task = diffscope.load(places["target"] / "mini-sinks"), Backcopy()
    rng = np.random.default_rng([20_000, 1])
    prompts = [task.prompt(recipe.length, rng) for _ in range(3)]
    places_of_a1 = [(layer, head) for layer in range(2) for head in range(2)]
    caps = [(scope.capture(prompt), prompt.spans["dormant"]) for prompt in prompts]
    shares = [[cap.map("A1", *place).values[dormant, 0].mean() for place in places_of_a1] for cap, dormant in caps]
    assert differential["A1"] == pytest.approx(np.mean(shares, 0).tolist(), abs=1e-6)
    assert [*differential] == ["A1", "A2", "D"] and [*standard] == ["D"] and len(standard["D"]) == 8
    text = (places["target"] / "mini-sinks" / "README.md").read_text(encoding="utf-8")
    assert f"`diffscope train {file} --arm diff --seed 3" in text and "One of a matched pair" in text
    assert f"A1 {differential['A1'][0]:.2f}, {differential['A1'][1]:.2f}, " in text and "drawn from seed 3." in text
    for example in read_prompts(places["examples"]):
        cap = scope.capture(example)
        assert (
            list(cap.spans["sink"]) == [0] and cap.spans["query"][-1] == cap.n_tokens - 1 and example.text[-2] == example.answer
        )
        assert scope.tokenize(example.text)[-1] in task.trigger_ids and example.answer not in example.distractors


def test_models_with_a_name_of_their_own_come_beside_those_that_are_there(run, recipe, places):
    publish(run, recipe, ["diff"], 1, **places)
    before = everything(places["target"] / "mini-diff"), places["examples"].read_bytes()
    summaries = publish(run, recipe, ["diff", "standard"], 1, name="lookup", **places)
    assert {summary["name"]: summary["checkpoints"] for summary in summaries} == {"mini-lookup": [], "mini-lookup-standard": []}
    assert (everything(places["target"] / "mini-diff"), places["examples"].read_bytes()) == before


def test_checkpoints_and_arms_that_are_named_are_kept(run, recipe, places):
    (summary,) = publish(run, recipe, ["standard"], 1, ["standard@5"], **places)
    assert summary["checkpoints"] == [5] and (places["target"] / "mini-diff" / "of-before.txt").exists()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"seed": 7}, "seed-7 holds no finished run of 'diff'"),
        ({"arms": ["signed"]}, "no finished run of 'signed'"),
        ({"keep": ["diff@3"]}, "no checkpoint diff@3; there are diff@0, diff@5"),
        ({"most": 100_000}, "come to 0.3 MB, and the wheel takes 0.1 MB of weights; keep fewer checkpoints"),
        ({"stages": 2}, "seed-1 never formed the lookup circuit; choose another seed"),
        ({"learning_rate": 1e-3}, "seed-1 was begun with another recipe .it differs in learning_rate."),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_replaced(run, recipe, places, change, words, monkeypatch):
    before = everything(places["target"])
    monkeypatch.setattr(tool, "MOST", change.get("most", tool.MOST))
    wanted = {name: value for name, value in change.items() if name in ("seed", "arms", "keep")}
    other = replace(recipe, learning_rate=change.get("learning_rate", recipe.learning_rate))
    named = replace(other, stages=recipe.stages * change.get("stages", 1))  # of two stages, of which the runs have the first
    with pytest.raises(DiffscopeError, match=words) as error:
        publish(run, named, **{"seed": 1, **wanted}, **places)
    assert "\n" not in str(error.value) and everything(places["target"]) == before and not places["examples"].exists()


def test_models_that_stay_count_too(run, recipe, places, monkeypatch):
    publish(run, recipe, ["diff"], 1, **places)
    size = sum(path.stat().st_size for path in places["target"].rglob("*.safetensors"))
    monkeypatch.setattr(tool, "MOST", size)
    publish(run, recipe, ["diff"], 1, **places)  # in its own place
    shutil.copytree(places["target"] / "mini-diff", places["target"] / "another")
    with pytest.raises(DiffscopeError, match="remove other models"):
        publish(run, recipe, ["diff"], 1, **places)
