"""A recipe says what differs between arms and what they share, is matched in parameters, or is refused in words."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.stages import Continued, Stage
from diffscope.models import DiffForCausalLM
from diffscope.tasks import Retrieval
from tests.lab.small_recipes import FORMING, PIECE, pair, recipe_in
from tests.tokenizers_of_kinds import tokenizer


def test_the_rate_of_a_stage_rises_holds_and_falls():
    stage = Stage(100, ((4, 48),), 0.1, (2, 3), 5, warmup=10, cooldown=0.4)
    shares = [stage.share_of_rate(step) for step in range(100)]
    assert shares[0] == 0.1 and shares[9:61] == [1.0] * 52 and shares[80] == 0.5 and shares[99] == 0.05
    constant = replace(stage, warmup=0, cooldown=0.0)
    assert {constant.share_of_rate(step) for step in range(100)} == {1.0}


def test_the_keys_of_a_continued_arm_fall_to_its_own():
    keys = [Continued("standard", 64).keys(step, 12, last=8) for step in range(12)]
    assert keys == [64, 45, 32, 23, 16, 11, 8, 8, 8, 8, 8, 8]


def test_a_training_depends_on_nothing_that_only_others_have(tmp_path):
    (tmp_path / "small.toml").write_text(FORMING)
    recipe = Recipe.load(str(tmp_path / "small.toml"))
    others = replace(recipe, seeds=(5,), minor=None, tuning=None, grid=None, then="laptop", arms={**recipe.arms, "more": {}})
    assert others.trains("diff") == recipe.trains("diff")
    assert "arms" in recipe.trains("diff") and "compiled" not in recipe.trains("diff")  # as usual: a new field changes nothing
    assert set(recipe.trains("top-2")["arms"]) == {"top-2", "diff", "standard"}
    for change in ({"learning_rate": 1.0}, {"stages": recipe.stages[:1]}, {"vocab_size": 401}, {"compiled": True}):
        assert replace(recipe, **change).trains("diff") != recipe.trains("diff")
    assert replace(recipe, continued={}).trains("top-2") != recipe.trains("top-2")


@pytest.mark.parametrize(
    "change, words",
    [
        (None, "no recipe"),
        (("[arms]", "[arms"), "not a complete recipe"),
        (("vocab_size = 400\n", ""), "not a complete recipe"),
        (("seeds = [0, 1]", "seeds = 3"), "'seeds' expected"),
        (("seeds = [0, 1]", "seeds = [-1]"), "no list of numbers from 0 on"),
        (("match = ", "precision = 'bf16'\nmatch = "), "'bf16' is neither float32 nor bfloat16"),
        (('match = "diff"', 'match = "dif"'), "none of its arms: diff, standard"),
        (("warmup = 2", "warmup = 0"), "first stage needs a warmup"),
        (("checkpoints = [5]", "checkpoints = 5"), "'checkpoints' expected"),
        (("checkpoints = [5]", "checkpoints = [-5]"), "0 or more"),
        (("checkpoints = [5]", "checkpoints = [5]\nwarmup = 3"), "unexpected keyword argument 'warmup'"),
        (("cooldown = 0.4", "cooldown = 4"), "no share from 0 to 1"),
        (("cooldown = 0.4", "formed = 1.5"), "formed = 1.5 is no share"),
        (("distractors = [0, 3]", "distractors = [3]\nwithout = [[96, 3]]"), "leaves a length without a cell"),
        (("[arms]", "[tuning]\nrates = [1e-3]\nseeds = [1]\nsteps = 12\n\n[arms]"), "seeds that are used again: .1."),
        (("[arms]", "[tuning]\nrates = [1e-3]\nseeds = [9]\nsteps = 5\n\n[arms]"), "steps = 5 has to be 10 or more"),
        (("[arms]", "[tuning]\nrates = [1e-3, 1.0000001e-3]\nseeds = [9]\nsteps = 12\n\n[arms]"), "equal to six digits"),
        (("[arms]", "[minor]\narms = ['none']\nseeds = [1]\n\n[arms]"), "arms that there are not: none"),
        (("[arms]", "[continued]\ndiff = { arm = 'standard', top_keys = 9 }\n\n[arms]"), "with a stage that is left"),
        (("mentions = 5", "mentions = 3"), "leaves no number"),
        (("[[4, 48], [2, 64]]", "[4, 48]"), "shapes"),
        (('template = " {city} {number}."', 'template = " {city}:"'), "has to hold"),
        (("diff = {", "diff = 3 #"), "'arms' expected"),
        (('{ attention = "v1"', '{ atention = "v1"'), "no field 'atention'"),
        (('{ attention = "v1"', '{ attention_dropout = 0.1, attention = "v1"'), "no run could be repeated"),
        (("lengths = [48]", "lengths = 48"), "'lengths' expected"),
        (("learning_rate = 4e-3", "learning_rate = '4e-3'"), "'learning_rate'"),
        (("steps = 12", "steps = 0"), "steps = 0"),
        (("near = 0.3", "near = 3.0"), "no shares"),
        (("learning_rate = 4e-3", "learning_rate = nan"), "above 0"),
        (("pad_token_id = 1", "pad_token_id = 900"), "arm 'diff'"),
        (("hidden_size = 32", "hidden_act = 'nope', hidden_size = 32"), "arm 'diff'"),
        (("prompts = 10", "prompts = 0"), "prompts = 0"),
        (("distractors = [0, 1]", "distractors = []"), "hold a number each"),
        (("[2, 3]", "[3, 2]"), "fewest and the most"),
        (("standard = {", "'../up' = {"), "no names of folders"),
        (('name = "small"', 'name = "a/b"'), "no names of folders"),
    ],
)
def test_a_bad_recipe_is_one_clear_line(tmp_path, change, words):
    path = tmp_path / "recipe.toml"
    if change:
        path.write_text(PIECE.replace(*change))
        assert path.read_text() != PIECE
    with pytest.raises(DiffscopeError, match=words):
        recipe = Recipe.load(str(path))
        recipe.config("diff", 400)


@pytest.mark.parametrize("minor", ["", '[minor]\narms = ["top-2"]\nseeds = [7]\n', '[minor]\narms = ["standard"]\nseeds = [1]\n'])
def test_a_continued_arm_is_trained_after_the_other_with_its_seeds(tmp_path, minor):
    text = FORMING.replace('[minor]\narms = ["top-2"]\nseeds = [1]\n', minor)
    with pytest.raises(
        DiffscopeError, match="'top-2' is trained after 'standard' and with its seeds; name it in .minor., and not"
    ):
        recipe_in(tmp_path, text)


def test_a_recipe_that_is_not_utf_8_is_one_clear_line(tmp_path):
    (tmp_path / "recipe.toml").write_bytes(PIECE.replace("small", "pi\xe8ce").encode("latin-1"))
    with pytest.raises(DiffscopeError, match="not a complete recipe"):
        Recipe.load(str(tmp_path / "recipe.toml"))


CONTROLS_OF_THE_COHORT = set(
    "standard standard-norm double-width top-8 signed gated diff lambda-1 lambda-0 scalar no-norm low-rank diff-v2".split()
)


@pytest.mark.parametrize("preset", ["laptop", "gpu"])
def test_presets_match_their_arms_within_a_hundredth(preset):
    recipe = Recipe.load(preset)
    rows = {row["arm"]: row for row in recipe.table(recipe.vocab_size + 273)}
    assert set(rows) == CONTROLS_OF_THE_COHORT and len(recipe.seeds) == 8 and len(recipe.minor.seeds) == 6
    assert all(abs(row["ratio"] - 1) < 0.01 for row in rows.values())
    heads, width = ({arm: row[name] for arm, row in rows.items()} for name in ("num_attention_heads", "head_dim"))
    assert heads["standard"] == 2 * heads["diff"] and width["standard"] == width["diff"]
    assert (heads["double-width"], width["double-width"]) == (heads["diff"], 2 * width["diff"])


def test_a_step_draws_one_of_its_shapes():
    stage = Stage(1, ((4, 48), (2, 64)), 0.1, (2, 3), 5)
    task = Retrieval(diffscope.load("mini-diff").tokenizer).with_template(" {city} {number}.")
    shapes = {stage.draw(task, np.random.default_rng([0, step]))[0].shape for step in range(20)}
    assert shapes == {(4, 48), (2, 64)}


def test_short_prompts_have_fewer_mentions_and_cities_in_proportion():
    stage = Stage(1, ((2, 96), (2, 320)), 0.1, (2, 24), 30, spacing=6.4)
    task = Retrieval(diffscope.load("mini-diff").tokenizer).with_template(" {city} {number}.")
    most = {96: 0, 320: 0}
    for step in range(200):
        _, kind = stage.draw(task, np.random.default_rng([0, step]))
        first, again = ((kind == number).sum(1) // 2 for number in (2, 1))  # two tokens a number
        assert set(first + again) == {15 if kind.shape[1] == 96 else 30} and first.min() >= 2
        most[kind.shape[1]] = max(most[kind.shape[1]], int(first.max()))
    assert most == {96: 12, 320: 24}
    short = Stage(1, ((2, 16),), 0.1, (2, 24), 30, spacing=6.4)
    assert [mistake for mistake, right in short.rules() if not right] == [
        "spacing = 6.4 leaves a shape with less than 3 mentions"
    ]
    few = replace(short, shapes=((2, 48),), needles=(1, 2), mentions=10, spacing=16)  # 3 mentions, of 2 * 3 / 10 cities
    assert [mistake for mistake, right in few.rules() if not right] == [
        "spacing = 16 leaves a shape without a city; give longer ones, or more needles"
    ]


def test_a_stage_without_needles_is_plain_text():
    task = Retrieval(diffscope.load("mini-diff").tokenizer, held_out=False)
    ids, kind = Stage(1, ((3, 70),), 1.0).draw(task, np.random.default_rng(0))
    assert ids.shape == (3, 70) and (ids[:, 0] == task.tokenizer.bos_token_id).all() and not kind.any()
    text = task.filler.ids.tolist()
    run = ids[1, 1:].tolist()
    assert any(text[start : start + 69] == run for start in range(len(text)))


def test_plain_text_begins_as_the_tokenizer_begins_every_text():
    task = Retrieval(tokenizer("qwen"))  # which puts nothing before it
    ids, _ = Stage(1, ((3, 70),), 1.0).draw(task, np.random.default_rng(0))
    assert ids.shape == (3, 70) and ids.dtype == np.int64 and task.filler.cuts[task.filler.ids == ids[0, 0]].any()


COHORT = {
    "diff": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2),
    "standard": dict(attention="standard", num_attention_heads=4, num_key_value_heads=4),
    "signed": dict(attention="signed", num_attention_heads=4, num_key_value_heads=4),
    "low rank": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2, second_dim=4),
    "v2": dict(attention="v2", num_attention_heads=4, num_key_value_heads=4),
    "lambda 0": dict(attention="v1", num_attention_heads=2, num_key_value_heads=2, fixed_lambda=0.0),
    "plus": dict(attention="plus", num_attention_heads=2, num_key_value_heads=2),
    "d plus": dict(attention="d_plus", num_attention_heads=2, num_key_value_heads=2),
    "shared A2": dict(attention="shared_a2", num_attention_heads=2, num_key_value_heads=2),
    "shared A2, lambda 0": dict(attention="shared_a2", num_attention_heads=2, num_key_value_heads=2, fixed_lambda=0.0),
    "standard, norm": dict(attention="standard", num_attention_heads=4, num_key_value_heads=4, head_norm="rms"),
    "as it is": dict(attention="v2", num_attention_heads=4, num_key_value_heads=4, intermediate_size=40),
}


def used(model) -> int:
    """Parameters that learn: those whose gradient is not zero throughout, by rows of a matrix."""
    ids = torch.arange(500).view(5, 100)  # every row of the embedding
    model(ids, labels=ids).loss.backward()
    rows = [(p.grad.flatten(1) if p.dim() > 1 else p.grad[:, None]).abs().sum(1) > 0 for p in model.parameters()]
    return sum(int(learns.sum()) * p[0].numel() for learns, p in zip(rows, model.parameters()))


def test_arms_are_matched_in_parameters_by_the_width_of_their_mlps():
    recipe = replace(pair(), arms=COHORT, model={**pair().model, "hidden_size": 64, "intermediate_size": 160})
    rows = {row["arm"]: row for row in recipe.table(500)}
    counts = {arm: used(DiffForCausalLM(recipe.config(arm, 500))) for arm in COHORT}
    assert {arm: row["parameters"] for arm, row in rows.items()} == counts
    assert all(abs(row["ratio"] - 1) < 0.005 for arm, row in rows.items() if arm != "as it is")
    assert rows["diff"]["intermediate_size"] == 160 and rows["as it is"]["intermediate_size"] == 40
    assert rows["signed"]["intermediate_size"] < rows["standard"]["intermediate_size"] < rows["low rank"]["intermediate_size"]


def test_an_arm_too_large_to_match_is_refused():
    recipe = replace(pair(), arms=COHORT, model={**pair().model, "hidden_size": 64, "intermediate_size": 1})
    with pytest.raises(DiffscopeError, match="without its MLPs"):
        recipe.config("signed", 500)
