"""A head along training

The share of |D| that every head gives the answer at each checkpoint, one head set apart, beside uniform attention.
Steps are evenly spaced. What happened between two checkpoints is not known.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scope = diffscope.load("mini-diff")
at = {step: scope.at(step) for step in scope.checkpoints}
captures = {step: each.capture(example.text, spans=example.spans) for step, each in at.items()}
figure = figures.training(captures, statistic="answer", layer=1, head=0)
