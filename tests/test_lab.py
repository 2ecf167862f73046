"""Training is matched, ordered and resumable to the step; scores count what greedy decoding would say."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import diffscope
from diffscope.errors import DiffscopeError, PromptError
from diffscope.lab import evaluate
from diffscope.lab.recipe import Recipe, Stage
from diffscope.lab.train import train
from diffscope.models import DiffForCausalLM
from diffscope.tasks import Retrieval

SMALL = """
from dataclasses import replace
from diffscope.lab.recipe import Recipe, Stage
recipe = Recipe.load("mini")
stages = (Stage(12, 72, 2, (2, 2), 6, 0.1), Stage(12, 96, 2, (2, 3), 7, 0.3))
model = {**recipe.model, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
recipe = replace(recipe, vocab_size=400, stages=stages, model=model, checkpoints=3, evaluate_every=20)
"""


def small() -> Recipe:
    names = {}
    exec(SMALL, names)
    return names["recipe"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(small(), "mini-diff", tmp_path_factory.mktemp("run"))


def test_killed_and_resumed_is_bit_equal(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    killed = (
        SMALL
        + f"""
import os, signal
from diffscope.lab import train as lab
lab.SAVE_EVERY = 5
def die(done, total, note):
    if done == 10: os.kill(os.getpid(), signal.SIGKILL)
lab.train(recipe, "mini-diff", {str(tmp_path)!r}, progress=die)
"""
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", killed]).returncode == -signal.SIGKILL
    resumed_from = []
    again = train(small(), "mini-diff", tmp_path, progress=lambda done, total, note: resumed_from.append(done))
    assert resumed_from[0] == 10  # the state of step 5 was there, steps 6 to 10 were done again
    left, right = load_file(undisturbed / "model.safetensors"), load_file(again / "model.safetensors")
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)

    def curve(folder):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]

    assert curve(undisturbed) == curve(again)


def test_a_run_keeps_checkpoints_from_step_0(undisturbed):
    kept = sorted(path.name for path in (undisturbed / "checkpoints").iterdir())
    assert kept == [f"step-{step:06d}" for step in small().saved_steps()] and kept[0] == "step-000000"
    first = load_file(undisturbed / "checkpoints" / kept[0] / "model.safetensors")
    torch.manual_seed(small().seed)
    fresh = DiffForCausalLM(diffscope.load(undisturbed).model.config)
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(first[name], fresh.state_dict()[name].half())


def test_both_arms_see_the_same_prompts_in_the_same_order(monkeypatch, tmp_path):
    seen = {}
    original = Retrieval.training_rows
    for arm in ("mini-diff", "mini-standard"):
        monkeypatch.setattr(
            Retrieval,
            "training_rows",
            lambda self, *args, arm=arm: seen.setdefault(arm, []).append(original(self, *args)) or seen[arm][-1],
        )
        train(replace(small(), stages=(Stage(3, 72, 2, (2, 2), 6, 0.1),)), arm, tmp_path)
    for ours, theirs in zip(*seen.values(), strict=True):
        assert np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1], theirs[1])


def test_the_bundled_arms_match_in_parameters():
    recipe = Recipe.load("mini")
    counts = [DiffForCausalLM(recipe.config(arm, 1461)).num_parameters() for arm in recipe.arms]
    assert max(counts) / min(counts) < 1.01


def test_stages_rates_and_saved_steps():
    recipe = Recipe.load("mini")
    assert recipe.stage(0) == recipe.stages[0] and recipe.stage(recipe.steps - 1) == recipe.stages[-1]
    assert recipe.stage(recipe.stages[0].steps) == recipe.stages[1]
    assert recipe.rate(0) < recipe.rate(recipe.warmup) == recipe.learning_rate > recipe.rate(recipe.steps - 1)
    steps = recipe.saved_steps()
    assert steps[0] == 0 and steps[-1] == recipe.steps and len(steps) == recipe.checkpoints


@pytest.mark.parametrize(
    "change, words", [("", "no recipe"), ("vocab_size = 400", "not a complete recipe"), ("name = ", "not a complete recipe")]
)
def test_a_bad_recipe_is_one_clear_line(tmp_path, change, words):
    path = tmp_path / "recipe.toml"
    if change:
        path.write_text(change)
    with pytest.raises(DiffscopeError, match=words):
        Recipe.load(str(path))


def test_an_unknown_arm_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(DiffscopeError, match="its arms are: mini-diff, mini-standard"):
        train(small(), "mini-v9", tmp_path)
    assert not list(tmp_path.iterdir())


def test_exact_answers_are_what_generate_says(undisturbed):
    scope = diffscope.load(undisturbed)
    task = Retrieval(scope.tokenizer, held_out=True)
    prompts = evaluate.draw(task, 12, 96, 2, seed=0)
    with torch.no_grad():
        for prompt in prompts[:6]:  # six answers that are right by construction: what the model says is the answer
            out = scope.model.generate(torch.tensor([prompt.ids]), max_new_tokens=2, do_sample=False, eos_token_id=None)
            prompt.answer[:] = out[0, -2:].tolist()
    said = [
        scope.model.generate(torch.tensor([p.ids]), max_new_tokens=2, do_sample=False, eos_token_id=None)[0, -2:].tolist()
        for p in prompts
    ]
    assert evaluate.exact_answers(scope.model, prompts, rows=5).tolist() == [p.answer == s for p, s in zip(prompts, said)]


def test_scores_by_depth_and_interval():
    right = np.array([True, False, True, True, True] * 10)
    scores = evaluate.score(right)
    assert scores["retrieval"] == 0.8 and scores["by_depth"]["0.25"] == 0.0 and scores["by_depth"]["1.0"] == 1.0
    assert scores["interval"] == pytest.approx([0.6696, 0.8876], abs=1e-3)  # Wilson, 40 of 50


def test_the_depth_table_is_the_mean_of_its_captures(undisturbed):
    scope = diffscope.load(undisturbed)
    prompts = evaluate.draw(Retrieval(scope.tokenizer, held_out=True), 10, 96, 2, seed=0)
    table = evaluate.span_by_depth(scope, prompts)
    assert table["mass"].dims[0] == "depth" and table["depth"].values.tolist() == list(evaluate.DEPTHS)
    by_hand = [
        float(scope.capture(p.ids).map("share", 1, 0, queries=[95]).isel(query=0, key=p.spans["answer"]).sum())
        for p in (prompts[1], prompts[6])
    ]
    chosen = dict(depth=0.25, layer=1, head=0, map="D", span="answer", normalisation="share")
    assert float(table["mass"].sel(chosen)) == pytest.approx(np.mean(by_hand), abs=1e-6)
    assert np.allclose(table["mean"], table["mass"].mean(["layer", "head"], skipna=False), equal_nan=True, atol=1e-6)
    spans = table["mass"].sel(map="D", normalisation="share", span=["sink", "answer", "needles", "query", "context"])
    assert np.allclose(spans.sum("span"), 1, atol=1e-5)


def test_another_recipe_does_not_go_on_in_the_same_folder(tmp_path):
    short = replace(small(), stages=(Stage(2, 72, 2, (2, 2), 6, 0.1),))
    train(short, "mini-diff", tmp_path)
    with pytest.raises(DiffscopeError, match="begun with another recipe"):
        train(replace(short, learning_rate=1.0), "mini-diff", tmp_path)


def test_too_few_prompts_are_refused(undisturbed):
    scope = diffscope.load(undisturbed)
    with pytest.raises(PromptError, match="do not spread"):
        evaluate.span_by_depth(scope, evaluate.draw(Retrieval(scope.tokenizer), 5, 96, 2, seed=0))


FAMILY = {
    "diff": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2),
    "standard": dict(attention="standard", num_attention_heads=4, num_key_value_heads=4),
    "signed": dict(attention="signed", num_attention_heads=4, num_key_value_heads=4),
    "low rank": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2, second_dim=4),
    "v2": dict(attention="v2", num_attention_heads=4, num_key_value_heads=4),
    "as it is": dict(attention="v2", num_attention_heads=4, num_key_value_heads=4, intermediate_size=40),
}


def test_arms_are_matched_in_parameters_by_the_width_of_their_mlps():
    model = {**Recipe.load("mini").model, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
    recipe = replace(Recipe.load("mini"), arms=FAMILY, match="diff", model=model)
    rows = {row["arm"]: row for row in recipe.table(500)}
    counts = {arm: DiffForCausalLM(recipe.config(arm, 500)).num_parameters() for arm in FAMILY}
    assert {arm: row["parameters"] for arm, row in rows.items()} == counts
    assert all(abs(row["ratio"] - 1) < 0.005 for arm, row in rows.items() if arm != "as it is")
    assert rows["diff"]["intermediate_size"] == 160 and rows["as it is"]["intermediate_size"] == 40
    assert rows["signed"]["intermediate_size"] < rows["standard"]["intermediate_size"] < rows["low rank"]["intermediate_size"]


def test_an_arm_too_large_to_match_is_refused():
    model = {**Recipe.load("mini").model, "hidden_size": 64, "intermediate_size": 1, "num_hidden_layers": 2}
    with pytest.raises(DiffscopeError, match="without its MLPs"):
        replace(Recipe.load("mini"), arms=FAMILY, match="diff", model=model).config("signed", 500)
