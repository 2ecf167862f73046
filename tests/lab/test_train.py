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
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.lab.training import train as module
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.initialisation import initialise
from diffscope.lab.training.optimizer import Optimizer
from diffscope.lab.training.recipe import Recipe, Stage
from diffscope.models import DiffForCausalLM
from diffscope.storage.checksum import KEY, write_proven_json
from diffscope.tasks import Retrieval
from tests.forked import begun, ended
from tests.lab.small_recipes import FORMING, PIECE, pair, recipe_in, train


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
    shutil.move(again / "SHA256SUMS", again / "unfinished")  # as if it was killed right after it had written that
    assert train(pair(), "diff", tmp_path) == again and not (again / "unfinished").exists()
    diffscope.load(again)
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
        Cohort(pair(), tmp_path, arms=("v9",))
    assert not list(tmp_path.iterdir())


def test_another_recipe_does_not_go_on_in_the_same_folder(tmp_path):
    short = replace(pair(), stages=(Stage(2, ((2, 72),), 0.1, (2, 2), 6, warmup=1),))
    train(short, "diff", tmp_path)
    with pytest.raises(DiffscopeError, match="begun with another recipe"):
        train(replace(short, learning_rate=1.0), "diff", tmp_path)


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
    stale, other = (tmp_path / "diff" / "seed-0" / "checkpoints" / f"step-{step:06d}" for step in (0, 5))
    for folder in (stale, other):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"of another recipe")
    train(pair(), "diff", tmp_path)
    expected = undisturbed / "checkpoints" / "step-000000" / "model.safetensors"
    assert (stale / "model.safetensors").read_bytes() == expected.read_bytes() and not other.exists()


def test_each_stage_ends_by_its_own_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "evaluations", lambda *_: [lambda model: {"retrieval": 1.0}])
    stages = tuple(replace(stage, formed=0.9) for stage in pair().stages)
    folder = train(replace(pair(), stages=stages, evaluate_every=2), "diff", tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["step"]) for row in rows] == [(0, 2), (0, 4), (1, 6), (1, 8)]


def test_keys_of_a_continued_arm_fall_in_its_first_stage_alone(tmp_path):
    recipe = recipe_in(tmp_path, FORMING)
    trainer = module._Trainer(replace(recipe, stages=(*recipe.stages, recipe.stages[1])), "top-2", 1, "cpu")
    keys = []
    for place in (module.Place(1), module.Place(1, step=7), module.Place(2)):
        trainer.step(place)
        keys.append(trainer.model.config.top_keys)
    assert keys == [16, 2, 2]


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
