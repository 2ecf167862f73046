"""λ along training

The coefficient of A2 of every layer at each checkpoint, one layer set apart. Steps are evenly spaced.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scope = diffscope.load("mini-diff")
captures = {step: scope.at(step).capture(example.text, spans=example.spans) for step in scope.checkpoints}
figure = figures.training(captures, statistic="lambda", layer=0)
