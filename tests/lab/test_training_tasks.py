"""Trainings of copying and of running text with planted lookups: what they see, what they are scored on, what is kept of them."""

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
from diffscope.cli import main
from diffscope.errors import DiffscopeError, PromptError
from diffscope.lab.training import train as module
from diffscope.lab.training.cohort import Cohort, collect
from diffscope.lab.training.drawing import Draws
from diffscope.lab.training.initialisation import losses, tokenizer_for, with_text
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.train_cohort import check_prompts, train_cohort
from diffscope.storage.statistics import open_statistics, save_statistics
from diffscope.tasks import Backcopy
from diffscope.tasks.text_folder import TextFolder
from tests.forked import begun, ended
from tests.lab.small_recipes import COPYING, RUNNING, recipe_in, small_corpus, train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder of text, and the recipe that trains on it."""
    folder = tmp_path_factory.mktemp("corpus")
    return folder, small_corpus(folder, recipe_in(tmp_path_factory.mktemp("recipe"), RUNNING))


@pytest.fixture(scope="module")
def copying(tmp_path_factory):
    """A cohort of the copying task, trained."""
    folder = tmp_path_factory.mktemp("copying")
    cohort = Cohort(recipe_in(folder, COPYING), folder / "out")
    assert not train_cohort(cohort).failed
    return cohort


def test_copying_is_trained_and_scored_by_the_copies_that_are_right(copying):
    dataset = collect(copying)
    assert {"copied", "copy_loss", "bigram_excess", "loss", "onset"} <= set(dataset) and "text" not in dataset
    run = dataset.sel(arm="diff", seed=0)
    assert run["loss"].isel(step=-1) < run["loss"].isel(step=0)
    scope = diffscope.load(copying.out / "diff" / "seed-0")
    scores = Backcopy().score(scope.model, 8, 32, np.random.default_rng([20_000, 0]))
    assert run["copied"].dropna("step").values[-1] == pytest.approx(scores.exact)
    assert run["copy_loss"].dropna("step").values[-1] == pytest.approx(scores.copied, abs=1e-4)


def test_weights_are_kept_in_half_precision_and_open(copying):
    run, kept = (folder / "diff" / "seed-0" for folder in (copying.out, copying.out / "weights"))
    assert not (run / "state.safetensors").exists() and not (run / "evidence.nc").exists()
    whole, half = (diffscope.load(folder).model.state_dict() for folder in (run, kept))
    assert all(torch.equal(half[name], whole[name].half().float()) for name in whole)
    assert sorted(path.name for path in (kept / "checkpoints").iterdir()) == ["step-000000", "step-000004", "step-000012"]
    assert diffscope.load(f"{kept}@4").tokenizer("ab")["input_ids"] == diffscope.load(run).tokenizer("ab")["input_ids"]
    shutil.rmtree(copying.out / "weights" / "diff")
    train(copying.recipe, "diff", copying.out)  # finished, so that only what is missing is made again
    assert diffscope.load(kept).model.state_dict().keys() == half.keys()


def test_kept_weights_are_those_of_the_last_training(copying, tmp_path):
    """A run whose folder was removed is trained again, perhaps by another recipe."""
    train(copying.recipe, "diff", tmp_path)
    shutil.rmtree(tmp_path / "diff")
    run = train(replace(copying.recipe, learning_rate=1e-3), "diff", tmp_path)
    whole, half = (diffscope.load(folder).model.state_dict() for folder in (run, tmp_path / "weights" / "diff" / "seed-0"))
    assert all(torch.equal(half[name], whole[name].half().float()) for name in whole)


def test_a_cohort_of_copies_is_reported(copying, capsys):
    command = ["train", str(copying.out.parent / "small.toml"), "--out", str(copying.out)]
    assert main([*command, "--report"]) == 0
    assert "copied" in capsys.readouterr().out
    assert main(command) == 0 and "nothing is left" in capsys.readouterr().err
    assert main([*command, "--recompute-evidence"]) == 2 and "trains backcopy; read its weights" in capsys.readouterr().err


def test_a_report_of_copies_has_the_last_evaluation_of_each_run_that_did_not_diverge(copying, tmp_path, capsys):
    scores = open_statistics(copying.out / "diff" / "seed-0" / "scores.nc")
    runs = {0: scores, 1: scores.sel(step=slice(0, 10)), 2: scores.sel(step=slice(0, 5)).drop_vars("parameters")}
    for (seed, run), copied in zip(runs.items(), (0.5, 0.9, 0.1), strict=True):
        (tmp_path / "diff" / f"seed-{seed}").mkdir(parents=True)
        run = run.assign(copied=run["copied"].where(run["copied"].isnull(), copied)).assign_attrs(seed=seed)
        save_statistics(run, tmp_path / "diff" / f"seed-{seed}" / "scores.nc", dated=False)
    assert main(["train", str(copying.out.parent / "small.toml"), "--out", str(tmp_path), "--report"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-3] == "0.7"  # of two runs that end at other steps


def test_any_text_has_to_be_named(capsys):
    assert main(["train", "laptop", "--any-text", "--table"]) == 2 and "with --text FOLDER" in capsys.readouterr().err


def test_a_loss_is_of_all_tokens_and_a_step_may_have_no_answers():
    logits = torch.randn(2, 6, 11, requires_grad=True)
    ids = torch.randint(11, (2, 6))
    kind = torch.tensor([[0, 0, 1, 2, 0, 0], [0, 0, 0, 0, 0, 0]])
    both = losses(logits, ids, kind)
    log_p = logits.log_softmax(-1)
    each = [-log_p[row, at - 1, ids[row, at]] for row in (0, 1) for at in range(1, 6) if kind[row, at] != 2]
    assert both.every.item() == pytest.approx(torch.stack(each).mean().item(), abs=1e-6)
    without = losses(logits, ids, torch.zeros_like(kind))
    assert without.answers.isnan() and without.every.isfinite()


def test_running_text_is_the_same_for_all_arms_and_passes_through_the_corpus(corpus):
    folder, recipe = corpus
    recipe = with_text(recipe, folder)
    tokenizer = tokenizer_for(recipe)
    one, other = (Draws(recipe, tokenizer, seed) for seed in (0, 0))
    seen = []
    for step in range(40):
        ids, kind = one.rows(0, step)
        seen += [tuple(row[1:12]) for row, kinds in zip(ids, kind) if not kinds.any()]
        assert kind.max() in (0, 2)
    assert np.array_equal(other.rows(0, 39)[0], ids)  # without those before
    assert one.tasks[0].retrieval.filler.windows > 40 * 3  # less than one pass
    assert 20 < len(seen) == len(set(seen)) < 100  # half of the windows are planted


def test_a_held_out_text_shorter_than_a_window_is_refused_before_the_training(corpus):
    folder, recipe = corpus
    long = replace(recipe, plain_text=replace(recipe.plain_text, length=100_000))
    long = replace(long, model={**long.model, "max_position_embeddings": 100_000})
    with pytest.raises(PromptError, match=r"^held_out of .*: the text has \d+ tokens, and a window needs 99999; "):
        check_prompts(with_text(long, folder))


def test_a_recipe_with_another_padding_than_its_tokenizer_is_refused(corpus):
    folder, recipe = corpus
    other = replace(recipe, model={**recipe.model, "pad_token_id": 2})
    with pytest.raises(DiffscopeError, match="has pad_token_id = 2, and its tokenizer 1; write the tokenizer's into"):
        check_prompts(with_text(other, folder))


def test_a_model_of_a_corpus_is_scored_on_both_domains_and_on_lookups(corpus, tmp_path):
    folder, recipe = corpus
    cohort = Cohort(with_text(recipe, folder), tmp_path / "out")
    check_prompts(cohort.recipe)
    assert not train_cohort(cohort).failed
    dataset = collect(cohort)
    assert dataset["text_by_domain"].sel(arm="diff", seed=0).notnull().all()
    assert dataset["text_by_domain"]["domain"].values.tolist() == ["held_out", "other_domain"]
    assert dataset["log_odds"].dims == ("arm", "seed", "length", "distractors", "prompt")
    last = dataset.sel(arm="diff", seed=0).dropna("step", subset=["held_out_loss"]).isel(step=-1)
    assert last["held_out_loss"] == pytest.approx(float(dataset["text"].sel(arm="diff", seed=0, token="all")), abs=0.5)
    assert np.isfinite(last["retrieval_log_odds"]) and 0 <= last["retrieval"] <= 1
    facts = json.loads((cohort.out / "diff/seed-0/run.json").read_text())
    assert facts["fingerprint"] == recipe.corpus


def test_another_corpus_is_refused_unless_any_will_do(corpus, tmp_path):
    folder, recipe = corpus
    other = shutil.copytree(folder, tmp_path / "other")
    with open(other / "train.jsonl", "a") as lines:
        lines.write(json.dumps({"document": "more", "text": "One more text of another corpus."}) + "\n")
    with pytest.raises(DiffscopeError, match="has the digest"):
        with_text(recipe, other)
    taken = with_text(recipe, other, any_text=True)
    assert taken.corpus == TextFolder(other).digest and taken.trains("diff") != recipe.trains("diff")
    shutil.rmtree(other / "tokenizer")
    bare = with_text(recipe, other, any_text=True)
    tokenizer_for(bare)
    assert with_text(recipe, other, any_text=True).corpus == bare.corpus, "the tokenizer that is trained changes nothing later"
    with pytest.raises(DiffscopeError, match="give its folder with --text"):
        tokenizer_for(recipe)
    with pytest.raises(DiffscopeError, match="leave out --text"):
        with_text(Recipe.load("laptop"), folder)


def train_and_die(recipe, folder):
    module.SAVE_EVERY = 3

    def die(done, total, note):
        if done == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    train(recipe, "diff", folder, progress=die)


def test_running_text_killed_and_resumed_is_bit_equal(corpus, tmp_path):
    folder, recipe = corpus
    recipe = replace(with_text(recipe, folder), evaluate_every=4, keep_weights=False)
    calm = train(recipe, "diff", tmp_path / "calm")
    assert ended(begun(train_and_die, recipe, tmp_path / "hunted"), 300) == -signal.SIGKILL
    hunted = train(recipe, "diff", tmp_path / "hunted")
    left, right = (load_file(run / "model.safetensors") for run in (calm, hunted))
    assert all(torch.equal(left[name], right[name]) for name in left)
    rows = [(run / "metrics.jsonl").read_text().splitlines() for run in (calm, hunted)]
    assert len(rows[0]) == len(rows[1])
    assert all(json.loads(ours) | {"seconds": 0} == json.loads(theirs) | {"seconds": 0} for ours, theirs in zip(*rows))


@pytest.mark.parametrize(
    "text, change, words",
    [
        (COPYING, ("text_weight = 1.0", "text_weight = 0.5"), "trains all tokens alike"),
        (RUNNING, ('task = "planted"', 'task = "copy"'), "'copy' is none of retrieval, backcopy, planted"),
        (COPYING, ("[copying]", "[evaluation_text]\ntexts = 4\nlength = 8\n[copying]"), "scored by .copying. alone"),
        (RUNNING, ("planted = 0.5", "planted = 1.5"), "is the share of windows"),
        (RUNNING, ("[[3, 96]]", "[[3, 96], [2, 64]]"), "windows of one length"),
        (RUNNING, ('formed_by = "mean of three"', 'formed_by = "thrice"'), "neither 'twice' nor 'mean of three'"),
    ],
)
def test_a_bad_recipe_of_a_task_is_one_clear_line(tmp_path, text, change, words):
    assert text.replace(*change) != text
    with pytest.raises(DiffscopeError, match=words):
        recipe_in(tmp_path, text.replace(*change))
