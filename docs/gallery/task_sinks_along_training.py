"""Sinks along training

The share of |D| that the last token gives to the first token, by head, at each checkpoint. One head is set apart. A
small model on short texts may have no sink at all.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scope = diffscope.load("mini-diff")
at = {step: scope.at(step) for step in scope.checkpoints}
captures = {step: each.capture(example.text, spans=example.spans) for step, each in at.items()}
figure = figures.training(captures, statistic="sink", layer=1, head=0)
