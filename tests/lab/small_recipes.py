"""Recipes small enough to train in a test."""

from diffscope.lab.training.recipe import Recipe

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
distractors = [0, 1]
prompts = 10
template = " {city} {number}."

[grid]
lengths = [96, 128]
distractors = [0, 3]
prompts = 5
template = " {city} {number}."
"""  # noqa: E501


SMALL = """
from dataclasses import replace
from diffscope.lab.training.recipe import Recipe, Stage
recipe = Recipe.load("mini")
stages = (Stage(12, ((2, 72),), (2, 2), 6, 0.1), Stage(12, ((2, 96),), (2, 3), 7, 0.3))
model = {**recipe.model, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
recipe = replace(recipe, vocab_size=400, stages=stages, model=model, checkpoints=3, evaluate_every=20)
"""


def small() -> Recipe:
    names = {}
    exec(SMALL, names)
    return names["recipe"]
