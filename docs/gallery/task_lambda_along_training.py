"""λ along training

The coefficient of A2 of every layer at each checkpoint, one layer set apart. Steps are evenly spaced.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scope = diffscope.load("mini-diff")
at = {step: scope.at(step) for step in scope.checkpoints}
captures = {step: each.capture(example.text, spans=example.spans) for step, each in at.items()}
figure = figures.training(captures, statistic="lambda", layer=0)
