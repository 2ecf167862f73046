"""The second study's primaries: what follows from planted seeds, and what its evidence is of a model that is known."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.rules import Cost
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.runs import run_label
from diffscope.lab.training.train_cohort import train_cohort
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.scope import Scope
from diffscope.tasks import Backcopy
from diffscope.tasks.exchanging import other_fillers
from diffscope.tasks.text import TextStream
from studies.subtraction import evidence, power, preregister, runs
from studies.subtraction.judging import judge
from studies.subtraction.primaries import PARTS, onsets, share_of_seeds
from studies.subtraction.read import cost_of, table
from tests.lab.small_recipes import COPYING

WORKS = Cost(5.0, 4.0, 6.0)


def words(rows):
    return {row.test.id: dict(row.words) for row in rows}


def mechanism(a2, a1=0.0, seeds=8):
    """A cohort in which head 1 of layer 0 has A2 and A1 on the token before: values by seed."""
    dims = ("arm", "seed", "layer", "head")
    second, first = np.zeros((1, seeds, 2, 2)), np.zeros((1, seeds, 2, 2))
    second[0, :, 0, 1], first[0, :, 0, 1] = a2, a1
    coords = {"arm": ["diff"], "seed": range(seeds), "layer": [0, 1]}
    return xr.Dataset({"previous_token_a2": (dims, second), "previous_token_a1": (dims, first)}, coords)


@pytest.mark.parametrize(
    ("a2", "a1", "word"),
    [
        (0.9, 0.1, "for"),
        ([0.9] * 7 + [0.4], 0.1, "open"),  # seven of eight are not all
        (0.9, 0.7, "against"),  # A1 looks there as well
        (0.45, 0.0, "against"),
    ],
)
def test_part_0_is_borne_out_only_if_it_is_so_in_every_seed(a2, a1, word):
    (row,) = judge("mechanism", mechanism(a2, a1))
    assert row.words == {"NC": "silent", "SP": "silent", "SH": word}


def test_the_share_of_seeds_has_the_exact_p_of_the_sign_test():
    of = share_of_seeds(np.ones(8, bool))
    assert (of.value, of.p) == (1.0, 2**-7)
    assert of.low == pytest.approx(0.025 ** (1 / 8))  # Clopper–Pearson, all of n


def text(plus, norm, gain, seeds=6):
    """A cohort of language models with differences of DIFF from its controls; they vary a little over seeds."""
    noise = np.linspace(-1, 1, seeds) * 0.005
    loss = np.stack([4.0 + noise, np.full(seeds, 4.0 - plus), np.full(seeds, 4.0 - norm), np.full(seeds, 4.2)])
    coords = {"arm": ["diff", "plus", "standard-norm", "standard"], "seed": range(seeds), "token": ["all"]}
    of_diff = {name: (("arm", "seed"), np.vstack([value + noise, np.full((3, seeds), np.nan)])) for name, value in gain.items()}
    return xr.Dataset({"text": (("arm", "seed", "token"), loss[..., None]), **of_diff}, coords)


AMPLIFIER = {"signal_to_noise_gain": 5.0, "gain_over_uniform": 4.0, "snr_first_ahead": 10.0}


def test_in_a_fixed_order_nothing_is_tested_after_what_was_not_detected():
    all_three = judge("text", text(-0.1, -0.1, AMPLIFIER), WORKS)
    assert [row.detected for row in all_three] == [True, True, True]
    assert words(all_three)["gain-in-text"] == {"NC": "for", "SP": "silent", "SH": "silent"}
    first_fails = judge("text", text(0.0, -0.1, AMPLIFIER), WORKS)
    assert [row.detected for row in first_fails] == [False, False, False]
    assert words(first_fails)["gain-in-text"]["NC"] == "open"
    assert "not tested" in first_fails[2].note


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "for"),
        ({"gain_over_uniform": 0.0}, "against"),  # a flat pedestal gains as much
        ({"snr_first_ahead": -8.0}, "against"),  # the second map carries the signal
        ({"signal_to_noise_gain": 0.2}, "against"),
        ({"signal_to_noise_gain": 2.0}, "against"),
    ],
)
def test_a_gain_is_for_cancellation_only_with_its_two_controls(changed, word):
    rows = judge("text", text(-0.1, -0.1, AMPLIFIER | changed), WORKS)
    assert words(rows)["gain-in-text"]["NC"] == word


def test_where_the_second_map_is_idle_a_gain_says_nothing():
    for gain in (AMPLIFIER, dict.fromkeys(AMPLIFIER, np.nan)):
        rows = judge("text", text(-0.1, -0.1, gain), Cost(0.1, 0.0, 0.2))
        assert set(words(rows)["gain-in-text"].values()) == {"silent"}


def test_a_loss_that_all_accounts_predict_is_for_none_and_may_be_against_all():
    better, worse = (words(judge("text", text(plus, -0.1, AMPLIFIER), WORKS))["loss-of-text-plus"] for plus in (-0.1, 0.1))
    assert set(better.values()) == {"silent"}
    assert set(worse.values()) == {"against"}


def test_a_part_without_evidence_says_what_it_needs():
    bare = xr.Dataset(coords={"arm": ["diff"], "seed": range(8)})
    for name in PARTS:
        rows = judge(name, bare)
        assert all(row.note.startswith("needs ") and not row.words for row in rows)
        assert table(rows, None).count("needs ") == len(rows)


def test_a_run_without_an_onset_counts_with_the_last_step_of_its_stage():
    """One that diverged early does so too: it is not the first to look up."""
    curves = np.array(
        [[[0.0, 0.9, 0.9, 0.9], [0.0, 0.5, 0.2, 0.1]], [[np.nan] * 4, [1.0, 1.0, 1.0, 1.0]], [[0.1, *[np.nan] * 3]] * 2]
    )
    values = {"retrieval": (("arm", "seed", "step"), curves), "formation_limit": 100.0}
    values["finished"] = (("arm", "seed"), [[1, 1], [0, 1], [1, 1]])
    coords = {"arm": ["diff", "plus", "d-plus"], "seed": [0, 1], "step": [25, 50, 75, 100]}
    np.testing.assert_array_equal(onsets(xr.Dataset(values, coords)), [[100, 100], [np.nan, 75], [100, 100]])


def test_the_cost_is_of_the_heads_that_tell_the_answer():
    part = xr.Dataset({"a2_cost_where_told": (("arm", "seed"), [[2.0, 4.0, np.nan]])}, {"arm": ["diff"], "seed": range(3)})
    assert cost_of(part).value == 3.0
    assert cost_of(part.drop_vars("a2_cost_where_told")) is None


def test_simulated_readings_follow_what_is_true_and_not_what_is_not():
    for name in PARTS:
        nothing = power.readings(name, power.NOTHING, 0, 60)
        assert power.false_words(nothing, power.NOTHING)["for a wrong account"] <= 0.05
    cells = power.shares(power.readings("lookup", "SH", 2, 20))
    assert cells["lookup-without-signs"]["SH for"] >= 0.8
    assert cells["lookup-without-signs"]["NC for"] == 0


def test_what_is_declared_is_what_was_written_down():
    assert json.loads(preregister.FILE.read_text(encoding="utf-8")) == preregister.declarations()
    preregister.check_declared()


@pytest.fixture(scope="module")
def copier():
    """A small random DIFF model of Bigram-Backcopy whose scores are all 0, so that its maps are uniform."""
    task = Backcopy()
    config = DiffConfig(
        attention="v1",
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        vocab_size=len(task.tokenizer),
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    model = DiffForCausalLM(config).eval()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
    return Scope(model, task.tokenizer, "copier")


def test_evidence_of_uniform_maps_is_as_it_has_to_be(copier, monkeypatch):
    monkeypatch.setattr(evidence, "COUNT", 4)
    taken = evidence.take("sinks", copier, 0)
    assert "previous_token_a1" not in taken  # which is of lookups
    uniform = taken["sink"].sel(queries="dormant", map="A1")
    np.testing.assert_allclose(taken["sink"].sel(queries="dormant", map="D"), uniform, rtol=1e-5)  # D is uniform too
    np.testing.assert_allclose(uniform, uniform.isel(layer=0, head=0), rtol=1e-6)
    assert 1 / 64 < float(uniform[0, 0]) < 0.2
    np.testing.assert_allclose(taken["lost_with_one_a2"], 0, atol=1e-6)  # heads have one second map already
    assert set(taken["lost_without_a2"].dims) == {"layer"}
    assert np.isfinite(taken["copy_log_odds"])


def test_the_previous_token_is_the_city_before_the_number(monkeypatch):
    """A model that scores nothing has at the number's first token the same weight on every token up to it."""
    monkeypatch.setattr(evidence, "COUNT", 2)
    scope = diffscope.load("mini-diff")
    for layer in scope.model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
    task = evidence.task_of("mechanism", scope, 0)
    answers = [prompt.spans["answer"] for prompt in task.prompts]
    before = [scope.tokenizer.decode([prompt.ids[at[0] - 1]]).strip() for prompt, at in zip(task.prompts, answers)]
    assert before == [prompt.city for prompt in task.prompts]
    taken = evidence.previous_token_share(scope, task.prompts).mean("prompt")
    uniform = np.mean([1 / (at[0] + 1) for at in answers])
    np.testing.assert_allclose(taken["a2"], uniform, rtol=1e-5)


def test_running_text_is_exchanged_for_held_out_text_of_its_corpus():
    scope = diffscope.load("mini-diff")
    texts = ["the sea and the land and a river and a lake with boats and ships that go there " * 40]
    task = evidence.task_of("text", scope, 0, texts)
    (prompt, *_) = task.prompts
    fillers = task.exchanged(prompt)["fillers"]
    filler = context(prompt)
    others = other_fillers(scope.encode(prompt.ids), filler, evidence.FEW, np.random.default_rng(0), None, fillers)
    of_text = set(TextStream.of(texts, scope.tokenizer).ids.tolist())
    assert len(fillers) == evidence.FEW and len(set(map(tuple, others))) > 1
    assert all(set(row) <= of_text for row in others) and len(filler) > 100


def context(prompt):
    """Positions that are of no sentence and not of the question."""
    named = {at for name in ("needles", "query", "sink") for at in prompt.spans[name]}
    stated = prompt.spans["answer"]
    return [at for at in range(len(prompt.ids)) if at not in named and not stated[0] - 4 <= at <= stated[-1] + 1]


def test_rejection_is_of_the_queries_that_are_asked_for(copier):
    task = evidence.task_of("sinks", copier, 0)
    last, every = (evidence.rejection(copier, task.prompts[:2], queries) for queries in ((-1,), None))
    assert not np.allclose(last["rejection"], every["rejection"])


@pytest.fixture
def copies(tmp_path):
    """A small cohort of copies that is trained."""
    (tmp_path / "copies.toml").write_text(COPYING.replace("seeds = [0]", "seeds = [0, 1]"))
    cohort = Cohort(Recipe.load(str(tmp_path / "copies.toml")), tmp_path / "out")
    assert not train_cohort(cohort).failed
    return cohort


def test_evidence_is_taken_once_by_one_code_and_not_of_runs_without_a_model(copies, monkeypatch):
    taken = []

    def take(part, scope, seed, texts):
        taken.append(seed)
        return xr.Dataset({"copy_log_odds": float(len(taken))})

    monkeypatch.setattr(evidence, "take", take)
    first = evidence.gather("sinks", copies)
    count = len(taken)
    assert first["copy_log_odds"].notnull().all() and count == first["finished"].size
    assert evidence.gather("sinks", copies).identical(first) and len(taken) == count
    monkeypatch.setattr(evidence, "FORMAT", evidence.FORMAT + 1)
    assert evidence.gather("sinks", copies)["copy_log_odds"].min() > count
    for name in ("model.safetensors", evidence.FILE):
        (copies.out / "diff" / "seed-0" / name).unlink()  # as of a run that diverged
    again = evidence.gather("sinks", copies)
    assert again["copy_log_odds"].sel(arm="diff", seed=0).isnull() and again["finished"].all()
    check(copies.recipe, again)


def test_packed_runs_are_read_and_not_trained_again_where_their_weights_are_not(copies, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "take", lambda *_: xr.Dataset({"copy_log_odds": 1.0}))
    part = shutil.copytree(copies.out, tmp_path / "first" / "sinks")
    assert runs.pack(part.parent, tmp_path / "runs.zip") == 0  # evidence is not taken yet, and could not be without weights
    first = evidence.gather("sinks", replace(copies, out=part))
    (part / "diff" / "seed-1" / evidence.FILE).unlink()
    count = 1
    assert runs.pack(part.parent, tmp_path / "runs.zip") == count
    elsewhere = replace(copies, out=tmp_path / "second" / "sinks")
    assert runs.unpack(tmp_path / "second", tmp_path / "runs.zip") == count
    assert [run_label(run) for run in elsewhere.outcome().waiting] == ["diff, seed 1"]
    again = evidence.gather("sinks", elsewhere)
    assert again["finished"].sum() == count
    xr.testing.assert_identical(again.sel(seed=0).drop_attrs(), first.sel(seed=0).drop_attrs())
    assert runs.pack(tmp_path / "third", tmp_path / "runs.zip") == count  # what is there stays there
    monkeypatch.setattr(evidence, "FORMAT", evidence.FORMAT + 1)
    with pytest.raises(DiffscopeError, match="remove the folder and train the run again"):
        evidence.gather("sinks", elsewhere)


def check(recipe, dataset):
    """The evidence is that of its recipe, and of no other seed or recipe."""
    declared = {"recipe": json.loads(json.dumps(recipe.as_dict()))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preregister, "_of_part", lambda name: declared)
        assert preregister.complete("sinks", dataset).equals(dataset)
        for wrong, words in (
            (dataset.reindex(seed=[0, 1, 99]), "99"),
            (dataset.assign_attrs(recipe="{}"), "another recipe"),
            (dataset.drop_attrs(), "another recipe"),
            (dataset.assign(finished=dataset["finished"] * 0), "0 of "),
        ):
            with pytest.raises(DiffscopeError, match=words):
                preregister.complete("sinks", wrong)


def test_an_arm_that_no_primary_compares_may_come_later_and_no_other_may():
    declared = preregister.declarations()["lookup"]
    arms = list(declared["recipe"]["arms"])
    finished = xr.DataArray(np.ones((len(arms), 8)), {"arm": arms, "seed": range(8)}, ("arm", "seed"))
    evidence = xr.Dataset({"finished": finished}, attrs={"recipe": json.dumps(declared["recipe"])})
    evidence.attrs["made_by"] = json.dumps({"diff/seed-0": ["fact"], "shared-a2/seed-0": ["other"]})
    assert preregister.complete("lookup", evidence).equals(evidence)
    finished.loc["shared-a2", 7] = 0
    left = preregister.complete("lookup", evidence)
    assert left.equals(evidence.drop_sel(arm="shared-a2")) and json.loads(left.attrs["made_by"]) == {"diff/seed-0": ["fact"]}
    assert preregister.complete("lookup", left).identical(left)
    with pytest.raises(DiffscopeError, match="24 of 32 runs"):
        preregister.complete("lookup", left.drop_sel(arm="plus"))
    finished.loc["plus", 7] = 0
    with pytest.raises(DiffscopeError, match="31 of 32 runs"):
        preregister.complete("lookup", evidence)


def test_log_odds_of_copies_are_those_of_the_loss(copier):
    class Certain(torch.nn.Module):
        """Gives the right copy a logit of 2 and every other token 0."""

        def forward(self, ids, use_cache=False):
            logits = torch.zeros(*ids.shape, 64)
            logits[:, 1:].scatter_(2, ids[:, :-1, None], 2.0)  # the token before
            return type("Output", (), {"logits": logits})

    scope = Scope.__new__(Scope)
    scope.model = Certain()
    assert float(evidence.copy_log_odds(scope, 0)) == pytest.approx(2 - np.log(63))
