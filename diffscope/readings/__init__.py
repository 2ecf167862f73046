"""What pages and notebooks say of a capture: labelled numbers beside their controls, and one sentence that is computed from them.

>>> import diffscope
>>> from diffscope import readings
>>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
>>> capture = diffscope.load("mini-diff").capture(text, spans={"answer": "7421"})
>>> print(readings.of_head(capture, layer=1, head=0).sentence.partition(". ")[0])
At the last token L1H0 finds the answer: 84 % of |D| is on it (uniform attention: 13 %)
"""

from diffscope.readings.comparison import differences
from diffscope.readings.edit_costs import interventions
from diffscope.readings.edit_effects import effects
from diffscope.readings.gains import amplifier
from diffscope.readings.head_costs import ablations
from diffscope.readings.head_types import head_types
from diffscope.readings.heads import answer_heads, of_head
from diffscope.readings.layers import by_layer
from diffscope.readings.logits import branches
from diffscope.readings.map_structure import RANK_DEFINITIONS, composition, ranks, ranks_sentence
from diffscope.readings.noise import noise_cost, rejection, rejection_sentence
from diffscope.readings.patching import patched_heads, patched_paths
from diffscope.readings.predictions import (
    Prediction,
    Question,
    answers,
    encode_question,
    next_tokens,
    other_prompts,
    predict,
    question,
    synthetic_prompts,
)
from diffscope.readings.prompt_parts import allocation, bars
from diffscope.readings.reading import Reading
from diffscope.readings.retrieval import contrast, depths
from diffscope.readings.score_parts import score_parts
from diffscope.readings.second_map import where_a2_works
from diffscope.readings.snr import signal_to_noise
from diffscope.readings.training import along_training

__all__ = [
    "RANK_DEFINITIONS",
    "Prediction",
    "Question",
    "Reading",
    "ablations",
    "allocation",
    "along_training",
    "amplifier",
    "answer_heads",
    "answers",
    "bars",
    "branches",
    "by_layer",
    "composition",
    "contrast",
    "depths",
    "differences",
    "effects",
    "encode_question",
    "head_types",
    "interventions",
    "next_tokens",
    "noise_cost",
    "of_head",
    "other_prompts",
    "patched_heads",
    "patched_paths",
    "predict",
    "question",
    "ranks",
    "ranks_sentence",
    "rejection",
    "rejection_sentence",
    "score_parts",
    "signal_to_noise",
    "synthetic_prompts",
    "where_a2_works",
]
