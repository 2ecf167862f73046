"""A map along training

D of one head at every checkpoint of a training, on one scale: what is added is blue, what is taken away orange. A long
prompt is drawn in bins, each of which shows its value of largest magnitude.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scope = diffscope.load("mini-diff")
at = {step: scope.at(step) for step in scope.checkpoints}
captures = {step: each.capture(example.text, spans=example.spans) for step, each in at.items()}
figure = figures.checkpoints(captures, layer=1, head=0)
