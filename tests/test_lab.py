"""Training is matched, ordered and resumable to the step; scores count what greedy decoding would say."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import load_file

import diffscope
from diffscope.cli import main
from diffscope.errors import DiffscopeError, PromptError
from diffscope.lab import evaluate, family
from diffscope.lab.keep import keep
from diffscope.lab.optimizer import Optimizer
from diffscope.lab.recipe import Recipe, Stage
from diffscope.lab.train import initialise, train
from diffscope.models import DiffForCausalLM
from diffscope.store import open_statistics
from diffscope.tasks import Recall, Retrieval

PIECE = """
name = "small"
seeds = [0, 1]
vocab_size = 400
words = [" unknown"]
learning_rate = 4e-3
weight_decay = 0.05
warmup = 2
cooldown = 0.4
checkpoints = 3
evaluate_every = 5
match = "diff"
model = { hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2, max_position_embeddings = 256, tie_word_embeddings = true, bos_token_id = 0, eos_token_id = 0, pad_token_id = 1 }

[arms]
diff = { attention = "v1", num_attention_heads = 2, num_key_value_heads = 2 }
standard = { attention = "standard", num_attention_heads = 4, num_key_value_heads = 4 }

[[stages]]
steps = 12
shapes = [[4, 48], [2, 64]]
needles = [2, 3]
mentions = 5
text_weight = 0.1
template = " {city} {number}."
near = 0.3
unanswerable = 0.3

[evaluation]
lengths = [48]
noises = [0, 1]
prompts = 10
template = " {city} {number}."

[grid]
lengths = [96, 128]
noises = [0, 3]
prompts = 5
template = " {city} {number}."
"""  # noqa: E501

SMALL = """
from dataclasses import replace
from diffscope.lab.recipe import Recipe, Stage
recipe = Recipe.load("mini")
stages = (Stage(12, ((2, 72),), (2, 2), 6, 0.1), Stage(12, ((2, 96),), (2, 3), 7, 0.3))
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


def test_killed_while_the_model_was_written_it_is_written_again(undisturbed, tmp_path):
    again = shutil.copytree(undisturbed, tmp_path / "mini-diff" / "seed-0")
    (again / "model.safetensors").unlink()
    (again / "unfinished").mkdir()
    (again / "unfinished" / "model.safetensors").write_bytes(b"half of it")
    assert train(small(), "mini-diff", tmp_path) == again and not (again / "unfinished").exists()
    assert (again / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_a_run_keeps_checkpoints_from_step_0(undisturbed):
    kept = sorted(path.name for path in (undisturbed / "checkpoints").iterdir())
    assert kept == [f"step-{step:06d}" for step in small().saved_steps()] and kept[0] == "step-000000"
    first = load_file(undisturbed / "checkpoints" / kept[0] / "model.safetensors")
    fresh = DiffForCausalLM(diffscope.load(undisturbed).model.config)
    initialise(fresh, small().seeds[0])
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
        train(replace(small(), stages=(Stage(3, ((2, 72),), (2, 2), 6, 0.1),)), arm, tmp_path)
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
    "change, words",
    [
        (None, "no recipe"),
        (("[arms]", "[arms"), "not a complete recipe"),
        (("vocab_size = 400\n", ""), "not a complete recipe"),
        (("seeds = [0, 1]", "seeds = 3"), "seeds = 3"),
        (("seeds = [0, 1]", "seeds = [-1]"), "no list of numbers from 0 on"),
        (("match = ", "precision = 'bf16'\nmatch = "), "'bf16' is neither float32 nor bfloat16"),
        (('match = "diff"', 'match = "dif"'), "none of its arms: diff, standard"),
        (("warmup = 2", "warmup = 0"), "have to be 1 or more"),
        (("checkpoints = 3", "checkpoints = 2"), "3 or more"),
        (("mentions = 5", "mentions = 3"), "leaves no number"),
        (("[[4, 48], [2, 64]]", "[4, 48]"), "complete|shapes"),
        (('template = " {city} {number}."', 'template = " {city}:"'), "has to hold"),
        (("diff = {", "diff = 3 #"), "table of tables"),
    ],
)
def test_a_bad_recipe_is_one_clear_line(tmp_path, change, words):
    path = tmp_path / "recipe.toml"
    if change:
        path.write_text(PIECE.replace(*change))
        assert path.read_text() != PIECE
    with pytest.raises(DiffscopeError, match=words):
        Recipe.load(str(path))


def test_a_recipe_that_is_not_utf_8_is_one_clear_line(tmp_path):
    (tmp_path / "recipe.toml").write_bytes(PIECE.replace("small", "pi\xe8ce").encode("latin-1"))
    with pytest.raises(DiffscopeError, match="not a complete recipe"):
        Recipe.load(str(tmp_path / "recipe.toml"))


def test_prompts_that_cannot_be_drawn_are_known_before_the_training(tmp_path):
    (tmp_path / "small.toml").write_text(PIECE.replace("lengths = [96, 128]", "lengths = [96, 20]"))
    recipe = Recipe.load(str(tmp_path / "small.toml"))
    with pytest.raises(PromptError, match="do not fit 20 tokens"):
        family.run(recipe, tmp_path / "out", family.plan(recipe))
    assert not (tmp_path / "out" / "diff").exists()


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
    assert evaluate.exact_answers(scope.model, prompts, tokens=480).tolist() == [p.answer == s for p, s in zip(prompts, said)]


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
    short = replace(small(), stages=(Stage(2, ((2, 72),), (2, 2), 6, 0.1),))
    train(short, "mini-diff", tmp_path)
    with pytest.raises(DiffscopeError, match="begun with another recipe"):
        train(replace(short, learning_rate=1.0), "mini-diff", tmp_path)


def test_too_few_prompts_are_refused(undisturbed):
    scope = diffscope.load(undisturbed)
    with pytest.raises(PromptError, match="do not spread"):
        evaluate.span_by_depth(scope, evaluate.draw(Retrieval(scope.tokenizer), 5, 96, 2, seed=0))


def test_text_losses_are_means_over_hits_and_others(undisturbed):
    scope = diffscope.load(undisturbed)
    recall = Recall(scope.tokenizer, n=2)
    losses = evaluate.text_losses(scope.model, recall, 80, seed=3, texts=5, tokens=160)
    ids, hits = recall.rows(5, 80, np.random.default_rng(3))
    with torch.no_grad():
        logp = scope.model(torch.tensor(ids)).logits.double().log_softmax(-1)
    each = -logp[:, :-1].gather(-1, torch.tensor(ids[:, 1:, None]))[..., 0].numpy()
    assert losses["hit"] == pytest.approx(each[hits[:, 1:]].mean(), rel=1e-5)
    assert losses["other"] == pytest.approx(each[~hits[:, 1:]].mean(), rel=1e-5)


@pytest.fixture(scope="module")
def family_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    (folder / "small.toml").write_text(PIECE)
    recipe = Recipe.load(str(folder / "small.toml"))
    outcome = family.run(recipe, folder / "out", family.plan(recipe), tensorboard=True)
    return recipe, folder / "out", outcome


def test_a_family_is_trained_scored_and_put_together(family_run):
    recipe, out, outcome = family_run
    assert len(outcome.done) == 4 and not outcome.failed
    found = family.collect(recipe, out, outcome)
    assert found["exact_match"].dims == ("arm", "seed", "length", "noise", "prompt")
    assert found["arm"].values.tolist() == ["diff", "standard"] and found["seed"].values.tolist() == [0, 1]
    assert found["retrieval"].sel(step=[5, 10, 12]).notnull().all() and found["step"].values.tolist() == [5, 10, 12]
    for arm, seed in (("diff", 0), ("standard", 1)):
        lines = (out / arm / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["answer_loss"] for line in lines] == found["answer_loss"].sel(arm=arm, seed=seed).values.tolist()
        scope = diffscope.load(out / arm / f"seed-{seed}")
        task = Retrieval(scope.tokenizer).with_template(recipe.grid.template)
        prompts = [task.controlled(128, 3, [30_000, i], slots=3, depth=evaluate.DEPTHS[i]) for i in range(5)]
        right = evaluate.exact_answers(scope.model, prompts)
        assert found["exact_match"].sel(arm=arm, seed=seed, length=128, noise=3).values.tolist() == right.tolist()
    first = found["exact_match"].sel(seed=0)
    assert not np.isnan(first).any() and set(found["question"].values) == {"answerable", "unanswerable"}
    rows = family.summary(found)
    means = found["exact_match"][0].mean(("length", "noise", "prompt")).to_series().to_dict()
    assert [row["arm"] for row in rows] == ["diff", "standard"] and rows[0]["exact_match"] == pytest.approx(means)
    assert abs(rows[1]["parameters"] / rows[0]["parameters"] - 1) < 0.01


def test_a_finished_family_is_not_trained_again(family_run):
    recipe, out, _ = family_run
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    family.run(recipe, out, family.plan(recipe))
    train(recipe, "diff", out, seed=1)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_arms_of_a_seed_begin_equal_in_what_they_share_and_seeds_differ():
    recipe = Recipe.load("laptop")
    begun = {}
    for arm, seed in (("diff", 0), ("standard", 0), ("low-rank", 0), ("gated", 0), ("diff", 1)):
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
            there = begun[other, 0].get(name)
            assert there is None or there.shape != tensor.shape or torch.equal(there, tensor), name
        constant = (tensor == tensor.flatten()[0]).all()
        assert constant or not torch.equal(tensor, begun["diff", 1][name]), name
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
    recipe = replace(small(), learning_rate=1e30, evaluate_every=1)
    with pytest.raises(DiffscopeError, match="the loss is not finite at step"):
        train(recipe, "mini-diff", tmp_path)


def test_curves_are_whole_when_a_run_was_killed_before_it_wrote_them(undisturbed, tmp_path):
    again = shutil.copytree(undisturbed, tmp_path / "mini-diff" / "seed-0")
    (again / "model.safetensors").unlink()
    (again / "metrics.jsonl").unlink()
    train(small(), "mini-diff", tmp_path)
    assert (again / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()


def test_checkpoints_of_a_run_that_left_no_state_are_replaced(undisturbed, tmp_path):
    stale = tmp_path / "mini-diff" / "seed-0" / "checkpoints" / "step-000000"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"of another recipe")
    train(small(), "mini-diff", tmp_path)
    kept = undisturbed / "checkpoints" / "step-000000" / "model.safetensors"
    assert (stale / "model.safetensors").read_bytes() == kept.read_bytes()


def test_metrics_reach_tensorboard(family_run):
    from tensorboardX.proto.event_pb2 import Event

    _, out, _ = family_run
    (file,) = (out / "tensorboard" / "diff" / "seed-0").iterdir()
    data, said = file.read_bytes(), {}
    while data:  # TFRecord: length, its checksum, the event, its checksum
        length = int.from_bytes(data[:8], "little")
        event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
        said.update({(value.tag, event.step): value.simple_value for value in event.summary.value})
    rows = [json.loads(line) for line in (out / "diff" / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    assert said[("retrieval", 10)] == pytest.approx(rows[1]["retrieval"])
    assert [said[("answer_loss", row["step"])] for row in rows] == pytest.approx([row["answer_loss"] for row in rows])


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path):
    (tmp_path / "small.toml").write_text(PIECE.replace("seeds = [0, 1]", "seeds = [0]").replace("steps = 12", "steps = 2"))
    recipe = Recipe.load(str(tmp_path / "small.toml"))
    train(replace(recipe, learning_rate=1.0), "diff", tmp_path / "out")  # in the way
    outcome = family.run(recipe, tmp_path / "out", family.plan(recipe))
    assert [shard.spec["arm"] for shard in outcome.done] == ["standard"]
    assert ["begun with another recipe" in cause for cause in outcome.failed.values()] == [True]
    found = family.collect(recipe, tmp_path / "out", outcome)
    assert found["finished"].values.tolist() == [[0], [1]] and "diff, seed 0: " in found.attrs["failed"]
    assert np.isnan(found["exact_match"].sel(arm="diff")).all()
    (row,) = family.summary(found)
    assert row["arm"] == "standard" and row["missing"] == []


def test_a_family_on_the_command_line(family_run, tmp_path, capsys):
    recipe, out, _ = family_run
    path = str(out.parent / "small.toml")
    assert main(["train", path, "--out", str(out), "--report", "--figure", str(tmp_path / "f.png"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["formation"] for row in said["arms"]] == [{"0": None, "1": None}] * 2 and not said["failed"]
    assert (tmp_path / "f.png").stat().st_size > 10_000
    kept = open_statistics(out / "family.nc")
    assert kept["exact_match"].sizes == {"arm": 2, "seed": 2, "length": 2, "noise": 2, "prompt": 5}
    curves = open_statistics(out / "metrics.parquet")
    assert np.array_equal(curves["text_loss"], kept["text_loss"])
    assert main(["train", path, "--out", str(out), "--report"]) == 0
    assert "formed at step" in capsys.readouterr().out
    for arguments, words in (
        ([path, "--preset", "laptop", "--out", "x"], "name one recipe"),
        ([path, "--arm", "none", "--out", str(tmp_path)], "has no arm 'none'"),
        ([path], "needs --out"),
        ([path, "--out", str(tmp_path), "--report", "--figure", str(tmp_path / "f.jpg")], "cannot write a figure as '.jpg'"),
        (["mini", "--out", str(tmp_path), "--report"], "has no [grid]"),
        ([path, "--report", "--out", str(tmp_path)], "no run in"),
    ):
        assert main(["train", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_formation_is_the_first_step_above_90_percent():
    curves = [[0.0, np.nan, 0.9, 0.95, 0.5, 1.0], [0.1] * 6, [np.nan] * 6]
    steps = xr.DataArray(curves, dims=("arm", "step"), coords={"step": [5, 10, 15, 20, 25, 30]})
    assert family.formation(steps).values.tolist() == pytest.approx([20, np.nan, np.nan], nan_ok=True)


CONTROLS_OF_THE_FAMILY = set(
    "standard standard-norm half-width double-width top-2 top-8 top-32 signed gated "
    "diff lambda-1 lambda-init lambda-0 scalar no-norm low-rank diff-v2".split()
)


@pytest.mark.parametrize("preset", ["laptop", "gpu"])
def test_presets_match_their_arms_within_a_hundredth(preset):
    recipe = Recipe.load(preset)
    rows = {row["arm"]: row for row in recipe.table(recipe.vocab_size + 273)}
    assert set(rows) == CONTROLS_OF_THE_FAMILY and len(recipe.seeds) >= 3 and recipe.saved_steps()[0] == 0
    assert all(abs(row["ratio"] - 1) < 0.01 for row in rows.values())
    heads, width = ({arm: row[name] for arm, row in rows.items()} for name in ("num_attention_heads", "head_dim"))
    assert heads["standard"] == 2 * heads["diff"] and width["standard"] == width["diff"]
    assert (heads["half-width"], width["half-width"]) == (2 * heads["standard"], width["standard"] // 2)
    assert (heads["double-width"], width["double-width"]) == (heads["diff"], 2 * width["diff"])


def test_a_step_draws_one_of_its_shapes():
    stage = Stage(1, ((4, 48), (2, 64)), (2, 3), 5, 0.1)
    task = Retrieval(diffscope.load("mini-diff").tokenizer).with_template(" {city} {number}.")
    shapes = {stage.draw(task, np.random.default_rng([0, step]))[0].shape for step in range(20)}
    assert shapes == {(4, 48), (2, 64)}


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


FAMILY = {
    "diff": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2),
    "standard": dict(attention="standard", num_attention_heads=4, num_key_value_heads=4),
    "signed": dict(attention="signed", num_attention_heads=4, num_key_value_heads=4),
    "low rank": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2, second_dim=4),
    "v2": dict(attention="v2", num_attention_heads=4, num_key_value_heads=4),
    "lambda 0": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2, fixed_lambda=0.0),
    "as it is": dict(attention="v2", num_attention_heads=4, num_key_value_heads=4, intermediate_size=40),
}


def used(model) -> int:
    """Parameters that learn: those whose gradient is not zero throughout, by rows of a matrix."""
    ids = torch.arange(500).view(5, 100)  # every row of the embedding
    model(ids, labels=ids).loss.backward()
    rows = [(p.grad.flatten(1) if p.dim() > 1 else p.grad[:, None]).abs().sum(1) > 0 for p in model.parameters()]
    return sum(int(learns.sum()) * p[0].numel() for learns, p in zip(rows, model.parameters()))


def test_arms_are_matched_in_parameters_by_the_width_of_their_mlps():
    model = {**Recipe.load("mini").model, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
    recipe = replace(Recipe.load("mini"), arms=FAMILY, match="diff", model=model)
    rows = {row["arm"]: row for row in recipe.table(500)}
    counts = {arm: used(DiffForCausalLM(recipe.config(arm, 500))) for arm in FAMILY}
    assert {arm: row["parameters"] for arm, row in rows.items()} == counts
    assert all(abs(row["ratio"] - 1) < 0.005 for arm, row in rows.items() if arm != "as it is")
    assert rows["diff"]["intermediate_size"] == 160 and rows["as it is"]["intermediate_size"] == 40
    assert rows["signed"]["intermediate_size"] < rows["standard"]["intermediate_size"] < rows["low rank"]["intermediate_size"]


def test_an_arm_too_large_to_match_is_refused():
    model = {**Recipe.load("mini").model, "hidden_size": 64, "intermediate_size": 1, "num_hidden_layers": 2}
    with pytest.raises(DiffscopeError, match="without its MLPs"):
        replace(Recipe.load("mini"), arms=FAMILY, match="diff", model=model).config("signed", 500)


def test_a_family_is_kept_in_half_precision_and_goes_on_from_there(family_run, tmp_path):
    recipe, out, _ = family_run
    assert keep(out, tmp_path / "kept") == ["diff/seed-0", "diff/seed-1", "standard/seed-0", "standard/seed-1"]
    before = (tmp_path / "kept" / "diff" / "seed-0" / "model.safetensors").read_bytes()
    next((tmp_path / "kept" / "shards").glob("*.nc")).unlink()  # scores that have to be taken anew, of what is trained already
    outcome = family.run(recipe, tmp_path / "kept", family.plan(recipe))
    assert before == (tmp_path / "kept" / "diff" / "seed-0" / "model.safetensors").read_bytes()
    assert len(outcome.done) == 4 and not (tmp_path / "kept" / "diff" / "seed-0" / "state.safetensors").exists()
    again, first = (family.collect(recipe, folder, outcome) for folder in (tmp_path / "kept", out))
    xr.testing.assert_allclose(again, first, rtol=0.05, atol=0.05)
    plain, half = (diffscope.load(folder / "diff" / "seed-1").model for folder in (out, tmp_path / "kept"))
    for name, tensor in plain.state_dict().items():
        assert half.state_dict()[name].dtype == torch.float32 and torch.equal(half.state_dict()[name], tensor.half().float()), (
            name
        )
    with pytest.raises(DiffscopeError, match="no run in"):
        keep(tmp_path / "nowhere", tmp_path / "other")
