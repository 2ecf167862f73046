"""λ along training

The coefficient of A2 of every layer at each checkpoint, one layer set apart. Steps are evenly spaced.
"""

import diffscope
from diffscope import figures, tasks

example = tasks.examples()[0]
scopes = {step: diffscope.load(f"mini-diff@{step}") for step in (0, 308, 1036)}
captures = {step: scope.capture(example.text, spans=example.spans) for step, scope in scopes.items()}
figure = figures.training(captures, statistic="lambda", layer=0)
