"""What each branch adds to the logits

What A1 and −λ·A2 of every head add to the logit of the answer, to the mean of the distractors', and to the difference,
in nats. In grey −λ·A2 with the A2 of other prompts. It is direct: what later layers make of a head is left out.
"""

import diffscope
from diffscope import figures, readings, tasks

scope, example = diffscope.load("mini-diff"), tasks.examples()[2]
cap = scope.capture(example.text, spans=example.spans)
asked = readings.question(scope, cap, example.answer, example.distractors)
reading = readings.branches(scope, asked, readings.synthetic_prompts(scope, len(asked.ids), 3))
figure = figures.attribution(reading)
