"""Recipes small enough to train in a test."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from diffscope.lab.training.initialisation import tokenizer_for
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.train import train_run
from diffscope.tasks.text import standard_library_text
from diffscope.tasks.text_folder import TextFolder

PIECE = """
name = "small"
seeds = [0, 1]
vocab_size = 400
words = [" unknown"]
learning_rate = 4e-3
weight_decay = 0.05
checkpoints = [5]
evaluate_every = 5
match = "diff"
model = { hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2, max_position_embeddings = 256, tie_word_embeddings = true, bos_token_id = 0, eos_token_id = 0, pad_token_id = 1 }

[arms]
diff = { attention = "v1", num_attention_heads = 2, num_key_value_heads = 2 }
standard = { attention = "standard", num_attention_heads = 4, num_key_value_heads = 4 }

[[stages]]
steps = 12
warmup = 2
cooldown = 0.4
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

# What a cohort has beside that which is formed first and then compared.
FORMING = PIECE.replace(
    "[arms]",
    """
[minor]
arms = ["top-2"]
seeds = [1]

[continued]
top-2 = { arm = "standard", top_keys = 16 }

[tuning]
rates = [1e-3, 4e-3]
seeds = [100, 101]
steps = 10

[arms]
top-2 = { attention = "top_k", top_keys = 2, num_attention_heads = 4, num_key_value_heads = 4 }
""",
)
FORMING = FORMING.replace(
    "[evaluation]",
    """
[[stages]]
steps = 8
warmup = 2
shapes = [[2, 96]]
needles = [2, 6]
mentions = 8
text_weight = 0.1
template = " {city} {number}."

[evaluation]
""",
).replace("distractors = [0, 3]", "distractors = [3, 20]\nwithout = [[96, 20]]")

MODEL = PIECE[PIECE.index("model = ") : PIECE.index("[arms]")]

# Bigram-Backcopy, whose vocabulary is its own and has nothing to pad with.
COPYING = f"""
name = "copying"
seeds = [0]
vocab_size = 64
learning_rate = 4e-3
weight_decay = 0.05
checkpoints = [4]
evaluate_every = 5
keep_weights = true
match = "diff"
{MODEL.replace(", pad_token_id = 1", "")}
[arms]
diff = {{ attention = "v1", num_attention_heads = 2, num_key_value_heads = 2 }}

[[stages]]
steps = 12
task = "backcopy"
warmup = 2
shapes = [[8, 32]]
text_weight = 1.0

[copying]
length = 32
rows = 8
"""

# Running text of a corpus (:func:`small_corpus`), in half of whose windows lookups are planted.
RUNNING = f"""
name = "running"
seeds = [0]
vocab_size = 700
learning_rate = 4e-3
weight_decay = 0.05
checkpoints = []
evaluate_every = 5
formed_by = "mean of three"
keep_weights = true
match = "diff"
{MODEL}
[arms]
diff = {{ attention = "v1", num_attention_heads = 2, num_key_value_heads = 2 }}

[[stages]]
steps = 12
task = "planted"
warmup = 2
shapes = [[3, 96]]
needles = [1, 2]
planted = 0.5
text_weight = 1.0
template = " {{city}} {{number}}."

[evaluation]
lengths = [64]
distractors = [0, 1]
prompts = 5
template = " {{city}} {{number}}."

[evaluation_text]
length = 64
texts = 4

[grid]
lengths = [64]
distractors = [1]
prompts = 5
template = " {{city}} {{number}}."

[plain_text]
length = 64
texts = 6
"""


# A pair of models that learn short prompts first and longer ones then.
PAIR = PIECE[: PIECE.index("[[stages]]")].replace("checkpoints = [5]", "checkpoints = [6]")
PAIR = PAIR.replace("seeds = [0, 1]", "seeds = [0]").replace("evaluate_every = 5", "evaluate_every = 20")
PAIR += """
[[stages]]
steps = 12
warmup = 3
shapes = [[2, 72]]
needles = [2, 2]
mentions = 6
text_weight = 0.1

[[stages]]
steps = 12
cooldown = 0.5
shapes = [[2, 96]]
needles = [2, 3]
mentions = 7
text_weight = 0.3

[evaluation]
lengths = [128]
distractors = [3]
prompts = 20

[plain_text]
length = 64
texts = 4
"""


def recipe_in(folder: Path, text: str) -> Recipe:
    """Return the recipe of a text, which is written into a folder."""
    (folder / "small.toml").write_text(text)
    return Recipe.load(str(folder / "small.toml"))


def small_corpus(folder: Path, recipe: Recipe) -> Recipe:
    """Put a corpus into a folder, and return the recipe as one of that corpus."""
    texts = standard_library_text(held_out=True)[:300]
    for name, part in (("train", texts[:200]), ("held_out", texts[200:260]), ("other_domain", texts[260:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"document": name, "text": text}) + "\n" for text in part))
    tokenizer_for(Recipe.load("laptop")).save_pretrained(folder / "tokenizer")
    return replace(recipe, corpus=TextFolder(folder).digest)


def pair() -> Recipe:
    """Return the recipe of a pair of models, as small as it still trains."""
    with TemporaryDirectory() as folder:
        return recipe_in(Path(folder), PAIR)


def train(recipe: Recipe, arm: str, out: Path, seed: int | None = None, device="cpu", tensorboard=False, progress=None) -> Path:
    """Train one run in its place in the folder of a cohort, by default with the recipe's first seed; return its folder."""
    seed = recipe.seeds[0] if seed is None else seed
    place = Path(arm) / f"seed-{seed}"
    board = out / "tensorboard" / place if tensorboard else None
    train_run(recipe, arm, seed, out / place, device, board=board, progress=progress)
    return out / place
