"""What pages and notebooks say of a capture: labelled numbers beside their controls, and one sentence that is computed from them.

>>> import diffscope
>>> from diffscope import readings
>>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
>>> capture = diffscope.load("mini-diff").capture(text, spans={"answer": "7421"})
>>> print(readings.of_head(capture, layer=1, head=0).sentence.partition(". ")[0])
At the last token L1H0 finds the answer: 84 % of |D|, over 99 % of it positive, where uniform attention would give 13 %
"""

from diffscope.readings.bars import bars
from diffscope.readings.comparison import differences
from diffscope.readings.depth_contrast import contrast
from diffscope.readings.edit_costs import interventions
from diffscope.readings.edit_effects import effects
from diffscope.readings.finders import finders
from diffscope.readings.gains import amplifier
from diffscope.readings.head_costs import ablations
from diffscope.readings.heads import of_head
from diffscope.readings.layers import by_layer
from diffscope.readings.logits import branches
from diffscope.readings.map_structure import composition
from diffscope.readings.noise import rejection
from diffscope.readings.predictions import answers, asked, next_tokens, predict
from diffscope.readings.prompt_parts import allocation
from diffscope.readings.question import made_up, other_prompts, question
from diffscope.readings.reading import Reading
from diffscope.readings.retrieval import depths
from diffscope.readings.snr import signal_to_noise
from diffscope.readings.training import along_training

__all__ = [
    "Reading",
    "ablations",
    "allocation",
    "along_training",
    "amplifier",
    "answers",
    "asked",
    "bars",
    "branches",
    "by_layer",
    "composition",
    "contrast",
    "depths",
    "differences",
    "effects",
    "finders",
    "interventions",
    "made_up",
    "next_tokens",
    "of_head",
    "other_prompts",
    "predict",
    "question",
    "rejection",
    "signal_to_noise",
]
