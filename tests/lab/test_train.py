"""Training is matched, ordered and resumable to the step; scores count what greedy decoding would say."""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import diffscope
from diffscope.digests import KEY, write_proven_json
from diffscope.errors import CorruptFile, DiffscopeError, PromptError
from diffscope.lab import scoring
from diffscope.lab.training import train as module
from diffscope.lab.training.beginnings import initialise
from diffscope.lab.training.optimizer import Optimizer
from diffscope.lab.training.recipe import Recipe, Stage
from diffscope.lab.training.train import train
from diffscope.models import DiffForCausalLM
from diffscope.tasks import Recall, Retrieval
from tests.lab.forked import begun, ended
from tests.lab.small_recipes import PIECE, pair


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(pair(), "diff", tmp_path_factory.mktemp("run"))


def train_and_die(folder):
    module.SAVE_EVERY = 5

    def die(done, total, note):
        if done == 10:
            os.kill(os.getpid(), signal.SIGKILL)

    train(pair(), "diff", folder, progress=die)


def test_killed_and_resumed_is_bit_equal(undisturbed, tmp_path):
    assert ended(begun(train_and_die, tmp_path), 300) == -signal.SIGKILL
    resumed_from = []
    again = train(pair(), "diff", tmp_path, progress=lambda done, total, note: resumed_from.append(done))
    assert resumed_from[0] == 10  # the state of step 5 was there, steps 6 to 10 were done again
    left = load_file(undisturbed / "model.safetensors")
    right = load_file(again / "model.safetensors")
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)

    def curve(folder):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]

    assert curve(undisturbed) == curve(again)


def test_killed_while_the_model_was_written_it_is_written_again(undisturbed, tmp_path):
    again = shutil.copytree(undisturbed, tmp_path / "diff" / "seed-0")
    (again / "model.safetensors").unlink()
    (again / "unfinished").mkdir()
    (again / "unfinished" / "model.safetensors").write_bytes(b"half of it")
    assert train(pair(), "diff", tmp_path) == again and not (again / "unfinished").exists()
    assert (again / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_a_run_says_what_it_was_begun_and_gone_on_with(undisturbed, tmp_path):
    begun = json.loads((undisturbed / "run.json").read_text())
    assert begun["device"] == "cpu" and begun["torch"] == torch.__version__ and begun["gone_on"] == []
    again = shutil.copytree(undisturbed, tmp_path / "diff" / "seed-0")
    older = {name: value for name, value in begun.items() if name not in (KEY, "recipe", "gone_on")} | {"torch": "2.0"}
    write_proven_json(again / "run.json", older)
    (again / "model.safetensors").unlink()
    for _ in range(2):  # the second time it is finished
        train(pair(), "diff", tmp_path)
        facts = json.loads((again / "run.json").read_text())
        assert facts["torch"] == "2.0" and facts["recipe"] == begun["recipe"]
        assert [(stretch["step"], stretch["torch"]) for stretch in facts["gone_on"]] == [(24, torch.__version__)]


def test_a_run_keeps_checkpoints_from_step_0(undisturbed):
    names = sorted(path.name for path in (undisturbed / "checkpoints").iterdir())
    assert names == [f"step-{step:06d}" for step in (0, 6, 12, 24)]
    first = load_file(undisturbed / "checkpoints" / names[0] / "model.safetensors")
    fresh = DiffForCausalLM(diffscope.load(undisturbed).model.config)
    initialise(fresh, pair().seeds[0])
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(first[name], fresh.state_dict()[name].half())


def test_a_bit_of_a_trained_model_does_not_change_unseen(undisturbed, tmp_path):
    run = shutil.copytree(undisturbed, tmp_path / "run")
    checkpoint = min((run / "checkpoints").iterdir())
    step = int(checkpoint.name.removeprefix("step-"))
    for name, path in {
        f"{run}@{step}": checkpoint / "model.safetensors",
        str(run): run / "model.safetensors",
    }.items():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CorruptFile, match=f"{path} is damaged"):
            diffscope.load(name)
        path.write_bytes(whole)


def test_both_arms_see_the_same_prompts_in_the_same_order(monkeypatch, tmp_path):
    seen = {}
    original = Retrieval.training_rows
    for arm in ("diff", "standard"):
        monkeypatch.setattr(
            Retrieval,
            "training_rows",
            lambda self, *args, arm=arm: seen.setdefault(arm, []).append(original(self, *args)) or seen[arm][-1],
        )
        train(replace(pair(), stages=(Stage(3, ((2, 72),), 0.1, (2, 2), 6, warmup=1),)), arm, tmp_path)
    for ours, theirs in zip(*seen.values(), strict=True):
        assert np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1], theirs[1])


def test_an_unknown_arm_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(DiffscopeError, match="its arms are: diff, standard"):
        train(pair(), "v9", tmp_path)
    assert not list(tmp_path.iterdir())


def test_exact_answers_are_what_generate_says(undisturbed):
    scope = diffscope.load(undisturbed)
    task = Retrieval(scope.tokenizer, held_out=True)
    prompts = scoring.draw(task, 12, 96, 2, seed=0)
    with torch.no_grad():
        for prompt in prompts[:6]:  # six answers that are right by construction: what the model says is the answer
            out = scope.model.generate(torch.tensor([prompt.ids]), max_new_tokens=2, do_sample=False, eos_token_id=None)
            prompt.answer[:] = out[0, -2:].tolist()
    generated = [
        scope.model.generate(torch.tensor([p.ids]), max_new_tokens=2, do_sample=False, eos_token_id=None)[0, -2:].tolist()
        for p in prompts
    ]
    assert scoring.exact_answers(scope.model, prompts, tokens=480).tolist() == [p.answer == s for p, s in zip(prompts, generated)]


def test_prompts_longer_than_what_runs_at_once_run_one_by_one(undisturbed):
    scope = diffscope.load(undisturbed)
    prompts = scoring.draw(Retrieval(scope.tokenizer, held_out=True), 3, 96, 2, seed=0)
    assert scoring.exact_answers(scope.model, prompts, tokens=40).tolist() == scoring.exact_answers(scope.model, prompts).tolist()


def test_scores_by_depth_and_interval():
    right = np.array([True, False, True, True, True] * 10)
    scores = scoring.score(right)
    assert scores["retrieval"] == 0.8 and scores["by_depth"]["0.25"] == 0.0 and scores["by_depth"]["1.0"] == 1.0
    assert scores["interval"] == pytest.approx([0.6696, 0.8876], abs=1e-3)  # Wilson, 40 of 50


def test_the_depth_table_is_the_mean_of_its_captures(undisturbed):
    scope = diffscope.load(undisturbed)
    prompts = scoring.draw(Retrieval(scope.tokenizer, held_out=True), 10, 96, 2, seed=0)
    table = scoring.span_by_depth(scope, prompts)
    assert table["mass"].dims[0] == "depth" and table["depth"].values.tolist() == list(scoring.DEPTHS)
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
    short = replace(pair(), stages=(Stage(2, ((2, 72),), 0.1, (2, 2), 6, warmup=1),))
    train(short, "diff", tmp_path)
    with pytest.raises(DiffscopeError, match="begun with another recipe"):
        train(replace(short, learning_rate=1.0), "diff", tmp_path)


def test_too_few_prompts_are_refused(undisturbed):
    scope = diffscope.load(undisturbed)
    with pytest.raises(PromptError, match="do not spread"):
        scoring.span_by_depth(scope, scoring.draw(Retrieval(scope.tokenizer), 5, 96, 2, seed=0))


def test_text_losses_are_means_over_hits_and_others(undisturbed):
    scope = diffscope.load(undisturbed)
    recall = Recall(scope.tokenizer, n=2)
    losses = scoring.text_losses(scope.model, recall, 80, seed=3, texts=5, tokens=160)
    ids, hits = recall.rows(5, 80, np.random.default_rng(3))
    with torch.no_grad():
        logp = scope.model(torch.tensor(ids)).logits.double().log_softmax(-1)
    loss = -logp[:, :-1].gather(-1, torch.tensor(ids[:, 1:, None]))[..., 0].numpy()
    assert losses["hit"] == pytest.approx(loss[hits[:, 1:]].mean(), rel=1e-5)
    assert losses["other"] == pytest.approx(loss[~hits[:, 1:]].mean(), rel=1e-5)


def test_arms_of_a_seed_begin_equal_in_what_they_share_and_seeds_differ():
    recipe = Recipe.load("laptop")
    one_thing = {arm: {**recipe.arms["diff"], "attention": arm.replace("-", "_")} for arm in ("plus", "d-plus")}
    recipe = replace(recipe, arms=recipe.arms | one_thing)
    begun = {}
    for arm, seed in (("diff", 0), ("standard", 0), ("low-rank", 0), ("gated", 0), ("plus", 0), ("d-plus", 0), ("diff", 1)):
        model = DiffForCausalLM(recipe.config(arm, 600))
        initialise(model, seed)
        begun[arm, seed] = dict(model.named_parameters())
        spread = model.model.layers[1].self_attn.v_proj.weight.std()
        assert 0.9 < spread / recipe.model["initializer_range"] < 1.1
        assert (model.model.embed_tokens.weight[1] == 0).all() and (model.model.embed_tokens.weight[0] != 0).any()
    gate = "model.layers.0.self_attn.gate_proj."
    assert (begun["gated", 0][gate + "weight"] == 0).all() and (begun["gated", 0][gate + "bias"] == 1).all()
    for name, tensor in begun["diff", 0].items():
        for other in ("standard", "low-rank", "gated"):
            twin = begun[other, 0].get(name)
            assert twin is None or twin.shape != tensor.shape or torch.equal(twin, tensor), name
        constant = (tensor == tensor.flatten()[0]).all()
        assert constant or not torch.equal(tensor, begun["diff", 1][name]), name
    for arm in one_thing:
        assert begun[arm, 0].keys() == begun["diff", 0].keys()
        assert all(torch.equal(tensor, begun["diff", 0][name]) for name, tensor in begun[arm, 0].items())
    lam = "model.layers.0.self_attn.lambda_q1"
    assert 0.05 < begun["diff", 0][lam].std() < 0.2


def test_vectors_do_not_decay():
    """Decay would draw what is learned of λ to its initial value, in those arms alone that learn it."""
    model = DiffForCausalLM(Recipe.load("laptop").config("diff", 600))
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    optimizer = Optimizer(model, weight_decay=0.5)
    for tensor in model.parameters():
        tensor.grad = torch.zeros_like(tensor)
    optimizer.step(0.1)
    for name, tensor in model.named_parameters():
        assert torch.allclose(tensor, before[name] * (0.95 if tensor.dim() == 2 else 1)), name


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    recipe = replace(pair(), learning_rate=1e30, evaluate_every=1)
    with pytest.raises(DiffscopeError, match="the loss is not finite at step"):
        train(recipe, "diff", tmp_path)


def test_curves_are_whole_when_a_run_was_killed_before_it_wrote_them(undisturbed, tmp_path):
    again = shutil.copytree(undisturbed, tmp_path / "diff" / "seed-0")
    (again / "model.safetensors").unlink()
    (again / "metrics.jsonl").unlink()
    train(pair(), "diff", tmp_path)
    assert (again / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()


def test_checkpoints_of_a_run_that_left_no_state_are_replaced(undisturbed, tmp_path):
    stale = tmp_path / "diff" / "seed-0" / "checkpoints" / "step-000000"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"of another recipe")
    train(pair(), "diff", tmp_path)
    expected = undisturbed / "checkpoints" / "step-000000" / "model.safetensors"
    assert (stale / "model.safetensors").read_bytes() == expected.read_bytes()


def test_half_precision_trains_on_weights_in_single_precision(tmp_path):
    (tmp_path / "small.toml").write_text(PIECE.replace("steps = 12", "steps = 2").replace("[arms]", "[arms]\n"))
    recipe = Recipe.load(str(tmp_path / "small.toml"))
    folders = [train(replace(recipe, precision=name), "diff", tmp_path / name) for name in ("float32", "bfloat16")]
    plain, half = (load_file(folder / "model.safetensors") for folder in folders)
    name = "model.layers.0.mlp.up_proj.weight"
    assert half[name].dtype == torch.float32 and not torch.equal(half[name], plain[name])
    assert (half[name] - plain[name]).abs().max() < 0.02


@pytest.mark.gpu
def test_compiled_training_in_half_precision_on_a_gpu(tmp_path):
    (tmp_path / "small.toml").write_text(PIECE)
    recipe = replace(Recipe.load(str(tmp_path / "small.toml")), precision="bfloat16", compiled=True)
    folder = train(recipe, "diff", tmp_path, device="cuda")
    losses = [json.loads(line)["answer_loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
